#include "core/math/cast16.h"

#include <algorithm>
#include <cstring>

namespace tfdist {
namespace {

constexpr size_t kBlock = 2048;

}  // namespace

void NarrowTo(DType wire, DType from, const void* in, void* out, size_t count) {
  float floats[kBlock];
  char narrowed[kBlock * sizeof(uint16_t)];
  const size_t width = ByteSize(wire);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    const float* source = floats;
    if (from == DType::kFloat64) {
      const double* wide = static_cast<const double*>(in) + begin;
      for (size_t i = 0; i < n; ++i) floats[i] = static_cast<float>(wide[i]);
    } else {
      source = static_cast<const float*>(in) + begin;
    }
    Narrow(wire, source, narrowed, n);
    std::memcpy(static_cast<char*>(out) + begin * width, narrowed, n * width);
  }
}

void WidenInPlace(DType wire, DType to, void* values, size_t count, int64_t divisor) {
  float floats[kBlock];
  const size_t width = ByteSize(wire);
  for (size_t end = count; end > 0;) {
    const size_t n = end % kBlock == 0 ? kBlock : end % kBlock;
    const size_t begin = end - n;
    Widen(wire, static_cast<const char*>(values) + begin * width, floats, n);
    if (to == DType::kFloat64) {
      double* wide = static_cast<double*>(values) + begin;
      for (size_t i = 0; i < n; ++i) wide[i] = floats[i];
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
