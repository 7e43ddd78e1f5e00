// The clock of the rows of tables: rows store the time of their last use, and age by it.
//
// It advances with the steady clock: setting the machine's clock has no effect. A restarted server
// resumes the time at which it stopped: rows do not age while the server is down. A new server
// starts at the machine's time, so that the servers of a job agree.
#ifndef TFDIST_OPS_CORE_PS_TABLE_ROW_CLOCK_H_
#define TFDIST_OPS_CORE_PS_TABLE_ROW_CLOCK_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <utility>

namespace tfdist::ps {

// The clocks of the machine, in seconds; tests replace them.
struct TimeSources {
  // Monotonic, without leaps.
  std::function<double()> steady = [] { return Seconds(std::chrono::steady_clock::now()); };
  // Since 1970, by the machine's clock.
  std::function<double()> wall = [] { return Seconds(std::chrono::system_clock::now()); };

 private:
  template <typename Time>
  static double Seconds(Time time) {
    return std::chrono::duration<double>(time.time_since_epoch()).count();
  }
};

// Thread-safe.
class RowClock {
 public:
  explicit RowClock(TimeSources sources)
      : steady_(std::move(sources.steady)), offset_(sources.wall() - steady_()) {}

  double Now() const { return steady_() + offset_.load(std::memory_order_relaxed); }
  // Sets the time to `now`; before rows are used.
  void ResumeFrom(double now) { offset_ = now - steady_(); }

 private:
  const std::function<double()> steady_;
  std::atomic<double> offset_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_ROW_CLOCK_H_
