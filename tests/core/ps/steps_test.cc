// The clients of several workers, as threads: synchronous steps, late pushes, and bounded
// staleness.
#include <algorithm>
#include <atomic>

#include "ps/worker.h"

namespace tfdist::testing::ps_steps_test {
namespace {

using Floats = std::vector<float>;
using Servers = std::vector<std::unique_ptr<ps::Server>>;

// `workers` connected to `servers`, with these parameters: "w", split over the servers, and
// "count", on the last one.
struct Job {
  Job(const ps::ServerOptions& options, int server_count) {
    for (int i = 0; i < server_count; ++i) servers.push_back(StartServer(options));
    for (int rank = 0; rank < options.schedule.workers; ++rank) {
      workers.push_back(std::make_unique<Worker>(rank, options.schedule.workers, server_count));
      for (int i = 0; i < server_count; ++i) workers[rank]->Connect(*servers[i], i);
      w = workers[rank]->Add("w", std::vector<uint64_t>(server_count, 1000));
      count = workers[rank]->Add("count", {1}, DType::kInt64, server_count - 1);
      REQUIRE_OK(workers[rank]->Create(w, Filled(1000 * server_count, 8.0f)));
      REQUIRE_OK(workers[rank]->Create(count, std::vector<int64_t>{0}));
      REQUIRE_OK(workers[rank]->BindSgd({w}));
    }
  }

  Servers servers;
  std::vector<std::unique_ptr<Worker>> workers;
  int w = -1, count = -1;
};

void TestSync(int workers, int servers) {
  Job job(SyncJob(workers), servers);
  constexpr int kSteps = 40;
  // sum * (N / N) of gradients 1/64 * (rank + 1), by SGD with a rate of 1.
  const float sum = static_cast<float>(workers * (workers + 1) / 2) / 64;
  OnRanks(workers, [&](int rank) {
    Worker& worker = *job.workers[rank];
    worker.in_place = rank == 0;
    for (int step = 0; step < kSteps; ++step) {
      CHECK_OK(worker.Pull({job.w, job.count}));
      // A worker that is ahead waits: all workers see the values of each step.
      const float expected = 8 - static_cast<float>(step) * sum;
      CHECK(worker.Value(job.w) == Filled(1000 * servers, expected));
      CHECK(worker.Value<int64_t>(job.count)[0] == step);
      worker.Stage(job.w, Filled(1000 * servers, static_cast<float>(rank + 1) / 64));
      CHECK_OK(worker.Push<int64_t>({{job.count, {step + 1}}}));
    }
    CHECK_OK(worker.client().Leave(kPatience));
    CHECK(worker.client().stats().dropped_pushes == 0);
  });
  for (const auto& server : job.servers) {
    CHECK((server->stats().clock == kSteps && server->stats().dropped_pushes == 0));
  }
}

TEST_CASE("late ones are dropped") {
  ps::ServerOptions options = SyncJob(3);
  options.schedule.num_aggregate = 2;
  Job job(options, 1);
  for (auto& worker : job.workers) CHECK_OK(worker->Pull({job.w}));
  for (int step = 0; step < 3; ++step) {
    for (const int rank : {0, 1}) {
      job.workers[rank]->Stage(job.w, Filled(1000, 0.5f));
      CHECK_OK(job.workers[rank]->PushStaged());
    }
    for (const int rank : {0, 1}) {
      CHECK_OK(job.workers[rank]->Pull({job.w}));
      // sum * (N / contributions)
      CHECK(job.workers[rank]->Value(job.w)[0] == 8 - 1.5f * static_cast<float>(step + 1));
    }
  }
  job.workers[2]->Stage(job.w, Filled(1000, 100.0f));
  CHECK_OK(job.workers[2]->PushStaged());
  CHECK_OK(job.workers[2]->Pull({job.w}));
  CHECK(job.workers[2]->Value(job.w)[0] == 8 - 4.5f);
  CHECK(job.workers[2]->client().stats().dropped_pushes == 1);
  CHECK(job.servers[0]->stats().dropped_pushes == 1);
}

TEST_CASE("worker that stops is dropped") {
  ps::ServerOptions options = SyncJob(2);
  options.schedule.worker_timeout_seconds = 0.2;
  Job job(options, 2);
  for (auto& worker : job.workers) CHECK_OK(worker->Pull({job.w}));
  job.workers[0]->Stage(job.w, Filled(2000, 1.0f));
  CHECK_OK(job.workers[0]->PushStaged());
  CHECK_OK(job.workers[0]->Pull({job.w}));  // continues alone
  CHECK(job.workers[0]->Value(job.w) == Filled(2000, 6.0f));
  // It rejoins with its next pull; its former gradient is too late.
  job.workers[1]->Stage(job.w, Filled(2000, 1.0f));
  CHECK_OK(job.workers[1]->PushStaged());
  CHECK_OK(job.workers[1]->Pull({job.w}));
  CHECK(job.workers[1]->Value(job.w) == Filled(2000, 6.0f));
  for (auto& worker : job.workers) {
    worker->Stage(job.w, Filled(2000, 1.0f));
    CHECK_OK(worker->PushStaged());
  }
  for (auto& worker : job.workers) {
    CHECK_OK(worker->Pull({job.w}));
    CHECK(worker->Value(job.w) == Filled(2000, 4.0f));
  }
}

TEST_CASE("reduce") {
  Job job(SyncJob(3), 2);
  OnRanks(3, [&](int rank) {
    Worker& worker = *job.workers[rank];
    for (int step = 0; step < 5; ++step) {
      CHECK_OK(worker.Pull({job.w}));
      // Each key has its server; consecutive executions of a key are distinct.
      for (const uint64_t key : {7, 8, 7}) {
        const auto base = static_cast<float>(step) + static_cast<float>(key);
        ps::Tensor floats{DType::kFloat32, 5000, Hold(Filled(5000, base + 10.0f * rank))};
        ps::Tensor none{DType::kFloat32, 0, {}};
        ps::Tensor number{DType::kInt64, 1, Hold<int64_t>({rank})};
        CHECK_OK(Call([&](ps::Done done) {
          worker.client().averaging().Reduce(key, {floats, none, number}, std::move(done));
        }));
        CHECK(*static_cast<Floats*>(floats.values.owner.get()) == Filled(5000, 3 * base + 30));
        CHECK(*reinterpret_cast<int64_t*>(number.values.data) == 3);
      }
      worker.Stage(job.w, Filled(2000, 1.0f));
      CHECK_OK(worker.PushStaged());
    }
    CHECK_OK(worker.client().Leave(kPatience));
  });
}

// Worker 0 is fast, but never more than `staleness` steps ahead.
void TestBoundedStaleness(int staleness) {
  ps::ServerOptions options = AsyncJob(2);
  options.schedule.mode = ps::Mode::kSsp;
  options.schedule.staleness = staleness;
  options.trace_events = 10000;
  Job job(options, 1);
  constexpr int kSteps = 12;
  std::atomic<int> made{0};  // by the fast one
  std::thread fast([&] {
    for (int step = 0; step < kSteps; ++step) {
      CHECK_OK(job.workers[0]->Pull({job.w, job.count}));
      made = step + 1;
      CHECK_OK(job.workers[0]->Push<int64_t>(
          {{job.count, {job.workers[0]->Value<int64_t>(job.count)[0] + 1}}}));
    }
    CHECK_OK(job.workers[0]->client().Leave(kPatience));
  });
  for (int step = 0; step < kSteps; ++step) {
    // The fast worker begins staleness + 1 steps more than this worker, and then waits.
    const int max_steps = std::min(step + staleness + 1, kSteps);
    CHECK(Eventually([&] { return made == max_steps; }));
    CHECK_OK(job.workers[1]->Pull({job.w, job.count}));
    CHECK(made == max_steps);
    CHECK_OK(job.workers[1]->Push<int64_t>(
        {{job.count, {job.workers[1]->Value<int64_t>(job.count)[0] + 1}}}));
  }
  CHECK_OK(job.workers[1]->client().Flush(kPatience));
  fast.join();
  CHECK_OK(job.workers[1]->Pull({job.count}));
  CHECK(job.workers[1]->Value<int64_t>(job.count)[0] == 2 * kSteps);
  CHECK(job.servers[0]->stats().largest_lead == static_cast<uint64_t>(staleness));
  for (const ps::TraceEvent& event : job.servers[0]->trace()) {
    if (event.kind == 1) CHECK(event.clock <= event.slowest + static_cast<uint64_t>(staleness));
  }
}

// A pull that is held back for too long fails, and the next one succeeds.
TEST_CASE("pull that is held back for too long") {
  const auto server = StartServer(SyncJob(2));
  Worker hasty(0, 2, 1, 0.2), other(1, 2);
  hasty.Connect(*server);
  other.Connect(*server);
  const int a = hasty.Make<float>("a", {1});
  CHECK((other.Make<float>("a", {1}) == a));
  CHECK_OK(hasty.Pull({a}));
  CHECK_OK(other.Pull({a}));
  CHECK_OK(hasty.Push<float>({{a, {2}}}));
  const Status late = hasty.Pull({a});
  CHECK_STATUS(late, StatusCode::kDeadlineExceeded);
  CHECK_CONTAINS(late.message(), "ps 0: no answer to a pull of 1 parameters within 0.2 s");
  // The server holds back one pull per worker: the next needs another connection.
  CHECK(hasty.client().WaitForLost(kPatience) == 0);
  CHECK_OK(other.Push<float>({{a, {4}}}));
  Ending next = hasty.StartPull({a});
  hasty.Connect(*server);
  CHECK_OK(Wait(next));
  CHECK(hasty.Value(a)[0] == 1 + (1 + 3) / 2.0f);
}

TEST_CASE("sync") {
  TestSync(2, 1);
  TestSync(3, 2);
}

TEST_CASE("bounded staleness") {
  for (const int staleness : {0, 1, 3}) TestBoundedStaleness(staleness);
}

}  // namespace
}  // namespace tfdist::testing::ps_steps_test
