// Element types and the arithmetic that collectives do on them.
#ifndef TFDIST_OPS_CORE_MATH_DTYPE_H_
#define TFDIST_OPS_CORE_MATH_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tfdist {

enum class DType : uint8_t {
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat32 = 3,
  kFloat64 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kBytes = 7,  // opaque: may be moved, not reduced
  kInt8 = 8,
  kInt16 = 9,
  kUInt8 = 10,
  kBool = 11,  // one byte, 0 or 1
};

// A mean is a sum that is divided at the end. See combine.h.
enum class ReduceOp : uint8_t { kSum = 1, kMean = 2, kMin = 3, kMax = 4, kProduct = 5 };

size_t ByteSize(DType dtype);

// Such as float32[10], for messages.
std::string Describe(DType dtype, uint64_t elements);

// out[i] = a[i] + b[i]; `out` may be `a` or `b`. 16-bit floats are added in float32 and rounded to
// nearest even; integers wrap; of bools it is the disjunction.
void Add(DType dtype, void* out, const void* a, const void* b, size_t count);

// values[i] /= divisor. Integers truncate toward zero, as tf.reduce_mean does. Not for bools.
void Divide(DType dtype, void* values, size_t count, int64_t divisor);

// Rounds float32 to `to`, to nearest even, or copies it: float32, float16 or bfloat16.
void Narrow(DType to, const float* in, void* out, size_t count);
// The other way, which is exact.
void Widen(DType from, const void* in, float* out, size_t count);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_DTYPE_H_
