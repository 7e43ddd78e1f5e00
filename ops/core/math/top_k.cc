#include "core/math/top_k.h"

#include <cstring>
#include <vector>

namespace tfdist {
namespace {

constexpr uint32_t kDigit = 1u << 16;

inline uint32_t Magnitude(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffffu;
}

// Returns the largest digit d such that at least *rank values have a digit >= d, and sets *rank to
// the rank among the values with digit d.
uint32_t DigitOfRank(const std::vector<uint32_t>& counts, size_t* rank) {
  uint32_t digit = kDigit - 1;
  while (counts[digit] < *rank) *rank -= counts[digit--];
  return digit;
}

}  // namespace

void TopK(float* values, size_t count, size_t k, int32_t* positions, float* taken) {
  size_t rank = k;
  std::vector<uint32_t> counts(kDigit, 0);
  for (size_t i = 0; i < count; ++i) ++counts[Magnitude(values[i]) >> 16];
  const uint32_t high = DigitOfRank(counts, &rank);

  counts.assign(kDigit, 0);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = Magnitude(values[i]);
    if (magnitude >> 16 == high) ++counts[magnitude & (kDigit - 1)];
  }
  const uint32_t threshold = high << 16 | DigitOfRank(counts, &rank);

  // Of the values that equal the threshold, the first `rank` are taken.
  for (size_t i = 0, j = 0; j < k; ++i) {
    const uint32_t magnitude = Magnitude(values[i]);
    if (magnitude < threshold) continue;
    if (magnitude == threshold) {
      if (rank == 0) continue;
      --rank;
    }
    positions[j] = static_cast<int32_t>(i);
    taken[j] = values[i];
    values[i] = 0.0f;
    ++j;
  }
}

}  // namespace tfdist
