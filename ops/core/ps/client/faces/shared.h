// The state that the faces of a client share.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_FACES_SHARED_H_
#define TFDIST_OPS_CORE_PS_CLIENT_FACES_SHARED_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "core/base/block.h"
#include "core/base/status.h"
#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/parameter_table.h"
#include "core/ps/client/operations/table_directory.h"

namespace tfdist::ps {

struct ClientOptions {
  int worker = 0;   // rank
  int workers = 1;  // of the job; a single one assigns changed values instead of adding changes
  uint64_t process = 0;
  int servers = 1;
  double timeout_seconds = 600;  // of an answer from a connected server
  bool expose = true;            // whether servers on the same machine read large values in place
  // Of an asynchronous job: a worker pushes every n_push steps, and fetches every n_fetch steps.
  int n_push = 1, n_fetch = 1;  // see operations/accumulated_steps.h
};

struct ClientStats {
  uint64_t pulls = 0, pushes = 0;
  uint64_t dropped_pushes = 0;  // their servers say that they were too late, or are lost
  uint64_t refused_pushes = 0;  // of records of data tasks that this worker had lost
  uint64_t bytes_pulled = 0, bytes_pushed = 0;
  uint64_t pull_nanoseconds = 0;  // from request to last byte
  uint64_t push_nanoseconds = 0;  // from request to answer
  uint64_t reconnections = 0;
};

// Counts of a client. Thread-safe.
class ClientCounters {
 public:
  template <typename Change>
  void Count(const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change(stats_);
  }
  ClientStats stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

 private:
  mutable std::mutex mutex_;
  ClientStats stats_;  // guarded by mutex_
};

struct ClientState {
  explicit ClientState(const ClientOptions& given, std::function<void(OperationPtr)> submit_to)
      : options(given), directory(given.servers), submit(std::move(submit_to)) {}

  Status CheckParameter(int id, const char* what) const {
    if (parameters.Has(id)) return Status();
    return InvalidArgument(StrCat(what, " of parameter ", id, ", which was not added"));
  }

  const ClientOptions options;
  ParameterTable parameters;
  TableDirectory directory;
  BlockPool pool;
  ClientCounters counters;
  // Operations begin in the order in which they are submitted.
  const std::function<void(OperationPtr)> submit;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_FACES_SHARED_H_
