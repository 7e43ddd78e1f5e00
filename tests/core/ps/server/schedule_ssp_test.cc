// Bounded staleness: no worker is further ahead of the slowest than allowed.
#include <algorithm>
#include <random>

#include "ps/server/schedules.h"

namespace tfdist::testing::ps_server_schedule_ssp_test {
namespace {

TEST_CASE("ssp time") {
  Schedule schedule = Started(ScheduleFor(Mode::kSsp, 3, 2));
  for (uint64_t step = 1; step <= 3; ++step) {
    CHECK(schedule.Push(0, 0) == Verdict::kApply);
    CHECK(schedule.MayPull(0, At(10)) == (step <= 2));
  }
  CHECK(schedule.Push(1, 0) == Verdict::kApply);
  CHECK(!schedule.MayPull(0, At(20)));  // worker 2 is still at 0
  CHECK((schedule.WaitsFor(0, 2) && !schedule.WaitsFor(0, 1) && !schedule.WaitsFor(2, 0)));
  CHECK(schedule.NextDeadline() == At(70));
  const std::vector<std::string> lines = schedule.CheckTime(At(70));
  CHECK(lines.size() == 1);
  CHECK_CONTAINS(lines[0], "worker 2 is dropped");
  CHECK((schedule.slowest_clock() == 1 && schedule.MayPull(0, At(71))));
  // Its pushes are applied, and it continues at the slowest clock.
  CHECK(schedule.Push(1, 0) == Verdict::kApply);
  CHECK(schedule.Push(2, 0) == Verdict::kApply);
  CHECK((schedule.clock_of(2) == 0 && schedule.slowest_clock() == 2));
  CHECK((schedule.MayPull(2, At(80)) && schedule.clock_of(2) == 2));
  CHECK((schedule.CheckTime(At(80)) == std::vector<std::string>{"worker 2 is back, at step 2"}));
}

TEST_CASE("ssp new process") {
  Schedule schedule = Started(ScheduleFor(Mode::kSsp, 3, 3));
  for (int step = 0; step < 3; ++step) schedule.Push(0, 0);
  for (int step = 0; step < 2; ++step) schedule.Push(1, 0);
  schedule.Join(2, false);  // the same process connects again
  CHECK(schedule.clock_of(2) == 0);
  schedule.Join(2, true);
  CHECK((schedule.clock_of(2) == 2 && schedule.slowest_clock() == 2));
  schedule.Join(0, true);
  CHECK(schedule.clock_of(0) == 2);
}

// Workers in random order; each is in a step or waits for its next pull.
void TestSspBound(int workers, int staleness, uint32_t seed) {
  Schedule schedule = Started(ScheduleFor(Mode::kSsp, workers, staleness));
  std::mt19937 random(seed);
  std::vector<uint64_t> pushes(workers, 0);
  std::vector<bool> waiting(workers, false);
  uint64_t largest = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    // Low ranks are much faster.
    const int worker =
        std::min(static_cast<int>(random() % workers), static_cast<int>(random() % workers));
    if (!waiting[worker]) {
      CHECK(schedule.Push(worker, 0) == Verdict::kApply);
      ++pushes[worker];
    }
    const uint64_t lead = pushes[worker] - *std::min_element(pushes.begin(), pushes.end());
    const bool may = schedule.MayPull(worker, At(0));
    CHECK(may == (lead <= static_cast<uint64_t>(staleness)));
    waiting[worker] = !may;
    if (may) largest = std::max(largest, lead);
    // At least one worker can always continue.
    CHECK((std::find(waiting.begin(), waiting.end(), false) != waiting.end() || [&] {
      for (int other = 0; other < workers; ++other) {
        if (schedule.MayPull(other, At(0))) return true;
      }
      return false;
    }()));
  }
  CHECK((largest == static_cast<uint64_t>(staleness) && schedule.largest_lead() == largest));
  CHECK(*std::min_element(pushes.begin(), pushes.end()) > 50);
}

TEST_CASE("ssp without staleness is lockstep") {
  Schedule schedule = Started(ScheduleFor(Mode::kSsp, 3, 0));
  for (int step = 0; step < 10; ++step) {
    for (int i = 0; i < 3; ++i) {
      const int worker = (step * 2 + i) % 3;
      CHECK(schedule.clock() == static_cast<uint64_t>(step));
      schedule.Push(worker, 0);
      for (int other = 0; other < 3; ++other) {
        const bool ahead = schedule.clock_of(other) > static_cast<uint64_t>(step) && i < 2;
        CHECK(schedule.MayPull(other, At(0)) == !ahead);
      }
    }
  }
  CHECK((schedule.largest_lead() == 0 && schedule.clock() == 10));
}

TEST_CASE("ssp bound") {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    for (const int staleness : {0, 1, 3, 8}) TestSspBound(2 + seed % 4, staleness, seed);
  }
}

}  // namespace
}  // namespace tfdist::testing::ps_server_schedule_ssp_test
