// What has been applied to the rows of tables since they were last saved, in a file: a server that
// is killed and started again applies it once more, so that no gradient and no edit it has
// acknowledged is lost.
//
// Records are handed to the operating system, which writes them even if this process is killed; not
// if the machine is lost. Rows that lookups have made are not in it: they are made anew.
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

#include "core/base/status.h"
#include "core/net/socket.h"
#include "core/ps/optimizers/optimizer.h"
#include "core/ps/table/table.h"

namespace tfdist::ps {

// Gradients that a table has applied, of ids that have rows.
struct AppliedRows {
  Table* table = nullptr;
  double now = 0;
  StepValues step;
  size_t count = 0;
  const int64_t* ids = nullptr;
  const float* gradients = nullptr;
};

// The worker that has pushed them or edited rows; pushes and edits have sequences of their own. A
// step of synchronous workers is nobody's, and has the sequence 0.
struct Pusher {
  uint32_t worker = 0;
  uint64_t process = 0, sequence = 0;
};

// Any thread may call it.
class RedoLog {
 public:
  using OnFailure = std::function<void(const Status&)>;

  // After a failure, nothing is kept until another file is begun; the loss lasts until what the
  // rows were at that moment is saved.
  explicit RedoLog(OnFailure on_failure) : on_failure_(std::move(on_failure)) {}

  // Goes on in a new file, which is made when there is something to keep.
  void Begin(std::string path);
  bool is_open() const { return open_; }
  // Everything up to the last Begin is on disk in another way.
  void Saved();
  // Whether something was applied that is neither saved nor in a file.
  bool has_lost() const { return has_lost_; }
  // What is in the file that was begun last.
  uint64_t bytes() const { return bytes_; }

  void Append(const Pusher& pusher, const std::vector<AppliedRows>& applied);
  void Append(const Pusher& editor, Table* table, const TableEdit& edit);
  // The table is about to go.
  void Forget(const Table* table);

  struct Reader {
    // Finds or makes a table; null if it cannot be, which ends the reading.
    std::function<Table*(const std::string& name, const TableConfig& config)> find;
    // Whether this push is to be applied, or this edit.
    std::function<bool(const Pusher& pusher)> wants, wants_edit;
    // When it was applied.
    std::function<void(double now)> passes;
  };
  // Applies what is in a file, up to the first record that is not whole. `records`: the pushes and
  // edits in it; `left_out`: the bytes from there on. Fails if there is no such file, or it
  // is no log.
  static Status Replay(const std::string& path, const Reader& reader, uint64_t* records,
                       uint64_t* left_out);

 private:
  // With the lock.
  void Fail(const char* what);
  // A record; without memory the log fails.
  template <typename Do>
  void Record(const Do& write);
  void Write(uint32_t kind, const std::string& meta, const std::vector<iovec>& numbers);
  uint32_t NumberOf(Table* table);

  const OnFailure on_failure_;
  std::atomic<bool> open_{false}, has_lost_{false};
  std::atomic<uint64_t> bytes_{0};
  std::mutex mutex_;  // guards the rest
  Fd file_;
  std::string path_;
  bool failed_ = false;                                 // since the last Begin
  std::unordered_map<const Table*, uint32_t> numbers_;  // of those that the file has described
  uint32_t described_ = 0;                              // how many it has
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_REDO_LOG_H_
