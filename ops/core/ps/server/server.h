// A parameter server: holds shards, applies what workers push, and sends what they pull.
//
// A few threads, each with its own epoll and its share of the connections. A thread receives a
// whole request, carries it out under the locks of the shards it touches, and answers straight from
// the blocks. A pull that the schedule holds back is parked; whoever lets it go wakes its thread.
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
#include "core/ps/table/row_clock.h"

namespace tfdist::ps {

enum class Compensation : uint8_t { kNone = 0, kDcAsgd = 1, kAdaDelay = 2 };

struct ServerOptions {
  int index = 0;  // which server of the job, for messages
  ScheduleOptions schedule;
  bool hogwild = false;  // no locks, and in place: what is pulled may mix old and new values
  Compensation compensation = Compensation::kNone;
  double compensation_lambda = 0.04;  // dc-asgd
  bool refuse_unlogged = false;       // pushes, while what they change cannot be kept in the log
  int threads = 2;
  size_t trace_events = 0;     // the latest pushes and pulls are kept, for tests and inspection
  uint64_t memory_budget = 0;  // bytes that the server may hold; 0: as many as there are
  TimeSources time;
};

struct ServerStats {
  uint64_t pulls = 0;
  uint64_t pushes = 0;           // applied, or collected
  uint64_t dropped_pushes = 0;   // late ones
  uint64_t repeated_pushes = 0;  // applied before
  uint64_t clock = 0;
  uint64_t largest_lead = 0;
  uint64_t bytes_sent = 0;  // values
  uint64_t bytes_received = 0;
  uint64_t rejected_connections = 0;
  uint64_t broken_requests = 0;
  uint64_t shards = 0;
  uint64_t value_bytes = 0;
  uint64_t connections = 0;
  uint64_t log_bytes = 0;      // of rows, since they were last saved
  uint64_t log_failed = 0;     // 1: rows were changed that are neither saved nor in the log
  uint64_t memory_held = 0;    // bytes that are counted: values, rows and buffers
  uint64_t memory_budget = 0;  // 0: none
  uint64_t edits = 0;          // of tables' rows, which are not pushes
};

struct TraceEvent {
  uint64_t nanoseconds = 0;
  uint32_t worker = 0;
  // 1: pull answered, 2: push applied or collected, 3: push dropped, 4: step closed
  uint32_t kind = 0;
  uint64_t clock = 0;    // of the worker (ssp) or the step
  uint64_t slowest = 0;  // smallest clock of an active worker
};

// A shard as a snapshot holds it. The block stays as it is while it is held.
struct SavedShard {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  BlockPtr block;
};

class Table;

// What a server is at one moment, between two pushes.
struct ServerSnapshot {
  std::vector<SavedShard> shards;
  // Of a job with another number of servers: what is created with such a name begins as this.
  std::vector<SavedShard> aside;
  // A copy of that moment was begun of each, and can be taken bit by bit.
  std::vector<std::shared_ptr<Table>> tables;
  std::vector<uint64_t> progress;  // clocks, and who has pushed what: opaque numbers
  // Of the rows, which goes on from here (row_clock.h); 0: unknown, as in images of before there
  // was one: then it goes on from when a row was used last.
  double time = 0;
};

class Server {
 public:
  // Listens on `port` (0: the kernel chooses) of `interface`, a numeric address of this host
  // (empty: all there are). With `local` also on a unix socket, for workers of this machine and
  // user; server and worker then read each other's memory. No peer is admitted before Start; then
  // those that prove the key, with `incarnation()` as generation and a worker's rank.
  static Status Create(const ServerOptions& options, const std::string& interface, int port,
                       bool local, std::unique_ptr<Server>* out);
  ~Server();

  int port() const;
  uint64_t incarnation() const;

  // Before Start only, which after a failure is refused.
  Status Restore(const ServerSnapshot& image);
  Status Start(const Key& key);

  // A consistent image; takes no longer than to count references, or in Hogwild to copy all values.
  // Of tables' rows all, or those that changed since the last time. If there is a `log_path`, what
  // is applied to rows from then on is kept in that file. Throws std::bad_alloc if there is no
  // memory for it; the server goes on.
  ServerSnapshot Freeze(bool changed_rows_only = false, const std::string& log_path = "");
  // Before Start: applies what such a file holds, as far as the image lacks it. `records`: what it
  // held; `left_out`: bytes that are not whole records.
  Status ReplayLog(const std::string& path, uint64_t* records, uint64_t* left_out);
  // What Freeze returned last is on disk.
  void Saved();
  // Before Start, as Freeze does.
  void BeginLog(const std::string& path);

  // Waits until something has happened that the job's control plane cares about, at most `seconds`:
  // a worker came (a new process, or one that had left or was lost), left or was lost, lines for
  // the log. Returns false when the time is over, or the server is closed.
  struct Event {
    enum class Kind { kCame = 1, kLeft = 2, kLost = 3, kLog = 4 };
    Kind kind = Kind::kLog;
    int worker = -1;
    std::string text;
  };
  bool WaitForEvent(double seconds, Event* event);

  // Sets each waits[worker * workers + other] to whether the worker's step cannot go on before the
  // other one's next: in a synchronous job, or with a bounded staleness.
  void Waits(bool* waits) const;

  ServerStats stats() const;
  std::vector<std::shared_ptr<Table>> tables() const;
  std::vector<TraceEvent> trace() const;
  void Close();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SERVER_H_
