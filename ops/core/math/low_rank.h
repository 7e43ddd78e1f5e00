// The arithmetic of PowerSGD whose result every rank must get bit for bit: sums in a fixed order,
// on one instruction set, whatever the number of threads and the processor.
#ifndef TFDIST_OPS_CORE_MATH_LOW_RANK_H_
#define TFDIST_OPS_CORE_MATH_LOW_RANK_H_

#include <cstddef>

namespace tfdist {

// Makes the columns of a row-major matrix orthonormal, left to right (modified Gram-Schmidt, each
// column twice). columns <= rows.
//
// A column that depends on those before it, such as zeros, becomes an arbitrary one instead, the
// same on every rank. Were it left at zero, PowerSGD's next matrix Q would have a column of zeros
// for it, and so on for ever: the approximation would have lost a rank. NaN and infinities spread.
void Orthonormalize(float* matrix, size_t rows, size_t columns);

// Rows [begin, end) of out = left right^T, all row-major: left is [rows, rank], right
// [columns, rank], out [rows, columns].
void MultiplyTransposed(const float* left, const float* right, size_t begin, size_t end,
                        size_t columns, size_t rank, float* out);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_LOW_RANK_H_
