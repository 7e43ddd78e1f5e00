// The flight recorder's events of collectives.
#include <algorithm>

#include "collectives/calls.h"
#include "core/trace/event_ring.h"

namespace tfdist::testing::recorded_test {
namespace {

std::vector<Event> EventsSince(uint64_t before) {
  return ProcessEvents().Read(before + 1, EventRing::kEvents).events;
}

// Both ranks are threads of this process: they share its ring.
TEST_CASE("done") {
  auto comms = Connected(2);
  const uint64_t before = ProcessEvents().last();
  std::vector<std::vector<float>> values = {std::vector<float>(10, 1), std::vector<float>(10, 2)};
  std::vector<Ending> endings;
  for (int rank = 0; rank < 2; ++rank) {
    endings.push_back(AllReduce(*comms[rank], values[rank], {11, "dense/kernel", "float[10]"}));
  }
  for (Ending& ending : endings) CHECK_OK(Wait(ending));
  endings.clear();
  for (int rank = 0; rank < 2; ++rank) {
    endings.push_back(Broadcast(*comms[rank], values[rank], 1, {12, "bias", "float[10]"}));
  }
  for (Ending& ending : endings) CHECK_OK(Wait(ending));
  const std::vector<Event> events = EventsSince(before);
  CHECK(events.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    const Event& event = events[i];
    const bool reduces = i < 2;
    CHECK((event.kind == EventKind::kCollective && event.state == EventState::kDone));
    CHECK((event.communicator == events[0].communicator && event.communicator != 0));
    CHECK((event.rank == static_cast<int>(i % 2) && event.size == 2));
    CHECK(event.peer == (reduces ? -1 : 1));
    CHECK((event.key == (reduces ? 11u : 12u) && event.number == 0));
    CHECK((event.bytes == 40 && event.elements == 10));
    CHECK(event.signature == events[0].signature);
    CHECK(std::string(event.operation) == (reduces ? "all_reduce" : "broadcast"));
    CHECK((std::string(event.dtype) == "float32" && std::string(event.detail) == "float[10]"));
    CHECK(std::string(event.name) == (reduces ? "dense/kernel" : "bias"));
    CHECK((event.started >= event.submitted && event.ended >= event.started));
  }
}

TEST_CASE("pending and timed out") {
  auto comms = Connected(3);
  TakeFailures();
  const uint64_t before = ProcessEvents().last();
  std::vector<std::vector<float>> values;
  auto endings = ReduceWithout(comms, 1, &values, {21, "late", "float[100000]", 0.3});
  std::vector<Event> events = EventsSince(before);
  CHECK(events.size() == 2);
  for (const Event& event : events) CHECK((event.ended == 0 && event.rank != 1));
  for (const int rank : {0, 2}) CHECK_STATUS(Wait(endings[rank]), StatusCode::kDeadlineExceeded);
  for (const Event& event : EventsSince(before)) {
    CHECK((event.state == EventState::kFailed && event.ended > event.submitted));
    CHECK_CONTAINS(std::string(event.error, sizeof event.error), "rank ");
  }
  CHECK((TakeFailures() & static_cast<uint32_t>(Failure::kTimeout)) != 0);
  // A collective that begins after the failure fails, too.
  const uint64_t later = ProcessEvents().last();
  Ending after = AllReduce(*comms[0], values[0], {22, "after"});
  CHECK_STATUS(Wait(after), StatusCode::kDeadlineExceeded);
  CHECK((EventsSince(later).size() == 1 && EventsSince(later)[0].state == EventState::kFailed));
}

TEST_CASE("mismatch") {
  auto comms = Connected(2);
  TakeFailures();
  const uint64_t before = ProcessEvents().last();
  std::vector<float> few(4), many(8);
  Ending first = AllReduce(*comms[0], few, {31, "w", "float[4]"});
  Ending second = AllReduce(*comms[1], many, {31, "w", "float[8]"});
  CHECK_STATUS(Wait(first), StatusCode::kInvalidArgument);
  CHECK_STATUS(Wait(second), StatusCode::kInvalidArgument);
  const std::vector<Event> events = EventsSince(before);
  CHECK((events.size() == 2 && events[0].signature != events[1].signature));
  CHECK((TakeFailures() & static_cast<uint32_t>(Failure::kMismatch)) != 0);
}

// A communicator that is closed at the end of a program is no failure.
TEST_CASE("close is no failure") {
  TakeFailures();
  auto comms = Connected(2);
  for (auto& comm : comms) comm->Leave();
  for (auto& comm : comms) comm->Close();
  CHECK(TakeFailures() == 0);
}

}  // namespace
}  // namespace tfdist::testing::recorded_test
