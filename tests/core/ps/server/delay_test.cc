// Concurrent updates: compensation of delays, and several threads at once.
#include <atomic>
#include <cmath>

#include "ps/raw_ps_worker.h"

namespace tfdist::testing::ps_server_delay_test {
namespace {

constexpr UpdateKind kGradient = UpdateKind::kGradient;
constexpr UpdateKind kDelta = UpdateKind::kDelta;

ServerOptions Compensated(Compensation compensation) {
  ServerOptions options = Options(Mode::kAsync, 2);
  options.compensation = compensation;
  options.compensation_lambda = 0.5;
  return options;
}

TEST_CASE("dc asgd") {
  auto server = StartServer(Compensated(Compensation::kDcAsgd));
  RawPsWorker late(*server, 0), other(*server, 1);
  const uint32_t w = late.Create("w", Floats{1, 1}), rows = late.Create("rows", Floats{1, 1, 1});
  const uint32_t dense_rows = late.Create("dense rows", Floats{1, 1, 1});
  const uint32_t m = late.Create("m", Floats{0, 0, 0});
  OptimizerConfig momentum;
  momentum.momentum = 0.5;
  late.Bind(Sgd(), w);
  late.Bind(Sgd(), rows);
  late.Bind(momentum, dense_rows, {m});
  const std::vector<uint32_t> all = {w, rows, dense_rows};
  late.Pull(all);
  other.Pull(all);
  other.Push(w, kGradient, Floats{2, 0});
  other.PushRows(rows, {0, 2}, {2, -1});
  other.PushRows(dense_rows, {0, 2}, {2, -1});
  CHECK(other.Value(w) == Floats({-1, 1}));  // no update since its pull: no correction
  CHECK(other.Value(rows) == Floats({-1, 1, 2}));
  // g + 0.5 g^2 (now - then).
  late.Push(w, kGradient, Floats{3, 3});
  CHECK(other.Value(w) == Floats({-1 - (3 - 9), 1 - 3}));
  late.PushRows(rows, {2, 0}, {2, 3});
  CHECK(other.Value(rows) == Floats({-1 - (3 - 9), 1, 2 - (2 + 2)}));
  late.PushRows(dense_rows, {2, 0}, {2, 3});  // momentum: 0.5 of (-2, 0, 1), less the gradient
  CHECK(other.Value(dense_rows) == Floats({-1 - 1 - (3 - 9), 1, 2 + 0.5f - (2 + 2)}));
  late.Pull(all);
  late.Push(w, kGradient, Floats{1, 1});
  CHECK(other.Value(w) == Floats({4, -3}));
}

TEST_CASE("ada delay") {
  auto server = StartServer(Compensated(Compensation::kAdaDelay));
  RawPsWorker late(*server, 0), other(*server, 1);
  const uint32_t w = late.Create("w", Floats{0});
  late.Bind(Sgd(), w);
  late.Pull({w});
  for (int i = 0; i < 3; ++i) {
    other.Pull({w});
    other.Push(w, kGradient, Floats{1});
  }
  CHECK(late.Value(w) == Floats{-3});
  late.Push(w, kGradient, Floats{1});  // 3 updates in all, and 3 since its pull
  const float expected = -3.0f - std::sqrt(0.5f);
  CHECK(std::abs(late.Value(w)[0] - expected) < 1e-6f);
  // The number of updates is in the snapshot.
  auto next = StartServer(Compensated(Compensation::kAdaDelay), server->TakeSnapshot());
  RawPsWorker again(*next, 0), another(*next, 1);
  again.Create("w", Floats{0});
  again.Bind(Sgd(), w);
  again.sequence = another.sequence = 100;
  again.Pull({w});
  another.Pull({w});
  again.Push(w, kGradient, Floats{0});
  another.Push(w, kGradient, Floats{1});  // 5 in all, 1 since its pull
  CHECK(std::abs(again.Value(w)[0] - (expected - std::sqrt(5.0f / 6.0f))) < 1e-6f);
}

TEST_CASE("options") {
  std::unique_ptr<Server> server;
  const auto refused = [&](const ServerOptions& options, const std::string& why) {
    const Status status = Server::Create(options, "", 0, true, &server);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(), "parameter server 0: " + why);
  };
  ServerOptions options = Options(Mode::kSync, 2);
  options.hogwild = true;
  refused(options, "hogwild does not go with sync");
  options = Options(Mode::kSync, 2);
  options.compensation = Compensation::kAdaDelay;
  refused(options, "a compensation does not go with sync");
  options = Compensated(Compensation::kDcAsgd);
  options.hogwild = true;
  refused(options, "dc-asgd does not go with hogwild");
  options = Options(Mode::kSync, 2);
  options.schedule.num_aggregate = 3;
  refused(options, "expected num_aggregate from 1 to 2, the number of workers, received 3");
  refused(Options(Mode::kAsync, 0), "expected at least 1 worker, received 0");
  refused(Options(static_cast<Mode>(9), 1), "unknown mode 9");
  options = Options(Mode::kAsync, 1);
  options.threads = 0;
  refused(options, "expected 1 to 64 threads, received 0");
  options = Options(Mode::kSsp, 1);
  options.schedule.staleness = -1;
  refused(options, "expected a staleness of 0 or more, received -1");
  options = Options(Mode::kAsync, 1);
  options.schedule.worker_timeout_seconds = std::nan("");
  refused(options, "expected timeouts of more than 0 s");
}

// An answer on its way whose values are changed meanwhile has the old values.
TEST_CASE("slow reader") {
  constexpr size_t kCount = 4 << 20;  // more than connections hold
  auto server = StartServer(Options(Mode::kAsync, 2));
  RawPsWorker reader(*server, 0), writer(*server, 1);
  const uint32_t w = reader.Create("w", Floats(kCount, 1));
  const uint64_t first = reader.RequestPull({w}, false);
  while (server->stats().pulls == 0) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) writer.Push(w, kDelta, Floats(kCount, 1));
  const uint64_t second = reader.RequestPull({w}, false);
  const Floats before = Values<float>(reader.AwaitPull(first, {w}));
  CHECK_ALL(before, 1);
  const Floats after = Values<float>(reader.AwaitPull(second, {w}));
  CHECK_ALL(after, 4);
}

// Workers push to the same shards at once. No push is lost, and a snapshot has each push entirely
// or not at all.
TEST_CASE("many at once") {
  constexpr int kWorkers = 3, kSteps = 150;
  constexpr size_t kCount = 5000;
  ServerOptions options = Options(Mode::kAsync, kWorkers);
  options.threads = 3;
  auto server = StartServer(options);
  std::atomic<bool> stop{false};
  std::thread snapshots([&] {
    while (!stop) {
      const ServerSnapshot snapshot = server->TakeSnapshot();
      if (snapshot.shards.size() < 2) continue;
      const Floats u = Values<float>({snapshot.shards[0].block->data(), 4 * kCount});
      const Floats v = Values<float>({snapshot.shards[1].block->data(), 4 * kCount});
      CHECK_EACH(i, kCount, u[i] == u[0] && v[i] == -u[0]);
    }
  });
  OnRanks(kWorkers, [&](int rank) {
    RawPsWorker worker(*server, rank);
    const uint32_t u = worker.Create("u", Floats(kCount, 0));
    const uint32_t v = worker.Create("v", Floats(kCount, 0));
    const float mine = static_cast<float>(rank + 1);
    for (int step = 0; step < kSteps; ++step) {
      const PushRequest push = worker.NewPush({{u, kDelta, 0, 0, 0}, {v, kDelta, 0, 0, 0}});
      worker.Push(push, Raw(Floats(kCount, mine)) + Raw(Floats(kCount, -mine)));
      const Floats now = worker.Value(u);
      CHECK_ALL(now, now[0]);
      CHECK(now[0] >= mine * static_cast<float>(step + 1));  // it reads its own pushes
    }
  });
  stop = true;
  snapshots.join();
  RawPsWorker worker(*server, 0, 5);
  const uint32_t u = worker.Create("u", Floats(kCount, 0));
  CHECK_ALL(worker.Value(u), 6 * kSteps);
}

// Hogwild updates in place, and concurrent updates may be lost. So this test gives each worker its
// own shards, and then uses a single thread.
TEST_CASE("hogwild") {
  constexpr int kWorkers = 2, kSteps = 50;
  ServerOptions options = Options(Mode::kAsync, kWorkers);
  options.hogwild = true;
  auto server = StartServer(options);
  OnRanks(kWorkers, [&](int rank) {
    RawPsWorker worker(*server, rank);
    const uint32_t w = worker.Create(StrCat("w", rank), Floats(1000, 0));
    worker.Bind(Sgd(), w);
    for (int step = 1; step <= kSteps; ++step) {
      worker.Push(w, kGradient, Floats(1000, -1), static_cast<double>(rank + 1));
      const float expected = static_cast<float>(step * (rank + 1));
      CHECK_ALL(worker.Value(w), expected);
    }
  });
  options.threads = 1;
  server = StartServer(options);
  RawPsWorker a(*server, 0), b(*server, 1);
  const uint32_t shared = a.Create("shared", Floats{1, 2});
  const ServerSnapshot snapshot = server->TakeSnapshot();
  a.Push(shared, kDelta, Floats{1, 1});
  b.Push(shared, kDelta, Floats{2, 2});
  CHECK(a.Value(shared) == Floats({4, 5}));
  b.Push(shared, UpdateKind::kAssign, Floats{9, 9});
  CHECK(a.Value(shared) == Floats({9, 9}));
  CHECK(Values<float>({snapshot.shards[0].block->data(), 8}) == Floats({1, 2}));
}

}  // namespace
}  // namespace tfdist::testing::ps_server_delay_test
