// Bounded staleness: no worker is further ahead of the slowest than allowed.
#include <algorithm>
#include <random>

#include "ps/server/schedules.h"

namespace tfdist::testing::ps_server_schedule_ssp_test {
namespace {

void TestSspTime() {
  Schedule schedule = Started(ScheduleFor(Mode::kSsp, 3, 2));
  for (uint64_t step = 1; step <= 3; ++step) {
    EXPECT(schedule.Push(0, 0) == Verdict::kApply);
    EXPECT(schedule.MayPull(0, At(10)) == (step <= 2));
  }
  EXPECT(schedule.Push(1, 0) == Verdict::kApply);
  EXPECT(!schedule.MayPull(0, At(20)));  // worker 2 is still at 0
  EXPECT(schedule.WaitsFor(0, 2) && !schedule.WaitsFor(0, 1) && !schedule.WaitsFor(2, 0));
  EXPECT(schedule.NextDeadline() == At(70));
  const std::vector<std::string> lines = schedule.CheckTime(At(70));
  EXPECT(lines.size() == 1);
  EXPECT_CONTAINS(lines[0], "worker 2 is dropped");
  EXPECT(schedule.slowest_clock() == 1 && schedule.MayPull(0, At(71)));
  // Its pushes are applied, and it continues at the slowest clock.
  EXPECT(schedule.Push(1, 0) == Verdict::kApply);
  EXPECT(schedule.Push(2, 0) == Verdict::kApply);
  EXPECT(schedule.clock_of(2) == 0 && schedule.slowest_clock() == 2);
  EXPECT(schedule.MayPull(2, At(80)) && schedule.clock_of(2) == 2);
  EXPECT(schedule.CheckTime(At(80)) == std::vector<std::string>{"worker 2 is back, at step 2"});
}

void TestSspNewProcess() {
  Schedule schedule = Started(ScheduleFor(Mode::kSsp, 3, 3));
  for (int step = 0; step < 3; ++step) schedule.Push(0, 0);
  for (int step = 0; step < 2; ++step) schedule.Push(1, 0);
  schedule.Join(2, false);  // the same process connects again
  EXPECT(schedule.clock_of(2) == 0);
  schedule.Join(2, true);
  EXPECT(schedule.clock_of(2) == 2 && schedule.slowest_clock() == 2);
  schedule.Join(0, true);
  EXPECT(schedule.clock_of(0) == 2);
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
      EXPECT(schedule.Push(worker, 0) == Verdict::kApply);
      ++pushes[worker];
    }
    const uint64_t lead = pushes[worker] - *std::min_element(pushes.begin(), pushes.end());
    const bool may = schedule.MayPull(worker, At(0));
    EXPECT(may == (lead <= static_cast<uint64_t>(staleness)));
    waiting[worker] = !may;
    if (may) largest = std::max(largest, lead);
    // At least one worker can always go on.
    EXPECT(std::find(waiting.begin(), waiting.end(), false) != waiting.end() || [&] {
      for (int other = 0; other < workers; ++other) {
        if (schedule.MayPull(other, At(0))) return true;
      }
      return false;
    }());
  }
  EXPECT(largest == static_cast<uint64_t>(staleness) && schedule.largest_lead() == largest);
  EXPECT(*std::min_element(pushes.begin(), pushes.end()) > 50);
}

void TestSspWithoutStalenessIsLockstep() {
  Schedule schedule = Started(ScheduleFor(Mode::kSsp, 3, 0));
  for (int step = 0; step < 10; ++step) {
    for (int i = 0; i < 3; ++i) {
      const int worker = (step * 2 + i) % 3;
      EXPECT(schedule.clock() == static_cast<uint64_t>(step));
      schedule.Push(worker, 0);
      for (int other = 0; other < 3; ++other) {
        const bool ahead = schedule.clock_of(other) > static_cast<uint64_t>(step) && i < 2;
        EXPECT(schedule.MayPull(other, At(0)) == !ahead);
      }
    }
  }
  EXPECT(schedule.largest_lead() == 0 && schedule.clock() == 10);
}

void Main() {
  TestSspTime();
  TestSspNewProcess();
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    for (const int staleness : {0, 1, 3, 8}) TestSspBound(2 + seed % 4, staleness, seed);
  }
  TestSspWithoutStalenessIsLockstep();
  std::puts("ps_schedule_ssp: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::ps_server_schedule_ssp_test
