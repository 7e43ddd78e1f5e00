// The clock by which everything here is timed.
#ifndef TFDIST_OPS_CORE_BASE_CLOCK_H_
#define TFDIST_OPS_CORE_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace tfdist {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

inline int64_t Nanoseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_CLOCK_H_
