// A parameter server: holds shards and tables, applies workers' pushes, and answers their pulls.
//
// It has a few threads, each with its own epoll and its share of the connections. A thread receives
// a whole request, carries it out under the locks of the shards it touches, and answers from the
// blocks without a copy. A pull that the schedule holds back is parked; the thread that releases it
// wakes the thread of its connection.
#ifndef TFDIST_OPS_CORE_PS_SERVER_SERVER_H_
#define TFDIST_OPS_CORE_PS_SERVER_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/block.h"
#include "core/base/status.h"
#include "core/math/dtype.h"
#include "core/net/authenticate.h"
#include "core/ps/server/schedule.h"
#include "core/ps/server/task_positions.h"
#include "core/ps/store/store.h"
#include "core/ps/table/table.h"

namespace tfdist::ps {

struct ServerOptions : StoreOptions {
  int index = 0;  // which server of the job, for messages
  ScheduleOptions schedule;
  bool refuse_unlogged = false;  // refuse pushes while the redo log cannot record them
  // Answers readers alone, as many as there would be workers, whatever rank they name. It refuses
  // requests that would change something; UpdateRows changes its rows.
  bool read_only = false;
  int threads = 2;
  size_t trace_events = 0;  // capacity of the trace of pushes and pulls
};

struct ServerStats {
  uint64_t pulls = 0;
  uint64_t pushes = 0;           // applied or collected
  uint64_t dropped_pushes = 0;   // late ones
  uint64_t repeated_pushes = 0;  // already applied before
  uint64_t refused_pushes = 0;   // of records of data tasks that their workers had lost
  uint64_t clock = 0;
  uint64_t largest_lead = 0;
  uint64_t bytes_sent = 0;  // values
  uint64_t bytes_received = 0;
  uint64_t rejected_connections = 0;
  uint64_t broken_requests = 0;
  uint64_t shards = 0;
  uint64_t value_bytes = 0;
  uint64_t connections = 0;
  uint64_t log_bytes = 0;      // of the redo log, since the rows were last saved
  uint64_t log_failed = 0;     // 1: some changes of rows are neither saved nor in the log
  uint64_t memory_held = 0;    // bytes of values, rows and buffers
  uint64_t memory_budget = 0;  // 0: none
  uint64_t edits = 0;          // of tables' rows; not pushes
  uint64_t assignments = 0;    // requests that set values of shards
};

struct TraceEvent {
  uint64_t nanoseconds = 0;
  uint32_t worker = 0;
  // 1: pull answered, 2: push applied or collected, 3: push dropped, 4: step closed, 5: step of an
  // elastic job dropped
  uint32_t kind = 0;
  uint64_t clock = 0;    // of the worker (ssp) or the step
  uint64_t slowest = 0;  // smallest clock of an active worker
};

// The state of a server at one moment, between two pushes.
struct ServerSnapshot {
  std::vector<SavedShard> shards;
  // Shards of a job with another number of servers, which no worker has created here yet. A shard
  // that is created with such a name takes this value.
  std::vector<SavedShard> unclaimed;
  // Each has begun a copy of its rows at that moment, which can be read in parts.
  std::vector<std::shared_ptr<Table>> tables;
  std::vector<uint64_t> progress;  // clocks, and the last pushes of each worker: opaque numbers
  std::vector<TaskPosition> tasks_trained;
  // The time of the rows (row_clock.h). 0: unknown, as in snapshots of former releases; then the
  // latest use of a row counts.
  double time = 0;
};

class Server {
 public:
  // Listens on `port` (0: the kernel chooses) of `interface`, a numeric address of this host
  // (empty: all interfaces). With `local` also on a unix socket, for workers of this machine and
  // user; server and worker then read each other's memory. No peer is admitted before Start. From
  // then on a peer has to prove the key, and to name `incarnation()` as generation and a worker's
  // rank.
  static Status Create(const ServerOptions& options, const std::string& interface, int port,
                       bool local, std::unique_ptr<Server>* out);
  ~Server();

  int port() const;
  uint64_t incarnation() const;

  // Only before Start, which fails if this has failed.
  Status Restore(const ServerSnapshot& snapshot);
  Status Start(const Key& key);

  // A consistent snapshot, with all rows of the tables, or the rows that changed since the last
  // snapshot. Blocks are shared, not copied, except in Hogwild. Unless `log_path` is empty, later
  // changes of rows are recorded in a redo log of that name. Throws std::bad_alloc if there is no
  // memory for the snapshot; the server keeps running.
  ServerSnapshot TakeSnapshot(bool changed_rows_only = false, const std::string& log_path = "");
  // Before Start: applies the records of a redo log that the snapshot lacks. `records`: how many
  // there are; `left_out`: bytes behind the last whole record.
  Status ReplayLog(const std::string& path, uint64_t* records, uint64_t* left_out);
  // The last result of TakeSnapshot is on disk.
  void Saved();
  // Before Start: begins a redo log, as TakeSnapshot does.
  void BeginLog(const std::string& path);

  // After Start, of a read-only server: writes rows of a table, and removes others; of `servers`,
  // the rows that belong to `server`. Each row changes at once, a lookup of several rows may see
  // some of them changed. Throws std::bad_alloc; then a part of it is done.
  Status UpdateRows(const std::string& table, const SavedRowsView& rows, uint64_t floats,
                    int server, int servers);
  // After Start, of a read-only server: the step that the rows of a table have seen.
  Status SetStep(const std::string& table, const StepValues& step);
  // After Start, of a read-only server: removes the rows of a table with another time of use.
  Status RetainRows(const std::string& table, uint32_t used);

  // Waits for an event that concerns the job's control plane, at most `seconds`. An event is a
  // worker that came (as a new process or back), left or was lost, or a line for the log. Returns
  // false when the time is over, or the server is closed.
  struct Event {
    enum class Kind { kCame = 1, kLeft = 2, kLost = 3, kLog = 4 };
    Kind kind = Kind::kLog;
    int worker = -1;
    std::string text;
  };
  bool WaitForEvent(double seconds, Event* event);

  // Sets each waits[worker * workers + other] to whether the worker's step waits for the next step
  // of the other one: in a synchronous job, or with a bounded staleness.
  void Waits(bool* waits) const;

  ServerStats stats() const;
  std::vector<std::shared_ptr<Table>> tables() const;
  std::vector<TraceEvent> trace() const;
  // Where the job's data tasks stand.
  TaskPositions& tasks();
  void Close();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SERVER_H_
