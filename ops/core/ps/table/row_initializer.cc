#include "core/ps/table/row_initializer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/ps/table/row_map.h"

namespace tfdist::ps {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// The random numbers of one row: SplitMix64 (Steele et al. 2014).
class Stream {
 public:
  Stream(uint64_t seed, int64_t id) : state_(MixId(id) ^ MixId(static_cast<int64_t>(seed))) {}

  // In [0, 1).
  double Uniform() {
    return static_cast<double>(MixId(static_cast<int64_t>(state_++)) >> 11) * 0x1p-53;
  }
  // Box and Muller 1958.
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return radius * std::cos(kTwoPi * Uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace

void RowInitializer::Fill(int64_t id, size_t width, float* row) const {
  Stream random(seed, id);
  switch (kind) {
    case InitializerKind::kConstant:
      std::fill_n(row, width, static_cast<float>(a));
      return;
    case InitializerKind::kUniform:
      for (size_t i = 0; i < width; ++i)
        row[i] = static_cast<float>(a + (b - a) * random.Uniform());
      return;
    case InitializerKind::kNormal:
      for (size_t i = 0; i < width; ++i) row[i] = static_cast<float>(a + b * random.Normal());
      return;
    case InitializerKind::kTruncatedNormal:
      for (size_t i = 0; i < width; ++i) {
        double normal = random.Normal();
        while (std::abs(normal) > 2) normal = random.Normal();
        row[i] = static_cast<float>(a + b * normal);
      }
      return;
  }
  std::abort();  // unknown kinds are refused when they are decoded
}

}  // namespace tfdist::ps
