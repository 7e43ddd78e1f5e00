// Spare rows promised to requests, which they can create without an allocation.
#ifndef TFDIST_OPS_CORE_PS_TABLE_ROW_PROMISES_H_
#define TFDIST_OPS_CORE_PS_TABLE_ROW_PROMISES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

namespace tfdist::ps {

inline constexpr size_t kStripes = 16;  // of a table

// Counts them for all stripes of a table. The counts are not in the stripes: a request whose ids
// have rows reads a few cache lines here and takes one lock, instead of a cold line of each stripe.
//
// A row that a request has created is no longer spare, but counts as promised until the request
// ends. So more rows may be promised than are spare, but no spare row is promised to two requests.
//
// Thread-safe. It shares no cache line with data that other threads read in the table.
class alignas(64) RowPromises {
 public:
  using Counts = std::array<size_t, kStripes>;  // of rows, by stripe

  // The number of rows that a stripe can create without an allocation. Under the stripe's lock.
  void SetSpare(size_t stripe, size_t count) {
    spare_[stripe].store(count, std::memory_order_relaxed);
  }
  size_t promised(size_t stripe) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return promised_[stripe];
  }

  // Promises all of these rows, or none if a stripe has too few; returns whether it did.
  bool Promise(const Counts& counts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < kStripes; ++i) {
      if (counts[i] > 0 && !Has(i, counts[i])) return false;
    }
    for (size_t i = 0; i < kStripes; ++i) promised_[i] += counts[i];
    return true;
  }
  // Promises rows of one stripe; returns whether it has enough.
  bool Promise(size_t stripe, size_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!Has(stripe, count)) return false;
    promised_[stripe] += count;
    return true;
  }
  void Unpromise(const Counts& counts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < kStripes; ++i) promised_[i] -= counts[i];
  }

 private:
  // A thread that sees the end of a request under the lock also sees the rows that it has created.
  bool Has(size_t stripe, size_t count) const {
    return promised_[stripe] + count <= spare_[stripe].load(std::memory_order_relaxed);
  }

  mutable std::mutex mutex_;  // of `promised_`
  Counts promised_{};
  std::array<std::atomic<size_t>, kStripes> spare_{};
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_ROW_PROMISES_H_
