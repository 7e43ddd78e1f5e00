// The flight recorder's events of requests to parameter servers.
#include "core/trace/event_ring.h"
#include "ps/worker.h"

namespace tfdist::testing::recorded_requests_test {
namespace {

std::vector<Event> RequestsSince(uint64_t before, const std::string& operation) {
  std::vector<Event> found;
  for (const Event& event : ProcessEvents().Read(before + 1, EventRing::kEvents).events) {
    if (event.kind == EventKind::kRequest && event.operation == operation) found.push_back(event);
  }
  return found;
}

TEST_CASE("answered") {
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0);
  worker.Connect(*server);
  const uint64_t before = ProcessEvents().last();
  const int a = worker.Make<float>("a", {1, 2}), b = worker.Make<float>("b", {3});
  REQUIRE_OK(worker.BindSgd({a, b}));
  CHECK_OK(worker.Pull({a, b}));
  worker.Stage(b, {5});
  CHECK_OK(worker.PushStaged());
  CHECK_OK(worker.client().Flush(kPatience));
  CHECK(RequestsSince(before, "create").size() >= 2);
  const std::vector<Event> pulls = RequestsSince(before, "pull");
  const std::vector<Event> pushes = RequestsSince(before, "push");
  CHECK((pulls.size() == 1 && pushes.size() == 1));
  CHECK(std::string(pulls[0].name) == "a pull of 2 parameters");
  CHECK(std::string(pulls[0].detail) == "a and 1 more");
  CHECK((std::string(pushes[0].detail) == "b" && pushes[0].bytes == 4));
  for (const Event& event : {pulls[0], pushes[0]}) {
    CHECK((event.state == EventState::kDone && event.peer == 0));
    CHECK((event.started >= event.submitted && event.ended >= event.started));
  }
}

// A server that does not answer, and a server that will not come back.
TEST_CASE("unanswered") {
  const auto server = StartServer(SyncJob(2));
  Worker worker(0, 2);
  worker.Connect(*server);
  const int a = worker.Make<float>("a", {1});
  CHECK_OK(worker.Pull({a}));
  CHECK_OK(worker.Push<float>({{a, {2}}}));
  const uint64_t before = ProcessEvents().last();
  Ending held_back = worker.StartPull({a});  // until the other worker has pushed
  CHECK(StillRuns(held_back, 0.05));
  std::vector<Event> pulls = RequestsSince(before, "pull");
  CHECK((pulls.size() == 1 && pulls[0].state == EventState::kStarted && pulls[0].ended == 0));
  TakeFailures();
  worker.client().GiveUp(0, Status(StatusCode::kUnavailable, "ps 0 is gone for good"));
  CHECK_STATUS(Wait(held_back), StatusCode::kUnavailable);
  pulls = RequestsSince(before, "pull");
  CHECK(pulls[0].state == EventState::kFailed);
  CHECK(std::string(pulls[0].error) == "ps 0 is gone for good");
  CHECK(TakeFailures() == static_cast<uint32_t>(Failure::kLost));
}

}  // namespace
}  // namespace tfdist::testing::recorded_requests_test
