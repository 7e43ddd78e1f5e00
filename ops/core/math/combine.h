// What a reduction does to two values, for every element type and operation.
//
// Combining in the same order gives the same bits on every rank: the algorithms see to that order.
// A minimum or maximum of which one value is NaN is NaN, as in tf.reduce_min; of two NaNs it is the
// first. Of +0 and -0, which are equal, it is the second. 16-bit floats are combined in float32 and
// rounded to nearest even. Integers wrap. Of bools, sum and max are the disjunction, product and
// min the conjunction.
#ifndef TFDIST_OPS_CORE_MATH_COMBINE_H_
#define TFDIST_OPS_CORE_MATH_COMBINE_H_

#include <cstddef>

#include "core/math/dtype.h"

namespace tfdist {

const char* Name(ReduceOp op);

// Everything but opaque bytes can be reduced, and everything but bools averaged.
bool CanReduce(DType dtype, ReduceOp op);

// out[i] = a[i] op b[i]; `out` may be `a` or `b`.
void Combine(DType dtype, ReduceOp op, void* out, const void* a, const void* b, size_t count);

// What changes no value that it is combined with.
void FillIdentity(DType dtype, ReduceOp op, void* out, size_t count);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_COMBINE_H_
