// Floats that travel as 16-bit ones, in the memory that their sum needs anyway.
//
// While a float32 tensor is all-reduced its narrowed values lie in the first half of the output (of
// a float64 tensor: in the first quarter), and are widened there when the sum has come:
//
//     input             [aaaa bbbb cccc dddd]
//     output, narrowed  [aabb ccdd .... ....]  what is all-reduced
//     output, widened   [AAAA BBBB CCCC DDDD]
//
// Narrowing goes upwards and widening downwards, each in blocks that are computed beside: nothing
// is overwritten before it has been read, so the input may be the output.
#ifndef TFDIST_OPS_CORE_MATH_CAST16_H_
#define TFDIST_OPS_CORE_MATH_CAST16_H_

#include <cstddef>
#include <cstdint>

#include "core/math/dtype.h"

namespace tfdist {

// Rounds `count` values of `from`, float32 or float64, to `wire`, float16 or bfloat16, to nearest
// even. What is too large for `wire` becomes infinite.
void NarrowTo(DType wire, DType from, const void* in, void* out, size_t count);

// Turns `count` values of `wire` at the beginning of `values` into values of `to`, divided by
// `divisor` in the precision of `to`.
void WidenInPlace(DType wire, DType to, void* values, size_t count, int64_t divisor);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_CAST16_H_
