// Casts between float32 or float64 and the 16-bit floats that travel instead.
//
// An all-reduce in 16 bits needs no extra memory. The cast values of a float32 tensor lie in the
// first half of the output (of a float64 tensor: in the first quarter), and the sum is cast back
// there:
//
//     input              [aaaa bbbb cccc dddd]
//     output, cast       [aabb ccdd .... ....]  all-reduced
//     output, cast back  [AAAA BBBB CCCC DDDD]
//
// CastTo16 goes upwards and CastFrom16InPlace downwards, both through a small buffer. No value is
// overwritten before it has been read, so the input may be the output.
#ifndef TFDIST_OPS_CORE_MATH_CAST16_H_
#define TFDIST_OPS_CORE_MATH_CAST16_H_

#include <cstddef>
#include <cstdint>

#include "core/math/dtype.h"

namespace tfdist {

// Rounds float32 values to `to` (float16 or bfloat16), to nearest even; copies them if `to` is
// float32.
void CastFromFloat32(DType to, const float* in, void* out, size_t count);

// The inverse, which is exact.
void CastToFloat32(DType from, const void* in, float* out, size_t count);

// Rounds `count` values of `from` (float32 or float64) to `wire` (float16 or bfloat16), to nearest
// even. Values beyond the range of `wire` become infinite.
void CastTo16(DType wire, DType from, const void* in, void* out, size_t count);

// Casts the `count` values of `wire` at the beginning of `values` to `to`, and divides them by
// `divisor` in the precision of `to`.
void CastFrom16InPlace(DType wire, DType to, void* values, size_t count, int64_t divisor);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_CAST16_H_
