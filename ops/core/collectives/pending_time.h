// The wall time for which something was pending: the union of overlapping intervals.
//
// One thread at a time begins and ends intervals; any thread may read the sum. It includes the part
// of an interval that has not ended, so it shows a stall while it lasts. It never decreases.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_PENDING_TIME_H_
#define TFDIST_OPS_CORE_COLLECTIVES_PENDING_TIME_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/base/clock.h"

namespace tfdist {

class PendingTime {
 public:
  // `at` may lie in the past, as the start of a collective that was handed to another thread.
  void Begin(TimePoint at) {
    if (pending_++ > 0) return;
    since_ = std::max(at, ended_);
    Publish(total_ - Nanoseconds(since_), /*running=*/true);
  }

  void End(TimePoint at) {
    if (--pending_ > 0) return;
    ended_ = std::max(at, since_);
    total_ += Nanoseconds(ended_ - since_);
    Publish(total_, /*running=*/false);
  }

  uint64_t nanoseconds() const {
    int64_t read, sum;
    do {
      read = published_.load(std::memory_order_acquire);
      sum = read / 2;
      if (read & 1) sum = (read - 1) / 2 + Nanoseconds(Clock::now());
    } while (published_.load(std::memory_order_acquire) != read);
    // An interval ends before that is published; until then it seems to last.
    int64_t shown = shown_.load();
    while (shown < sum && !shown_.compare_exchange_weak(shown, sum)) {
    }
    return static_cast<uint64_t>(std::max(shown, sum));
  }

 private:
  void Publish(int64_t nanoseconds, bool running) {
    published_.store(2 * nanoseconds + (running ? 1 : 0), std::memory_order_release);
  }

  // Of the thread that begins and ends.
  int pending_ = 0;
  TimePoint since_{}, ended_{};
  int64_t total_ = 0;  // nanoseconds, of ended waits

  // Twice the sum and, while something is pending, 1; then the sum lacks the time now.
  std::atomic<int64_t> published_{0};
  mutable std::atomic<int64_t> shown_{0};  // the largest sum
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_PENDING_TIME_H_
