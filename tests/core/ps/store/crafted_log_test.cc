// Redo logs with numbers that no server has written: their checksums are right.
#include <sys/stat.h>

#include <cstdio>
#include <map>
#include <random>

#include "core/ps/store/redo_log.h"
#include "ps/server.h"
#include "ps/store/log_crafter.h"
#include "ps/tables.h"
#include "scratch.h"

namespace tfdist::testing::ps_store_crafted_log_test {
namespace {

constexpr uint64_t kHuge = uint64_t{1} << 62;

// The state that a log restores.
struct Restored {
  explicit Restored(const std::string& log, const std::string& values = "") {
    file.Write(log);
    values_path = file.path + ".values";
    if (!values.empty()) std::ofstream(values_path, std::ios::binary) << values;
    Replay();
  }
  ~Restored() { std::remove(values_path.c_str()); }

  void Replay() {
    ps::RedoLog::Reader reader;
    reader.find = [this](const std::string& name, const ps::TableConfig& config) {
      auto& table = tables[name];
      if (table == nullptr) table = Make(config, name);
      return table.get();
    };
    reader.wants = reader.wants_edit = [](const ps::Pusher&) { return true; };
    reader.moves = [this](const std::vector<ps::TaskPosition>& to) {
      for (const ps::TaskPosition& each : to) positions[each.task] = each.trained;
    };
    reader.sets = [this](const std::string& name, DType, uint64_t elements, ps::BlockPtr value) {
      Floats& floats = shards[name];
      CHECK(value->bytes() == elements * sizeof(float));
      floats.resize(elements);
      std::memcpy(floats.data(), value->data(), value->bytes());
      return Status();
    };
    reader.fits = [](const std::string& name, DType, uint64_t elements) {
      return name == "two" && elements != 2 ? InvalidArgument("expected two") : Status();
    };
    reader.reports = [this](const std::string& text) { reports.push_back(text); };
    status = ps::RedoLog::Replay(file.path, reader, &records, &left_out);
  }
  // The value of a row of the table "t", of one number.
  float Row(int64_t id) { return ValueOf(*tables.at("t"), id); }

  const Scratch file;
  std::string values_path;
  std::map<std::string, std::unique_ptr<ps::Table>> tables;
  std::map<std::string, uint64_t> positions;
  std::map<std::string, Floats> shards;
  std::vector<std::string> reports;
  uint64_t records = 0, left_out = 0;
  Status status;
};

std::string Begin() { return kLogBegin + TableDescription("t", Constant(1, 0)); }

// The record is told by its file, place and field; the records around it are restored.
void ExpectLeftOut(const std::string& record, const std::string& kind, const std::string& why) {
  const std::string before = Begin() + PushRecordOf(1);
  Restored restored(before + record + PushRecordOf(2));
  CHECK_OK(restored.status);
  CHECK((restored.records == 2 && restored.left_out == 0));
  CHECK((restored.Row(1) == -1 && restored.Row(2) == -1 && restored.Row(3) == 0));
  CHECK((restored.shards.empty() && restored.positions.empty()));
  CHECK(!restored.reports.empty());
  CHECK_CONTAINS(restored.reports[0],
                 StrCat(restored.file.path, ": the record at byte ", before.size(), " (", kind,
                        ") is left out, and its changes are lost: "));
  CHECK_CONTAINS(restored.reports[0], why);
}

// A product that wraps to 16 bytes: rows could be written at any distance behind them.
TEST_CASE("elements that wrap") {
  const std::string value(16, '\0');
  const std::string push = Record(
      kTaskPushRecord, PushMeta({}, {}) + TaskFields("a", 5,
                                                     {{0, true, 0, ChecksumOfBytes(value)},
                                                      {1, true, 0, ChecksumOfBytes(value)}}));
  const std::string rows =
      Record(kTaskPushRecord, PushMeta({}, {}) + TaskFields("a", 6, {{1, false, 1, 1}}),
             ArrayOf(std::vector<int64_t>{int64_t{1} << 44}) + ArrayOf(std::vector<float>{1}));
  const std::string begin = Begin() + ShardDescription("w", DType::kFloat32, 4);
  Restored restored(
      begin + ShardDescription("x", DType::kFloat32, kHuge + 4) + push + rows + PushRecordOf(2),
      value);
  CHECK_OK(restored.status);
  CHECK((restored.records == 1 && restored.Row(2) == -1));
  CHECK((restored.shards.empty() && restored.positions.empty()));
  CHECK(restored.reports.size() == 3);
  CHECK_CONTAINS(restored.reports[0],
                 StrCat(restored.file.path, ": the record at byte ", begin.size(),
                        " (the description of a shard) is left out"));
  CHECK_CONTAINS(restored.reports[0], StrCat("field 'elements': expected at most ",
                                             uint64_t{1} << 34, ", received ", kHuge + 4));
  CHECK_CONTAINS(restored.reports[1], "shard 1, which it changes, was left out");
}

TEST_CASE("numbers") {
  const auto rows = [](const std::vector<RowFields>& fields, const std::string& arrays) {
    return Record(kPushRecord, PushMeta({}, fields), arrays);
  };
  const std::string one = ArrayOf(Ids{3}) + ArrayOf(Floats{1});
  ExpectLeftOut(rows({{0, kHuge}}, one), "a push", "its arrays: expected more than 2^64 bytes");
  ExpectLeftOut(rows({{0, uint64_t{1} << 61}}, one), "a push", "expected more than 2^64 bytes");
  ExpectLeftOut(rows({{0, 2}}, one), "a push",
                "expected 24 bytes, as its fields tell, received 12");
  ExpectLeftOut(rows({{7, 1}}, one), "a push", "field 'table': expected a number below 1");
  ExpectLeftOut(rows({{0, 1, -1e300}}, one), "a push", "field 'now': expected a time in seconds");
  ExpectLeftOut(rows({{0, 1, std::nan("")}}, one), "a push", "field 'now'");
  // As a whole: its first part would be in order.
  ExpectLeftOut(rows({{0, 1}, {0, kHuge}}, one + one), "a push", "expected more than 2^64 bytes");
  ExpectLeftOut(rows({{0, 1}, {1, 1}}, one + one), "a push", "field 'table'");
  ExpectLeftOut(rows({{0, 1}}, one + "x"), "a push", "expected 12 bytes");
  ExpectLeftOut(Record(kPushRecord, "short"), "a push", "its 5 bytes of fields are malformed");
  const auto edit = [](ps::EditKind kind, uint64_t count, const std::string& arrays) {
    return Record(kEditRecord, EditMeta(0, kind, count), arrays);
  };
  ExpectLeftOut(edit(ps::EditKind::kUpsert, kHuge, one), "an edit", "expected more than 2^64");
  ExpectLeftOut(edit(ps::EditKind::kRestore, uint64_t{1} << 60, one), "an edit", "more than 2^64");
  ExpectLeftOut(edit(ps::EditKind::kRestore, 1, one), "an edit", "expected 20 bytes");
  ExpectLeftOut(Record(kEditRecord, EditMeta(3, ps::EditKind::kClear, 0)), "an edit",
                "field 'table': expected a number below 1, received 3");
  ExpectLeftOut(Record(kEditRecord, EditMeta(0, static_cast<ps::EditKind>(9), 0)), "an edit",
                "malformed");
  ExpectLeftOut(Record(9, ""), "of no known kind", "field 'kind': expected 1 to 5, received 9");
  ExpectLeftOut(TableDescription("u", Constant(0, 0)), "the description of a table",
                "table 'u': a table: expected a width from 1 to 65536, received 0");
  ExpectLeftOut(ShardDescription("two", DType::kFloat32, 3), "the description of a shard",
                "expected two");
  ExpectLeftOut(ShardDescription(std::string(2000, 'x'), DType::kFloat32, 3),
                "the description of a shard", "field 'name'");
}

// Others keep their numbers.
TEST_CASE("description that is left out") {
  Restored restored(kLogBegin + TableDescription("bad", Constant(0, 0)) +
                    TableDescription("t", Constant(1, 0)) + PushRecordOf(1, 0, 0) +
                    PushRecordOf(2, 0, 1));
  CHECK_OK(restored.status);
  CHECK((restored.records == 1 && restored.tables.size() == 1 && restored.Row(2) == -1));
  CHECK(restored.reports.size() == 2);
  CHECK_CONTAINS(restored.reports[1], "table 0, which it changes, was left out");
}

// A record in the middle is damaged. Pushes of rows behind it are not lost with it.
TEST_CASE("damage") {
  const std::string begin = Begin() + PushRecordOf(1);
  std::string damaged = PushRecordOf(2);
  damaged[kRecordHead + 20] ^= 1;
  {
    Restored restored(begin + damaged + PushRecordOf(3));
    CHECK_OK(restored.status);
    CHECK((restored.records == 2 && restored.left_out == 0 && restored.reports.size() == 1));
    CHECK((restored.Row(1) == -1 && restored.Row(2) == 0 && restored.Row(3) == -1));
    CHECK_CONTAINS(restored.reports[0], StrCat("at byte ", begin.size(), " (damaged) is left out"));
    CHECK_CONTAINS(restored.reports[0], "its checksum: expected ");
  }
  {  // Its size is damaged: it cannot be told where it ends, but that it is no torn one.
    std::string endless = PushRecordOf(2);
    endless[8 + 5] = 1;  // 2^40 bytes of arrays
    const std::string rest = endless + PushRecordOf(3);
    Restored restored(begin + rest);
    CHECK_OK(restored.status);
    CHECK((restored.records == 1 && restored.left_out == rest.size() && restored.Row(3) == 0));
    CHECK(restored.reports.size() == 1);
    CHECK_CONTAINS(restored.reports[0], StrCat("its last ", rest.size(), " bytes, from byte ",
                                               begin.size(), " on, are left out"));
    Restored torn(begin + endless);
    CHECK((torn.reports.empty() && torn.left_out == endless.size()));
  }
  // It may have been a description, so a later one has no known number.
  const std::string more = TableDescription("u", Constant(1, 0)) + PushRecordOf(3, 0, 1);
  Restored restored(begin + damaged + more);
  CHECK_OK(restored.status);
  CHECK((restored.records == 1 && restored.left_out == more.size()));
  CHECK((restored.tables.size() == 1 && restored.reports.size() == 2));
  CHECK_CONTAINS(restored.reports[1], "may have been a description too");
  // Not more lines than a user reads.
  std::string many = Begin();
  for (int i = 0; i < 30; ++i) many += damaged;
  Restored lines(many);
  CHECK(lines.reports.size() == 11);
  CHECK_CONTAINS(lines.reports.back(), "20 more records are left out as well");
}

// Pushes of data tasks: positions, values and rows stay consistent.
TEST_CASE("tasks") {
  const std::string first = ArrayOf(Floats{1, 1}), second = ArrayOf(Floats{2, 2}),
                    third = ArrayOf(Floats{3, 3});
  const auto push = [](uint64_t trained, uint64_t offset, const std::string& value) {
    return Record(kTaskPushRecord,
                  PushMeta({0, 7, trained}, {{0, 1}}) +
                      TaskFields("a", trained, {{0, true, offset, ChecksumOfBytes(value)}}),
                  ArrayOf(Ids{static_cast<int64_t>(trained)}) + ArrayOf(Floats{1}));
  };
  const std::string begin = Begin() + ShardDescription("w", DType::kFloat32, 2);
  const std::string one = push(1, 0, first), two = push(2, 8, second), three = push(3, 0, third);
  const auto damaged = [](std::string record) {
    record.back() ^= 1;
    return record;
  };
  {
    Restored restored(begin + one + two + three, third + second);
    CHECK_OK(restored.status);
    CHECK((restored.records == 3 && restored.reports.empty() && restored.positions["a"] == 3));
    CHECK((restored.shards["w"] == Floats({3, 3}) && restored.Row(1) + restored.Row(3) == -2));
  }
  {  // The last one is torn, as by a kill.
    Restored restored(begin + one + two + three.substr(0, three.size() - 1), third + second);
    CHECK_OK(restored.status);
    CHECK((restored.records == 2 && restored.reports.empty() && restored.positions["a"] == 2));
    CHECK(restored.left_out == three.size() - 1);
    CHECK((restored.shards["w"] == Floats({2, 2}) && restored.Row(3) == 0));
  }
  {  // The second is damaged: the first counts. Rows that are not of tasks are still applied.
    Restored restored(begin + one + damaged(two) + PushRecordOf(9), first + second);
    CHECK_OK(restored.status);
    CHECK((restored.records == 2 && restored.positions["a"] == 1));
    CHECK((restored.shards["w"] == Floats({1, 1}) && restored.Row(1) == -1 &&
           restored.Row(2) == 0 && restored.Row(9) == -1));
  }
  {  // The same, and the third has overwritten the value of the first: none counts.
    Restored restored(begin + one + damaged(two) + three + PushRecordOf(9), third + second);
    CHECK_OK(restored.status);
    CHECK((restored.records == 1 && restored.positions.empty() && restored.shards.empty()));
    CHECK((restored.Row(1) == 0 && restored.Row(3) == 0 && restored.Row(9) == -1));
    CHECK(restored.reports.size() == 3);
    CHECK_CONTAINS(restored.reports[1],
                   "none of its pushes of data tasks counts, as the value of shard 'w' is lost");
    CHECK_CONTAINS(restored.reports[1], "the 8 bytes at 0 are damaged");
    CHECK_CONTAINS(restored.reports[2], "2 of its pushes of data tasks do not count");
  }
  // Files of values that are no such files.
  for (const uint64_t offset : {uint64_t{9}, uint64_t{1} << 63, UINT64_MAX - 3}) {
    Restored restored(begin + push(1, offset, first) + PushRecordOf(9), first + second);
    CHECK_OK(restored.status);
    CHECK((restored.records == 1 && restored.positions.empty() && restored.shards.empty()));
    CHECK_CONTAINS(restored.reports[0],
                   StrCat("expected 8 bytes at ", offset, " of a file, received a file of 16"));
  }
  Restored restored(begin + one + PushRecordOf(9));
  CHECK_OK(restored.status);
  CHECK(restored.positions.empty());
  CHECK_CONTAINS(restored.reports[0], "No such file");
  CHECK(mkfifo(restored.values_path.c_str(), 0600) == 0);
  restored.Replay();  // does not wait for a writer to the pipe
  CHECK_OK(restored.status);
  CHECK_CONTAINS(restored.reports.back(), "do not count");
}

// A server that keeps the state of its snapshot, and starts.
TEST_CASE("server") {
  const Scratch file;
  const std::string values = file.path + ".values";
  std::ofstream(values, std::ios::binary) << std::string(16, '\0');
  const std::string sums = std::string(16, '\0');
  const auto shard = [](uint64_t elements) {
    return ShardDescription("w", DType::kFloat32, elements);
  };
  const std::string push =
      Record(kTaskPushRecord,
             PushMeta({}, {}) + TaskFields("a", 5, {{0, true, 0, ChecksumOfBytes(sums)}}));
  for (const uint64_t elements : {kHuge + 4, uint64_t{4}}) {
    file.Write(Begin() + shard(elements) + push + PushRecordOf(2, 1));
    ps::ServerOptions options;
    options.schedule.workers = 1;
    std::unique_ptr<ps::Server> server;
    REQUIRE_OK(ps::Server::Create(options, "", 0, true, &server));
    ps::ServerSnapshot image;
    auto block = std::make_shared<ps::Block>(2 * sizeof(float));
    std::memset(block->data(), 0, block->bytes());
    image.shards.push_back({"w", DType::kFloat32, 2, block});
    REQUIRE_OK(server->Restore(image));
    uint64_t records = 0, left_out = 0;
    CHECK_OK(server->ReplayLog(file.path, &records, &left_out));
    CHECK((records == 1 && left_out == 0 && ValueOf(*server->tables()[0], 2) == -1));
    CHECK(server->tasks().Save().empty());
    REQUIRE_OK(server->Start(TestKey()));
    ps::Server::Event event;
    CHECK((server->WaitForEvent(20, &event) && event.kind == ps::Server::Event::Kind::kLog));
    CHECK_CONTAINS(event.text, "(the description of a shard) is left out");
    CHECK_CONTAINS(event.text,
                   elements == 4 ? "expected float32[2], received float32[4]" : "field 'elements'");
  }
  std::remove(values.c_str());
}

// Valid logs in which some numbers are replaced, and the checksums made right again: however they
// are, the replay ends, and touches no memory of others.
TEST_CASE("mutations") {
  std::mt19937_64 random(20);
  const std::string value = ArrayOf(Floats{1, 2, 3, 4});
  const std::vector<std::string> records = {
      TableDescription("t", Constant(1, 0)),
      ShardDescription("w", DType::kFloat32, 4),
      PushRecordOf(1),
      Record(kTaskPushRecord,
             PushMeta({}, {{0, 1}}) + TaskFields("a", 5, {{0, true, 0, ChecksumOfBytes(value)}}),
             ArrayOf(Ids{1}) + ArrayOf(Floats{1})),
      Record(kTaskPushRecord, PushMeta({}, {}) + TaskFields("a", 6, {{0, false, 2, 1}}),
             ArrayOf(Ids{1}) + ArrayOf(Floats{5, 6})),
      Record(kEditRecord, EditMeta(0, ps::EditKind::kUpsert, 1),
             ArrayOf(Ids{1}) + ArrayOf(Floats{1})),
      Record(kEditRecord, EditMeta(0, ps::EditKind::kRestore, 1),
             ArrayOf(Ids{4}) + ArrayOf(std::vector<uint32_t>{1, 2}) + ArrayOf(Floats{1})),
  };
  const std::vector<uint64_t> numbers = {
      0,         1,          2,         255,        1 << 16,          kHuge,
      kHuge + 1, UINT64_MAX, INT64_MAX, UINT32_MAX, uint64_t{1} << 61};
  uint64_t applied = 0, told = 0;
  const int rounds = Rounds(1200);
  for (int round = 0; round < rounds; ++round) {
    std::string log = kLogBegin;
    for (const std::string& record : records) {
      std::string content = record.substr(kRecordHead);
      uint32_t kind = 0, meta_bytes = 0;
      std::memcpy(&kind, record.data(), sizeof(kind));
      std::memcpy(&meta_bytes, record.data() + 4, sizeof(meta_bytes));
      if (random() % 3 == 0) {
        const uint64_t number = numbers[random() % numbers.size()];
        const size_t bytes = size_t{1} << random() % 4;  // 1 to 8
        const size_t at = random() % (content.size() - std::min(bytes, content.size()) + 1);
        std::memcpy(content.data() + at, &number, std::min(bytes, content.size() - at));
      }
      if (random() % 40 == 0) kind = static_cast<uint32_t>(random() % 7);
      if (random() % 40 == 0) {
        meta_bytes = static_cast<uint32_t>(random() % (content.size() + 1));
      }
      log += Record(kind, content.substr(0, meta_bytes), content.substr(meta_bytes));
      if (random() % 60 == 0) log[log.size() - 1 - random() % record.size()] ^= 4;
    }
    if (random() % 20 == 0) log.resize(log.size() - random() % 100);
    Restored restored(log, value + value);
    CHECK_OK(restored.status);
    applied += restored.records;
    told += restored.reports.size();
  }
  // Neither all nor nothing is left out.
  CHECK((applied > static_cast<uint64_t>(rounds) && told > static_cast<uint64_t>(rounds) / 2));
}

}  // namespace
}  // namespace tfdist::testing::ps_store_crafted_log_test
