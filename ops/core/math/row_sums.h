// Sums of tensors of which every rank has some rows, such as gradients of an embedding.
//
//   rank 0: ids 7 2 7      7 twice: added first     ids 7 2 |
//   rank 1: ids 2 9        ---------------------->  ids 2 9 | gathered: 7 2 2 9 5  ->  7 2 9 5
//   rank 2: ids 5                                   ids 5   | on every rank
//   rank 3: none                                            |
//
// 1. Every rank adds up its rows of equal ids, and tells the others how many are left.
// 2. Ids and rows travel together, one block a rank, and are added up once more, in rank order.
// Cost: the ranks together send (N-1) R (r + i) bytes, where R counts the rows of all ranks as they
// travel, and r and i are the bytes of a row and of an id.
//
// Many rows of a small table are more than the table. Where R (r + i) exceeds 2 n (r + e), phase 2
// is a ring all-reduce of all n rows, of which each has one more element, of e bytes: it counts the
// ranks that have the row. All ranks know the same numbers and so choose the same. The result is
// the same too, but for the order of ids: rows that no rank has are left out, because optimizers
// may do something to a row with a gradient of zero.
#ifndef TFDIST_OPS_CORE_MATH_ROW_SUMS_H_
#define TFDIST_OPS_CORE_MATH_ROW_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/math/dtype.h"

namespace tfdist {

// What a rank tells the others in phase 1.
struct RowCount {
  int64_t ids = 0;         // how many it has
  int64_t table_rows = 0;  // n, or -1: it does not know, or has ids that are not below n
};

// n if the table is to travel, -1 if rows are.
int64_t TableThatTravels(const std::vector<RowCount>& ranks, size_t row_bytes, size_t id_bytes,
                         size_t element_bytes);

// Rows that are added up one after another.
class RowSums {
 public:
  // `sums` has room for a row of `width` elements for each place.
  RowSums(DType dtype, size_t width, char* sums) : dtype_(dtype), width_(width), sums_(sums) {}

  // Row i goes to places[i]. Places are counted up as they occur first, over all calls.
  void Add(const char* rows, const uint32_t* places, size_t count);

 private:
  const DType dtype_;
  const size_t width_;
  char* const sums_;
  size_t known_ = 0;  // places that have occurred
};

// One, in any type that can be reduced.
void SetOne(DType dtype, void* element);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_ROW_SUMS_H_
