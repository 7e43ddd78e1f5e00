#include "core/math/cast16.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/base/half.h"

namespace tfdist {
namespace {

constexpr size_t kBlock = 2048;  // values

TFDIST_MULTIVERSION
void FloatToHalf(const float* in, Half* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<Half>(in[i]);
}

TFDIST_MULTIVERSION
void HalfToFloat(const Half* in, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
}

TFDIST_MULTIVERSION
void FloatToBFloat16(const float* in, BFloat16* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = FromFloat(in[i]);
}

TFDIST_MULTIVERSION
void BFloat16ToFloat(const BFloat16* in, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = ToFloat(in[i]);
}

}  // namespace

void CastFromFloat32(DType to, const float* in, void* out, size_t count) {
  switch (to) {
    case DType::kFloat16:
      return FloatToHalf(in, static_cast<Half*>(out), count);
    case DType::kBFloat16:
      return FloatToBFloat16(in, static_cast<BFloat16*>(out), count);
    case DType::kFloat32:
      std::memcpy(out, in, count * sizeof(float));
      return;
    default:
      std::abort();
  }
}

void CastToFloat32(DType from, const void* in, float* out, size_t count) {
  switch (from) {
    case DType::kFloat16:
      return HalfToFloat(static_cast<const Half*>(in), out, count);
    case DType::kBFloat16:
      return BFloat16ToFloat(static_cast<const BFloat16*>(in), out, count);
    case DType::kFloat32:
      std::memcpy(out, in, count * sizeof(float));
      return;
    default:
      std::abort();
  }
}

void CastTo16(DType wire, DType from, const void* in, void* out, size_t count) {
  float floats[kBlock];
  char cast[kBlock * sizeof(uint16_t)];
  const size_t width = ByteSize(wire);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    const float* source = floats;
    if (from == DType::kFloat64) {
      const double* doubles = static_cast<const double*>(in) + begin;
      for (size_t i = 0; i < n; ++i) floats[i] = static_cast<float>(doubles[i]);
    } else {
      source = static_cast<const float*>(in) + begin;
    }
    CastFromFloat32(wire, source, cast, n);
    std::memcpy(static_cast<char*>(out) + begin * width, cast, n * width);
  }
}

void CastFrom16InPlace(DType wire, DType to, void* values, size_t count, int64_t divisor) {
  float floats[kBlock];
  const size_t width = ByteSize(wire);
  for (size_t end = count; end > 0;) {
    const size_t n = end % kBlock == 0 ? kBlock : end % kBlock;
    const size_t begin = end - n;
    CastToFloat32(wire, static_cast<const char*>(values) + begin * width, floats, n);
    if (to == DType::kFloat64) {
      double* doubles = static_cast<double*>(values) + begin;
      for (size_t i = 0; i < n; ++i) doubles[i] = floats[i];
    } else {
      std::memcpy(static_cast<float*>(values) + begin, floats, n * sizeof(float));
    }
    if (divisor != 1) {
      Divide(to, static_cast<char*>(values) + begin * ByteSize(to), n, divisor);
    }
    end = begin;
  }
}

}  // namespace tfdist
