// A read-only server: its readers' seats, refused requests, and rows that change meanwhile.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ps/raw_ps_worker.h"
#include "ps/tables.h"
#include "ps/worker.h"

namespace tfdist::testing::ps_server_read_only_test {
namespace {

constexpr int64_t kIds = 500;

ps::ServerOptions Readers(int count) {
  ps::ServerOptions options = AsyncJob(count);
  options.read_only = true;
  return options;
}

// All numbers of the rows of ids below kIds are `value`.
struct Rows {
  explicit Rows(float value, uint32_t used = 1) : marks(kIds, used), content(2 * kIds, value) {
    for (int64_t id = 0; id < kIds; ++id) ids.push_back(id);
  }
  ps::SavedRowsView View() const {
    return {kIds, 0, ids.data(), marks.data(), marks.data(), content.data(), nullptr};
  }

  Ids ids;
  std::vector<uint32_t> marks;
  Floats content;
};

std::unique_ptr<ps::Server> Serve(int readers) {
  ps::ServerSnapshot image;
  image.tables.push_back(Make(Constant(2, -1), "t"));
  image.tables[0]->ImportRows(Rows(1).View());
  return StartServer(Readers(readers), image);
}

// Looks all rows up as a served model does; returns their numbers.
Floats Serve(Worker& worker, int table, const Ids& ids) {
  auto values = std::make_shared<Floats>(2 * ids.size());
  const ps::Memory memory{reinterpret_cast<char*>(values->data()), values};
  CHECK_OK(Call([&](ps::Done done) {
    worker.client().tables().lookups().Serve({{table, ids, memory}}, done);
  }));
  return *values;
}

int Open(Worker& worker) {
  const int table = worker.client().tables().Add("t", Constant(2, 0));
  CHECK_OK(Call([&](ps::Done done) { worker.client().tables().Create(table, done); }));
  return table;
}

TEST_CASE("readers of one rank and process have seats of their own") {
  const auto server = Serve(2);
  Worker first(0), second(0);
  first.Connect(*server);
  second.Connect(*server);
  for (Worker* worker : {&first, &second, &first}) {
    CHECK(Serve(*worker, Open(*worker), {3, 700}) == Floats{1, 1, -1, -1});
  }
  Worker third(0);
  CHECK(!third.Connect(0, server->port(), server->incarnation()).ok());
  first.client().Close();
  const TimePoint deadline = Clock::now() + DurationOf(kPatience);
  Status status(StatusCode::kUnavailable, "not yet");
  while (!status.ok() && Clock::now() < deadline) {
    status = third.Connect(0, server->port(), server->incarnation());
  }
  CHECK_OK(status);
  CHECK(Serve(third, Open(third), {3}) == Floats{1, 1});
}

TEST_CASE("requests that would change something are refused") {
  const auto server = Serve(1);
  RawPsWorker reader(*server, 0);
  const std::string refused = "expected a request that only reads";
  const auto check = [&](MessageType type, const std::string& meta, const std::string& payload) {
    const RawAnswer answer = reader.Try(type, meta, payload);
    CHECK(answer.status.code() == StatusCode::kFailedPrecondition);
    CHECK(answer.status.message().find(refused) != std::string::npos);
  };
  const Floats one = {1};
  check(MessageType::kCreate, Encode(CreateRequest{{{"v", DType::kFloat32, 1, true}}}), Raw(one));
  check(MessageType::kSet, Encode(SetRequest{}), "");
  check(MessageType::kPull, Encode(PullRequest{true, {}}), "");
  check(MessageType::kPush, Encode(PushRequest{}), "");
  LookupRequest lookup;
  lookup.training = true;
  lookup.entries.push_back({0, 1, DType::kFloat32});
  check(MessageType::kLookup, Encode(lookup), Raw(Ids{900}));
  EditRowsRequest edit;
  edit.kind = EditKind::kClear;
  check(MessageType::kEditRows, Encode(edit), "");
  const RawAnswer made =
      reader.Try(MessageType::kTable, Encode(TableRequest{{{"other", Constant(2, 0), false}}}));
  CHECK(made.status.code() == StatusCode::kInvalidArgument);
  const RawAnswer wide =
      reader.Try(MessageType::kTable, Encode(TableRequest{{{"t", Constant(3, 0), false}}}));
  CHECK(wide.status.code() == StatusCode::kInvalidArgument);
  // The connection is as good as before.
  lookup.training = false;
  const RawAnswer answer = reader.Try(MessageType::kLookup, Encode(lookup), Raw(Ids{7}));
  CHECK_OK(answer.status);
  CHECK(answer.payload == Raw(Floats{1, 1}));
  CHECK(server->tables()[0]->stats().rows == kIds);
}

TEST_CASE("rows change whole while readers look them up") {
  const auto server = Serve(2);
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      Worker reader(0);
      reader.Connect(*server);
      const int table = Open(reader);
      const Ids ids = Rows(0).ids;
      Floats before(2 * kIds, 0);
      while (!ended) {
        const Floats values = Serve(reader, table, ids);
        for (size_t row = 0; row < ids.size(); ++row) {
          CHECK(values[2 * row] == values[2 * row + 1]);
          CHECK((values[2 * row] == -1 || values[2 * row] >= before[2 * row]));
        }
        before = values;
      }
    });
  }
  for (uint32_t i = 2; i < 60; ++i) {
    CHECK_OK(server->UpdateRows("t", Rows(static_cast<float>(i), i).View(), 2, 0, 1));
    CHECK_OK(server->RetainRows("t", i));
    CHECK(server->tables()[0]->stats().rows == kIds);
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
  CHECK_OK(server->RetainRows("t", 1));
  CHECK(server->tables()[0]->stats().rows == 0);
}

TEST_CASE("an update has to fit") {
  const auto server = Serve(1);
  CHECK_STATUS(server->UpdateRows("t", Rows(2).View(), 3, 0, 1), StatusCode::kInvalidArgument);
  CHECK_STATUS(server->UpdateRows("u", Rows(2).View(), 2, 0, 1), StatusCode::kInvalidArgument);
  CHECK_STATUS(StartServer(AsyncJob(1))->RetainRows("t", 1), StatusCode::kInvalidArgument);
}

TEST_CASE("cached rows are used for their age, and not longer") {
  const auto server = Serve(1);
  Worker reader(0);
  reader.Connect(*server);
  const int table = Open(reader);
  ps::Lookups& lookups = reader.client().tables().lookups();
  CHECK_STATUS(lookups.SetServedCache(table, 10, 0.01), StatusCode::kInvalidArgument);
  CHECK_OK(lookups.SetServedCache(table, 10, 0.5));
  CHECK(Serve(reader, table, {3}) == Floats{1, 1});
  const TimePoint requested = Clock::now();
  CHECK_OK(server->UpdateRows("t", Rows(2).View(), 2, 0, 1));
  Floats found = Serve(reader, table, {3});
  while (found[0] == 1) {
    // Before the request was sent, the row was still fresh.
    CHECK(Clock::now() - requested < DurationOf(0.5 + kPatience));
    found = Serve(reader, table, {3});
  }
  CHECK(found == Floats{2, 2});
  CHECK(lookups.stats().cache_hits > 0);
}

}  // namespace
}  // namespace tfdist::testing::ps_server_read_only_test
