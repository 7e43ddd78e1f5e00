// Schedules for tests. Times are passed in, so that no test has to wait.
#ifndef TFDIST_TESTS_CORE_PS_SERVER_SCHEDULES_H_
#define TFDIST_TESTS_CORE_PS_SERVER_SCHEDULES_H_

#include "core/ps/server/schedule.h"
#include "testing.h"

namespace tfdist::testing {

using namespace ps;  // NOLINT: these tests are about nothing else
using Verdict = Schedule::Verdict;

inline TimePoint At(double seconds) {
  return TimePoint() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1000 + seconds));
}

inline ScheduleOptions ScheduleFor(Mode mode, int workers, int parameter = 0) {
  ScheduleOptions options;
  options.mode = mode;
  options.workers = workers;
  options.num_aggregate = mode == Mode::kSync && parameter > 0 ? parameter : workers;
  options.staleness = parameter;
  options.worker_timeout_seconds = 60;
  options.start_timeout_seconds = 300;
  return options;
}

// A schedule of which all workers have pulled.
inline Schedule Started(const ScheduleOptions& options) {
  Schedule schedule(options, At(0));
  for (int worker = 0; worker < options.workers; ++worker) {
    schedule.Join(worker, true);
    REQUIRE(schedule.MayPull(worker, At(0)));
  }
  return schedule;
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_PS_SERVER_SCHEDULES_H_
