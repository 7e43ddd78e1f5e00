// A file of the gradients and edits that were applied to tables since the last snapshot. A server
// that was killed and is started again applies them once more: no acknowledged gradient or edit is
// lost.
//
// A push that has trained records of data tasks is recorded as a whole. Its record has the
// gradients of rows, the positions in the tasks, and the values of the shards that it has changed.
// The log has room for the rows that changed; whole values are in a file beside it (value_file.h),
// and the log tells where.
//
// Records are handed to the operating system, which writes them even if this process is killed, but
// not if the machine fails. Rows that lookups have created are not in the log: lookups create them
// again.
#ifndef TFDIST_OPS_CORE_PS_STORE_REDO_LOG_H_
#define TFDIST_OPS_CORE_PS_STORE_REDO_LOG_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/block.h"
#include "core/base/status.h"
#include "core/base/wire.h"
#include "core/math/dtype.h"
#include "core/net/fd.h"
#include "core/ps/optimizers/optimizer.h"
#include "core/ps/store/log_records.h"
#include "core/ps/store/value_file.h"
#include "core/ps/table/table.h"

namespace tfdist::ps {

// Gradients that a table has applied to its rows.
struct AppliedRows {
  Table* table = nullptr;
  double now = 0;
  StepValues step;
  size_t count = 0;
  const int64_t* ids = nullptr;
  const float* gradients = nullptr;
};

// The worker of a push or an edit, and its position in the sequence of the worker's pushes or of
// its edits. The step of a synchronous job belongs to no worker, and has the sequence 0.
struct Pusher {
  uint32_t worker = 0;
  uint64_t process = 0, sequence = 0;
};

// How many records of a data task are trained.
struct TaskPosition {
  std::string task;
  uint64_t trained = 0;
};

// The value of a shard after a push, or some rows of it.
struct ChangedShard {
  const void* shard = nullptr;  // identifies it
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  BlockPtr value;             // the whole
  std::vector<int64_t> rows;  // that have changed, of `width` elements each; empty: all
  uint64_t width = 0;
};

// The additional fields of a push that has trained records of data tasks.
struct TaskRecord {
  std::vector<TaskPosition> positions;
  std::vector<ChangedShard> shards;
};

// Thread-safe.
class RedoLog {
 public:
  using OnFailure = std::function<void(const Status&)>;

  // After a failure nothing is logged until the next Begin, and records count as lost until the
  // snapshot of that moment is saved.
  explicit RedoLog(OnFailure on_failure) : on_failure_(std::move(on_failure)) {}

  // Continues in a new file, which is created with the first record.
  void Begin(std::string path);
  bool is_open() const { return open_; }
  // The snapshot that was taken at the last Begin is on disk.
  void Saved();
  // Whether something was applied that is neither in a saved snapshot nor in a file.
  bool has_lost() const { return has_lost_; }
  // The size of the records in the present file.
  uint64_t bytes() const { return bytes_; }

  // `tasks`: only of a push that has trained records of data tasks. Such pushes must be appended in
  // the order in which they were applied.
  void Append(const Pusher& pusher, const std::vector<AppliedRows>& applied,
              const TaskRecord* tasks = nullptr);
  void Append(const Pusher& editor, Table* table, const TableEdit& edit);
  // The table is about to be destroyed.
  void Forget(const Table* table);

  struct Reader {
    // Finds or creates a table; null on failure, which ends the replay.
    std::function<Table*(const std::string& name, const TableConfig& config)> find;
    // Whether to apply this push, or this edit.
    std::function<bool(const Pusher& pusher)> wants, wants_edit;
    // Receives the time at which a record was applied.
    std::function<void(double now)> passes;
    // Receives the positions that came with a push.
    std::function<void(const std::vector<TaskPosition>& positions)> moves;
    // Receives the last values of shards, at the end.
    std::function<Status(const std::string& name, DType dtype, uint64_t elements, BlockPtr value)>
        sets;
    // Whether a shard can have such a value; else its description is left out.
    std::function<Status(const std::string& name, DType dtype, uint64_t elements)> fits;
    // Receives a line for the log about left-out records.
    std::function<void(const std::string& text)> reports;
  };
  // Applies the records of a file. A damaged or impossible one is told and left out, as
  // log_replay.h says. `records`: the number of pushes and edits that count; `left_out`: the bytes
  // behind the last whole record. Fails if the file cannot be read or is no log, and then may have
  // applied a part.
  static Status Replay(const std::string& path, const Reader& reader, uint64_t* records,
                       uint64_t* left_out);

 private:
  // Under the lock.
  void Fail(const char* what);
  // Calls `write` under the lock, if a file is open. The log fails if there is no memory.
  template <typename Do>
  void Record(const Do& write);
  void Write(RecordKind kind, const std::string& meta, const std::vector<iovec>& arrays);
  uint32_t IdOf(Table* table);
  uint32_t IdOf(const ChangedShard& shard);
  // Adds the shards to a record.
  void PutShards(const std::vector<ChangedShard>& shards, Writer* meta, std::vector<iovec>* arrays);

  const OnFailure on_failure_;
  std::atomic<bool> open_{false}, has_lost_{false};
  std::atomic<uint64_t> bytes_{0};
  std::mutex mutex_;  // guards the rest
  Fd file_;
  std::string path_;
  bool failed_ = false;                             // since the last Begin
  std::unordered_map<const Table*, uint32_t> ids_;  // in the file, of the tables that it describes
  uint32_t described_ = 0;                          // tables in the file
  ValueFile values_;
  std::unordered_map<const void*, uint32_t> shard_ids_;  // in the file
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_REDO_LOG_H_
