// Element types, and the arithmetic of collectives on them.
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
  kBytes = 7,  // opaque: can be moved, not reduced
  kInt8 = 8,
  kInt16 = 9,
  kUInt8 = 10,
  kBool = 11,  // one byte, 0 or 1
};

// A mean is a sum, divided at the end. See combine.h.
enum class ReduceOp : uint8_t { kSum = 1, kMean = 2, kMin = 3, kMax = 4, kProduct = 5 };

const char* Name(DType dtype);
size_t ByteSize(DType dtype);

// For messages: "float32[10]".
std::string Describe(DType dtype, uint64_t elements);

// out[i] = a[i] + b[i]; `out` may be `a` or `b`. 16-bit floats are added in float32 and rounded to
// nearest even; integers wrap; bools are combined by OR.
void Add(DType dtype, void* out, const void* a, const void* b, size_t count);

// values[i] /= divisor. Integers truncate toward zero, as tf.reduce_mean does. Not for bools.
void Divide(DType dtype, void* values, size_t count, int64_t divisor);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_DTYPE_H_
