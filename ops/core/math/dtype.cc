#include "core/math/dtype.h"

#include <cstdlib>

#include "core/base/half.h"
#include "core/base/status.h"

namespace tfdist {
namespace {

TFDIST_MULTIVERSION
void AddHalf(Half* out, const Half* a, const Half* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<Half>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
  }
}

TFDIST_MULTIVERSION
void DivideHalf(Half* values, size_t count, float divisor) {
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<Half>(static_cast<float>(values[i]) / divisor);
  }
}

TFDIST_MULTIVERSION
void AddBFloat16(BFloat16* out, const BFloat16* a, const BFloat16* b, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = FromFloat(ToFloat(a[i]) + ToFloat(b[i]));
}

TFDIST_MULTIVERSION
void DivideBFloat16(BFloat16* values, size_t count, float divisor) {
  for (size_t i = 0; i < count; ++i) values[i] = FromFloat(ToFloat(values[i]) / divisor);
}

template <typename T>
void AddPlain(void* out, const void* a, const void* b, size_t count) {
  auto* o = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  for (size_t i = 0; i < count; ++i) o[i] = static_cast<T>(x[i] + y[i]);
}

// Integer overflow wraps, as it does in TensorFlow.
template <typename T, typename Unsigned>
void AddWrapping(void* out, const void* a, const void* b, size_t count) {
  AddPlain<Unsigned>(out, a, b, count);
  static_assert(sizeof(T) == sizeof(Unsigned));
}

void AddBool(void* out, const void* a, const void* b, size_t count) {
  auto* o = static_cast<uint8_t*>(out);
  const auto* x = static_cast<const uint8_t*>(a);
  const auto* y = static_cast<const uint8_t*>(b);
  for (size_t i = 0; i < count; ++i) o[i] = x[i] | y[i];
}

template <typename T>
void DividePlain(void* values, size_t count, int64_t divisor) {
  auto* v = static_cast<T*>(values);
  const T d = static_cast<T>(divisor);
  for (size_t i = 0; i < count; ++i) v[i] /= d;
}

// For types that the divisor may not fit into.
template <typename T>
void DivideSmall(void* values, size_t count, int64_t divisor) {
  auto* v = static_cast<T*>(values);
  const int32_t d = static_cast<int32_t>(divisor);
  for (size_t i = 0; i < count; ++i) v[i] = static_cast<T>(v[i] / d);
}

}  // namespace

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kBytes:
      return "bytes";
    case DType::kInt8:
      return "int8";
    case DType::kInt16:
      return "int16";
    case DType::kUInt8:
      return "uint8";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

size_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kBytes:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  std::abort();
}

std::string Describe(DType dtype, uint64_t elements) {
  return StrCat(Name(dtype), "[", elements, "]");
}

void Add(DType dtype, void* out, const void* a, const void* b, size_t count) {
  switch (dtype) {
    case DType::kFloat16:
      return AddHalf(static_cast<Half*>(out), static_cast<const Half*>(a),
                     static_cast<const Half*>(b), count);
    case DType::kBFloat16:
      return AddBFloat16(static_cast<BFloat16*>(out), static_cast<const BFloat16*>(a),
                         static_cast<const BFloat16*>(b), count);
    case DType::kFloat32:
      return AddPlain<float>(out, a, b, count);
    case DType::kFloat64:
      return AddPlain<double>(out, a, b, count);
    case DType::kInt32:
      return AddWrapping<int32_t, uint32_t>(out, a, b, count);
    case DType::kInt64:
      return AddWrapping<int64_t, uint64_t>(out, a, b, count);
    case DType::kInt8:
      return AddWrapping<int8_t, uint8_t>(out, a, b, count);
    case DType::kInt16:
      return AddWrapping<int16_t, uint16_t>(out, a, b, count);
    case DType::kUInt8:
      return AddPlain<uint8_t>(out, a, b, count);
    case DType::kBool:
      return AddBool(out, a, b, count);
    case DType::kBytes:
      break;
  }
  std::abort();  // opaque bytes are refused earlier
}

void Divide(DType dtype, void* values, size_t count, int64_t divisor) {
  switch (dtype) {
    case DType::kFloat16:
      return DivideHalf(static_cast<Half*>(values), count, static_cast<float>(divisor));
    case DType::kBFloat16:
      return DivideBFloat16(static_cast<BFloat16*>(values), count, static_cast<float>(divisor));
    case DType::kFloat32:
      return DividePlain<float>(values, count, divisor);
    case DType::kFloat64:
      return DividePlain<double>(values, count, divisor);
    case DType::kInt32:
      return DividePlain<int32_t>(values, count, divisor);
    case DType::kInt64:
      return DividePlain<int64_t>(values, count, divisor);
    case DType::kInt8:
      return DivideSmall<int8_t>(values, count, divisor);
    case DType::kInt16:
      return DivideSmall<int16_t>(values, count, divisor);
    case DType::kUInt8:
      return DivideSmall<uint8_t>(values, count, divisor);
    case DType::kBool:
    case DType::kBytes:
      break;
  }
  std::abort();
}

}  // namespace tfdist
