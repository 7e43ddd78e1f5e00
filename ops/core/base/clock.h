// The clock by which everything here is timed.
#ifndef TFDIST_OPS_CORE_BASE_CLOCK_H_
#define TFDIST_OPS_CORE_BASE_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace tfdist {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

inline Clock::duration DurationOf(double seconds) {
  constexpr double kForever = 1e9;  // a larger value would overflow a time point
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kForever)));
}

inline int64_t Nanoseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}
// Since the clock's epoch.
inline int64_t Nanoseconds(TimePoint at) { return Nanoseconds(at.time_since_epoch()); }

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_CLOCK_H_
