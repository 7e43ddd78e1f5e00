#include "core/ps/store/redo_log.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/wire.h"
#include "core/ps/protocol/message.h"
#include "core/ps/store/log_replay.h"

namespace tfdist::ps {
namespace {

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

template <typename T>
iovec ViewOf(const T* data, size_t count) {
  return {const_cast<T*>(data), count * sizeof(T)};
}

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
  open_ = false;  // Replay stops at an incomplete record: later records would be lost
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
    Write(tasks == nullptr ? RecordKind::kPush : RecordKind::kTaskPush, meta.Take(), arrays);
  });
}

void RedoLog::Append(const Pusher& editor, Table* table, const TableEdit& edit) {
  Record([&] {
    Writer meta;
    meta.Put(editor.worker).Put(editor.process).Put(editor.sequence).Put(IdOf(table));
    meta.Put(edit.kind).Put(edit.now).Put(uint64_t{edit.count});
    const size_t uses = edit.kind == EditKind::kRestore ? edit.count : 0;
    Write(RecordKind::kEdit, meta.Take(),
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
    Write(RecordKind::kShard, meta.Take(), {});
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
  Write(RecordKind::kTable, Encode(TableRequest{{{table->name(), table->config(), false}}}), {});
  return known->second;
}

void RedoLog::Write(RecordKind kind, const std::string& meta, const std::vector<iovec>& arrays) {
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
  return ReplayLog(path, reader, records, left_out);
}

}  // namespace tfdist::ps
