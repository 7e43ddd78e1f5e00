// A worker's client of the parameter servers: one connection to each, one thread for all.
//
// It keeps the last pulled value of each parameter, and computes the changes of a step from it.
// When a connection breaks, its requests wait until Connect is called again for that server, or
// GiveUp. Connect creates parameters that the server lacks, from the last pulled values, and
// repeats the unanswered requests.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_CLIENT_H_
#define TFDIST_OPS_CORE_PS_CLIENT_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/block.h"
#include "core/base/status.h"
#include "core/net/authenticate.h"
#include "core/ps/client/client_thread.h"
#include "core/ps/client/lookups/lookups.h"
#include "core/ps/client/operations/accumulated_steps.h"
#include "core/ps/client/operations/control_operations.h"
#include "core/ps/client/operations/elastic_operations.h"
#include "core/ps/client/operations/exchange_operation.h"
#include "core/ps/client/operations/parameter_table.h"
#include "core/ps/client/operations/push_operation.h"
#include "core/ps/client/operations/row_transfer.h"
#include "core/ps/client/operations/table_directory.h"
#include "core/ps/client/operations/task_commits.h"
#include "core/ps/optimizers/optimizer.h"

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

class Client {
 public:
  using Done = ps::Done;
  using Binding = BoundParameter;
  using Tensor = ps::Tensor;
  using Value = ps::Value;

  static Status Create(const ClientOptions& options, std::unique_ptr<Client>* out);
  ~Client();

  // Any thread may call these. Connect, Flush, Leave and Close wait: they must not be called from a
  // `done`.

  // Connects to a server, for the first time or again. `generation` goes into the HELLO.
  Status Connect(int server, const std::string& address, const Key& key, uint64_t generation,
                 double timeout_seconds);
  // Waits for a lost connection that was not reported yet. Its server; -1 after `seconds`.
  int WaitForLost(double seconds);
  // A sentence about the server that has not answered for the longest time over `seconds`; or
  // empty.
  std::string Waiting(double seconds);
  // By server; empty once closed.
  std::vector<ServerTraffic> Traffic();
  // The server will not come back: pending and later requests to it fail with `status`.
  void GiveUp(int server, const Status& status);

  Status AddParameter(ParameterSpec spec, int* id);
  // Does not change; without elements for an unknown id.
  const ParameterSpec& parameter(int id) const { return table_.spec(id); }

  // Creates the parameter on its servers, with `value`, where it does not exist. Until the first
  // pull, `value` counts as the last pulled value.
  void Create(int parameter, Memory value, Done done);

  // From now on the servers update these parameters by pushed gradients. Their slots are parameters
  // too, placed like them. All must have been created. Done when all servers have confirmed it.
  void Bind(const OptimizerConfig& config, std::vector<Binding> bindings, Done done);

  // Leaves a parameter out of the pulls that begin a step: a slot, which only the servers use, or a
  // counter. Bind does so with slots.
  void Exclude(int parameter);
  bool IsExcluded(int parameter) const;

  // Brings the parameters up to date. For each one that has changed on its servers, `allocate`
  // returns memory for the new value, which may be that of `Pulled`; unchanged shards are copied
  // into it. A pull that `begins_step` waits for the servers' schedule. When done, `Pulled` is the
  // new value. Pulls are carried out one after the other.
  using Allocate = std::function<Memory(int parameter)>;
  void Pull(std::vector<int> parameters, bool begins_step, Allocate allocate, Done done);
  // The last pulled value, or the one pushed or set since; without data if there is none.
  Memory Pulled(int parameter) const;
  // Hands over the last pulled value, so that its memory can be reused. The next pull fetches the
  // parameter, changed or not.
  Memory TakePulled(int parameter);

  // Adds an embedding's table. Returns its id, or that of the existing table of this name.
  int AddTable(const std::string& name, const TableConfig& config, bool resets_slots = false);
  bool HasTable(int table) const { return directory_.Has(table); }
  int64_t table_width(int table) const { return directory_.config(table).width; }
  const std::string& table_name(int table) const { return directory_.name(table); }
  // Creates the table on all servers where it does not exist.
  void CreateTable(int table, Done done);
  // Fetches rows. With `training` their ids count as seen, and get rows when they are admitted.
  void Lookup(std::vector<TableLookup> lookups, bool training, Done done) {
    lookups_.Lookup(std::move(lookups), training, std::move(done));
  }
  // Batched lookups, prefetches, and caches.
  Lookups& lookups() { return lookups_; }
  // Fetches about `max_rows` rows of one server, from the position of `scan`, which has to exist
  // until `done`.
  void ScanRows(int table, int server, uint64_t max_rows, bool slots, RowScan* scan, Done done);
  // Changes rows outside of a step, with `floats` floats each. Copies from `edit`. When done, this
  // worker's cached and prefetched rows of the table are forgotten.
  void EditRows(int table, const TableEdit& edit, uint64_t floats, Done done);
  // Finds out which ids have rows, and copies these; see FoundRows.
  void FindRows(int table, const std::vector<int64_t>& ids, const FoundRows& to, Done done);

  // Keeps gradients for the next push. A pull that begins another step forgets them.
  void Stage(const StepValues& step, std::vector<Gradient> gradients);
  // The same for rows of a table; gradients of the same id are added up.
  void StageRows(const StepValues& step, RowGradient gradient);

  // Ends a step: sends the staged gradients, and those values of `now` that differ from the last
  // pulled ones, which they replace. Sends nothing if there is nothing to send. `done` is called
  // when the memory of the step is no longer needed, or is held by its owner; the next pull reports
  // a failure of the servers. No pull of these parameters may be under way. A program may push more
  // than once in a step; the push with `ends_step` commits the step's records of data tasks. With
  // `waits`, `done` is called when the servers have answered, and gets their failure. With n_push a
  // step that is not pushed yet is accumulated, and pushed before a value is fetched.
  void Push(std::vector<Value> now, Done done, bool ends_step = true, bool waits = false);
  // Pushes the accumulated steps. Fails as a push does before its values are sent.
  Status PushAccumulated();
  TaskCommits& commits() { return commits_; }

  // In an elastic job; see server/elastic_schedule.h.

  // Tells all servers, also those that are connected later, the members of a generation. Later
  // pushes are of this generation. Fails with kFailedPrecondition if a server knows a later one.
  void Resolve(ResolveRequest resolve, Done done);
  // Later pushes are of this unit of work.
  void BeginUnit(uint64_t number);
  // Tells the servers that this worker has done the unit.
  void Commit(CommitOperation::Done done);
  // Repeats the last commit, whose outcome may have changed; ends at once if there was none.
  void RepeatCommit(CommitOperation::Done done);

  // Replaces values outside of a step. The next pull fetches them. Done when the servers have them.
  void Set(std::vector<Value> values, Done done);

  // Elastic averaging: the servers' values c become c + alpha (x - c), with x in `values`; `moves`,
  // memory of the same sizes, receives alpha (x - c). Exchanges are carried out one after the
  // other.
  void Exchange(const std::vector<Value>& values, const std::vector<Memory>& moves, double alpha,
                Done done);

  // Adds up tensors over all active workers of a synchronous job, in place.
  void Reduce(uint64_t key, std::vector<Tensor> tensors, Done done);

  // Waits until every push has been answered. Fails if one failed that no pull has reported.
  Status Flush(double timeout_seconds);
  // Flushes, and tells the servers that this worker has finished its program.
  Status Leave(double timeout_seconds);

  ClientStats stats() const;
  LookupStats lookup_stats() const { return lookups_.stats(); }
  void Close();

 private:
  explicit Client(const ClientOptions& options);

  Status CheckParameter(int id, const char* what) const;
  void Send(const CommitRequest& commit, CommitOperation::Done done);
  void CreateMissing(int parameter, const Memory& value, const Done& done);
  bool accumulates() const { return options_.n_push > 1 || options_.n_fetch > 1; }
  // Sends a push. Whether `done` will be called with the servers' answers; else `status` is final.
  bool Send(StepContents step, const Done& done, bool waits, Status* status);
  Status FillPush(const StepContents& step, PushOperation* push);

  const ClientOptions options_;
  ParameterTable table_;
  TableDirectory directory_;
  BlockPool pool_;
  Lookups lookups_;
  TaskCommits commits_;
  std::atomic<uint64_t> pushes_{0};
  ReduceCounts reduce_counts_;          // of the client's thread
  std::vector<uint64_t> edits_;         // by server, those sent; of the client's thread
  uint64_t exchanges_ = 0;              // of the client's thread
  std::vector<std::mutex> connecting_;  // by server

  mutable std::mutex mutex_;
  StepContents staged_;                     // of this step: its gradients; guarded by mutex_
  bool in_step_ = false;                    // it has pushed, and not ended; guarded by mutex_
  bool fetch_due_ = true;                   // the next step begins with a fetch; the same
  int fetched_steps_ = 0;                   // since the last fetch; the same
  std::vector<BoundOptimizer> bound_;       // guarded by mutex_
  ResolveRequest resolve_;                  // of this generation; guarded by mutex_
  CommitRequest unit_;                      // of this worker's unit of work; guarded by mutex_
  std::optional<CommitRequest> committed_;  // the last one; guarded by mutex_
  ClientStats stats_;                       // guarded by mutex_

  std::mutex pushing_;            // is taken before mutex_
  AccumulatedSteps accumulated_;  // guarded by pushing_

  std::unique_ptr<ClientThread> thread_;  // the last member: destroyed before those it uses
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_CLIENT_H_
