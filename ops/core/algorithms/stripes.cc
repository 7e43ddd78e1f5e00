#include "core/algorithms/stripes.h"

#include <algorithm>

namespace tfdist {
namespace {

// The number of elements of a segment among the first `count` of the list.
uint64_t ElementsBelow(uint64_t count, uint64_t segment, uint64_t segments) {
  const uint64_t period = kStripeElements * segments, rest = count % period;
  const uint64_t skipped = segment * kStripeElements;
  const uint64_t last = rest > skipped ? std::min(rest - skipped, kStripeElements) : 0;
  return count / period * kStripeElements + last;
}

}  // namespace

std::vector<Stripe> Stripes(uint64_t begin, size_t count, size_t width, int segments) {
  std::vector<Stripe> stripes;
  if (count == 0) return stripes;
  const uint64_t end = begin + count, parts = static_cast<uint64_t>(segments);
  const uint64_t first = begin / kStripeElements, last = (end - 1) / kStripeElements;
  for (uint64_t segment = 0; segment < parts; ++segment) {
    for (uint64_t i = first + (segment + parts - first % parts) % parts; i <= last; i += parts) {
      const uint64_t from = std::max(begin, i * kStripeElements);
      const uint64_t to = std::min(end, (i + 1) * kStripeElements);
      stripes.push_back({(from - begin) * width, (to - begin) * width});
    }
  }
  return stripes;
}

std::vector<size_t> StripedBounds(uint64_t begin, size_t count, size_t width, int segments) {
  std::vector<size_t> bounds = {0};
  for (int i = 0; i < segments; ++i) {
    const uint64_t elements =
        ElementsBelow(begin + count, i, segments) - ElementsBelow(begin, i, segments);
    bounds.push_back(bounds.back() + elements * width);
  }
  return bounds;
}

}  // namespace tfdist
