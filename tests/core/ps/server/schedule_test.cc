// Scripted pushes and pulls: asynchronous and synchronous jobs, and restarts.
#include "ps/server/schedules.h"

namespace tfdist::testing::ps_server_schedule_test {
namespace {

TEST_CASE("async") {
  Schedule schedule = Started(ScheduleFor(Mode::kAsync, 2));
  for (int step = 0; step < 100; ++step) {
    CHECK(schedule.Push(1, 0) == Verdict::kApply);
    CHECK(schedule.MayPull(1, At(step)));
  }
  CHECK((schedule.clock_of(1) == 100 && schedule.clock_of(0) == 0));
  CHECK((schedule.slowest_clock() == 0 && schedule.clock() == 0));
  CHECK(!schedule.StepIsComplete());
  CHECK(schedule.NextDeadline() == TimePoint::max());
  CHECK(schedule.CheckTime(At(10000)).empty());
}

TEST_CASE("sync of all") {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 3));
  for (uint64_t step = 0; step < 5; ++step) {
    for (int i = 0; i < 3; ++i) {
      const int worker = static_cast<int>(step + i) % 3;  // another order each time
      CHECK((schedule.clock() == step && schedule.contributions() == i));
      CHECK(!schedule.StepIsComplete());
      CHECK(schedule.MayPull(worker, At(0)));
      CHECK(schedule.Push(worker, step) == Verdict::kCollect);
      CHECK(!schedule.MayPull(worker, At(0)));
    }
    CHECK(schedule.StepIsComplete());
    schedule.CloseStep();
    for (int worker = 0; worker < 3; ++worker) CHECK(schedule.MayPull(worker, At(0)));
  }
  CHECK((schedule.clock() == 5 && schedule.clock_of(2) == 5 && schedule.dropped_pushes() == 0));
}

TEST_CASE("waits for") {
  Schedule sync = Started(ScheduleFor(Mode::kSync, 3));
  CHECK((sync.Push(0, 0) == Verdict::kCollect && !sync.WaitsFor(0, 1)));  // 0 does not pull yet
  CHECK(!sync.MayPull(0, At(0)));
  CHECK((sync.WaitsFor(0, 1) && sync.WaitsFor(0, 2) && !sync.WaitsFor(1, 0)));
  CHECK(sync.Push(1, 0) == Verdict::kCollect);
  CHECK((!sync.WaitsFor(0, 1) && sync.WaitsFor(0, 2)));
  sync.Leave(2);
  CHECK((sync.StepIsComplete() && !sync.WaitsFor(0, 2)));

  Schedule async = Started(ScheduleFor(Mode::kAsync, 2));
  async.Push(0, 0);
  CHECK((async.MayPull(0, At(0)) && !async.WaitsFor(0, 1)));
}

TEST_CASE("two pushes of one step") {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 2));
  CHECK(schedule.Push(0, 0) == Verdict::kCollect);
  CHECK(schedule.Push(0, 0) == Verdict::kCollect);
  CHECK((schedule.contributions() == 1 && !schedule.StepIsComplete()));
  // A clock from before a restart that lost some steps.
  CHECK(schedule.Push(1, 17) == Verdict::kCollect);
  CHECK((schedule.contributions() == 2 && schedule.StepIsComplete()));
}

TEST_CASE("sync with backup workers") {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 3, 2));
  for (uint64_t step = 0; step < 4; ++step) {
    CHECK(schedule.Push(0, step) == Verdict::kCollect);
    CHECK((!schedule.MayPull(0, At(0)) && !schedule.StepIsComplete()));
    CHECK(schedule.Push(1, step) == Verdict::kCollect);
    CHECK(schedule.StepIsComplete());
    schedule.CloseStep();
    CHECK((schedule.MayPull(0, At(0)) && schedule.MayPull(1, At(0))));
  }
  // Worker 2 is still at step 0 and is late; for the next step it is in time.
  CHECK(schedule.Push(2, 0) == Verdict::kDropLate);
  CHECK(schedule.contributions() == 0);
  CHECK((schedule.dropped_pushes() == 1 && schedule.dropped_pushes_of(2) == 1));
  CHECK((schedule.dropped_pushes_of(0) == 0 && schedule.clock_of(2) == 0));
  CHECK(schedule.MayPull(2, At(0)));
  CHECK((schedule.Push(2, 4) == Verdict::kCollect && !schedule.StepIsComplete()));
  CHECK((schedule.Push(1, 4) == Verdict::kCollect && schedule.StepIsComplete()));
  schedule.CloseStep();
  CHECK(schedule.Push(0, 4) == Verdict::kDropLate);
  CHECK((schedule.dropped_pushes() == 2 && schedule.clock() == 5));
}

TEST_CASE("leaving") {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 3, 2));
  schedule.Leave(0);
  CHECK((schedule.Push(1, 0) == Verdict::kCollect && !schedule.StepIsComplete()));
  schedule.Leave(2);  // no other active worker is left
  CHECK((schedule.StepIsComplete() && schedule.contributions() == 1));
  schedule.CloseStep();
  // The contribution of a worker that leaves counts. A step without contributions never closes.
  CHECK(schedule.Push(1, 1) == Verdict::kCollect);
  schedule.Leave(1);
  CHECK(schedule.StepIsComplete());
  schedule.CloseStep();
  CHECK(!schedule.StepIsComplete());

  Schedule bounded = Started(ScheduleFor(Mode::kSsp, 2, 1));
  for (int step = 0; step < 2; ++step) bounded.Push(0, 0);
  CHECK(!bounded.MayPull(0, At(1)));
  bounded.Leave(1);
  CHECK((bounded.MayPull(0, At(2)) && bounded.slowest_clock() == 2));
  CHECK(bounded.NextDeadline() == TimePoint::max());
}

TEST_CASE("never coming") {
  Schedule schedule(ScheduleFor(Mode::kSync, 3), At(0));
  for (int worker = 0; worker < 2; ++worker) {
    schedule.Join(worker, true);
    CHECK(schedule.MayPull(worker, At(10)));
  }
  CHECK(schedule.NextDeadline() == TimePoint::max());  // no worker waits
  CHECK(schedule.Push(0, 0) == Verdict::kCollect);
  CHECK(!schedule.MayPull(0, At(20)));
  CHECK(schedule.Push(1, 0) == Verdict::kCollect);
  CHECK(!schedule.MayPull(1, At(30)));
  CHECK(!schedule.StepIsComplete());
  CHECK(schedule.NextDeadline() == At(320));
  CHECK((schedule.CheckTime(At(319.9)).empty() && !schedule.StepIsComplete()));
  const std::vector<std::string> lines = schedule.CheckTime(At(320));
  CHECK(lines.size() == 1);
  CHECK_CONTAINS(lines[0], "worker 2 is dropped");
  CHECK_CONTAINS(lines[0], "300 s, and it has not come yet");
  CHECK(schedule.StepIsComplete());
  schedule.CloseStep();
  CHECK((schedule.MayPull(0, At(321)) && schedule.MayPull(1, At(321))));
  CHECK(schedule.NextDeadline() == TimePoint::max());
}

TEST_CASE("dropped and back") {
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 3));
  CHECK((schedule.Push(0, 0) == Verdict::kCollect && !schedule.MayPull(0, At(100))));
  // A repeated pull has waited since the first one.
  CHECK(!schedule.MayPull(0, At(130)));
  CHECK(schedule.NextDeadline() == At(160));
  CHECK((schedule.Push(1, 0) == Verdict::kCollect && !schedule.MayPull(1, At(150))));
  const std::vector<std::string> lines = schedule.CheckTime(At(160));
  CHECK(lines.size() == 1);
  CHECK_CONTAINS(lines[0], "worker 2 is dropped: others have waited for it longer than 60 s");
  CHECK((schedule.StepIsComplete() && schedule.contributions() == 2));
  schedule.CloseStep();

  // Its push is too late. The others do not wait for it until it pulls.
  CHECK(schedule.Push(2, 0) == Verdict::kDropLate);
  CHECK((schedule.Push(0, 1) == Verdict::kCollect && schedule.Push(1, 1) == Verdict::kCollect));
  CHECK(schedule.StepIsComplete());
  schedule.CloseStep();
  CHECK((schedule.Push(0, 2) == Verdict::kCollect && !schedule.MayPull(0, At(200))));
  CHECK(schedule.MayPull(2, At(250)));
  CHECK((schedule.Push(1, 2) == Verdict::kCollect && !schedule.StepIsComplete()));
  CHECK(schedule.NextDeadline() == At(250));  // to report it
  const std::vector<std::string> back = schedule.CheckTime(At(250));
  CHECK((back.size() == 1 && back[0] == "worker 2 is back, at step 2"));
  // Worker 0 has waited since 200; for worker 2, only since its return.
  CHECK(schedule.NextDeadline() == At(310));
  CHECK((schedule.Push(2, 2) == Verdict::kCollect && schedule.StepIsComplete()));
}

TEST_CASE("stop waiting") {
  // A worker that dies while it waits must not cause others to be dropped.
  Schedule schedule = Started(ScheduleFor(Mode::kSync, 2));
  CHECK((schedule.Push(0, 0) == Verdict::kCollect && !schedule.MayPull(0, At(10))));
  schedule.StopWaiting(0);
  CHECK((schedule.NextDeadline() == TimePoint::max() && schedule.CheckTime(At(1000)).empty()));
  // Its next process has contributed to this step already.
  schedule.Join(0, true);
  CHECK(!schedule.MayPull(0, At(2000)));
  CHECK(schedule.NextDeadline() == At(2060));
}

TEST_CASE("save and restore") {
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
  CHECK((again.clock() == 3 && again.contributions() == 0));
  CHECK((again.clock_of(0) == 4 && again.clock_of(1) == 3));
  CHECK((again.dropped_pushes() == 1 && again.dropped_pushes_of(2) == 1));
  CHECK(again.MayPull(0, At(501)));
  CHECK((again.Push(0, 3) == Verdict::kCollect && !again.MayPull(0, At(502))));
  // Worker 2 had left; worker 1 has the start timeout.
  CHECK((!again.StepIsComplete() && again.NextDeadline() == At(802)));
  CHECK((again.Push(1, 3) == Verdict::kCollect && again.StepIsComplete()));

  const ScheduleOptions bounded = ScheduleFor(Mode::kSsp, 2, 1);
  Schedule ssp = Started(bounded);
  CHECK((ssp.Push(0, 0) == Verdict::kApply && ssp.MayPull(0, At(0))));
  ssp.Push(0, 0);
  ssp.Push(1, 0);
  // A third worker is added, and starts at the slowest clock.
  Schedule larger(ScheduleFor(Mode::kSsp, 3, 1), At(0));
  larger.Restore(ssp.Save());
  CHECK((larger.clock_of(0) == 2 && larger.clock_of(1) == 1 && larger.clock_of(2) == 1));
  CHECK((larger.largest_lead() == 1 && larger.slowest_clock() == 1));
  Schedule smaller(ScheduleFor(Mode::kSsp, 1, 1), At(0));
  smaller.Restore(ssp.Save());
  CHECK((smaller.clock_of(0) == 2 && smaller.slowest_clock() == 2));
  Schedule untouched(bounded, At(0));
  untouched.Restore({});
  CHECK(untouched.clock_of(0) == 0);
}

}  // namespace
}  // namespace tfdist::testing::ps_server_schedule_test
