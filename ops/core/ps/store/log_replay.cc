#include "core/ps/store/log_replay.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/ps/store/log_decoder.h"
#include "core/ps/store/log_file.h"
#include "core/ps/store/store.h"

namespace tfdist::ps {
namespace {

constexpr size_t kMaxNamed = 10;  // records that are left out; of the others the number is told

const char* NameOf(std::optional<RecordKind> kind) {
  if (!kind) return "damaged";
  switch (*kind) {
    case RecordKind::kTable:
      return "the description of a table";
    case RecordKind::kShard:
      return "the description of a shard";
    case RecordKind::kPush:
      return "a push";
    case RecordKind::kTaskPush:
      return "a push of data tasks";
    case RecordKind::kEdit:
      return "an edit";
  }
  return "of no known kind";
}

// The records of a log, one after the other.
class LogWalk {
 public:
  explicit LogWalk(const RedoLog::Reader& reader) : decoder_(reader) {}

  Status Open(const std::string& path) { return file_.Open(path); }

  // Goes to the next record; false behind the last reachable record.
  Status Next(bool* more) {
    LogFile::Found found;
    if (Status s = file_.Next(&found); !s.ok()) return s;
    *more = found != LogFile::Found::kEnd && !is_lost_;
    if (!*more) return Status();
    kind_.reset();
    record_ = {};
    if (found == LogFile::Found::kDamage) {
      has_damage_ = true;
      problem_ = InvalidArgument(StrCat("its checksum: expected ", file_.header().checksum,
                                        ", received ", file_.checksum()));
      return Status();
    }
    kind_ = file_.header().kind;
    is_lost_ = has_damage_ && (*kind_ == RecordKind::kTable || *kind_ == RecordKind::kShard);
    if (is_lost_) {
      // Reading ends here.
      lost_bytes_ = file_.left();
      problem_ = InvalidArgument(
          StrCat("a damaged record before it may have been a description too: its number is not ",
                 "known, and the log ends here for lack of it, ", lost_bytes_, " bytes early"));
      return Status();
    }
    problem_ = decoder_.Decode(*kind_, file_.meta(), file_.arrays(), &record_);
    return Status();
  }

  uint64_t offset() const { return file_.offset(); }
  // Whether the log was not cut off at its end, as by a kill, but is damaged there.
  bool ends_in_damage() { return !is_lost_ && file_.left() > 0 && file_.HasRecordBehind(); }
  // The bytes behind the last record, at the end.
  uint64_t left() const { return is_lost_ ? lost_bytes_ : file_.left(); }
  std::optional<RecordKind> kind() const { return kind_; }  // nothing if it is damaged
  bool may_be_of_tasks() const { return !kind_ || *kind_ == RecordKind::kTaskPush; }
  const Status& problem() const { return problem_; }  // why it cannot be used
  const LogRecord& record() const { return record_; }
  const LogDecoder& decoder() const { return decoder_; }

 private:
  LogFile file_;
  LogDecoder decoder_;
  bool has_damage_ = false, is_lost_ = false;
  uint64_t lost_bytes_ = 0;
  std::optional<RecordKind> kind_;
  Status problem_;
  LogRecord record_;
};

// The first reading of a log.
class LogSurvey {
 public:
  LogSurvey(const std::string& path, const RedoLog::Reader& reader)
      : path_(path), reader_(reader) {}

  Status Run() {
    LogWalk walk(reader_);
    if (Status s = walk.Open(path_); !s.ok()) return s;
    for (bool more = true;;) {
      if (Status s = walk.Next(&more); !s.ok()) return s;
      if (!more) break;
      Status problem = walk.problem();
      if (problem.ok() && walk.kind() == RecordKind::kTaskPush && walk.offset() < tasks_end_) {
        problem = Collect(walk.decoder(), walk.record().changes);
      }
      if (problem.ok()) continue;
      LeaveOut(walk, problem);
      if (walk.may_be_of_tasks()) tasks_end_ = std::min(tasks_end_, walk.offset());
    }
    left_ = walk.left();
    if (walk.ends_in_damage()) {
      Report(StrCat("its last ", left_, " bytes, from byte ", walk.offset(),
                    " on, are left out, and ",
                    "their changes are lost: they begin with a damaged record, whose header ",
                    "tells of more bytes than there are, and have others behind it"));
    }
    if (left_out_ > kMaxNamed) {
      Report(StrCat(left_out_ - kMaxNamed, " more records are left out as well"));
    }
    return ReadValues(walk.decoder());
  }

  uint64_t left() const { return left_; }            // bytes behind the last record
  uint64_t tasks_end() const { return tasks_end_; }  // pushes of data tasks count before it
  std::vector<SavedShard> TakeValues() { return std::move(values_); }
  void Report(const std::string& what) const {
    if (reader_.reports) reader_.reports(StrCat(path_, ": ", what));
  }

 private:
  struct Rows {
    uint64_t width = 0;
    std::vector<int64_t> indices;
    std::vector<char> content;
  };
  // The value of a shard: a copy in the file of values, and rows that are later.
  struct Value {
    bool is_known = false;
    ValueFile::Copy copy;
    std::vector<Rows> later;
  };

  void LeaveOut(const LogWalk& walk, const Status& problem) {
    if (++left_out_ > kMaxNamed) return;
    Report(StrCat("the record at byte ", walk.offset(), " (", NameOf(walk.kind()),
                  ") is left out, and its changes are lost: ", problem.message()));
  }

  // Notes all changes of a push, or none.
  Status Collect(const LogDecoder& decoder, const std::vector<LoggedChange>& changes) {
    found_.resize(decoder.shards().size());
    for (const LoggedChange& change : changes) {
      if (change.is_whole || found_[change.shard].is_known) continue;
      return InvalidArgument(StrCat("it has rows of shard '", decoder.shards()[change.shard]->name,
                                    "', expected its whole value before"));
    }
    for (const LoggedChange& change : changes) {
      Value& value = found_[change.shard];
      if (change.is_whole) {
        value = {true, change.copy, {}};
      } else {
        value.later.push_back(
            {change.width, CopyOf<int64_t>(change.indices), CopyOf<char>(change.content)});
      }
    }
    return Status();
  }

  Status ReadValues(const LogDecoder& decoder) {
    for (size_t i = 0; i < found_.size(); ++i) {
      if (!found_[i].is_known) continue;
      const DescribedShard& shard = *decoder.shards()[i];
      BlockPtr value;
      const Status read =
          ValueFile::Read(path_ + kValuesSuffix, found_[i].copy, shard.bytes, &value);
      if (read.code() == StatusCode::kUnavailable) return read;  // it may be readable later
      if (!read.ok()) {
        Report(StrCat("none of its pushes of data tasks counts, as the value of shard '",
                      shard.name, "' is lost: ", read.message()));
        tasks_end_ = 0;
        values_.clear();
        return Status();
      }
      for (const Rows& rows : found_[i].later) Write(rows, ByteSize(shard.dtype), value.get());
      values_.push_back({shard.name, shard.dtype, shard.elements, std::move(value)});
    }
    return Status();
  }

  // The decoder has compared width and indices with the shard.
  static void Write(const Rows& rows, size_t element_bytes, Block* value) {
    const size_t row_bytes = rows.width * element_bytes;
    for (size_t i = 0; i < rows.indices.size(); ++i) {
      std::memcpy(value->data() + rows.indices[i] * row_bytes, &rows.content[i * row_bytes],
                  row_bytes);
    }
  }

  const std::string& path_;
  const RedoLog::Reader& reader_;
  uint64_t left_ = 0, tasks_end_ = UINT64_MAX;
  size_t left_out_ = 0;
  std::vector<Value> found_;  // by the number of the shard
  std::vector<SavedShard> values_;
};

// The second reading.
class LogApplier {
 public:
  LogApplier(const std::string& path, const RedoLog::Reader& reader)
      : path_(path), reader_(reader) {}

  // `found`: whether all tables were found; else it has ended early.
  Status Run(uint64_t tasks_end, uint64_t* records, bool* found) {
    *found = true;
    LogWalk walk(reader_);
    if (Status s = walk.Open(path_); !s.ok()) return s;
    for (bool more = true;;) {
      if (Status s = walk.Next(&more); !s.ok() || !more) return s;
      if (!walk.problem().ok()) continue;
      if (walk.kind() == RecordKind::kTaskPush && walk.offset() >= tasks_end) {
        ++pushes_left_out_;
        continue;
      }
      *found = Apply(walk.decoder(), walk.record(), records);
      if (!*found) return Status();
    }
  }

  uint64_t pushes_left_out() const { return pushes_left_out_; }  // of data tasks

 private:
  // Returns false if its table cannot be found.
  bool Apply(const LogDecoder& decoder, const LogRecord& record, uint64_t* records) {
    tables_.resize(decoder.tables().size());
    switch (record.kind) {
      case RecordKind::kTable: {
        const DescribedTable& table = *decoder.tables().back();
        tables_.back() = reader_.find(table.name, table.config);
        return tables_.back() != nullptr;
      }
      case RecordKind::kShard:
        return true;
      case RecordKind::kPush:
      case RecordKind::kTaskPush:
        ++*records;
        Push(record);
        return true;
      case RecordKind::kEdit:
        ++*records;
        Edit(record.pusher, record.edit);
        return true;
    }
    return true;
  }

  void Push(const LogRecord& push) {
    const bool wanted = reader_.wants(push.pusher);
    if (reader_.moves && wanted) reader_.moves(push.positions);
    for (const LoggedRows& rows : push.rows) {
      if (reader_.passes) reader_.passes(rows.now);
      if (!wanted) continue;
      const std::vector<int64_t> ids = CopyOf<int64_t>(rows.ids);
      tables_[rows.table]->Replay(rows.now, ids.data(), ids.size(),
                                  CopyOf<float>(rows.gradients).data(), rows.step);
    }
  }

  void Edit(const Pusher& editor, const LoggedEdit& from) {
    if (reader_.passes) reader_.passes(from.now);
    if (!reader_.wants_edit(editor)) return;
    const std::vector<int64_t> ids = CopyOf<int64_t>(from.ids);
    const std::vector<uint32_t> used = CopyOf<uint32_t>(from.used);
    const std::vector<uint32_t> counts = CopyOf<uint32_t>(from.counts);
    const std::vector<float> content = CopyOf<float>(from.content);
    TableEdit edit;
    edit.kind = from.kind;
    edit.now = from.now;
    edit.count = ids.size();
    edit.ids = ids.data();
    edit.used = used.data();
    edit.counts = counts.data();
    edit.content = content.data();
    tables_[from.table]->Edit(edit);
  }

  const std::string& path_;
  const RedoLog::Reader& reader_;
  std::vector<Table*> tables_;  // by their number; null for a table that was left out
  uint64_t pushes_left_out_ = 0;
};

}  // namespace

Status ReplayLog(const std::string& path, const RedoLog::Reader& reader, uint64_t* records,
                 uint64_t* left_out) {
  *records = *left_out = 0;
  LogSurvey survey(path, reader);
  if (Status s = survey.Run(); !s.ok()) return s;
  *left_out = survey.left();
  LogApplier applier(path, reader);
  bool found = false;
  const Status applied = applier.Run(survey.tasks_end(), records, &found);
  if (!applied.ok() || !found) return applied;
  if (applier.pushes_left_out() > 0) {
    survey.Report(StrCat(applier.pushes_left_out(),
                         " of its pushes of data tasks do not count, as ",
                         "an earlier push cannot be used: their variables and rows are ",
                         "as before, and the records of their tasks are dealt out again"));
  }
  for (SavedShard& value : survey.TakeValues()) {
    if (!reader.sets) break;
    const Status set = reader.sets(value.name, value.dtype, value.elements, std::move(value.block));
    if (!set.ok()) return set;
  }
  return Status();
}

}  // namespace tfdist::ps
