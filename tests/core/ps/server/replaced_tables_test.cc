// A request is checked against a table when it begins, and carried out when its payload is there.
// Meanwhile another worker replaces the table by one whose rows have other slots.
#include <cmath>
#include <memory>

#include "ps/raw_ps_worker.h"
#include "ps/tables.h"

namespace tfdist::testing::ps_server_replaced_tables_test {
namespace {

constexpr uint32_t kWidth = 4;
constexpr uint32_t kTable = 0;  // the first one of the server

ps::TableConfig Slots(ps::OptimizerKind kind) {
  ps::TableConfig config = Constant(kWidth, 0.5);
  config.optimizer.kind = kind;
  return config;
}

// A server with a restored table of ids 0 to 9, which no worker has created yet: its rows are 4
// numbers. Rank 0 attacks, rank 1 may replace the table by one with rows of 12.
struct Job {
  explicit Job(ps::Mode mode = ps::Mode::kAsync) {
    ps::ServerSnapshot image;
    image.tables.push_back(Make(Slots(ps::OptimizerKind::kSgd), "t"));
    for (int64_t id = 0; id < 10; ++id) Lookup(*image.tables[0], {id});
    server = StartServer(Options(mode, 2), image);
    attacker = std::make_unique<RawPsWorker>(*server, 0);
    other = std::make_unique<RawPsWorker>(*server, 1);
  }

  void Replace() {
    const ps::TableRequest request{{{"t", Slots(ps::OptimizerKind::kAdam), true}}};
    ps::TableReply reply;
    CHECK_OK(Decode(other->Ask(MessageType::kTable, Encode(request)), &reply));
    CHECK(reply.tables == std::vector<uint32_t>{kTable});
  }
  // The answer to a request during whose payload the table is replaced.
  RawAnswer Attack(MessageType type, const std::string& meta, const std::string& payload) {
    const std::string bytes = MessageBytes(type, 77, meta, payload);
    const size_t rest = payload.size() / 2, begun = bytes.size() - rest;
    const uint64_t before = server->stats().bytes_received;
    CHECK(attacker->peer().Send(bytes.substr(0, begun)));
    CHECK(Eventually(
        [&] { return server->stats().bytes_received == before + payload.size() - rest; }));
    Replace();
    CHECK(attacker->peer().Send(bytes.substr(begun)));
    return attacker->Await(77);
  }

  std::unique_ptr<ps::Server> server;
  std::unique_ptr<RawPsWorker> attacker, other;
};

void ExpectRefused(const RawAnswer& answer) {
  CHECK_STATUS(answer.status, StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(answer.status.message(),
                 "table 't' was replaced while the request arrived: expected rows of 4 numbers "
                 "and 0 of slots, as when it began; the table has rows of 4 and 8 of slots now");
  CHECK(answer.payload.empty());
}

// All of the rows are as they were: nothing of the payload is in them, nor bytes from behind it.
void ExpectUntouched(Job& job) {
  ScanRowsReply reply;
  ScanRowsRequest scan;
  scan.table = kTable;
  scan.max_rows = 1 << 20;
  scan.slots = true;
  const RawAnswer rows = job.other->Try(MessageType::kScanRows, Encode(scan));
  CHECK_OK(rows.status);
  CHECK_OK(Decode(rows.meta, &reply));
  CHECK(reply.rows == 10);
  const Floats content = Values<float>(rows.payload.substr(10 * (8 + 4 + 4)));
  CHECK(content.size() == 10 * 12);
  for (size_t i = 0; i < content.size(); ++i) {
    CHECK(content[i] == (i % 12 < kWidth ? 0.5f : 0.0f));
  }
  CHECK((job.server->stats().edits == 0 && job.server->stats().pushes == 0));
}

Ids SomeIds(size_t count) {
  Ids ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int64_t>(i);
  return ids;
}

TEST_CASE("edit") {
  // 300 rows of 4 numbers: with rows of 12 the copy would read 9,600 bytes behind them.
  for (const size_t count : {size_t{300}, size_t{40000}}) {
    Job job;
    EditRowsRequest edit;
    edit.table = kTable;
    edit.kind = ps::EditKind::kRestore;
    edit.rows = count;
    edit.floats = kWidth;
    edit.sequence = 1;
    const std::string payload = Raw(SomeIds(count)) + Raw(std::vector<uint32_t>(2 * count, 1)) +
                                Raw(Floats(kWidth * count, 7));
    ExpectRefused(job.Attack(MessageType::kEditRows, Encode(edit), payload));
    ExpectUntouched(job);
    // Sent again, its answer names the sizes that the table expects now; its number was not used
    // up.
    const RawAnswer again = job.attacker->Try(MessageType::kEditRows, Encode(edit), payload);
    CHECK_STATUS(again.status, StatusCode::kInvalidArgument);
    CHECK_CONTAINS(again.status.message(), "table 't': expected rows of 12 numbers, received 4");
    ExpectUntouched(job);
    edit.rows = 1;
    edit.floats = 12;
    CHECK_OK(job.attacker
                 ->Try(MessageType::kEditRows, Encode(edit),
                       Raw(Ids{3}) + Raw(std::vector<uint32_t>{1, 1}) + Raw(Floats(12, 9)))
                 .status);
    CHECK(ValueOf(*job.server->tables()[0], 3) == 9);
  }
}

TEST_CASE("lookup") {
  Job job;
  const LookupRequest lookup{true, {{kTable, 2000, DType::kFloat32}}};
  ExpectRefused(job.Attack(MessageType::kLookup, Encode(lookup), Raw(SomeIds(2000))));
  ExpectUntouched(job);
  const RawAnswer again =
      job.attacker->Try(MessageType::kLookup, Encode(lookup), Raw(SomeIds(2000)));
  CHECK(Values<float>(again.payload) == Floats(2000 * kWidth, 0.5f));
}

TEST_CASE("find") {
  Job job;
  const FindRowsRequest find{kTable, 2000, true};
  ExpectRefused(job.Attack(MessageType::kFindRows, Encode(find), Raw(SomeIds(2000))));
  ExpectUntouched(job);
  CHECK_OK(job.attacker->Try(MessageType::kFindRows, Encode(find), Raw(SomeIds(2000))).status);
}

// A push that is refused is not counted: it is applied when it is sent again.
TEST_CASE("push") {
  Job job;
  PushRequest push = job.attacker->NewPush({{kTable, UpdateKind::kTableRows, 0, 500, kWidth}}, 0.5);
  const std::string payload = Raw(SomeIds(500)) + Raw(Floats(500 * kWidth, 1));
  ExpectRefused(job.Attack(MessageType::kPush, Encode(push), payload));
  ExpectUntouched(job);
  CHECK((!job.attacker->Push(push, payload) && job.server->stats().pushes == 1));
  CHECK(ValueOf(*job.server->tables()[0], 3) < 0.5f);
}

// A synchronous step holds the gradients of a worker until all others have pushed.
TEST_CASE("open step") {
  Job job(ps::Mode::kSync);
  job.attacker->Pull({});
  job.other->Pull({});
  const auto push = [](RawPsWorker& worker, const Ids& ids) {
    const PushRequest push =
        worker.NewPush({{kTable, UpdateKind::kTableRows, 0, ids.size(), kWidth}}, 0.25);
    CHECK(!worker.Push(push, Raw(ids) + Raw(Floats(ids.size() * kWidth, 1))));
  };
  push(*job.attacker, SomeIds(200));
  const std::weak_ptr<ps::Table> former = job.server->tables()[0];
  job.Replace();
  push(*job.other, {3});
  job.other->Pull({});
  CHECK(former.expired());
  // Adam's first step is as long as its learning rate.
  ps::Table& table = *job.server->tables()[0];
  CHECK(table.row_count() == 200);
  for (const int64_t id : {3, 100}) CHECK(std::abs(ValueOf(table, id) - 0.25f) < 1e-3f);
}

// Rows that catch up have the slots of Adam. With the slots of another optimizer, a step would
// write to slots that do not exist.
TEST_CASE("slots of another optimizer") {
  Job job;
  ps::TableConfig config = Slots(ps::OptimizerKind::kAdam);
  config.rule = ps::RowRule::kExactAdam;
  const auto create = [&](const std::string& name) {
    return job.attacker->Try(MessageType::kTable, Encode(ps::TableRequest{{{name, config, false}}}))
        .status;
  };
  CHECK_OK(create("a"));
  config.optimizer.amsgrad = true;
  CHECK_STATUS(create("b"), StatusCode::kInvalidArgument);
  config.optimizer = {};
  config.optimizer.kind = ps::OptimizerKind::kRmsprop;
  config.optimizer.momentum = 0.5;
  config.optimizer.centered = true;
  const Status refused = create("b");
  CHECK_STATUS(refused, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(refused.message(), "table 'b': a table: expected Adam without amsgrad");
  CHECK_CONTAINS(refused.message(), "received an optimizer with 3 slots");
  CHECK(job.server->tables().size() == 2);
}

}  // namespace
}  // namespace tfdist::testing::ps_server_replaced_tables_test
