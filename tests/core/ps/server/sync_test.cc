// Synchronous and bounded-staleness training on one parameter server: waits and results.
#include <atomic>

#include "ps/raw_ps_worker.h"

namespace tfdist::testing::ps_server_sync_test {
namespace {

constexpr UpdateKind kGradient = UpdateKind::kGradient;
constexpr UpdateKind kDelta = UpdateKind::kDelta;

std::string NextLog(Server& server) {
  Server::Event event;
  do {
    CHECK(server.WaitForEvent(20, &event));
  } while (event.kind != Server::Event::Kind::kLog);
  return event.text;
}

TEST_CASE("gradients are summed") {
  auto server = StartServer(Options(Mode::kSync, 2));
  RawPsWorker first(*server, 0), second(*server, 1);
  const uint32_t w = first.Create("w", Floats{0, 0});
  first.Bind(Sgd(), w);
  for (int step = 0; step < 3; ++step) {
    first.Pull({w});
    second.Pull({w});
    CHECK((first.clock == static_cast<uint64_t>(step) && second.clock == first.clock));
    // The learning rate of the lowest rank counts, in any order of arrival.
    const auto push_first = [&] { CHECK(!first.Push(w, kGradient, Floats{1, 2}, 0.5)); };
    const auto push_second = [&] { CHECK(!second.Push(w, kGradient, Floats{3, 6}, 100)); };
    RawPsWorker& early = step == 1 ? second : first;
    step == 1 ? push_second() : push_first();
    const uint64_t waiting = early.RequestPull({w}, true);
    const uint64_t reading = early.RequestPull({w}, false);  // has to see its own push
    CHECK((!early.HasAnswer(waiting) && !early.HasAnswer(reading)));
    step == 1 ? push_first() : push_second();
    const float sum = -2.0f * static_cast<float>(step + 1);
    CHECK(early.AwaitPull(waiting, {w}) == Raw(Floats{sum, 2 * sum}));
    CHECK(early.AwaitPull(reading, {w}) == Raw(Floats{sum, 2 * sum}));
  }
  const ServerStats stats = server->stats();
  CHECK((stats.clock == 3 && stats.pushes == 6 && stats.dropped_pushes == 0));
}

// A worker with too many unanswered pulls gets errors.
TEST_CASE("too many pulls") {
  auto server = StartServer(Options(Mode::kSync, 2));
  RawPsWorker first(*server, 0), second(*server, 1);
  const uint32_t w = first.Create("w", Floats{1});
  first.Push(w, kDelta, Floats{2});
  const uint64_t waiting = first.RequestPull({w}, true);
  RawAnswer answer = first.Await(first.RequestPull({w}, true));
  CHECK(answer.status.code() == StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(answer.status.message(), "while another one waits for its answer");
  std::vector<uint64_t> reading;
  for (int i = 1; i < 1024; ++i) reading.push_back(first.RequestPull({w}, false));
  answer = first.Await(first.RequestPull({w}, false));
  CHECK_CONTAINS(answer.status.message(), "while 1024 others wait for their answers");
  second.Push(w, kDelta, Floats{4});
  CHECK(first.AwaitPull(waiting, {w}) == Raw(Floats{4}));
  for (const uint64_t number : reading) CHECK(first.AwaitPull(number, {w}) == Raw(Floats{4}));
}

// Deltas and integers are averaged; rows are summed into the same step as dense gradients.
TEST_CASE("means") {
  auto server = StartServer(Options(Mode::kSync, 2));
  RawPsWorker first(*server, 0), second(*server, 1);
  const uint32_t f = first.Create("f", Floats{1, 2}), w = first.Create("w", Floats{0, 0, 0, 0});
  const uint32_t n =
      first.Create("n", DType::kInt64, 4, Raw(std::vector<int64_t>{100, 100, 100, 100}));
  first.Bind(Sgd(), w);
  const auto push = [&](RawPsWorker& worker, const std::string& rest, const Floats& delta,
                        const std::vector<int64_t>& count, UpdateKind kind) {
    PushRequest request =
        worker.NewPush({{f, kDelta, 0, 0, 0}, {n, kDelta, 0, 0, 0}, {w, kind, 0, 0, 0}});
    if (kind == UpdateKind::kRows) request.entries[2] = {w, kind, 0, 2, 2};
    CHECK(!worker.Push(request, Raw(delta) + Raw(count) + rest));
  };
  push(first, Raw(Floats{1, 2, 3, 4}), {1, 10}, {1, -1, 2, 3}, kGradient);
  CHECK(second.Value(w) == Floats({0, 0, 0, 0}));
  push(second, Raw(std::vector<int64_t>{1, 1}) + Raw(Floats{10, 20, 100, 200}), {2, 40},
       {0, 0, -1, 3}, UpdateKind::kRows);
  CHECK(second.Value(f) == Floats({2.5, 27}));
  CHECK(second.Value(w) == Floats({-1, -2, -113, -224}));
  // 1/2, -1/2, 1/2 and 3: halves go away from zero.
  CHECK(Values<int64_t>(second.Pull({n})) == std::vector<int64_t>({101, 99, 101, 103}));
}

// The step needs two workers of three; the push of the third is dropped.
TEST_CASE("backup workers") {
  ServerOptions options = Options(Mode::kSync, 3);
  options.schedule.num_aggregate = 2;
  auto server = StartServer(options);
  RawPsWorker a(*server, 0), b(*server, 1), slow(*server, 2);
  const uint32_t w = a.Create("w", Floats{0});
  a.Bind(Sgd(), w);
  for (RawPsWorker* worker : {&a, &b, &slow}) worker->Pull({w});
  a.Push(w, kGradient, Floats{1});
  b.Push(w, kGradient, Floats{3});
  CHECK(a.Value(w, true) == Floats{-6});  // (1 + 3) * 3 / 2
  CHECK(slow.Push(w, kGradient, Floats{1000}));
  // A repeated push gets the same answer.
  --slow.sequence;
  CHECK(slow.Push(w, kGradient, Floats{1000}));
  CHECK((slow.Value(w, true) == Floats{-6} && slow.clock == 1));
  CHECK(!slow.Push(w, kGradient, Floats{2}));
  CHECK(!a.Push(w, kGradient, Floats{4}));
  CHECK(b.Value(w, true) == Floats{-15});
  const ServerStats stats = server->stats();
  CHECK((stats.dropped_pushes == 1 && stats.pushes == 4 && stats.repeated_pushes == 1));
  int dropped = 0, closed = 0;
  for (const TraceEvent& event : server->trace()) {
    dropped += event.kind == 3 && event.worker == 2 && event.clock == 0;
    closed += event.kind == 4 && event.clock < 2;
  }
  CHECK((dropped == 1 && closed == 2));
}

// A step does not wait for workers that left or were dropped; the other gradients are scaled up.
TEST_CASE("fewer workers") {
  ServerOptions options = Options(Mode::kSync, 3);
  options.schedule.worker_timeout_seconds = 0.3;
  auto server = StartServer(options);
  RawPsWorker a(*server, 0), b(*server, 1), c(*server, 2);
  const uint32_t w = a.Create("w", Floats{0});
  a.Bind(Sgd(), w);
  for (RawPsWorker* worker : {&a, &b, &c}) worker->Pull({w});
  a.Push(w, kGradient, Floats{1});
  b.Push(w, kGradient, Floats{1});
  const uint64_t waiting = a.RequestPull({w}, true);
  CHECK(!a.HasAnswer(waiting));
  c.Leave();
  CHECK(Values<float>(a.AwaitPull(waiting, {w})) == Floats{-3});
  a.Push(w, kGradient, Floats{2});
  CHECK(a.Value(w, true) == Floats{-9});  // b was waited for, and dropped
  CHECK_CONTAINS(NextLog(*server), "worker 1 is dropped");
  CHECK(b.Push(w, kGradient, Floats{1000}));  // for a closed step
  CHECK((b.Value(w, true) == Floats{-9} && b.clock == 2));
  CHECK_CONTAINS(NextLog(*server), "worker 1 is back");
  a.Push(w, kGradient, Floats{1});
  const uint64_t last = a.RequestPull({w}, true);
  CHECK(!a.HasAnswer(last));  // b counts again
  b.Push(w, kGradient, Floats{1});
  CHECK(Values<float>(a.AwaitPull(last, {w})) == Floats{-12});
}

// A synchronous server drops a push that was computed from the values of another incarnation.
TEST_CASE("push for former incarnation") {
  for (const Mode mode : {Mode::kSync, Mode::kAsync, Mode::kSsp}) {
    auto server = StartServer(Options(mode, 1));
    RawPsWorker worker(*server, 0);
    const uint32_t w = worker.Create("w", Floats{1});
    PushRequest push = worker.NewPush({{w, kDelta, 0, 0, 0}});
    push.incarnation ^= 1;
    CHECK(worker.Push(push, Raw(Floats{1})) == (mode == Mode::kSync));
    CHECK(worker.Value(w, true) == Floats{mode == Mode::kSync ? 1.0f : 2.0f});
    CHECK(server->stats().dropped_pushes == (mode == Mode::kSync ? 1 : 0));
    CHECK(!worker.Push(w, kDelta, Floats{10}));
    CHECK(worker.Value(w, true) == Floats{mode == Mode::kSync ? 11.0f : 12.0f});
  }
}

// A restored server continues at its clock; the open step starts again.
TEST_CASE("snapshot of open step") {
  auto server = StartServer(Options(Mode::kSync, 2));
  RawPsWorker a(*server, 0), b(*server, 1);
  const uint32_t w = a.Create("w", Floats{0});
  for (RawPsWorker* worker : {&a, &b}) worker->Push(w, kDelta, Floats{2});
  CHECK((a.Value(w, true) == Floats{2} && a.clock == 1));
  a.Push(w, kDelta, Floats{100});
  auto next = StartServer(Options(Mode::kSync, 2), server->TakeSnapshot());
  RawPsWorker c(*next, 0), d(*next, 1);
  CHECK((c.clock == 1 &&
         c.Value(w, true) == Floats{2}));  // does not wait for the push of the former a
  c.sequence = a.sequence;
  c.Push(w, kDelta, Floats{4});
  d.sequence = b.sequence;
  d.Pull({w});
  d.Push(w, kDelta, Floats{8});
  CHECK((d.Value(w, true) == Floats{8} && d.clock == 2));
}

TEST_CASE("staleness") {
  ServerOptions options = Options(Mode::kSsp, 2);
  options.schedule.staleness = 1;
  auto server = StartServer(options);
  RawPsWorker fast(*server, 0), slow(*server, 1);
  const uint32_t w = fast.Create("w", Floats{0});
  slow.Pull({w});
  for (int step = 0; step < 2; ++step) {
    fast.Pull({w});
    fast.Push(w, kDelta, Floats{1});
  }
  const uint64_t waiting = fast.RequestPull({w}, true);
  CHECK(!fast.HasAnswer(waiting));
  slow.Push(w, kDelta, Floats{10});
  CHECK(Values<float>(fast.AwaitPull(waiting, {w})) == Floats{12});
  fast.Push(w, kDelta, Floats{1});
  const uint64_t last = fast.RequestPull({w}, true);
  CHECK(!fast.HasAnswer(last));
  slow.Leave();
  CHECK(Values<float>(fast.AwaitPull(last, {w})) == Floats{13});
  CHECK(server->stats().largest_lead == 1);
  for (const TraceEvent& event : server->trace()) {
    if (event.kind == 1) CHECK(event.clock <= event.slowest + 1);
  }
}

// In sync, workers see exactly the pushes of earlier steps; with staleness 0, perhaps also pushes
// of the same step.
void TestManySteps(Mode mode) {
  constexpr int kWorkers = 3, kSteps = 60;
  constexpr size_t kCount = 2000;
  ServerOptions options = Options(mode, kWorkers);
  options.threads = 3;
  auto server = StartServer(options);
  OnRanks(kWorkers, [&](int rank) {
    RawPsWorker worker(*server, rank);
    std::vector<uint32_t> shards;
    for (int i = 0; i < 5; ++i) shards.push_back(worker.Create(StrCat("w", i), Floats(kCount, 0)));
    for (int step = 0; step < kSteps; ++step) {
      worker.versions.clear();
      const Floats values = Values<float>(worker.Pull(shards));
      CHECK(values.size() == 5 * kCount);
      // 1, 2 and 3 in each step: averaged in sync, added in ssp.
      const float least = static_cast<float>(step) * (mode == Mode::kSync ? 2.0f : 6.0f);
      const float others = mode == Mode::kSync ? 0.0f : static_cast<float>(6 - (rank + 1));
      CHECK_EACH(i, values.size(), values[i] >= least && values[i] <= least + others);
      std::vector<PushRequest::Entry> entries;
      for (const uint32_t shard : shards) entries.push_back({shard, kDelta, 0, 0, 0});
      CHECK(!worker.Push(worker.NewPush(entries),
                         Raw(Floats(5 * kCount, static_cast<float>(rank + 1)))));
    }
    worker.Leave();
  });
  CHECK(server->stats().pushes == kWorkers * kSteps);
}

TEST_CASE("many steps") {
  TestManySteps(Mode::kSync);
  TestManySteps(Mode::kSsp);
}

}  // namespace
}  // namespace tfdist::testing::ps_server_sync_test
