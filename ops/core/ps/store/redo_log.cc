#include "core/ps/store/redo_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/wire.h"
#include "core/ps/protocol/message.h"

namespace tfdist::ps {
namespace {

constexpr char kLogMagic[] = "tfdist row log 2";
constexpr size_t kLogMagicBytes = sizeof(kLogMagic) - 1;
// kTaskPush: a push that has trained records of data tasks.
enum Kind : uint32_t { kTable = 1, kPush = 2, kEdit = 3, kTaskPush = 4, kShard = 5 };
constexpr char kValuesSuffix[] = ".values";

// Precedes each record, which consists of `meta` and then of arrays, whose sizes meta tells.
struct RecordHeader {
  uint32_t kind = 0, meta_bytes = 0;
  uint64_t array_bytes = 0;
  uint64_t checksum = 0;  // of the rest of the header, and of the record
};

Status Failed(const std::string& path, const char* what) {
  return Status(StatusCode::kUnavailable, StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

bool WriteAll(int file, std::vector<iovec> pieces) {
  size_t next = 0;
  while (next < pieces.size()) {
    const int count = static_cast<int>(std::min<size_t>(pieces.size() - next, IOV_MAX));
    const ssize_t written = writev(file, pieces.data() + next, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    auto left = static_cast<size_t>(written);
    for (; next < pieces.size() && left >= pieces[next].iov_len; ++next) {
      left -= pieces[next].iov_len;
    }
    if (left == 0) continue;
    pieces[next].iov_base = static_cast<char*>(pieces[next].iov_base) + left;
    pieces[next].iov_len -= left;
  }
  return true;
}

bool ReadAll(int file, void* to, size_t bytes) {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t count = read(file, next, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    next += count;
    bytes -= count;
  }
  return true;
}

template <typename T>
iovec ViewOf(const T* data, size_t count) {
  return {const_cast<T*>(data), count * sizeof(T)};
}

uint64_t ChecksumOf(const RecordHeader& header, const std::vector<iovec>& pieces) {
  Checksum sum;
  sum.Add(&header, offsetof(RecordHeader, checksum));
  for (const iovec& piece : pieces) sum.Add(piece.iov_base, piece.iov_len);
  return sum.value();
}

// The arrays of a record.
class ArrayReader {
 public:
  explicit ArrayReader(std::string_view bytes) : bytes_(bytes) {}

  // Returns false if fewer than `count` numbers are left.
  template <typename T>
  bool Take(uint64_t count, std::vector<T>* array) {
    if (count > bytes_.size() / sizeof(T)) return false;
    array->resize(count);
    if (count > 0) std::memcpy(array->data(), bytes_.data(), count * sizeof(T));
    bytes_.remove_prefix(count * sizeof(T));
    return true;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

class Replayer {
 public:
  Replayer(const RedoLog::Reader& reader, std::string path)
      : reader_(reader), values_path_(std::move(path) + kValuesSuffix) {}

  // Returns false if the record is malformed.
  bool Replay(uint32_t kind, std::string_view meta, std::string_view arrays) {
    switch (kind) {
      case kTable:
        return AddTable(meta);
      case kPush:
      case kTaskPush:
        return Push(meta, ArrayReader(arrays), kind == kTaskPush);
      case kEdit:
        return Edit(meta, ArrayReader(arrays));
      case kShard:
        return AddShard(meta);
      default:
        return false;
    }
  }

  // Hands over the last values of the shards.
  Status Finish() {
    if (!reader_.sets) return Status();
    for (const Described& shard : shards_) {
      if (!shard.is_known) continue;
      const size_t bytes = shard.elements * ByteSize(shard.dtype);
      BlockPtr value;
      if (Status s = ValueFile::Read(values_path_, shard.copy, bytes, &value); !s.ok()) return s;
      for (const Rows& rows : shard.later) {
        const size_t row_bytes = rows.width * ByteSize(shard.dtype);
        for (size_t i = 0; i < rows.indices.size(); ++i) {
          std::memcpy(value->data() + rows.indices[i] * row_bytes, &rows.content[i * row_bytes],
                      row_bytes);
        }
      }
      Status set = reader_.sets(shard.name, shard.dtype, shard.elements, std::move(value));
      if (!set.ok()) return set;
    }
    return Status();
  }

 private:
  struct Rows {
    uint64_t width = 0;
    std::vector<int64_t> indices;
    std::vector<char> content;
  };
  struct Described {
    std::string name;
    DType dtype = DType::kFloat32;
    uint64_t elements = 0;
    bool is_known = false;
    ValueFile::Copy copy;
    std::vector<Rows> later;  // than the copy
  };
  struct Entry {
    uint32_t table = 0;
    double now = 0;
    StepValues step;
    uint64_t count = 0;
  };

  bool AddTable(std::string_view meta) {
    TableRequest request;
    if (!Decode(meta, &request).ok() || request.entries.size() != 1) return false;
    tables_.push_back(reader_.find(request.entries[0].name, request.entries[0].config));
    return tables_.back() != nullptr;
  }

  bool AddShard(std::string_view meta) {
    Described shard;
    tfdist::Reader fields(meta);
    fields.GetString(&shard.name).GetEnum(&shard.dtype, DType::kFloat16, DType::kBytes);
    fields.Get(&shard.elements);
    if (!fields.Finish("record").ok()) return false;
    shards_.push_back(std::move(shard));
    return true;
  }

  // Values of a push. Its rows of shards follow in `arrays`.
  struct Change {
    uint32_t shard = 0;
    bool is_whole = false;
    ValueFile::Copy copy;
    uint64_t width = 0, count = 0;
  };
  static void GetChange(tfdist::Reader* fields, Change* change) {
    fields->Get(&change->shard).GetBool(&change->is_whole);
    if (change->is_whole) {
      fields->Get(&change->copy.offset).Get(&change->copy.checksum);
    } else {
      fields->Get(&change->width).Get(&change->count);
    }
  }
  bool Apply(const Change& change, ArrayReader* arrays) {
    if (change.shard >= shards_.size()) return false;
    Described& shard = shards_[change.shard];
    if (change.is_whole) {
      shard.is_known = true;
      shard.copy = change.copy;
      shard.later.clear();
      return true;
    }
    Rows rows;
    rows.width = change.width;
    if (!shard.is_known || rows.width == 0 || rows.width > shard.elements) return false;
    const uint64_t row_bytes = rows.width * ByteSize(shard.dtype);
    if (!arrays->Take(change.count, &rows.indices)) return false;
    if (!arrays->Take(change.count * row_bytes, &rows.content)) return false;
    const uint64_t limit = shard.elements / rows.width;
    for (const int64_t index : rows.indices) {
      if (index < 0 || static_cast<uint64_t>(index) >= limit) return false;
    }
    shard.later.push_back(std::move(rows));
    return true;
  }

  bool Push(std::string_view meta, ArrayReader arrays, bool of_tasks) {
    Pusher pusher;
    tfdist::Reader fields(meta);
    fields.Get(&pusher.worker).Get(&pusher.process).Get(&pusher.sequence);
    std::vector<Entry> entries(fields.GetCount(sizeof(Entry::table)));
    for (Entry& entry : entries) {
      fields.Get(&entry.table).Get(&entry.now).Get(&entry.step.learning_rate);
      fields.Get(&entry.step.step).Get(&entry.count);
    }
    std::vector<TaskPosition> positions(of_tasks ? fields.GetCount(sizeof(uint64_t)) : 0);
    for (TaskPosition& each : positions) {
      fields.GetString(&each.task).Get(&each.trained);
    }
    std::vector<Change> changes(of_tasks ? fields.GetCount(sizeof(Change::shard)) : 0);
    for (Change& change : changes) GetChange(&fields, &change);
    if (!fields.Finish("record").ok()) return false;
    const bool wanted = reader_.wants(pusher);
    if (reader_.moves && wanted) reader_.moves(positions);
    for (const Entry& entry : entries) {
      if (reader_.passes) reader_.passes(entry.now);
      if (entry.table >= tables_.size()) return false;
      Table* const table = tables_[entry.table];
      std::vector<int64_t> ids;
      std::vector<float> gradients;
      if (!arrays.Take(entry.count, &ids) ||
          !arrays.Take(entry.count * table->config().width, &gradients)) {
        return false;
      }
      if (wanted) {
        table->Replay(entry.now, ids.data(), ids.size(), gradients.data(), entry.step);
      }
    }
    for (const Change& change : changes) {
      if (!Apply(change, &arrays)) return false;
    }
    return arrays.empty();
  }

  bool Edit(std::string_view meta, ArrayReader arrays) {
    Pusher editor;
    uint32_t id = 0;
    TableEdit edit;
    uint64_t count = 0;
    tfdist::Reader fields(meta);
    fields.Get(&editor.worker).Get(&editor.process).Get(&editor.sequence).Get(&id);
    fields.GetEnum(&edit.kind, EditKind::kRestore, EditKind::kClear).Get(&edit.now).Get(&count);
    if (!fields.Finish("record").ok() || id >= tables_.size()) return false;
    Table* const table = tables_[id];
    SavedRows rows;
    const uint64_t uses = edit.kind == EditKind::kRestore ? count : 0;
    if (!arrays.Take(count, &rows.ids) || !arrays.Take(uses, &rows.used) ||
        !arrays.Take(uses, &rows.counts) ||
        !arrays.Take(count * table->EditFloats(edit.kind), &rows.content) || !arrays.empty()) {
      return false;
    }
    if (reader_.passes) reader_.passes(edit.now);
    if (!reader_.wants_edit(editor)) return true;
    edit.count = count;
    edit.ids = rows.ids.data();
    edit.used = rows.used.data();
    edit.counts = rows.counts.data();
    edit.content = rows.content.data();
    table->Edit(edit);
    return true;
  }

  const RedoLog::Reader& reader_;
  const std::string values_path_;
  std::vector<Table*> tables_;     // by their id in the file
  std::vector<Described> shards_;  // the same
};

}  // namespace

void RedoLog::Begin(std::string path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ids_.clear();
  described_ = 0;
  values_.Begin(path + kValuesSuffix);
  shard_ids_.clear();
  path_ = std::move(path);
  bytes_ = 0;
  file_.Reset();
  failed_ = false;
  open_ = true;
}

void RedoLog::Saved() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failed_) has_lost_ = false;
}

void RedoLog::Fail(const char* what) {
  open_ = false;  // Replay stops at an incomplete record: what followed would be lost
  failed_ = has_lost_ = true;
  try {
    on_failure_(Failed(path_, what));
  } catch (const std::bad_alloc&) {  // the failure is not reported
  }
}

template <typename Do>
void RedoLog::Record(const Do& write) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!open_) return;
  try {
    write();
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    Fail("cannot be written");
  }
}

void RedoLog::Append(const Pusher& pusher, const std::vector<AppliedRows>& applied,
                     const TaskRecord* tasks) {
  if (applied.empty() && tasks == nullptr) return;
  Record([&] {
    Writer meta;
    meta.Put(pusher.worker).Put(pusher.process).Put(pusher.sequence);
    meta.Put(static_cast<uint32_t>(applied.size()));
    std::vector<iovec> arrays;
    for (const AppliedRows& one : applied) {
      meta.Put(IdOf(one.table)).Put(one.now).Put(one.step.learning_rate).Put(one.step.step);
      meta.Put(uint64_t{one.count});
      arrays.push_back(ViewOf(one.ids, one.count));
      arrays.push_back(ViewOf(one.gradients, one.count * one.table->config().width));
    }
    if (tasks != nullptr) {
      meta.Put(static_cast<uint32_t>(tasks->positions.size()));
      for (const TaskPosition& each : tasks->positions) meta.PutString(each.task).Put(each.trained);
      PutShards(tasks->shards, &meta, &arrays);
    }
    Write(tasks == nullptr ? kPush : kTaskPush, meta.Take(), arrays);
  });
}

void RedoLog::Append(const Pusher& editor, Table* table, const TableEdit& edit) {
  Record([&] {
    Writer meta;
    meta.Put(editor.worker).Put(editor.process).Put(editor.sequence).Put(IdOf(table));
    meta.Put(edit.kind).Put(edit.now).Put(uint64_t{edit.count});
    const size_t uses = edit.kind == EditKind::kRestore ? edit.count : 0;
    Write(kEdit, meta.Take(),
          {ViewOf(edit.ids, edit.count), ViewOf(edit.used, uses), ViewOf(edit.counts, uses),
           ViewOf(edit.content, edit.count * table->EditFloats(edit.kind))});
  });
}

void RedoLog::PutShards(const std::vector<ChangedShard>& shards, Writer* meta,
                        std::vector<iovec>* arrays) {
  meta->Put(static_cast<uint32_t>(shards.size()));
  for (const ChangedShard& shard : shards) {
    // The first time, its other rows are not in this log.
    const bool is_whole = shard.rows.empty() || !values_.Has(shard.shard);
    meta->Put(IdOf(shard)).Put(is_whole);
    if (is_whole) {
      ValueFile::Copy copy;
      if (open_ && !values_.Write(shard.shard, shard.value->data(), shard.value->bytes(), &copy)) {
        Fail("its file of values cannot be written");
      }
      meta->Put(copy.offset).Put(copy.checksum);
      continue;
    }
    meta->Put(shard.width).Put(static_cast<uint64_t>(shard.rows.size()));
    arrays->push_back(ViewOf(shard.rows.data(), shard.rows.size()));
    const size_t row_bytes = shard.width * ByteSize(shard.dtype);
    for (const int64_t row : shard.rows) {
      arrays->push_back(ViewOf(shard.value->data() + row * row_bytes, row_bytes));
    }
  }
}

uint32_t RedoLog::IdOf(const ChangedShard& shard) {
  const auto next = static_cast<uint32_t>(shard_ids_.size());
  const auto [known, is_new] = shard_ids_.emplace(shard.shard, next);
  if (is_new) {
    Writer meta;
    meta.PutString(shard.name).Put(shard.dtype).Put(shard.elements);
    Write(kShard, meta.Take(), {});
  }
  return known->second;
}

void RedoLog::Forget(const Table* table) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ids_.erase(table);
}

uint32_t RedoLog::IdOf(Table* table) {
  const auto [known, is_new] = ids_.emplace(table, described_);
  if (!is_new) return known->second;
  ++described_;
  Write(kTable, Encode(TableRequest{{{table->name(), table->config(), false}}}), {});
  return known->second;
}

void RedoLog::Write(uint32_t kind, const std::string& meta, const std::vector<iovec>& arrays) {
  if (!file_.valid() && open_) {
    file_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file_.valid()) return Fail("cannot be made");
    if (!WriteAll(file_.get(), {ViewOf(kLogMagic, kLogMagicBytes)}))
      return Fail("cannot be written");
  }
  if (!open_) return;  // the description of the record's table has failed
  RecordHeader header;
  header.kind = kind;
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  for (const iovec& array : arrays) header.array_bytes += array.iov_len;
  std::vector<iovec> pieces = {ViewOf(meta.data(), meta.size())};
  pieces.insert(pieces.end(), arrays.begin(), arrays.end());
  header.checksum = ChecksumOf(header, pieces);
  pieces.insert(pieces.begin(), ViewOf(&header, 1));
  if (!WriteAll(file_.get(), std::move(pieces))) return Fail("cannot be written");
  bytes_ += sizeof(header) + meta.size() + header.array_bytes;
}

Status RedoLog::Replay(const std::string& path, const Reader& reader, uint64_t* records,
                       uint64_t* left_out) {
  *records = *left_out = 0;
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // may be a pipe
  struct stat about{};
  if (!file.valid() || fstat(file.get(), &about) != 0) return Failed(path, "cannot be read");
  if (!S_ISREG(about.st_mode)) {
    return Status(StatusCode::kInvalidArgument, StrCat(path, ": not a log of rows"));
  }
  auto left = static_cast<uint64_t>(about.st_size);
  if (left < kLogMagicBytes) {  // the server was killed when it created the file
    *left_out = left;
    return Status();
  }
  char magic[kLogMagicBytes];
  if (!ReadAll(file.get(), magic, kLogMagicBytes)) return Failed(path, "cannot be read");
  if (std::memcmp(magic, kLogMagic, kLogMagicBytes) != 0) {
    return Status(StatusCode::kInvalidArgument, StrCat(path, ": not a log of rows"));
  }
  left -= kLogMagicBytes;
  Replayer replayer(reader, path);
  std::string content;
  while (left > 0) {
    *left_out = left;
    RecordHeader header;
    if (left < sizeof(header)) break;
    if (!ReadAll(file.get(), &header, sizeof(header))) return Failed(path, "cannot be read");
    left -= sizeof(header);
    if (header.meta_bytes > left || header.array_bytes > left - header.meta_bytes) break;
    content.resize(header.meta_bytes + header.array_bytes);
    if (!ReadAll(file.get(), content.data(), content.size())) return Failed(path, "cannot be read");
    if (ChecksumOf(header, {ViewOf(content.data(), content.size())}) != header.checksum) break;
    const std::string_view bytes = content;
    if (!replayer.Replay(header.kind, bytes.substr(0, header.meta_bytes),
                         bytes.substr(header.meta_bytes))) {
      break;
    }
    left -= content.size();
    *left_out = left;
    if (header.kind != kTable && header.kind != kShard) ++*records;
  }
  return replayer.Finish();
}

}  // namespace tfdist::ps
