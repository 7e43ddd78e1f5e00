// Sums of sparse tensors, such as the gradients of an embedding: every rank has some of the rows.
//
//   rank 0: ids 7 2 7      7 repeats: added first   ids 7 2 |
//   rank 1: ids 2 9        ---------------------->  ids 2 9 | gathered: 7 2 2 9 5  ->  7 2 9 5
//   rank 2: ids 5                                   ids 5   | on every rank
//   rank 3: none                                            |
//
// 1. Every rank adds its rows of equal ids, and sends the number of its distinct ids to all others.
// 2. An all-gather sends ids and rows together, one block for each rank. Every rank adds them again
//    in rank order.
// Cost: the ranks together send (N-1) R (r + i) bytes, where R is the sum of the numbers of step 1.
// r and i are the bytes of a row and of an id.
//
// Many rows of a small table can exceed the table. Where R (r + i) > 2 n (r + e), step 2 is a ring
// all-reduce of the whole table of n rows. Each row then has one more element, of e bytes, which
// counts the ranks that have the row; 256 ranks or more, whose count 8 bits do not hold, gather
// such rows. All ranks know the same numbers and make the same choice. The result is the same
// except for the order of ids: rows that no rank has are left out, because an optimizer may update
// a row even if its gradient is zero.
#ifndef TFDIST_OPS_CORE_MATH_ROW_SUMS_H_
#define TFDIST_OPS_CORE_MATH_ROW_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/math/dtype.h"

namespace tfdist {

// The data that a rank sends in step 1.
struct RowCount {
  int64_t ids = 0;         // the number of its distinct ids
  int64_t table_rows = 0;  // n; -1: unknown, or an id is not in [0, n)
};

// n if the ranks are to all-reduce the dense table; -1 if they are to gather rows.
int64_t DenseTableRows(const std::vector<RowCount>& ranks, size_t row_bytes, size_t id_bytes,
                       size_t element_bytes);

// Adds rows to the sums of their ids.
class RowSums {
 public:
  // `sums` has memory for a row of `width` elements for each index.
  RowSums(DType dtype, size_t width, char* sums) : dtype_(dtype), width_(width), sums_(sums) {}

  // Adds row i to sum indices[i]. Over all calls, new indices count up from 0 (UniqueIds::indices).
  void Add(const char* rows, const uint32_t* indices, size_t count);

 private:
  const DType dtype_;
  const size_t width_;
  char* const sums_;
  size_t known_ = 0;  // indices that have occurred
};

// Stores 1 in any type that can be reduced.
void SetOne(DType dtype, void* element);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_ROW_SUMS_H_
