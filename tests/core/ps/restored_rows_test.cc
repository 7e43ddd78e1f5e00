// Servers that continue from a copy of their tables and the log of later changes.
#include <atomic>
#include <thread>

#include "core/ps/store/redo_log.h"
#include "core/ps/store/update.h"
#include "ps/tables.h"
#include "ps/worker.h"
#include "scratch.h"

namespace tfdist::testing::ps_restored_rows_test {
namespace {

ps::ServerSnapshot CopyOf(const ps::ServerSnapshot& image) {
  ps::ServerSnapshot copy = image;
  for (auto& table : copy.tables) {
    const std::shared_ptr<ps::Table> from = table;
    table = Make(from->config(), from->name());
    table->RestoreStep(from->snapshot_step());
    ps::SavedRows rows;
    while (from->NextSnapshotRows(100, &rows)) {
      CHECK_OK(table->ImportRows(rows));
      rows = {};
    }
  }
  return copy;
}

int Create(Worker& worker, const std::string& name, uint32_t width) {
  const int table = worker.client().tables().Add(name, Constant(width, 0));
  REQUIRE_OK(Call([&](ps::Done done) { worker.client().tables().Create(table, done); }));
  return table;
}

void Push(Worker& worker, int table, const Ids& ids, Floats gradients) {
  CHECK_OK(worker.Pull({}));
  worker.client().parameters().StageRows({1, 1}, {table, ids, Hold(std::move(gradients))});
  CHECK_OK(worker.PushStaged());
}

// An image is taken at any moment of a busy job: with the log that begins there it is all.
TEST_CASE("image and log") {
  const ps::ServerOptions options = AsyncJob(2);
  for (int round = 0; round < 5; ++round) {
    const Scratch file;
    const auto server = StartServer(options);
    std::vector<std::thread> threads;
    std::atomic<int> pushed{0};
    std::atomic<bool> has_image{false};
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Worker worker(rank, 2);
        worker.Connect(*server);
        const int table = Create(worker, "t", 1);
        for (int i = 0; i < 100; ++i, ++pushed) {
          // The last push comes after it, also on a busy machine.
          while (i == 99 && !has_image) std::this_thread::yield();
          Push(worker, table, {i % 7, 100 + i}, {1, 1});
        }
        CHECK_OK(worker.client().Flush(kPatience));
      });
    }
    while (pushed < 10 + 20 * round) std::this_thread::yield();
    const ps::ServerSnapshot image = CopyOf(server->TakeSnapshot(false, file.path));
    has_image = true;
    for (std::thread& thread : threads) thread.join();

    std::unique_ptr<ps::Server> copy;
    REQUIRE_OK(ps::Server::Create(options, "", 0, true, &copy));
    REQUIRE_OK(copy->Restore(image));
    uint64_t records = 0, left_out = 0;
    CHECK_OK(copy->ReplayLog(file.path, &records, &left_out));
    CHECK((records > 0 && left_out == 0));
    ps::Table& then = *server->tables()[0];
    ps::Table& now = *copy->tables()[0];
    CHECK((then.stats().rows == 107 && now.stats().rows == 107));
    for (int64_t id = 0; id < 200; ++id) CHECK(ValueOf(then, id) == ValueOf(now, id));
    REQUIRE_OK(copy->Start(TestKey()));
    CHECK_STATUS(copy->ReplayLog(file.path, &records, &left_out), StatusCode::kFailedPrecondition);
  }
}

// The server had applied a push, whose answer was lost with it. Its rows are in the log, so that
// only its other updates are applied when it is sent again.
TEST_CASE("push that is sent again") {
  const ps::ServerOptions options = AsyncJob(2);
  const Scratch file;
  auto server = StartServer(options);
  Worker first(0, 2);
  first.Connect(*server);
  const int dense = first.Make<float>("dense", {0});
  REQUIRE_OK(first.BindSgd({dense}));
  int table = Create(first, "t", 1);
  const auto step = [&](Worker& worker) {
    CHECK_OK(worker.Pull({dense}));
    worker.Stage(dense, {1});
    worker.client().parameters().StageRows({1, 1}, {table, {5}, Hold(Floats{1})});
    CHECK_OK(worker.PushStaged());
    CHECK_OK(worker.client().Flush(kPatience));
  };
  step(first);
  const ps::ServerSnapshot image = CopyOf(server->TakeSnapshot(false, file.path));
  step(first);
  server->Close();

  std::unique_ptr<ps::Server> copy;
  REQUIRE_OK(ps::Server::Create(options, "", 0, true, &copy));
  REQUIRE_OK(copy->Restore(image));
  uint64_t records = 0, left_out = 0;
  CHECK_OK(copy->ReplayLog(file.path, &records, &left_out));
  // Saved once more, it still knows.
  const ps::ServerSnapshot again = CopyOf(copy->TakeSnapshot());
  copy = StartServer(options, again);
  CHECK(ValueOf(*copy->tables()[0], 5) == -2);
  // The same process, which counts its pushes from the beginning.
  Worker second(0, 2, 1, kPatience, 1000);
  second.Connect(*copy);
  CHECK((second.Make<float>("dense", {0}) == dense));
  REQUIRE_OK(second.BindSgd({dense}));
  table = Create(second, "t", 1);
  const std::vector<std::pair<float, float>> expected = {{-1, -2}, {-2, -2}, {-3, -3}};
  for (const auto& [dense_value, row] : expected) {
    step(second);
    CHECK_OK(second.Pull({dense}));
    CHECK(second.Value(dense)[0] == dense_value);
    CHECK(ValueOf(*copy->tables()[0], 5) == row);
  }
}

// Edits that were acknowledged are in the log, in their order with pushes; edits that are sent
// again after a replay are not carried out twice.
TEST_CASE("edits") {
  const ps::ServerOptions options = AsyncJob(2);
  const Scratch file;
  auto server = StartServer(options);
  Worker first(0, 2);
  first.Connect(*server);
  int table = Create(first, "t", 1);
  const auto edit = [&](Worker& worker, ps::EditKind kind, const Ids& ids, const Floats& values) {
    ps::TableEdit edit;
    edit.kind = kind;
    edit.count = ids.size();
    edit.ids = ids.data();
    edit.content = values.data();
    const uint64_t floats = values.empty() ? 0 : 1;
    CHECK_OK(Call([&](ps::Done done) {
      worker.client().tables().Edit(table, edit, floats, std::move(done));
    }));
  };
  const auto push = [&](Worker& worker, const Ids& ids) {
    CHECK_OK(worker.Pull({}));
    worker.client().parameters().StageRows({1, 1}, {table, ids, Hold(Floats(ids.size(), 1))});
    CHECK_OK(worker.PushStaged());
    CHECK_OK(worker.client().Flush(kPatience));
  };
  edit(first, ps::EditKind::kUpsert, {1, 2, 3, 4}, {10, 20, 30, 40});
  const ps::ServerSnapshot image = CopyOf(server->TakeSnapshot(false, file.path));
  push(first, {1, 2, 3, 9});
  edit(first, ps::EditKind::kRemove, {2, 9}, {});
  edit(first, ps::EditKind::kUpsert, {3, 5}, {33, 50});
  push(first, {3});

  const auto goes_on = [&] {
    std::unique_ptr<ps::Server> copy;
    REQUIRE_OK(ps::Server::Create(options, "", 0, true, &copy));
    REQUIRE_OK(copy->Restore(image));
    uint64_t records = 0, left_out = 0;
    CHECK_OK(copy->ReplayLog(file.path, &records, &left_out));
    CHECK(left_out == 0);
    return copy;
  };
  const auto values = [](const ps::Server& of) {
    Floats all;
    for (const int64_t id : {1, 2, 3, 4, 5, 9}) all.push_back(ValueOf(*of.tables()[0], id));
    return all;
  };
  auto copy = goes_on();
  CHECK((values(*copy) == Floats({9, 0, 32, 40, 50, 0}) && values(*server) == values(*copy)));
  CHECK(copy->tables()[0]->row_count() == 4);
  const ps::ServerSnapshot again = CopyOf(copy->TakeSnapshot());
  copy = StartServer(options, again);
  // The same process, which counts its edits from the beginning.
  Worker second(0, 2, 1, kPatience, 1000);
  second.Connect(*copy);
  table = Create(second, "t", 1);
  for (int i = 0; i < 3; ++i) edit(second, ps::EditKind::kUpsert, {1}, {77});
  CHECK(ValueOf(*copy->tables()[0], 1) == 9);
  edit(second, ps::EditKind::kUpsert, {1}, {77});
  CHECK(ValueOf(*copy->tables()[0], 1) == 77);

  edit(first, ps::EditKind::kClear, {}, {});
  CHECK(goes_on()->tables()[0]->row_count() == 0);
}

// One worker edits the rows that another one pushes to: the log has it all in the order in which it
// happened.
void TestEditsAmongPushes() {
  const ps::ServerOptions options = AsyncJob(2);
  const Scratch file;
  const auto server = StartServer(options);
  server->BeginLog(file.path);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Worker worker(rank, 2);
      worker.Connect(*server);
      const int table = Create(worker, "t", 1);
      Ids all(2000);  // so that a push takes its time
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
      for (int i = 0; i < 200; ++i) {
        if (rank == 0) {
          Push(worker, table, all, Floats(all.size(), 1));
          continue;
        }
        const Ids ids = {i % 5};
        const Floats values = {static_cast<float>(1000 * i)};
        ps::TableEdit edit;
        edit.kind = i % 2 == 0 ? ps::EditKind::kUpsert : ps::EditKind::kRemove;
        edit.count = 1;
        edit.ids = ids.data();
        edit.content = values.data();
        CHECK_OK(Call([&](ps::Done done) {
          worker.client().tables().Edit(table, edit, 1 - i % 2, std::move(done));
        }));
      }
      CHECK_OK(worker.client().Flush(kPatience));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::unique_ptr<ps::Server> copy;
  REQUIRE_OK(ps::Server::Create(options, "", 0, true, &copy));
  uint64_t records = 0, left_out = 0;
  CHECK_OK(copy->ReplayLog(file.path, &records, &left_out));
  CHECK((records == 400 && left_out == 0));
  ps::Table &then = *server->tables()[0], &now = *copy->tables()[0];
  for (int64_t id = 0; id < 6; ++id) CHECK(ValueOf(then, id) == ValueOf(now, id));
  CHECK((then.row_count() == now.row_count() && ValueOf(then, 5) == -200));
}

// The contributions of a synchronous job's workers to a closed step are not lost.
TEST_CASE("synchronous steps") {
  const ps::ServerOptions options = SyncJob(2);
  const Scratch file;
  const auto server = StartServer(options);
  server->BeginLog(file.path);
  Worker a(0, 2), b(1, 2);
  a.Connect(*server);
  b.Connect(*server);
  const int table = Create(a, "t", 1);
  CHECK(Create(b, "t", 1) == table);
  for (int step = 0; step < 3; ++step) {
    Ending pulls[] = {a.StartPull({}), b.StartPull({})};
    for (Ending& pull : pulls) CHECK_OK(Wait(pull));
    a.client().parameters().StageRows({1, 1}, {table, {1, 2}, Hold(Floats{1, 1})});
    CHECK_OK(a.PushStaged());
    if (step == 2) break;  // it stays open
    b.client().parameters().StageRows({1, 1}, {table, {2, 3}, Hold(Floats{2, 2})});
    CHECK_OK(b.PushStaged());
  }
  CHECK_OK(a.client().Flush(kPatience));
  CHECK_OK(b.client().Flush(kPatience));
  std::unique_ptr<ps::Server> copy;
  REQUIRE_OK(ps::Server::Create(options, "", 0, true, &copy));
  uint64_t records = 0, left_out = 0;
  CHECK_OK(copy->ReplayLog(file.path, &records, &left_out));
  CHECK(records == 2);
  ps::Table& now = *copy->tables()[0];
  CHECK((ValueOf(now, 1) == -2 && ValueOf(now, 2) == -6 && ValueOf(now, 3) == -4));
}

TEST_CASE("replay of another table") {
  const Scratch file;
  ps::RedoLog log([](const Status&) {});
  log.Begin(file.path);
  const auto table = Make(Constant(2, 0), "t");
  Ids ids = {1};
  Floats gradients = {1, 1};
  log.Append({}, {ps::ApplyTableRows(table.get(), {1, 1}, 1, ids.data(), gradients.data())});
  std::unique_ptr<ps::Server> server;
  REQUIRE_OK(ps::Server::Create(AsyncJob(1), "", 0, true, &server));
  ps::ServerSnapshot image;
  image.tables.push_back(Make(Constant(3, 0), "t"));
  REQUIRE_OK(server->Restore(image));
  uint64_t records = 0, left_out = 0;
  const Status status = server->ReplayLog(file.path, &records, &left_out);
  CHECK_STATUS(status, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(status.message(), "'t' was created with another configuration");
}

TEST_CASE("edits among pushes") {
  for (int i = 0; i < Rounds(4); ++i) TestEditsAmongPushes();
}

}  // namespace
}  // namespace tfdist::testing::ps_restored_rows_test
