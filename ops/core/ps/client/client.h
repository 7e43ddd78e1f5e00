// A worker's side of the parameter servers: one connection to each, one thread for all.
//
// It knows the worker's parameters and keeps what was pulled last, from which it tells what a step
// has changed. When a connection breaks, requests wait until Connect has been called again for that
// server (or GiveUp); then what the server lacks is created again from the values pulled last, and
// what was not answered is sent again.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_CLIENT_H_
#define TFDIST_OPS_CORE_PS_CLIENT_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/block.h"
#include "core/base/status.h"
#include "core/net/authenticate.h"
#include "core/ps/client/client_thread.h"
#include "core/ps/client/lookups/lookups.h"
#include "core/ps/client/operations/parameter_table.h"
#include "core/ps/client/operations/push_operation.h"
#include "core/ps/client/operations/row_transfer.h"
#include "core/ps/client/operations/setup_operations.h"
#include "core/ps/client/operations/table_directory.h"
#include "core/ps/client/operations/table_operations.h"
#include "core/ps/client/operations/value_operations.h"
#include "core/ps/optimizers/optimizer.h"

namespace tfdist::ps {

class Handshake;

struct ClientOptions {
  int worker = 0;   // rank
  int workers = 1;  // of the job; one alone assigns what it changed instead of adding
  uint64_t process = 0;
  int servers = 1;
  double timeout_seconds = 600;  // for an answer of a connected server
  bool lend = true;              // large values to servers on the same machine
};

struct ClientStats {
  uint64_t pulls = 0, pushes = 0;
  uint64_t dropped_pushes = 0;  // came too late, by their servers' account
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

  // Any thread may call these, but Connect, Flush, Leave and Close not from a `done`, for they
  // wait.

  // Connects to a server, first or again. `generation` goes into the HELLO.
  Status Connect(int server, const std::string& address, const Key& key, uint64_t generation,
                 double timeout_seconds);
  // The next server whose connection was lost and not reported yet; -1 after `seconds`.
  int WaitForLost(double seconds);
  // Which server has not answered for longer than `seconds`, in a sentence; empty if all have.
  std::string Waiting(double seconds);
  // The server will not come back: what waits for it, and all later requests, fail with `status`.
  void GiveUp(int server, const Status& status);

  Status AddParameter(ParameterSpec spec, int* id);
  // Stays as it is; of no elements for an unknown id.
  const ParameterSpec& parameter(int id) const { return table_.spec(id); }

  // Creates the parameter on its servers, with `value`, where it does not exist. Until it is
  // pulled, `value` counts as what was pulled last.
  void Create(int parameter, Memory value, Done done);

  // From now on the servers update these parameters by pushed gradients. Each has its slots, also
  // parameters, placed like it. All must have been created. Done when the servers know.
  void Bind(const OptimizerConfig& config, std::vector<Binding> bindings, Done done);

  // Leaves a parameter out of the pulls that begin a step: a slot that only the servers use, or a
  // count of its own. Bind does so with slots.
  void Exclude(int parameter);
  bool IsExcluded(int parameter) const;

  // Brings the parameters up to date. For each that has changed on its servers, `allocate` gives
  // the memory for the new value, which may be that of `Pulled`; of a split parameter, parts that
  // have not changed are in it too. `begins_step` begins a step: it waits for the schedule. When
  // done, `Pulled` is the new value. Pulls may be asked for while others are under way.
  using Allocate = std::function<Memory(int parameter)>;
  void Pull(std::vector<int> parameters, bool begins_step, Allocate allocate, Done done);
  // What was pulled last, or pushed or set since; no data if nothing was.
  Memory Pulled(int parameter) const;
  // Lets go of what was pulled last, so that its memory can be used again: the next pull fetches it
  // whatever the servers have.
  Memory TakePulled(int parameter);

  // Makes an embedding's table known: its id, that of the table of this name if there is one.
  int AddTable(const std::string& name, const TableConfig& config, bool resets_slots = false);
  bool HasTable(int table) const { return directory_.Has(table); }
  int64_t table_width(int table) const { return directory_.config(table).width; }
  const std::string& table_name(int table) const { return directory_.name(table); }
  // Creates it on all servers where it does not exist.
  void CreateTable(int table, Done done);
  // Brings rows. With `training` their ids count as seen, and get rows when they are admitted.
  void Lookup(std::vector<TableLookup> lookups, bool training, Done done) {
    lookups_.Lookup(std::move(lookups), training, std::move(done));
  }
  // Lookups that go together, prefetches, and caches.
  Lookups& lookups() { return lookups_; }
  // Fetches about `most` rows of one server, from where `dump` says; it stays until `done`.
  void Dump(int table, int server, uint64_t most, bool slots, RowDump* dump, Done done);
  // Changes rows from outside of a step, each with so many `floats`; nothing is kept of what `edit`
  // points to. When done, what this worker has cached or looked up ahead of the table is forgotten.
  void EditRows(int table, const TableEdit& edit, uint64_t floats, Done done);
  // Tells which ids have rows, and copies these: see FindRowsOperation.
  void FindRows(int table, const std::vector<int64_t>& ids, const FoundRows& to, Done done);
  // As Stage; gradients of the same ids are added up.
  void StageRows(const StepValues& step, RowGradient gradient);

  // Keeps gradients for the next push; the pull that begins another step forgets them.
  void Stage(const StepValues& step, std::vector<Gradient> gradients);

  // Ends a step: sends the staged gradients, and of `now` the values that are not the memory that
  // was pulled and differ from it; these take the place of what was pulled. `done` is called as
  // soon as the step's memory is not needed any more or is kept by its owner; a failure shows in
  // the next pull. Sends nothing if there is nothing. No pull of these parameters is under way.
  void Push(std::vector<Value> now, Done done);

  // Puts values in place, from outside of a step; the next pull fetches them. Done when the servers
  // have them.
  void Set(std::vector<Value> values, Done done);

  // Adds up tensors over all active workers of a synchronous job, in place.
  void Reduce(uint64_t key, std::vector<Tensor> tensors, Done done);

  // Waits until every push has been answered; fails if one failed, and no pull has since.
  Status Flush(double timeout_seconds);
  // Waits as Flush, and tells the servers that this worker has finished its program.
  Status Leave(double timeout_seconds);

  ClientStats stats() const;
  LookupStats lookup_stats() const { return lookups_.stats(); }
  void Close();

 private:
  struct Bound {
    OptimizerConfig config;
    std::vector<Binding> bindings;
  };
  using Gradients = std::vector<std::pair<StepValues, Gradient>>;
  using RowGradients = std::vector<std::pair<StepValues, RowGradient>>;

  explicit Client(const ClientOptions& options);

  Status CheckParameter(int id, const char* what) const;
  void CreateMissing(int parameter, const Memory& value, const Done& done);
  Status FillPush(const Gradients& gradients, const RowGradients& of_rows,
                  const std::vector<Value>& now, PushOperation* push);

  Status Introduce(int server, Handshake* handshake, ServerView* view);
  Status Restore(int server, Handshake* handshake);
  Status BindAgain(int server, Handshake* handshake);
  Status RestoreTables(int server, Handshake* handshake);

  const ClientOptions options_;
  ParameterTable table_;
  TableDirectory directory_;
  BlockPool pool_;
  Lookups lookups_;
  std::atomic<uint64_t> pushes_{0};
  ReduceCounts reduce_counts_;          // the thread's
  std::vector<uint64_t> edits_;         // likewise: how many each server was sent
  std::vector<std::mutex> connecting_;  // by server

  mutable std::mutex mutex_;
  Gradients staged_;          // guarded by mutex_
  RowGradients staged_rows_;  // guarded by mutex_
  std::vector<Bound> bound_;  // guarded by mutex_
  ClientStats stats_;         // guarded by mutex_

  std::unique_ptr<ClientThread> thread_;  // ends before what it uses
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_CLIENT_H_
