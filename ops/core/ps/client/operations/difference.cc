#include "core/ps/client/operations/difference.h"

#include <cstdint>
#include <cstdlib>

namespace tfdist::ps {
namespace {

template <typename T>
void SubtractPlain(void* out, const void* now, const void* then, size_t count) {
  auto* o = static_cast<T*>(out);
  const auto* a = static_cast<const T*>(now);
  const auto* b = static_cast<const T*>(then);
  for (size_t i = 0; i < count; ++i) o[i] = a[i] - b[i];
}

// now + (-then): the sign is the first bit of both formats, and Add knows how to round.
void SubtractHalf(DType dtype, void* out, const void* now, const void* then, size_t count) {
  auto* negative = static_cast<uint16_t*>(out);
  const auto* bits = static_cast<const uint16_t*>(then);
  for (size_t i = 0; i < count; ++i) negative[i] = bits[i] ^ uint16_t { 0x8000 };
  Add(dtype, out, out, now, count);
}

}  // namespace

void Subtract(DType dtype, void* out, const void* now, const void* then, size_t count) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return SubtractHalf(dtype, out, now, then, count);
    case DType::kFloat32:
      return SubtractPlain<float>(out, now, then, count);
    case DType::kFloat64:
      return SubtractPlain<double>(out, now, then, count);
    case DType::kInt32:
      return SubtractPlain<uint32_t>(out, now, then, count);
    case DType::kInt64:
      return SubtractPlain<uint64_t>(out, now, then, count);
    default:
      std::abort();  // no parameter is of another type
  }
}

}  // namespace tfdist::ps
