// The log of what was applied to rows: whatever of it is whole counts, and once; and servers that
// go on from a copy of their tables and such a log.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/checksum.h"
#include "core/ps/row_log.h"
#include "core/ps/update.h"
#include "ps_worker.h"

namespace tfdist::testing {
namespace {

using Ids = std::vector<int64_t>;
using Floats = std::vector<float>;

// A file's name that is free again in the end.
struct Scratch {
  Scratch() {
    path = std::filesystem::temp_directory_path() / "tfdist_row_log_XXXXXX";
    EXPECT(close(mkstemp(path.data())) == 0);
  }
  ~Scratch() { std::remove(path.c_str()); }
  std::string Read() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& content) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }

  std::string path;
};

ps::TableConfig Config(uint32_t width) {
  ps::TableConfig config;
  config.width = width;
  return config;
}

std::unique_ptr<ps::Table> MakeTable(const std::string& name, const ps::TableConfig& config) {
  std::unique_ptr<ps::Table> table;
  EXPECT_OK(ps::Table::Create(config, &table, name));
  return table;
}

float ValueOf(ps::Table& table, int64_t id) {
  Floats row(table.config().width);
  table.Lookup(0, &id, 1, false, row.data());
  return row[0];
}

void TestChecksum() {
  const std::string text = "the bytes of a file, and more than thirty-two of them at that";
  Checksum whole;
  whole.Add(text.data(), text.size());
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Checksum parts;
    parts.Add(text.data(), cut);
    parts.Add(nullptr, 0);
    parts.Add(text.data() + cut, text.size() - cut);
    EXPECT(parts.value() == whole.value());
    Checksum less;
    less.Add(text.data(), cut);
    EXPECT((less.value() == whole.value()) == (cut == text.size()));
  }
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string other = text;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ 1 << bit % 8);
    Checksum sum;
    sum.Add(other.data(), other.size());
    EXPECT(sum.value() != whole.value());
  }
}

// Tables by name, as a reader finds them.
struct Replayed {
  explicit Replayed(const Scratch& file) {
    ps::RowLog::Reader reader;
    reader.find = [this](const std::string& name, const ps::TableConfig& config) {
      if (tables[name] == nullptr) tables[name] = MakeTable(name, config);
      return tables[name].get();
    };
    reader.wants = [this](const ps::Pusher& pusher) {
      return pusher.sequence == 0 || pusher.sequence > known;
    };
    status = ps::RowLog::Replay(file.path, reader, &records, &left_out);
  }

  std::map<std::string, std::unique_ptr<ps::Table>> tables;
  uint64_t known = 1;  // the sequence up to which pushes are not wanted
  uint64_t records = 0, left_out = 0;
  Status status;
};

void TestRecords() {
  const Scratch file;
  int failures = 0;
  ps::RowLog log([&](const Status&) { ++failures; });
  const auto a = MakeTable("a", Config(2)), b = MakeTable("b", Config(1));
  Ids ids = {1, 2};
  Floats gradients = {1, 1, 2, 2};
  log.Append({0, 7, 1}, {ps::ApplyRows(a.get(), {1, 1}, 2, ids.data(), gradients.data())});
  EXPECT(log.bytes() == 0);  // nothing was begun
  log.Begin(file.path);
  EXPECT(file.Read().empty());
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    log.Append({0, 7, sequence},
               {ps::ApplyRows(a.get(), {1, 1}, 2, ids.data(), gradients.data()),
                ps::ApplyRows(b.get(), {0.5, 1}, 2, ids.data(), gradients.data())});
  }
  log.Append({}, {ps::ApplyRows(b.get(), {1, 1}, 1, ids.data(), gradients.data())});
  log.Append({0, 7, 4}, {});
  const ps::SavedRows rows = a->NewRows(5, ids.data(), 1, Floats{9, 8}.data());
  log.Append(a.get(), ps::SavedRowsView{1, 0, rows.ids.data(), rows.used.data(), rows.counts.data(),
                                        rows.content.data(), nullptr});
  EXPECT(failures == 0 && log.is_open());

  const Replayed whole(file);
  EXPECT_OK(whole.status);
  EXPECT(whole.records == 5 && whole.left_out == 0);
  EXPECT(ValueOf(*whole.tables.at("a"), 1) == 9);
  EXPECT(ValueOf(*whole.tables.at("a"), 2) == -4);     // two of three pushes
  EXPECT(ValueOf(*whole.tables.at("b"), 1) == -2.0f);  // 2 * 0.5 and 1
  const std::string content = file.Read();
  EXPECT(log.bytes() + 16 == content.size());

  // Cut off anywhere, or altered anywhere.
  uint64_t last = 0;
  for (size_t size = 0; size < content.size(); ++size) {
    file.Write(content.substr(0, size));
    const Replayed part(file);
    EXPECT_OK(part.status);
    EXPECT(part.records >= last && part.records < 5);
    last = part.records;
  }
  EXPECT(last == 4);
  for (size_t at = 16; at < content.size(); ++at) {
    std::string altered = content;
    altered[at] = static_cast<char>(altered[at] ^ 0x20);
    file.Write(altered);
    const Replayed part(file);
    EXPECT_OK(part.status);
    EXPECT(part.left_out > 0 && part.records < 5);
  }
  file.Write("something else entirely");
  EXPECT_CONTAINS(Replayed(file).status.message(), "not a log of rows");
  std::remove(file.path.c_str());
  EXPECT_STATUS(Replayed(file).status, StatusCode::kUnavailable);

  log.Begin("/nowhere/at/all");
  log.Append({}, {ps::ApplyRows(b.get(), {1, 1}, 1, ids.data(), gradients.data())});
  log.Append({}, {ps::ApplyRows(b.get(), {1, 1}, 1, ids.data(), gradients.data())});
  EXPECT(failures == 1 && !log.is_open());
}

// Of a table that admits rows, those that have none lose their gradients for good.
void TestLostGradients() {
  ps::TableConfig config = Config(1);
  config.min_count = 2;
  const auto table = MakeTable("t", config);
  Ids ids = {1, 2, 3, 4};
  Floats rows(4), gradients = {1, 2, 3, 4};
  for (int i = 0; i < 2; ++i) table->Lookup(0, Ids{2, 4}.data(), 2, true, rows.data());
  const ps::AppliedRows applied =
      ps::ApplyRows(table.get(), {1, 1}, 4, ids.data(), gradients.data());
  EXPECT(applied.count == 2 && ids[0] == 2 && ids[1] == 4 && gradients[0] == 2 &&
         gradients[1] == 4);
}

ps::ServerImage CopyOf(const ps::ServerImage& image) {
  ps::ServerImage copy = image;
  for (auto& table : copy.tables) {
    const std::shared_ptr<ps::Table> from = table;
    table = MakeTable(from->name(), from->config());
    table->RestoreStep(from->saved_step());
    ps::SavedRows rows;
    while (from->NextSave(100, &rows)) {
      EXPECT_OK(table->Restore(rows));
      rows = {};
    }
  }
  return copy;
}

int Create(Worker& worker, const std::string& name, uint32_t width) {
  const int table = worker.client().AddTable(name, Config(width));
  EXPECT_OK(Call([&](ps::Done done) { worker.client().CreateTable(table, done); }));
  return table;
}

void Push(Worker& worker, int table, const Ids& ids, Floats gradients) {
  EXPECT_OK(worker.Pull({}));
  worker.client().StageRows({1, 1}, {table, ids, Hold(std::move(gradients))});
  EXPECT_OK(worker.PushStaged());
}

// An image is taken at any moment of a busy job: with the log that begins there it is all.
void TestImageAndLog() {
  const ps::ServerOptions options = AsyncJob(2);
  for (int round = 0; round < 5; ++round) {
    const Scratch file;
    const auto server = StartServer(options);
    std::vector<std::thread> threads;
    std::atomic<int> pushed{0};
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Worker worker(rank, 2);
        worker.Connect(*server);
        const int table = Create(worker, "t", 1);
        for (int i = 0; i < 100; ++i, ++pushed) {
          Push(worker, table, {i % 7, 100 + i}, {1, 1});
        }
        EXPECT_OK(worker.client().Flush(kPatience));
      });
    }
    while (pushed < 10 + 20 * round) std::this_thread::yield();
    const ps::ServerImage image = CopyOf(server->Freeze(false, file.path));
    for (std::thread& thread : threads) thread.join();

    std::unique_ptr<ps::Server> copy;
    EXPECT_OK(ps::Server::Create(options, 0, &copy));
    EXPECT_OK(copy->Restore(image));
    uint64_t records = 0, left_out = 0;
    EXPECT_OK(copy->ReplayLog(file.path, &records, &left_out));
    EXPECT(records > 0 && left_out == 0);
    ps::Table& then = *server->tables()[0];
    ps::Table& now = *copy->tables()[0];
    EXPECT(then.stats().rows == 107 && now.stats().rows == 107);
    for (int64_t id = 0; id < 200; ++id) EXPECT(ValueOf(then, id) == ValueOf(now, id));
    EXPECT_OK(copy->Start(TestToken()));
    EXPECT_STATUS(copy->ReplayLog(file.path, &records, &left_out), StatusCode::kFailedPrecondition);
  }
}

// The server had applied a push, whose answer was lost with it. Its rows are in the log, so that
// only what else it had is applied when it is sent again.
void TestPushThatIsSentAgain() {
  const ps::ServerOptions options = AsyncJob(2);
  const Scratch file;
  auto server = StartServer(options);
  Worker first(0, 2);
  first.Connect(*server);
  const int dense = first.Make<float>("dense", {0});
  EXPECT_OK(first.BindSgd({dense}));
  int table = Create(first, "t", 1);
  const auto step = [&](Worker& worker) {
    EXPECT_OK(worker.Pull({dense}));
    worker.Stage(dense, {1});
    worker.client().StageRows({1, 1}, {table, {5}, Hold(Floats{1})});
    EXPECT_OK(worker.PushStaged());
    EXPECT_OK(worker.client().Flush(kPatience));
  };
  step(first);
  const ps::ServerImage image = CopyOf(server->Freeze(false, file.path));
  step(first);
  server->Close();

  std::unique_ptr<ps::Server> copy;
  EXPECT_OK(ps::Server::Create(options, 0, &copy));
  EXPECT_OK(copy->Restore(image));
  uint64_t records = 0, left_out = 0;
  EXPECT_OK(copy->ReplayLog(file.path, &records, &left_out));
  // Saved once more, it still knows.
  const ps::ServerImage again = CopyOf(copy->Freeze());
  copy = StartServer(options, again);
  EXPECT(ValueOf(*copy->tables()[0], 5) == -2);
  // The same process, which counts its pushes from the beginning.
  Worker second(0, 2, 1, kPatience, 1000);
  second.Connect(*copy);
  EXPECT(second.Make<float>("dense", {0}) == dense);
  EXPECT_OK(second.BindSgd({dense}));
  table = Create(second, "t", 1);
  const std::vector<std::pair<float, float>> expected = {{-1, -2}, {-2, -2}, {-3, -3}};
  for (const auto& [dense_value, row] : expected) {
    step(second);
    EXPECT_OK(second.Pull({dense}));
    EXPECT(second.Value(dense)[0] == dense_value);
    EXPECT(ValueOf(*copy->tables()[0], 5) == row);
  }
}

// What the workers of a synchronous job have contributed to a step that was closed is not lost.
void TestSynchronousSteps() {
  const ps::ServerOptions options = SyncJob(2);
  const Scratch file;
  const auto server = StartServer(options);
  server->BeginLog(file.path);
  Worker a(0, 2), b(1, 2);
  a.Connect(*server);
  b.Connect(*server);
  const int table = Create(a, "t", 1);
  EXPECT(Create(b, "t", 1) == table);
  for (int step = 0; step < 3; ++step) {
    Ending pulls[] = {a.StartPull({}), b.StartPull({})};
    for (Ending& pull : pulls) EXPECT_OK(Wait(pull));
    a.client().StageRows({1, 1}, {table, {1, 2}, Hold(Floats{1, 1})});
    EXPECT_OK(a.PushStaged());
    if (step == 2) break;  // it stays open
    b.client().StageRows({1, 1}, {table, {2, 3}, Hold(Floats{2, 2})});
    EXPECT_OK(b.PushStaged());
  }
  EXPECT_OK(a.client().Flush(kPatience));
  EXPECT_OK(b.client().Flush(kPatience));
  std::unique_ptr<ps::Server> copy;
  EXPECT_OK(ps::Server::Create(options, 0, &copy));
  uint64_t records = 0, left_out = 0;
  EXPECT_OK(copy->ReplayLog(file.path, &records, &left_out));
  EXPECT(records == 2);
  ps::Table& now = *copy->tables()[0];
  EXPECT(ValueOf(now, 1) == -2 && ValueOf(now, 2) == -6 && ValueOf(now, 3) == -4);
}

void TestReplayOfAnotherTable() {
  const Scratch file;
  ps::RowLog log([](const Status&) {});
  log.Begin(file.path);
  const auto table = MakeTable("t", Config(2));
  Ids ids = {1};
  Floats gradients = {1, 1};
  log.Append({}, {ps::ApplyRows(table.get(), {1, 1}, 1, ids.data(), gradients.data())});
  std::unique_ptr<ps::Server> server;
  EXPECT_OK(ps::Server::Create(AsyncJob(1), 0, &server));
  ps::ServerImage image;
  image.tables.push_back(MakeTable("t", Config(3)));
  EXPECT_OK(server->Restore(image));
  uint64_t records = 0, left_out = 0;
  const Status status = server->ReplayLog(file.path, &records, &left_out);
  EXPECT_STATUS(status, StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(status.message(), "'t' was created with another configuration");
}

void Main() {
  TestChecksum();
  TestRecords();
  TestLostGradients();
  TestImageAndLog();
  TestPushThatIsSentAgain();
  TestSynchronousSteps();
  TestReplayOfAnotherTable();
  std::puts("ps row log: ok");
}

}  // namespace
}  // namespace tfdist::testing

int main() { tfdist::testing::Main(); }
