// Counts how often each id was seen, in constant memory: a count-min sketch with conservative
// update (Cormode and Muthukrishnan 2005; Estan and Varghese 2002). It may count too many, never
// too few.
#ifndef TFDIST_OPS_CORE_PS_TABLE_COUNT_MIN_SKETCH_H_
#define TFDIST_OPS_CORE_PS_TABLE_COUNT_MIN_SKETCH_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist::ps {

class CountMinSketch {
 public:
  CountMinSketch() : counts_(kHashes * kCounters) {}

  // Counts the id with this hash once more, and returns its count.
  uint16_t Add(uint64_t hash) {
    std::array<uint16_t*, kHashes> cells;
    uint16_t least = UINT16_MAX;
    const uint64_t second = hash >> 32 | 1;
    for (size_t i = 0; i < kHashes; ++i) {
      cells[i] = &counts_[i * kCounters + (hash + i * second) % kCounters];
      least = std::min(least, *cells[i]);
    }
    if (least == UINT16_MAX) return least;
    ++least;
    for (uint16_t* cell : cells) *cell = std::max(*cell, least);
    return least;
  }
  // The count, at most UINT16_MAX.
  uint16_t Count(uint64_t hash) const {
    uint16_t least = UINT16_MAX;
    const uint64_t second = hash >> 32 | 1;
    for (size_t i = 0; i < kHashes; ++i) {
      least = std::min(least, counts_[i * kCounters + (hash + i * second) % kCounters]);
    }
    return least;
  }
  void Clear() { std::fill(counts_.begin(), counts_.end(), uint16_t{0}); }
  size_t bytes() const { return counts_.size() * sizeof(uint16_t); }

 private:
  static constexpr size_t kHashes = 4;
  static constexpr size_t kCounters = 1 << 16;  // for each hash

  std::vector<uint16_t> counts_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_COUNT_MIN_SKETCH_H_
