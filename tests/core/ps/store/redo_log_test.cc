// The redo log of tables: each intact record is applied, once.
#include "core/ps/store/redo_log.h"

#include <cstdio>
#include <map>

#include "collectives/calls.h"
#include "core/base/checksum.h"
#include "core/ps/store/update.h"
#include "ps/tables.h"
#include "scratch.h"

namespace tfdist::testing::ps_store_redo_log_test {
namespace {

TEST_CASE("checksum") {
  const std::string text = "the bytes of a file, and more than thirty-two of them at that";
  Checksum whole;
  whole.Add(text.data(), text.size());
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Checksum parts;
    parts.Add(text.data(), cut);
    parts.Add(nullptr, 0);
    parts.Add(text.data() + cut, text.size() - cut);
    CHECK(parts.value() == whole.value());
    Checksum less;
    less.Add(text.data(), cut);
    CHECK((less.value() == whole.value()) == (cut == text.size()));
  }
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string other = text;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ 1 << bit % 8);
    Checksum sum;
    sum.Add(other.data(), other.size());
    CHECK(sum.value() != whole.value());
  }
}

// The tables of a replay, by name.
struct Replayed {
  explicit Replayed(const Scratch& file) {
    ps::RedoLog::Reader reader;
    reader.find = [this](const std::string& name, const ps::TableConfig& config) {
      if (tables[name] == nullptr) tables[name] = Make(config, name);
      return tables[name].get();
    };
    reader.wants = [this](const ps::Pusher& pusher) {
      return pusher.sequence == 0 || pusher.sequence > known;
    };
    reader.wants_edit = [this](const ps::Pusher& editor) { return editor.sequence > known_edit; };
    reader.reports = [this](const std::string& text) { reports.push_back(text); };
    status = ps::RedoLog::Replay(file.path, reader, &records, &left_out);
  }

  std::map<std::string, std::unique_ptr<ps::Table>> tables;
  uint64_t known = 1;  // pushes up to this sequence are not wanted
  uint64_t known_edit = 5;
  uint64_t records = 0, left_out = 0;
  std::vector<std::string> reports;
  Status status;
};

TEST_CASE("records") {
  const Scratch file;
  int failures = 0;
  ps::RedoLog log([&](const Status&) { ++failures; });
  const auto a = Make(Constant(2, 0), "a"), b = Make(Constant(1, 0), "b");
  Ids ids = {1, 2};
  Floats gradients = {1, 1, 2, 2};
  log.Append({0, 7, 1}, {ps::ApplyTableRows(a.get(), {1, 1}, 2, ids.data(), gradients.data())});
  CHECK(log.bytes() == 0);  // no file was begun
  log.Begin(file.path);
  CHECK(file.Read().empty());
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    log.Append({0, 7, sequence},
               {ps::ApplyTableRows(a.get(), {1, 1}, 2, ids.data(), gradients.data()),
                ps::ApplyTableRows(b.get(), {0.5, 1}, 2, ids.data(), gradients.data())});
  }
  log.Append({}, {ps::ApplyTableRows(b.get(), {1, 1}, 1, ids.data(), gradients.data())});
  log.Append({0, 7, 4}, {});
  const ps::SavedRows rows = a->NewRows(5, ids.data(), 1, Floats{9, 8}.data());
  ps::TableEdit edit;
  edit.count = 1;
  edit.ids = ids.data();
  log.Append({0, 7, 5}, a.get(), edit);  // not wanted by the replay
  edit.kind = ps::EditKind::kRestore;
  edit.used = rows.used.data();
  edit.counts = rows.counts.data();
  edit.content = rows.content.data();
  log.Append({0, 7, 6}, a.get(), edit);
  const Floats written = {3};
  edit.kind = ps::EditKind::kUpsert;
  edit.ids = ids.data() + 1;
  edit.content = written.data();
  log.Append({0, 7, 7}, b.get(), edit);
  CHECK((failures == 0 && log.is_open()));

  const Replayed whole(file);
  CHECK_OK(whole.status);
  CHECK((whole.records == 7 && whole.left_out == 0));
  CHECK(ValueOf(*whole.tables.at("a"), 1) == 9);
  CHECK(ValueOf(*whole.tables.at("a"), 2) == -4);     // two of three pushes
  CHECK(ValueOf(*whole.tables.at("b"), 1) == -2.0f);  // 2 * 0.5 and 1
  CHECK(ValueOf(*whole.tables.at("b"), 2) == 3);
  const std::string content = file.Read();
  CHECK(log.bytes() + 16 == content.size());

  // The file is cut off at any byte, or any byte is altered.
  uint64_t last = 0;
  for (size_t size = 0; size < content.size(); ++size) {
    file.Write(content.substr(0, size));
    const Replayed part(file);
    CHECK_OK(part.status);
    CHECK((part.records >= last && part.records < 7));
    last = part.records;
  }
  CHECK(last == 6);
  for (size_t at = 16; at < content.size(); ++at) {
    std::string altered = content;
    altered[at] = static_cast<char>(altered[at] ^ 0x20);
    file.Write(altered);
    const Replayed part(file);
    CHECK_OK(part.status);
    CHECK((part.records < 7 && (part.left_out > 0 || !part.reports.empty())));
  }
  file.Write("something else entirely");
  CHECK_CONTAINS(Replayed(file).status.message(), "not a log of rows");
  std::remove(file.path.c_str());
  CHECK_STATUS(Replayed(file).status, StatusCode::kUnavailable);

  log.Begin("/nowhere/at/all");
  log.Append({}, {ps::ApplyTableRows(b.get(), {1, 1}, 1, ids.data(), gradients.data())});
  log.Append({}, {ps::ApplyTableRows(b.get(), {1, 1}, 1, ids.data(), gradients.data())});
  CHECK((failures == 1 && !log.is_open()));
}

// After a failure records count as lost until a later snapshot is saved.
TEST_CASE("loss") {
  const Scratch file;
  ps::RedoLog log([](const Status&) {});
  const auto table = Make(Constant(1, 0), "t");
  Ids ids = {1};
  Floats gradients = {1};
  const auto append = [&] {
    log.Append({}, {ps::ApplyTableRows(table.get(), {1, 1}, 1, ids.data(), gradients.data())});
  };
  log.Begin(file.path);
  append();
  CHECK(!log.has_lost());
  log.Begin("/dev/full");
  CHECK(!log.has_lost());
  append();
  CHECK((log.has_lost() && !log.is_open()));
  log.Saved();  // the snapshot before the failure
  CHECK(log.has_lost());
  log.Begin(file.path);  // the snapshot of the Begin before this was never saved
  append();
  CHECK((log.has_lost() && log.is_open()));
  log.Begin("/dev/full");
  append();
  log.Saved();
  CHECK(log.has_lost());
  log.Begin(file.path);
  log.Saved();
  CHECK(!log.has_lost());
}

// In a table with admission, gradients of ids without rows are lost and not logged.
TEST_CASE("lost gradients") {
  ps::TableConfig config = Constant(1, 0);
  config.min_count = 2;
  const auto table = Make(config, "t");
  Ids ids = {1, 2, 3, 4};
  Floats rows(4), gradients = {1, 2, 3, 4};
  for (int i = 0; i < 2; ++i) table->Lookup(0, Ids{2, 4}.data(), 2, true, rows.data());
  const ps::AppliedRows applied =
      ps::ApplyTableRows(table.get(), {1, 1}, 4, ids.data(), gradients.data());
  CHECK(
      (applied.count == 2 && ids[0] == 2 && ids[1] == 4 && gradients[0] == 2 && gradients[1] == 4));
}

}  // namespace
}  // namespace tfdist::testing::ps_store_redo_log_test
