// The reduction of two values, for every element type and operation.
//
// The algorithms combine values in the same order on every rank, so every rank gets the same bits.
// The minimum or maximum of a NaN and a number is NaN, as in tf.reduce_min; of two NaNs it is the
// first, of +0 and -0, which are equal, the second. 16-bit floats are combined in float32 and
// rounded to nearest even. Integers wrap. For bools, sum and max are OR, product and min are AND.
#ifndef TFDIST_OPS_CORE_MATH_COMBINE_H_
#define TFDIST_OPS_CORE_MATH_COMBINE_H_

#include <cstddef>

#include "core/math/dtype.h"

namespace tfdist {

const char* Name(ReduceOp op);

// False for opaque bytes, and for a mean of bools.
bool CanReduce(DType dtype, ReduceOp op);

// out[i] = a[i] op b[i]; `out` may be `a` or `b`.
void Combine(DType dtype, ReduceOp op, void* out, const void* a, const void* b, size_t count);

// Fills `out` with the neutral element of `op`.
void FillIdentity(DType dtype, ReduceOp op, void* out, size_t count);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_COMBINE_H_
