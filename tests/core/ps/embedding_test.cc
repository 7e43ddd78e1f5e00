// Embeddings on several servers: rows are looked up by id; gradients are added up and applied once,
// also when connections break.
#include <random>

#include "proxy.h"
#include "ps/worker.h"

namespace tfdist::testing::ps_embedding_test {
namespace {

using Ids = std::vector<int64_t>;
using Floats = std::vector<float>;

ps::TableConfig Zeros(uint32_t width) {
  ps::TableConfig config;
  config.width = width;
  return config;
}

// The servers of a job, and workers that are connected to all of them.
struct Job {
  Job(const ps::ServerOptions& options, int count) {
    for (int i = 0; i < count; ++i) servers.push_back(StartServer(options));
  }
  std::unique_ptr<Worker> Join(int rank, int workers = 1) {
    auto worker = std::make_unique<Worker>(rank, workers, static_cast<int>(servers.size()));
    for (size_t i = 0; i < servers.size(); ++i) worker->Connect(*servers[i], static_cast<int>(i));
    return worker;
  }
  uint64_t pushes() const {
    uint64_t max_pushes = 0;
    for (const auto& server : servers) {
      max_pushes = std::max(max_pushes, server->stats().pushes);
    }
    return max_pushes;
  }

  std::vector<std::unique_ptr<ps::Server>> servers;
};

Status Create(Worker& worker, const std::string& name, const ps::TableConfig& config, int* table) {
  *table = worker.client().tables().Add(name, config);
  return Call([&](ps::Done done) { worker.client().tables().Create(*table, done); });
}

int MakeTable(Worker& worker, const std::string& name, const ps::TableConfig& config) {
  int table = -1;
  REQUIRE_OK(Create(worker, name, config, &table));
  return table;
}

Floats Lookup(Worker& worker, int table, const Ids& ids, size_t width, bool training = true) {
  const ps::Memory rows = Hold(Floats(ids.size() * width, -7));
  CHECK_OK(Call([&](ps::Done done) {
    worker.client().tables().Lookup({{table, ids, rows}}, training, done);
  }));
  const auto* values = reinterpret_cast<const float*>(rows.data);
  return Floats(values, values + ids.size() * width);
}

void Stage(Worker& worker, int table, const Ids& ids, Floats gradients) {
  worker.client().parameters().StageRows({1, 1}, {table, ids, Hold(std::move(gradients))});
}

void TestLookupAndPush(int servers) {
  Job job(AsyncJob(1), servers);
  const auto worker = job.Join(0);
  ps::TableConfig config = Zeros(3);
  config.initializer = {ps::InitializerKind::kUniform, -1, 1, 5};
  const int table = MakeTable(*worker, "users", config);
  CHECK(MakeTable(*worker, "users", config) == table);
  Ids ids;
  for (int64_t i = 0; i < 1000; ++i) ids.push_back((i % 300) * 1000003 - 7);
  const Floats before = Lookup(*worker, table, ids, 3);
  for (size_t i = 0; i < ids.size(); ++i) {
    float expected[3];
    config.initializer.Fill(ids[i], 3, expected);
    CHECK(std::equal(expected, expected + 3, before.begin() + 3 * i));
  }
  // Two lists with repeated ids.
  CHECK_OK(worker->Pull({}));
  Stage(*worker, table, ids, Floats(3000, 0.5f));
  Stage(*worker, table, {ids[0], ids[1]}, {1, 1, 1, 2, 2, 2});
  CHECK_OK(worker->PushStaged());
  CHECK_OK(worker->client().Flush(kPatience));
  const Floats after = Lookup(*worker, table, ids, 3, false);
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t unique = i % 300;
    const float sum = 0.5f * (unique < 100 ? 4 : 3) + (unique == 0 ? 1 : unique == 1 ? 2 : 0);
    for (size_t j = 0; j < 3; ++j) {
      CHECK(std::abs(after[3 * i + j] - (before[3 * i + j] - sum)) < 1e-6f);
    }
  }
  CHECK(Lookup(*worker, table, {}, 3).empty());
  CHECK(job.pushes() == 1);
}

// One request to each server for all tables.
TEST_CASE("many tables") {
  Job job(AsyncJob(1), 2);
  const auto worker = job.Join(0);
  std::vector<ps::TableLookup> lookups;
  std::vector<ps::Memory> memory;
  for (uint32_t i = 1; i <= 26; ++i) {
    ps::TableConfig config = Zeros(i);
    config.initializer.a = i;
    const int table = MakeTable(*worker, StrCat("feature ", i), config);
    memory.push_back(Hold(Floats(10 * i, -1)));
    lookups.push_back({table, Ids{1, 2, 3, 4, 5, 1, 2, 3, 4, 5}, memory.back()});
  }
  CHECK_OK(Call([&](ps::Done done) { worker->client().tables().Lookup(lookups, true, done); }));
  for (uint32_t i = 1; i <= 26; ++i) {
    const auto* values = reinterpret_cast<const float*>(memory[i - 1].data);
    for (size_t j = 0; j < 10 * i; ++j) CHECK(values[j] == static_cast<float>(i));
  }
}

TEST_CASE("refusals") {
  Job job(AsyncJob(2), 1);
  const auto worker = job.Join(0, 2), other = job.Join(1, 2);
  int table = MakeTable(*worker, "t", Zeros(3)), unfit = -1;
  const Status differs = Create(*other, "t", Zeros(4), &unfit);
  CHECK_STATUS(differs, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(differs.message(), "table 't' was created with another configuration");
  const Status impossible = Create(*worker, "u", Zeros(0), &unfit);
  CHECK_CONTAINS(impossible.message(), "table 'u': a table: expected a width from 1 to 65536");
  const Status early = Call([&](ps::Done done) {
    other->client().tables().Lookup({{unfit - 1, {1}, Hold(Floats(4))}}, true, done);
  });
  CHECK_STATUS(early, StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(early.message(), "table 't' has not been created on ps 0");
  CHECK_STATUS(
      Call([&](ps::Done done) { worker->client().tables().Lookup({{9, {1}, {}}}, true, done); }),
      StatusCode::kInvalidArgument);
  CHECK(Lookup(*worker, table, {1}, 3) == Floats(3, 0));
}

// The gradients of synchronous workers are added up, and applied as one.
TEST_CASE("sync") {
  Job job(SyncJob(2), 2);
  const auto a = job.Join(0, 2), b = job.Join(1, 2);
  ps::TableConfig config = Zeros(2);
  config.rule = ps::RowRule::kRowwiseAdagrad;
  const int table = MakeTable(*a, "t", config);
  CHECK(MakeTable(*b, "t", config) == table);
  Ending steps[] = {a->StartPull({}), b->StartPull({})};
  for (Ending& step : steps) CHECK_OK(Wait(step));
  Lookup(*a, table, {1, 2, 3}, 2);
  Stage(*a, table, {1, 2}, {1, 1, 2, 2});
  CHECK_OK(a->PushStaged());
  Stage(*b, table, {2, 3}, {3, 3, 4, 4});
  CHECK_OK(b->PushStaged());
  Ending next[] = {a->StartPull({}), b->StartPull({})};
  for (Ending& step : next) CHECK_OK(Wait(step));
  // The first step of Adagrad has length 1 for any gradient.
  CHECK(Lookup(*b, table, {1, 2, 3}, 2, false) == Floats(6, -1));
  // A worker whose batch has no rows contributes too.
  Stage(*a, table, {7}, {1, 1});
  CHECK_OK(a->PushStaged());
  Stage(*b, table, {}, {});
  CHECK_OK(b->PushStaged());
  Ending last[] = {a->StartPull({}), b->StartPull({})};
  for (Ending& step : last) CHECK_OK(Wait(step));
  CHECK(Lookup(*b, table, {7}, 2, false) == Floats(2, -1));
}

// Two workers push rows of the same ids for the same step, on two threads of the server.
TEST_CASE("concurrent sync") {
  constexpr size_t kIds = 2000, kWidth = 8;
  Job job(SyncJob(2), 1);
  std::vector<std::unique_ptr<Worker>> workers;
  for (const int rank : {0, 1}) workers.push_back(job.Join(rank, 2));
  Ids ids(kIds);
  for (size_t i = 0; i < kIds; ++i) ids[i] = static_cast<int64_t>(i);
  const int steps = Rounds(160);
  OnRanks(2, [&](int rank) {
    Worker& worker = *workers[rank];
    const int table = MakeTable(worker, "t", Zeros(kWidth));
    for (int step = 0; step < steps; ++step) {
      CHECK_OK(worker.Pull({}));
      Stage(worker, table, ids, Floats(kIds * kWidth, -1));
      CHECK_OK(worker.PushStaged());
    }
    CHECK_OK(worker.Pull({}));
    CHECK(Lookup(worker, table, ids, kWidth, false) == Floats(kIds * kWidth, 2.0f * steps));
  });
}

// A connection that is cut at any byte of a step: no gradient is applied twice or lost.
TEST_CASE("cuts") {
  Job job(AsyncJob(2), 2);
  Proxy proxy(job.servers[0]->port());
  Worker worker(0, 2, 2);
  const auto connect = [&] {
    REQUIRE_OK(worker.Connect(0, proxy.port(), job.servers[0]->incarnation()));
  };
  connect();
  worker.Connect(*job.servers[1], 1);
  const int table = MakeTable(worker, "t", Zeros(2));
  Ids ids(20);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  float steps = 0;
  const auto step = [&] {
    CHECK_OK(worker.Pull({}));
    const Floats rows = Lookup(worker, table, ids, 2);
    CHECK(rows == Floats(40, steps));
    ++steps;
    Stage(worker, table, ids, Floats(40, -1));
    CHECK_OK(worker.PushStaged());
    CHECK_OK(worker.client().Flush(kPatience));
  };
  proxy.Arm(Proxy::kToServer, 0, Proxy::Fault::kNone);
  step();
  for (const Proxy::Direction direction : {Proxy::kToServer, Proxy::kToClient}) {
    const uint64_t bytes = proxy.passed(direction);
    CHECK((bytes > 100 && bytes < 1000));
    for (uint64_t at = 0; at < bytes; at += 3) {
      proxy.Arm(direction, at, Proxy::Fault::kCut);
      std::thread keeper([&] {
        CHECK(worker.client().WaitForLost(kPatience) == 0);
        connect();
      });
      step();
      keeper.join();
    }
    proxy.Arm(direction, 0, Proxy::Fault::kNone);
    step();
  }
  CHECK(Lookup(worker, table, ids, 2, false) == Floats(40, steps));
}

// A server that restarts without its rows makes new ones; other servers keep theirs.
TEST_CASE("server restart") {
  Job job(AsyncJob(1), 2);
  const auto worker = job.Join(0);
  const int table = MakeTable(*worker, "t", Zeros(1));
  Ids ids(100);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  CHECK_OK(worker->Pull({}));
  Stage(*worker, table, ids, Floats(100, -1));
  CHECK_OK(worker->PushStaged());
  CHECK_OK(worker->client().Flush(kPatience));
  job.servers[1] = StartServer(AsyncJob(1));
  CHECK(worker->client().WaitForLost(kPatience) == 1);
  worker->Connect(*job.servers[1], 1);
  const Floats rows = Lookup(*worker, table, ids, 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK(rows[i] == (ps::ServerOfId(ids[i], 2) == 0 ? 1.0f : 0.0f));
  }
}

TEST_CASE("placement") {
  for (const int servers : {1, 2, 3, 7}) {
    std::vector<int> counts(servers);
    for (int64_t id = 0; id < 70000; ++id) ++counts[ps::ServerOfId(id, servers)];
    for (const int count : counts) CHECK(std::abs(count * servers / 70000.0 - 1) < 0.03);
  }
}

TEST_CASE("lookup and push") {
  for (const int servers : {1, 3}) TestLookupAndPush(servers);
}

}  // namespace
}  // namespace tfdist::testing::ps_embedding_test
