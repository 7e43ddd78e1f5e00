// Rows of tables as C functions take and give them.
#ifndef TFDIST_OPS_CORE_PS_SERVER_ROWS_C_API_H_
#define TFDIST_OPS_CORE_PS_SERVER_ROWS_C_API_H_

#include <cstdint>

// Rows of a table: as many ids, times of use and counts, and as many floats for each as its table
// says; and ids of rows that are removed.
struct tfdist_ps_rows {
  uint64_t count, removed_count;
  const int64_t* ids;
  const uint32_t *used, *counts;
  const float* content;
  const int64_t* removed;
};

#endif  // TFDIST_OPS_CORE_PS_SERVER_ROWS_C_API_H_
