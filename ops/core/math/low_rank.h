// The arithmetic of PowerSGD whose result must be bit-identical on every rank: sums in a fixed
// order and one instruction set, independent of the number of threads and of the processor.
#ifndef TFDIST_OPS_CORE_MATH_LOW_RANK_H_
#define TFDIST_OPS_CORE_MATH_LOW_RANK_H_

#include <cstddef>

namespace tfdist {

// Makes the columns of a row-major matrix orthonormal, left to right (modified Gram-Schmidt, two
// passes for each column). columns <= rows.
//
// A column that depends linearly on the earlier ones, such as zeros, is replaced by an arbitrary
// one, the same on every rank. A column of zeros would make the same column of PowerSGD's next
// matrix Q zero, in every later step: the approximation would have lost a rank. NaN and infinities
// propagate.
void Orthonormalize(float* matrix, size_t rows, size_t columns);

// Computes rows [begin, end) of out = left right^T. All matrices are row-major: left [rows, rank],
// right [columns, rank], out [rows, columns].
void MultiplyTransposed(const float* left, const float* right, size_t begin, size_t end,
                        size_t columns, size_t rank, float* out);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_LOW_RANK_H_
