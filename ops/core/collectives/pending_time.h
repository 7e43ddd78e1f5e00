// The wall time for which something was pending: the union of overlapping intervals.
//
// One thread at a time begins and ends intervals; any thread may read the sum. It includes the part
// of an interval that has not ended, so it never decreases and shows a stall while it lasts.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_PENDING_TIME_H_
#define TFDIST_OPS_CORE_COLLECTIVES_PENDING_TIME_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "core/net/socket.h"

namespace tfdist {

class PendingTime {
 public:
  // `at` may lie in the past, as the start of a collective that was handed to another thread.
  void Begin(TimePoint at) {
    if (pending_++ > 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    since_ = std::max(at, ended_);
    running_ = true;
  }

  void End() {
    if (--pending_ > 0) return;
    const TimePoint now = Clock::now();
    const std::lock_guard<std::mutex> lock(mutex_);
    total_ += std::max(now, since_) - since_;
    ended_ = std::max(now, since_);
    running_ = false;
  }

  uint64_t nanoseconds() const {
    const TimePoint now = Clock::now();
    const std::lock_guard<std::mutex> lock(mutex_);
    const Clock::duration sum = running_ ? total_ + (std::max(now, since_) - since_) : total_;
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(sum).count());
  }

 private:
  int pending_ = 0;

  mutable std::mutex mutex_;  // guards all that follows
  bool running_ = false;
  TimePoint since_{}, ended_{};
  Clock::duration total_{};
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_PENDING_TIME_H_
