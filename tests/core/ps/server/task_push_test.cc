// Pushes that train records of data tasks: each record counts once, whichever task dies.
#include <cstdio>
#include <future>

#include "core/ps/server/task_positions.h"
#include "ps/raw_ps_worker.h"
#include "ps/worker.h"
#include "scratch.h"

namespace tfdist::testing::ps_server_task_push_test {
namespace {

using ps::TaskCommit;
using ps::TaskPositions;

TEST_CASE("positions") {
  TaskPositions tasks;
  CHECK((tasks.Open(7, "a", 0) == 0 && tasks.Open(8, "b", 5) == 5));
  {
    TaskPositions::Claim claim = tasks.Begin({{7, 0, 10}, {8, 5, 6}});
    CHECK((claim.granted() && claim.after().size() == 2 && claim.after()[1].trained == 6));
    CHECK(!tasks.Begin({{7, 0, 10}}).granted());  // twice at a time
    claim.Commit();
  }
  CHECK((tasks.Advance(7, 0) == 10 && tasks.Advance(8, 9) == 9 && tasks.Advance(8, 2) == 9));
  CHECK(!tasks.Begin({{7, 0, 10}}).granted());              // does not follow
  CHECK(!tasks.Begin({{7, 10, 12}, {9, 0, 1}}).granted());  // no such lease
  CHECK(!tasks.Begin({{7, 10, 9}}).granted());
  {
    const TaskPositions::Claim failed = tasks.Begin({{7, 10, 12}});
    CHECK(failed.granted());
  }
  CHECK(tasks.Advance(7, 0) == 10);
  // Close waits for the push that is being applied.
  TaskPositions::Claim claim = tasks.Begin({{7, 10, 12}});
  auto closed = std::async(std::launch::async, [&] { return tasks.Close(7, false); });
  CHECK(closed.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  claim.Commit();
  CHECK(closed.get() == 12);
  CHECK((!tasks.Begin({{7, 12, 13}}).granted() && tasks.Close(7, false) == 0));
  CHECK((tasks.Open(10, "a", 3) == 12 && tasks.Save().size() == 2));
  tasks.Forget("a", "c");
  CHECK(tasks.Save().size() == 2);  // both have leases
  CHECK((tasks.Close(8, true) == 9 && tasks.Save().size() == 1));
  // A collected push: its position is final, and saved when it is applied.
  tasks.Begin({{10, 12, 15}}).Collect();
  CHECK((tasks.Advance(10, 0) == 15 && tasks.Save()[0].trained == 12));
  CHECK((!tasks.Begin({{10, 12, 15}}).granted() && tasks.Close(10, false) == 15));
  tasks.Forget("a", "c");
  CHECK(tasks.Save()[0].trained == 12);
  const std::vector<TaskPosition> applied = tasks.ApplyCollected();
  CHECK((applied.size() == 1 && applied[0].task == "a" && applied[0].trained == 15));
  CHECK((tasks.Save()[0].trained == 15 && tasks.ApplyCollected().empty()));
  CHECK(tasks.Open(11, "a", 3) == 15);
  tasks.Restore({{"a", 4}, {"z", 1}});
  CHECK((tasks.Advance(11, 0) == 15 && tasks.Save()[1].trained == 1));
}

// The master forgets a task whose push is collected, and of which nothing seems to be left to do.
TEST_CASE("forgotten tasks") {
  TaskPositions tasks;
  tasks.Open(1, "a", 3);
  tasks.Begin({{1, 3, 3}}).Collect();  // of no records
  CHECK((tasks.Close(1, true) == 3 && tasks.Save().empty()));
  tasks.Open(2, "b", 0);
  tasks.Begin({{2, 0, 4}}).Collect();
  CHECK((tasks.Advance(2, 9) == 9 && tasks.Close(2, true) == 9 && tasks.Save().empty()));
  CHECK(tasks.ApplyCollected().empty());
  // Two leases of one task: the other one continues.
  tasks.Open(3, "c", 5);
  tasks.Open(4, "c", 5);
  CHECK((tasks.Close(3, true) == 5 && tasks.Advance(4, 8) == 8 && tasks.Close(4, true) == 8));
  CHECK(tasks.Save().empty());
}

PushReply Train(RawPsWorker* worker, uint32_t shard, const Floats& gradient,
                std::vector<TaskCommit> commits, uint64_t sequence = 0) {
  PushRequest push = worker->NewPush({{shard, UpdateKind::kGradient, 0, 0, 0}});
  if (sequence != 0) push.sequence = sequence;
  push.of_tasks = true;
  push.commits = std::move(commits);
  PushReply reply;
  CHECK_OK(Decode(worker->Ask(MessageType::kPush, Encode(push), Raw(gradient)), &reply));
  CHECK(!reply.dropped);
  return reply;
}

void TestRefusedPushes(ps::Mode mode) {
  const auto server = StartServer(Options(mode, 2));
  RawPsWorker worker(*server, 0);
  const uint32_t shard = worker.Create("w", Floats{0});
  worker.Bind(Sgd(), shard);
  server->tasks().Open(1, "a", 0);
  worker.Pull({shard});
  CHECK(!Train(&worker, shard, {1}, {{1, 0, 4}}).refused);
  CHECK(!Train(&worker, shard, {1}, {{1, 0, 4}}, worker.sequence).refused);  // sent again
  CHECK(worker.Value(shard) == Floats{-1});
  CHECK(Train(&worker, shard, {1}, {{1, 0, 4}}).refused);
  CHECK(Train(&worker, shard, {1}, {{1, 0, 4}}, worker.sequence).refused);  // sent again
  CHECK(server->tasks().Close(1, false) == 4);
  CHECK(Train(&worker, shard, {1}, {{1, 4, 8}}).refused);
  CHECK(worker.Value(shard) == Floats{-1});
  const ps::ServerStats stats = server->stats();
  CHECK((stats.refused_pushes == 2 && stats.pushes == 1 && stats.repeated_pushes == 2));

  PushRequest silent = worker.NewPush({{shard, UpdateKind::kGradient, 0, 0, 0}});
  silent.commits = {{1, 4, 8}};
  CHECK_STATUS(worker.Try(MessageType::kPush, Encode(silent), Raw(Floats{1})).status,
               StatusCode::kInvalidArgument);
}

// A server that is restored from nothing but a log: its values match its positions.
struct Restored {
  explicit Restored(const std::string& log, const ps::ServerSnapshot& snapshot = {},
                    const ps::ServerOptions& options = Options(ps::Mode::kAsync, 1)) {
    REQUIRE_OK(ps::Server::Create(options, "", 0, true, &server));
    REQUIRE_OK(server->Restore(snapshot));
    status = server->ReplayLog(log, &records, &left_out);
    if (!status.ok()) return;
    server->BeginLog(log + ".next");
    REQUIRE_OK(server->Start(TestKey()));
  }

  std::unique_ptr<ps::Server> server;
  Status status;
  uint64_t records = 0, left_out = 0;
};

// A file that the code under test makes.
struct Beside {
  ~Beside() { std::remove(path.c_str()); }
  std::string path;
};

TEST_CASE("replay") {
  const Scratch file;
  const Beside values{file.path + ".values"}, next{file.path + ".next"},
      next_values{file.path + ".next.values"};
  OptimizerConfig momentum;
  momentum.momentum = 1;
  const Floats expected[] = {{0, 0}, {-1, -2}, {-3, -6}, {-6, -12}};
  std::string unanswered;
  {
    std::unique_ptr<ps::Server> server;
    REQUIRE_OK(ps::Server::Create(Options(ps::Mode::kAsync, 1), "", 0, true, &server));
    server->BeginLog(file.path);
    REQUIRE_OK(server->Start(TestKey()));
    RawPsWorker worker(*server, 0);
    const uint32_t w = worker.Create("w", Floats{0, 0});
    const uint32_t moment = worker.Create("m", Floats{0, 0});
    const uint32_t rows = worker.Create("rows", Floats{0, 0, 0, 0});
    worker.Bind(momentum, w, {moment});
    worker.Bind(Sgd(), rows);
    server->tasks().Open(1, "a", 0);
    worker.Pull({w, rows});
    for (uint64_t i = 0; i < 3; ++i) {
      PushRequest push =
          worker.NewPush({{w, UpdateKind::kGradient, 0, 0, 0}, {rows, UpdateKind::kRows, 0, 1, 2}});
      push.of_tasks = true;
      push.commits = {{1, i, i + 1}};
      const std::string payload =
          Raw(Floats{1, 2}) + Raw(std::vector<int64_t>{i == 2 ? 1 : 0}) + Raw(Floats{1, 1});
      worker.Ask(MessageType::kPush, Encode(push), payload);
      unanswered = MessageBytes(MessageType::kPush, 77, Encode(push), payload);
      CHECK(worker.Value(w) == expected[i + 1]);
    }
  }
  const std::string content = file.Read();
  for (size_t size = 16; size <= content.size(); ++size) {
    // Only some of the cuts, each of which takes a server.
    if (size % 7 != 0 && size != content.size()) continue;
    file.Write(content.substr(0, size));
    Restored restored(file.path);
    // The values are those after the last push: where the log lacks two pushes, their places are
    // overwritten, which no kill can do.
    if (!restored.status.ok()) {
      CHECK_CONTAINS(restored.status.message(), "are damaged");
      continue;
    }
    RawPsWorker worker(*restored.server, 0);
    const uint64_t position = restored.server->tasks().Open(5, "a", 0);
    CHECK(position == restored.records);
    const uint32_t w = worker.Create("w", Floats{0, 0});
    CHECK(worker.Value(w) == expected[position]);
  }
  file.Write(content);
  Restored restored(file.path);
  CHECK_OK(restored.status);
  CHECK((restored.records == 3 && restored.left_out == 0));
  RawPsWorker worker(*restored.server, 0);
  const uint32_t w = worker.Create("w", Floats{0, 0});
  const uint32_t moment = worker.Create("m", Floats{0, 0});
  const uint32_t rows = worker.Create("rows", Floats{0, 0, 0, 0});
  CHECK(
      (worker.Value(moment) == Floats({-3, -6}) && worker.Value(rows) == Floats({-2, -2, -1, -1})));
  worker.Bind(momentum, w, {moment});
  worker.Bind(Sgd(), rows);
  // The last push, whose answer its worker has not got, is not applied again, nor refused.
  CHECK(worker.peer().Send(unanswered));
  PushReply reply;
  const RawAnswer answer = worker.Await(77);
  CHECK_OK(answer.status);
  CHECK_OK(Decode(answer.meta, &reply));
  CHECK((!reply.refused && worker.Value(w) == expected[3]));
}

// In a synchronous job records count with their step, which a killed server may have lost.
TEST_CASE("synchronous job") {
  const Scratch file;
  const Beside values{file.path + ".values"}, next{file.path + ".next"},
      next_values{file.path + ".next.values"};
  const ps::ServerOptions options = Options(ps::Mode::kSync, 2);
  {
    std::unique_ptr<ps::Server> server;
    REQUIRE_OK(ps::Server::Create(options, "", 0, true, &server));
    server->BeginLog(file.path);
    REQUIRE_OK(server->Start(TestKey()));
    RawPsWorker first(*server, 0), second(*server, 1);
    const uint32_t shard = first.Create("w", Floats{0});
    CHECK(second.Create("w", DType::kFloat32, 1, "") == shard);
    first.Bind(Sgd(), shard);
    server->tasks().Open(1, "a", 0);
    server->tasks().Open(2, "b", 0);
    const auto saved = [&] {
      std::vector<uint64_t> trained;
      for (const TaskPosition& each : server->tasks().Save()) trained.push_back(each.trained);
      return trained;
    };
    first.Pull({shard});
    second.Pull({shard});
    CHECK(!Train(&first, shard, {1}, {{1, 0, 4}}).refused);
    CHECK((server->tasks().Advance(1, 0) == 4 && saved() == std::vector<uint64_t>({0, 0})));
    CHECK(!Train(&second, shard, {2}, {{2, 0, 3}}).refused);
    CHECK(saved() == std::vector<uint64_t>({4, 3}));
    CHECK(first.Value(shard, true) == Floats{-3});
    second.Pull({shard});
    // A refused push is a contribution without values: the others do not wait for it.
    CHECK(Train(&first, shard, {100}, {{1, 0, 4}}).refused);
    CHECK(!Train(&second, shard, {4}, {{2, 3, 5}}).refused);
    CHECK(first.Value(shard, true) == Floats{-7});
    second.Pull({shard});
    CHECK(!Train(&second, shard, {8}, {{2, 5, 9}}).refused);
    CHECK((server->tasks().Close(2, false) == 9 && saved() == std::vector<uint64_t>({4, 5})));
  }
  Restored restored(file.path, {}, options);
  CHECK_OK(restored.status);
  RawPsWorker worker(*restored.server, 1);
  const uint32_t shard = worker.Create("w", Floats{0});
  CHECK(worker.Value(shard) == Floats{-7});
  CHECK(restored.server->tasks().Open(5, "a", 0) == 4);
  CHECK(restored.server->tasks().Open(6, "b", 0) == 5);
}

// A gradient that comes too late is dropped, and its worker gives the records back.
TEST_CASE("late push") {
  ps::ServerOptions options = Options(ps::Mode::kSync, 2);
  options.schedule.num_aggregate = 1;
  const auto server = StartServer(options);
  RawPsWorker fast(*server, 0), slow(*server, 1);
  const uint32_t shard = fast.Create("w", Floats{0});
  fast.Bind(Sgd(), shard);
  server->tasks().Open(1, "a", 0);
  fast.Pull({shard});
  slow.Pull({shard});
  fast.Push(shard, UpdateKind::kGradient, Floats{1});
  PushRequest late = slow.NewPush({{shard, UpdateKind::kGradient, 0, 0, 0}});
  late.of_tasks = true;
  late.commits = {{1, 0, 4}};
  for (int i = 0; i < 2; ++i) {  // the second time sent again
    PushReply reply;
    CHECK_OK(Decode(slow.Ask(MessageType::kPush, Encode(late), Raw(Floats{1})), &reply));
    CHECK((reply.dropped && reply.refused));
  }
  CHECK(server->tasks().Close(1, false) == 0);
}

// The client: a refused batch is told, and later batches of its tasks send nothing.
TEST_CASE("client") {
  const auto home = StartServer(AsyncJob(2)), other = StartServer(AsyncJob(2));
  Worker worker(0, 2, 2);
  worker.Connect(*home, 0);
  worker.Connect(*other, 1);
  const int a = worker.Add("a", {1}), b = worker.Add("b", {1}, DType::kFloat32, 1);
  REQUIRE_OK(worker.Create(a, Floats{0}));
  REQUIRE_OK(worker.Create(b, Floats{0}));
  for (const int parameter : {a, b}) {
    REQUIRE_OK(Call([&](ps::Done done) {
      worker.client().parameters().Bind({}, {{parameter, {}, 0}}, std::move(done));
    }));
  }
  ps::TaskCommits& commits = worker.client().commits().tasks();
  const auto step = [&](bool ends_step = true) {
    CHECK_OK(worker.Pull({a, b}));
    worker.Stage(a, {1});
    worker.Stage(b, {1});
    CHECK_OK(Call(
        [&](ps::Done done) { worker.client().parameters().Push({}, std::move(done), ends_step); }));
    CHECK_OK(worker.client().Flush(kPatience));
    CHECK_OK(worker.Pull({a, b}, false));
    return std::pair(worker.Value(a)[0], worker.Value(b)[0]);
  };
  home->tasks().Open(1, "task", 0);
  commits.Add(3, {{1, 0, 2}});
  CHECK(step() == std::pair(-1.0f, -1.0f));  // without BeginSteps it commits nothing
  CHECK(home->tasks().Advance(1, 0) == 0);
  commits.BeginSteps(3, 1);
  CHECK(step(/*ends_step=*/false) == std::pair(-2.0f, -2.0f));
  CHECK(home->tasks().Advance(1, 0) == 0);
  CHECK(step() == std::pair(-3.0f, -3.0f));
  CHECK(home->tasks().Advance(1, 0) == 2);
  std::vector<uint64_t> leases;
  CHECK((commits.TakeRefused(&leases) == 0 && leases.empty()));

  home->tasks().Close(1, false);
  for (uint64_t i = 2; i < 5; ++i) commits.Add(3, {{1, i, i + 1}});
  commits.BeginSteps(3, 3);
  // The other server does not know of tasks: it applies one step, until the worker knows.
  CHECK(step() == std::pair(-3.0f, -4.0f));
  CHECK((step() == std::pair(-3.0f, -4.0f) && step() == std::pair(-3.0f, -4.0f)));
  CHECK((commits.TakeRefused(&leases) == 3 && leases == std::vector<uint64_t>{1}));
  CHECK((commits.TakeRefused(&leases) == 0 && leases.empty()));
  CHECK(worker.client().stats().refused_pushes == 3);
}

TEST_CASE("refused pushes") {
  TestRefusedPushes(ps::Mode::kAsync);
  TestRefusedPushes(ps::Mode::kSsp);
}

}  // namespace
}  // namespace tfdist::testing::ps_server_task_push_test
