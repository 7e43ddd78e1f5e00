// Rows of a table as arguments of C functions.
#ifndef TFDIST_OPS_CORE_PS_TABLE_ROWS_C_API_H_
#define TFDIST_OPS_CORE_PS_TABLE_ROWS_C_API_H_

#include <cstdint>

// `count` ids, times of use, counts, and rows of as many floats as the table's configuration says;
// and the ids of `removed_count` removed rows.
struct tfdist_ps_rows {
  uint64_t count, removed_count;
  const int64_t* ids;
  const uint32_t *used, *counts;
  const float* content;
  const int64_t* removed;
};

#endif  // TFDIST_OPS_CORE_PS_TABLE_ROWS_C_API_H_
