// Scripted pushes and pulls: asynchronous and synchronous jobs, and restarts.
#include "ps/server/schedules.h"

namespace tfdist::testing::ps_server_schedule_test {
namespace {

void TestAsync() {
  Schedule schedule = Started(ScheduleFor(Mode::kAsync, 2));
  for (int step = 0; step < 100; ++step) {
    EXPECT(schedule.Push(1, 0) == Verdict::kApply);
    EXPECT(schedule.MayPull(1, At(step)));
  }
  EXPECT(schedule.clock_of(1) == 100 && schedule.clock_of(0) == 0);
  EXPECT(schedule.slowest_clock() == 0 && schedule.clock() == 0);
  EXPECT(!schedule.StepIsComplete());
  EXPECT(schedule.NextDeadline() == TimePoint::max());
  EXPECT(schedule.CheckTime(At(10000)).empty());
}

void TestSyncOfAll() {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 3));
  for (uint64_t step = 0; step < 5; ++step) {
    for (int i = 0; i < 3; ++i) {
      const int worker = static_cast<int>(step + i) % 3;  // another order each time
      EXPECT(schedule.clock() == step && schedule.contributions() == i);
      EXPECT(!schedule.StepIsComplete());
      EXPECT(schedule.MayPull(worker, At(0)));
      EXPECT(schedule.Push(worker, step) == Verdict::kCollect);
      EXPECT(!schedule.MayPull(worker, At(0)));
    }
    EXPECT(schedule.StepIsComplete());
    schedule.CloseStep();
    for (int worker = 0; worker < 3; ++worker) EXPECT(schedule.MayPull(worker, At(0)));
  }
  EXPECT(schedule.clock() == 5 && schedule.clock_of(2) == 5 && schedule.dropped_pushes() == 0);
}

void TestWaitsFor() {
  Schedule sync = Started(ScheduleFor(Mode::kSync, 3));
  EXPECT(sync.Push(0, 0) == Verdict::kCollect && !sync.WaitsFor(0, 1));  // 0 does not pull yet
  EXPECT(!sync.MayPull(0, At(0)));
  EXPECT(sync.WaitsFor(0, 1) && sync.WaitsFor(0, 2) && !sync.WaitsFor(1, 0));
  EXPECT(sync.Push(1, 0) == Verdict::kCollect);
  EXPECT(!sync.WaitsFor(0, 1) && sync.WaitsFor(0, 2));
  sync.Leave(2);
  EXPECT(sync.StepIsComplete() && !sync.WaitsFor(0, 2));

  Schedule async = Started(ScheduleFor(Mode::kAsync, 2));
  async.Push(0, 0);
  EXPECT(async.MayPull(0, At(0)) && !async.WaitsFor(0, 1));
}

void TestTwoPushesOfOneStep() {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 2));
  EXPECT(schedule.Push(0, 0) == Verdict::kCollect);
  EXPECT(schedule.Push(0, 0) == Verdict::kCollect);
  EXPECT(schedule.contributions() == 1 && !schedule.StepIsComplete());
  // A clock from before a restart that lost some steps.
  EXPECT(schedule.Push(1, 17) == Verdict::kCollect);
  EXPECT(schedule.contributions() == 2 && schedule.StepIsComplete());
}

void TestSyncWithBackupWorkers() {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 3, 2));
  for (uint64_t step = 0; step < 4; ++step) {
    EXPECT(schedule.Push(0, step) == Verdict::kCollect);
    EXPECT(!schedule.MayPull(0, At(0)) && !schedule.StepIsComplete());
    EXPECT(schedule.Push(1, step) == Verdict::kCollect);
    EXPECT(schedule.StepIsComplete());
    schedule.CloseStep();
    EXPECT(schedule.MayPull(0, At(0)) && schedule.MayPull(1, At(0)));
  }
  // Worker 2 is still at step 0 and is late; for the next step it is in time.
  EXPECT(schedule.Push(2, 0) == Verdict::kDropLate);
  EXPECT(schedule.contributions() == 0);
  EXPECT(schedule.dropped_pushes() == 1 && schedule.dropped_pushes_of(2) == 1);
  EXPECT(schedule.dropped_pushes_of(0) == 0 && schedule.clock_of(2) == 0);
  EXPECT(schedule.MayPull(2, At(0)));
  EXPECT(schedule.Push(2, 4) == Verdict::kCollect && !schedule.StepIsComplete());
  EXPECT(schedule.Push(1, 4) == Verdict::kCollect && schedule.StepIsComplete());
  schedule.CloseStep();
  EXPECT(schedule.Push(0, 4) == Verdict::kDropLate);
  EXPECT(schedule.dropped_pushes() == 2 && schedule.clock() == 5);
}

void TestLeaving() {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 3, 2));
  schedule.Leave(0);
  EXPECT(schedule.Push(1, 0) == Verdict::kCollect && !schedule.StepIsComplete());
  schedule.Leave(2);  // no other active worker is left
  EXPECT(schedule.StepIsComplete() && schedule.contributions() == 1);
  schedule.CloseStep();
  // The contribution of a worker that leaves counts. A step without contributions never closes.
  EXPECT(schedule.Push(1, 1) == Verdict::kCollect);
  schedule.Leave(1);
  EXPECT(schedule.StepIsComplete());
  schedule.CloseStep();
  EXPECT(!schedule.StepIsComplete());

  Schedule bounded = Started(ScheduleFor(Mode::kSsp, 2, 1));
  for (int step = 0; step < 2; ++step) bounded.Push(0, 0);
  EXPECT(!bounded.MayPull(0, At(1)));
  bounded.Leave(1);
  EXPECT(bounded.MayPull(0, At(2)) && bounded.slowest_clock() == 2);
  EXPECT(bounded.NextDeadline() == TimePoint::max());
}

void TestNeverComing() {
  Schedule schedule(ScheduleFor(Mode::kSync, 3), At(0));
  for (int worker = 0; worker < 2; ++worker) {
    schedule.Join(worker, true);
    EXPECT(schedule.MayPull(worker, At(10)));
  }
  EXPECT(schedule.NextDeadline() == TimePoint::max());  // no worker waits
  EXPECT(schedule.Push(0, 0) == Verdict::kCollect);
  EXPECT(!schedule.MayPull(0, At(20)));
  EXPECT(schedule.Push(1, 0) == Verdict::kCollect);
  EXPECT(!schedule.MayPull(1, At(30)));
  EXPECT(!schedule.StepIsComplete());
  EXPECT(schedule.NextDeadline() == At(320));
  EXPECT(schedule.CheckTime(At(319.9)).empty() && !schedule.StepIsComplete());
  const std::vector<std::string> lines = schedule.CheckTime(At(320));
  EXPECT(lines.size() == 1);
  EXPECT_CONTAINS(lines[0], "worker 2 is dropped");
  EXPECT_CONTAINS(lines[0], "300 s, and it has not come yet");
  EXPECT(schedule.StepIsComplete());
  schedule.CloseStep();
  EXPECT(schedule.MayPull(0, At(321)) && schedule.MayPull(1, At(321)));
  EXPECT(schedule.NextDeadline() == TimePoint::max());
}

void TestDroppedAndBack() {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 3));
  EXPECT(schedule.Push(0, 0) == Verdict::kCollect && !schedule.MayPull(0, At(100)));
  // A repeated pull has waited since the first one.
  EXPECT(!schedule.MayPull(0, At(130)));
  EXPECT(schedule.NextDeadline() == At(160));
  EXPECT(schedule.Push(1, 0) == Verdict::kCollect && !schedule.MayPull(1, At(150)));
  const std::vector<std::string> lines = schedule.CheckTime(At(160));
  EXPECT(lines.size() == 1);
  EXPECT_CONTAINS(lines[0], "worker 2 is dropped: others have waited for it longer than 60 s");
  EXPECT(schedule.StepIsComplete() && schedule.contributions() == 2);
  schedule.CloseStep();

  // Its push is too late. The others do not wait for it until it pulls.
  EXPECT(schedule.Push(2, 0) == Verdict::kDropLate);
  EXPECT(schedule.Push(0, 1) == Verdict::kCollect && schedule.Push(1, 1) == Verdict::kCollect);
  EXPECT(schedule.StepIsComplete());
  schedule.CloseStep();
  EXPECT(schedule.Push(0, 2) == Verdict::kCollect && !schedule.MayPull(0, At(200)));
  EXPECT(schedule.MayPull(2, At(250)));
  EXPECT(schedule.Push(1, 2) == Verdict::kCollect && !schedule.StepIsComplete());
  EXPECT(schedule.NextDeadline() == At(250));  // to report it
  const std::vector<std::string> back = schedule.CheckTime(At(250));
  EXPECT(back.size() == 1 && back[0] == "worker 2 is back, at step 2");
  // Worker 0 has waited since 200, but for worker 2 only since its return.
  EXPECT(schedule.NextDeadline() == At(310));
  EXPECT(schedule.Push(2, 2) == Verdict::kCollect && schedule.StepIsComplete());
}

void TestStopWaiting() {
  // A worker that dies while it waits must not cause others to be dropped.
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 2));
  EXPECT(schedule.Push(0, 0) == Verdict::kCollect && !schedule.MayPull(0, At(10)));
  schedule.StopWaiting(0);
  EXPECT(schedule.NextDeadline() == TimePoint::max() && schedule.CheckTime(At(1000)).empty());
  // Its next process has contributed to this step already.
  schedule.Join(0, true);
  EXPECT(!schedule.MayPull(0, At(2000)));
  EXPECT(schedule.NextDeadline() == At(2060));
}

void TestSaveAndRestore() {
  const ScheduleOptions options = ScheduleFor(Mode::kSync, 3, 2);
  Schedule schedule = Started(options);
  for (uint64_t step = 0; step < 3; ++step) {
    schedule.Push(0, step);
    schedule.Push(1, step);
    schedule.CloseStep();
  }
  schedule.Push(2, 1);  // late
  schedule.Leave(2);
  schedule.Push(0, 3);  // not saved: the step starts again
  Schedule again(options, At(500));
  again.Restore(schedule.Save());
  EXPECT(again.clock() == 3 && again.contributions() == 0);
  EXPECT(again.clock_of(0) == 4 && again.clock_of(1) == 3);
  EXPECT(again.dropped_pushes() == 1 && again.dropped_pushes_of(2) == 1);
  EXPECT(again.MayPull(0, At(501)));
  EXPECT(again.Push(0, 3) == Verdict::kCollect && !again.MayPull(0, At(502)));
  // Worker 2 had left; worker 1 has the start timeout.
  EXPECT(!again.StepIsComplete() && again.NextDeadline() == At(802));
  EXPECT(again.Push(1, 3) == Verdict::kCollect && again.StepIsComplete());

  const ScheduleOptions bounded = ScheduleFor(Mode::kSsp, 2, 1);
  Schedule ssp = Started(bounded);
  EXPECT(ssp.Push(0, 0) == Verdict::kApply && ssp.MayPull(0, At(0)));
  ssp.Push(0, 0);
  ssp.Push(1, 0);
  // A third worker is added, and starts at the slowest clock.
  Schedule larger(ScheduleFor(Mode::kSsp, 3, 1), At(0));
  larger.Restore(ssp.Save());
  EXPECT(larger.clock_of(0) == 2 && larger.clock_of(1) == 1 && larger.clock_of(2) == 1);
  EXPECT(larger.largest_lead() == 1 && larger.slowest_clock() == 1);
  Schedule smaller(ScheduleFor(Mode::kSsp, 1, 1), At(0));
  smaller.Restore(ssp.Save());
  EXPECT(smaller.clock_of(0) == 2 && smaller.slowest_clock() == 2);
  Schedule untouched(bounded, At(0));
  untouched.Restore({});
  EXPECT(untouched.clock_of(0) == 0);
}

void Main() {
  TestAsync();
  TestSyncOfAll();
  TestWaitsFor();
  TestTwoPushesOfOneStep();
  TestSyncWithBackupWorkers();
  TestLeaving();
  TestNeverComing();
  TestDroppedAndBack();
  TestStopWaiting();
  TestSaveAndRestore();
  std::puts("ps_schedule: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::ps_server_schedule_test
