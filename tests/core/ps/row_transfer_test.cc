// Rows that are taken out of servers and put into others as they are; and shards that wait until a
// worker of a job with another number of servers asks for them.
#include <map>
#include <set>

#include "ps/worker.h"

namespace tfdist::testing::ps_row_transfer_test {
namespace {

using Ids = std::vector<int64_t>;
using Floats = std::vector<float>;

ps::TableConfig Adagrad(uint32_t width) {
  ps::TableConfig config;
  config.width = width;
  config.optimizer.kind = ps::OptimizerKind::kAdagrad;
  config.first_slots[0] = 0.5;
  config.initializer = {ps::InitializerKind::kUniform, -1, 1, 5};
  return config;
}

struct Job {
  explicit Job(int count) : worker(0, 1, count) {
    for (int i = 0; i < count; ++i) {
      servers.push_back(StartServer(AsyncJob(1)));
      worker.Connect(*servers[i], i);
    }
  }
  int Create(const ps::TableConfig& config) {
    const int table = worker.client().tables().Add("t", config);
    REQUIRE_OK(Call([&](ps::Done done) { worker.client().tables().Create(table, done); }));
    return table;
  }
  Status Next(int table, int server, uint64_t most, bool slots, ps::RowScan* dump) {
    return Call([&](ps::Done done) {
      worker.client().tables().Scan(table, server, most, slots, dump, std::move(done));
    });
  }
  Status Assign(int table, const ps::SavedRows& rows, uint64_t floats, bool slots) {
    ps::TableEdit edit;
    edit.kind = slots ? ps::EditKind::kRestore : ps::EditKind::kReplace;
    edit.count = rows.ids.size();
    edit.ids = rows.ids.data();
    edit.used = rows.used.data();
    edit.counts = rows.counts.data();
    edit.content = rows.content.data();
    return Call([&](ps::Done done) {
      worker.client().tables().Edit(table, edit, floats, std::move(done));
    });
  }
  void Edit(int table, ps::EditKind kind, const Ids& ids, const Floats& content = {}) {
    ps::TableEdit edit;
    edit.kind = kind;
    edit.count = ids.size();
    edit.ids = ids.data();
    edit.content = content.data();
    const uint64_t floats = content.empty() ? 0 : content.size() / ids.size();
    CHECK_OK(Call([&](ps::Done done) {
      worker.client().tables().Edit(table, edit, floats, std::move(done));
    }));
  }
  uint64_t Size(int table) {
    uint64_t size = 0;
    ps::FoundRows to;
    to.size = &size;
    CHECK_OK(Call(
        [&](ps::Done done) { worker.client().tables().Find(table, {}, to, std::move(done)); }));
    return size;
  }
  // Which of these ids have a row; `rows` if they are asked for.
  std::vector<uint8_t> Find(int table, const Ids& ids, Floats* rows = nullptr) {
    std::vector<uint8_t> found(ids.size());
    ps::FoundRows to;
    to.found = found.data();
    to.rows = rows == nullptr ? nullptr : rows->data();
    CHECK_OK(Call(
        [&](ps::Done done) { worker.client().tables().Find(table, ids, to, std::move(done)); }));
    return found;
  }
  // Content by id, of all servers.
  std::map<int64_t, Floats> All(int table, bool slots, uint64_t most = 100) {
    std::map<int64_t, Floats> all;
    for (size_t server = 0; server < servers.size(); ++server) {
      ps::RowScan dump;
      while (dump.more) {
        CHECK_OK(Next(table, static_cast<int>(server), most, slots, &dump));
        const ps::SavedRows& rows = dump.rows;
        CHECK((rows.ids.size() <= most && rows.used.size() == rows.ids.size() &&
               rows.counts.size() == rows.ids.size()));
        for (size_t i = 0; i < rows.ids.size(); ++i) {
          const size_t floats = rows.content.size() / rows.ids.size();
          CHECK(ps::ServerOfId(rows.ids[i], static_cast<int>(servers.size())) ==
                static_cast<int>(server));
          const auto begin = rows.content.begin() + i * floats;
          CHECK(all.emplace(rows.ids[i], Floats(begin, begin + floats)).second);
        }
      }
    }
    return all;
  }

  std::vector<std::unique_ptr<ps::Server>> servers;
  Worker worker;
};

Ids Fill(Job& job, int table, size_t count, size_t width) {
  Ids ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int64_t>(i) * 1000003 - 7);
  CHECK_OK(job.worker.Pull({}));
  job.worker.client().parameters().StageRows({1, 1}, {table, ids, Hold(Floats(count * width, 1))});
  CHECK_OK(job.worker.PushStaged());
  CHECK_OK(job.worker.client().Flush(kPatience));
  return ids;
}

TEST_CASE("dump and assign") {
  Job from(2), to(3);
  const int table = from.Create(Adagrad(3)), other = to.Create(Adagrad(3));
  const Ids ids = Fill(from, table, 1000, 3);
  const auto whole = from.All(table, true), values = from.All(table, false, 7);
  CHECK((whole.size() == ids.size() && values.size() == ids.size()));
  ps::SavedRows rows;
  for (const auto& [id, content] : whole) {
    CHECK((content.size() == 6 && content[3] == 1.5f));
    CHECK(Floats(content.begin(), content.begin() + 3) == values.at(id));
    rows.ids.push_back(id);
    rows.used.push_back(7);
    rows.counts.push_back(8);
    rows.content.insert(rows.content.end(), content.begin(), content.end());
  }
  CHECK_OK(to.Assign(other, rows, 6, true));
  CHECK(to.All(other, true, 1) == whole);
  ps::RowScan dump;
  CHECK_OK(to.Next(other, 0, 1, false, &dump));
  CHECK((dump.rows.used[0] == 7 && dump.rows.counts[0] == 8));

  // Values only: slots begin anew.
  rows.content.clear();
  for (const auto& [id, value] : values) {
    rows.content.insert(rows.content.end(), value.begin(), value.end());
  }
  CHECK_OK(to.Assign(other, rows, 3, false));
  CHECK(to.All(other, false) == values);
  for (const auto& [id, content] : to.All(other, true)) CHECK(content[3] == 0.5f);
  CHECK_OK(to.Assign(other, {}, 3, false));
}

TEST_CASE("edits") {
  Job job(3);
  ps::TableConfig config = Adagrad(2);
  config.initializer = {ps::InitializerKind::kConstant, 4, 0, 1};
  const int table = job.Create(config);
  const Ids ids = Fill(job, table, 100, 2);
  CHECK(job.Size(table) == 100);
  const Ids some = {ids[3], 5, ids[99], 6, ids[3]};
  Floats rows(10);
  CHECK(job.Find(table, some, &rows) == (std::vector<uint8_t>{1, 0, 1, 0, 1}));
  const float trained = rows[0];
  CHECK((trained < 4 &&
         rows == (Floats{trained, trained, 4, 4, trained, trained, 4, 4, trained, trained})));
  CHECK(job.Size(table) == 100);
  job.Edit(table, ps::EditKind::kUpsert, {5, ids[3]}, {1, 2, 3, 4});
  CHECK(job.Size(table) == 101);
  auto all = job.All(table, true);
  CHECK((all.at(5) == Floats({1, 2, 0.5f, 0.5f}) && all.at(ids[3]) == Floats({3, 4, 1.5f, 1.5f})));
  job.Edit(table, ps::EditKind::kRemove, {5, 6, ids[0]});
  CHECK(job.Size(table) == 99);
  CHECK(job.Find(table, {5, ids[0], ids[1]}) == (std::vector<uint8_t>{0, 0, 1}));
  job.Edit(table, ps::EditKind::kClear, {});
  CHECK((job.Size(table) == 0 && job.All(table, false).empty()));
  uint64_t edits = 0;
  for (const auto& server : job.servers) edits += server->stats().edits;
  CHECK((edits > 5 && job.servers[0]->stats().pushes == 1));
}

// Rows that the worker has cached or looks up ahead are not used after an edit.
TEST_CASE("edits and cached rows") {
  Job job(2);
  ps::TableConfig config = Adagrad(1);
  config.initializer = {ps::InitializerKind::kConstant, 4, 0, 1};
  const int table = job.Create(config);
  ps::Client& client = job.worker.client();
  CHECK_OK(client.tables().lookups().SetCache(table, 100, 1000));
  const auto look = [&](const Ids& ids) {
    auto rows = std::make_shared<Floats>(ids.size());
    CHECK_OK(Call([&](ps::Done done) {
      client.tables().Lookup({{table, ids, {reinterpret_cast<char*>(rows->data()), rows}}}, true,
                             std::move(done));
    }));
    return *rows;
  };
  CHECK(look({1, 2, 3}) == Floats({4, 4, 4}));
  job.Edit(table, ps::EditKind::kUpsert, {1, 2}, {7, 8});
  CHECK(look({1, 2, 3}) == Floats({7, 8, 4}));
  CHECK(look({1, 2, 3}) == Floats({7, 8, 4}));
  CHECK(client.tables().lookup_stats().cache_hits == 3);
  Status status;
  const auto batch =
      client.tables().lookups().MakePrefetch(1, {{table, {1, 9}, {}}}, true, &status);
  CHECK_OK(Call([&](ps::Done done) { client.tables().lookups().prefetches().Begin(batch, done); }));
  job.Edit(table, ps::EditKind::kRemove, {1});
  CHECK(look({1, 9}) == Floats({4, 4}));
  CHECK((client.tables().lookup_stats().prefetched == 1 &&
         client.tables().lookup_stats().prefetch_hits == 0));
}

TEST_CASE("refusals") {
  Job job(1);
  const int table = job.Create(Adagrad(3));
  Fill(job, table, 100, 3);
  ps::RowScan dump;
  CHECK_STATUS(job.Next(9, 0, 1, true, &dump), StatusCode::kInvalidArgument);
  CHECK_STATUS(job.Next(table, 1, 1, true, &dump), StatusCode::kInvalidArgument);
  ps::SavedRows rows;
  rows.ids = {1};
  rows.used = rows.counts = {0};
  rows.content = Floats(5);
  const Status unfit = job.Assign(table, rows, 5, true);
  CHECK_STATUS(unfit, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(unfit.message(), "table 't': expected rows of 6 numbers, received 5");
  CHECK_CONTAINS(job.Assign(table, rows, 5, false).message(), "expected rows of 3 numbers");
  CHECK_STATUS(job.Assign(9, rows, 3, false), StatusCode::kInvalidArgument);

  // A cursor means nothing to another server.
  CHECK_OK(job.Next(table, 0, 10, true, &dump));
  CHECK((dump.more && dump.rows.ids.size() == 10));
  job.servers[0] = StartServer(AsyncJob(1));
  CHECK(job.worker.client().WaitForLost(kPatience) == 0);
  job.worker.Connect(*job.servers[0]);
  const Status anew = job.Next(table, 0, 10, true, &dump);
  CHECK_STATUS(anew, StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(anew.message(), "it was started again while its rows were read");
}

ps::SavedShard Saved(const std::string& name, const Floats& values) {
  auto block = std::make_shared<ps::Block>(values.size() * sizeof(float));
  std::memcpy(block->data(), values.data(), block->bytes());
  return {name, DType::kFloat32, values.size(), block};
}

TEST_CASE("shards aside") {
  ps::ServerSnapshot image;
  image.unclaimed = {Saved("w", {1, 2}), Saved("x/rows_0_of_2", {3}), Saved("unused", {4})};
  auto server = StartServer(AsyncJob(2), image);
  Worker worker(0, 2);
  worker.Connect(*server);
  CHECK(server->stats().shards == 0);
  const int w = worker.Make<float>("w", {0, 0}), fresh = worker.Make<float>("fresh", {5});
  CHECK_OK(worker.Pull({w, fresh}));
  CHECK((worker.Value(w) == Floats({1, 2}) && worker.Value(fresh) == Floats({5})));
  const int x = worker.Add("x", {1});
  const Status split = worker.Create<float>(x, {0});
  CHECK_STATUS(split, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(split.message(), "has 'x/rows_0_of_2' instead");
  const int narrow = worker.Add("unused", {2});
  CHECK_CONTAINS(worker.Create<float>(narrow, {0, 0}).message(), "'unused': expected float32[1]");

  // Until they train, a snapshot has the unclaimed shards.
  ps::ServerSnapshot next = server->TakeSnapshot();
  CHECK((next.unclaimed.size() == 2 && next.shards.size() == 2));
  const auto copy = StartServer(AsyncJob(2), next);
  CHECK(copy->stats().shards == 2);
  CHECK_OK(worker.Push<float>({{w, {3, 3}}}));
  CHECK_OK(worker.client().Flush(kPatience));
  CHECK(server->TakeSnapshot(true).unclaimed.empty());
  CHECK_OK(worker.Create<float>(x, {6}));
}

}  // namespace
}  // namespace tfdist::testing::ps_row_transfer_test
