// The flight recorder's ring: kept events, the count of lost ones, and concurrent writers.
#include "core/trace/event_ring.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "testing.h"

namespace tfdist::testing::event_ring_test {
namespace {

Event Made(uint64_t number) {
  Event event;
  event.kind = EventKind::kCollective;
  event.number = number;
  event.bytes = 3 * number;
  event.elements = number + 7;
  event.peer = static_cast<int32_t>(number % 5);
  SetText(event.name, StrCat("event ", number));
  return event;
}

bool IsWhole(const Event& event) {
  return event.bytes == 3 * event.number && event.elements == event.number + 7 &&
         event.peer == static_cast<int32_t>(event.number % 5) &&
         std::string(event.name) == StrCat("event ", event.number);
}

TEST_CASE("life of an event") {
  EventRing ring(8);
  CHECK((ring.last() == 0 && ring.Read(1, 8).events.empty()));
  const EventId one = ring.Submit(Made(10)), two = ring.Submit(Made(20));
  CHECK((one == 1 && two == 2 && ring.last() == 2));
  ring.Start(one);
  ring.End(one, Status());
  ring.End(two, Status(StatusCode::kUnavailable, "lost rank 3"));
  EventRing::Reading read = ring.Read(0, 8);
  CHECK((read.events.size() == 2 && read.next == 3 && read.lost == 0));
  const Event &first = read.events[0], &second = read.events[1];
  CHECK((IsWhole(first) && IsWhole(second)));
  CHECK((first.sequence == 1 && first.state == EventState::kDone && first.error[0] == '\0'));
  CHECK((first.submitted > 0 && first.started >= first.submitted && first.ended >= first.started));
  CHECK((second.state == EventState::kFailed && std::string(second.error) == "lost rank 3"));
  CHECK((second.started == 0 && second.submitted >= first.submitted));
  // A request that is repeated starts again, and a name of no event changes nothing.
  ring.Start(0);
  ring.End(0, Status());
  CHECK(ring.Read(3, 8).events.empty());
}

TEST_CASE("texts are cut with a mark") {
  Event event;
  SetText(event.name, std::string(64, 'x'));
  CHECK(std::string(event.name, 64) == std::string(64, 'x'));
  SetText(event.name, std::string(65, 'x'));
  CHECK(std::string(event.name, 64) == std::string(61, 'x') + "...");
  SetText(event.name, "y");
  CHECK((std::string(event.name) == "y" && event.name[63] == '\0'));
}

TEST_CASE("overwritten") {
  EventRing ring(8);
  std::vector<EventId> ids;
  for (uint64_t i = 0; i < 21; ++i) ids.push_back(ring.Submit(Made(i)));
  ring.End(ids[3], Status());  // its slot is another event's
  EventRing::Reading read = ring.Read(1, 100);
  CHECK((read.lost == 13 && read.events.size() == 8 && read.next == 22));
  for (size_t i = 0; i < 8; ++i) {
    CHECK((read.events[i].sequence == 14 + i && read.events[i].number == 13 + i));
    CHECK(read.events[i].state == EventState::kSubmitted);
  }
  // A cursor continues where it was, and reads a limited number at once.
  read = ring.Read(15, 3);
  CHECK((read.lost == 0 && read.events.size() == 3 && read.next == 18));
  CHECK(ring.Read(read.next, 100).events.size() == 4);
}

// Writers, and a reader that must never see half of an event.
TEST_CASE("threads") {
  EventRing ring(64);
  constexpr int kThreads = 4;
  const uint64_t each = Rounds(100000);
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < each; ++i) {
        const EventId id = ring.Submit(Made(i * kThreads + t));
        ring.Start(id);
        ring.End(id, i % 2 == 0 ? Status() : Status(StatusCode::kInternal, "odd"));
      }
      --running;
    });
  }
  uint64_t cursor = 1, seen = 0, lost = 0;
  while (true) {
    const bool last = running == 0;
    const EventRing::Reading read = ring.Read(cursor, 16);
    for (const Event& event : read.events) {
      CHECK(IsWhole(event));
      CHECK((event.sequence >= cursor && event.sequence < read.next));
    }
    seen += read.events.size();
    lost += read.lost;
    CHECK((read.next >= cursor && read.next - cursor == read.events.size() + read.lost));
    if (last && read.next == cursor) break;
    cursor = read.next;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK((seen + lost == kThreads * each && ring.last() == kThreads * each));
  CHECK(seen > 0);
}

TEST_CASE("failures wake a waiting thread") {
  TakeFailures();
  pollfd waiting = {FailureDescriptor(), POLLIN, 0};
  CHECK(poll(&waiting, 1, 0) == 0);
  NoteFailure(Status(StatusCode::kDeadlineExceeded, "late"));
  NoteFailure(Status(StatusCode::kUnavailable, "gone"));
  CHECK(poll(&waiting, 1, 0) == 1);
  CHECK(TakeFailures() == 5);
  CHECK((poll(&waiting, 1, 0) == 0 && TakeFailures() == 0));
}

// Not asserted: machines differ, and share their processors. The best of some runs.
TEST_CASE("cost") {
  EventRing ring;
  const int runs = Rounds(40), count = 5000;
  double best = 1e9;
  for (int run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) {
      Event event;
      event.kind = EventKind::kCollective;
      SetText(event.operation, "all_reduce");
      SetText(event.dtype, "float32");
      SetText(event.name, "dense/kernel/gradient");
      SetText(event.detail, "float32[1024,1024]");
      const EventId id = ring.Submit(event);
      ring.Start(id);
      ring.End(id, Status());
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / count);
  }
  std::printf("event_ring: %.0f ns an event, with its three times\n", best);
}

}  // namespace
}  // namespace tfdist::testing::event_ring_test
