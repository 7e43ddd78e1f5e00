// The shards and tables of a server.
//
// Requests hold `Share` while they read shards or change values. Adding or binding shards and
// taking a snapshot need `Exclude`, which no request holds `Share` beside. Values are guarded by
// the mutex of their shard. The order of locks: share or exclude, the schedule's mutex, then the
// mutexes of shards by increasing id.
#ifndef TFDIST_OPS_CORE_PS_STORE_STORE_H_
#define TFDIST_OPS_CORE_PS_STORE_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/block.h"
#include "core/base/memory_budget.h"
#include "core/base/status.h"
#include "core/math/dtype.h"
#include "core/ps/optimizers/optimizer.h"
#include "core/ps/protocol/message.h"
#include "core/ps/table/row_clock.h"
#include "core/ps/table/table.h"

namespace tfdist::ps {

// How a gradient is corrected for the updates since its worker pulled (update.h).
enum class Compensation : uint8_t { kNone = 0, kDcAsgd = 1, kAdaDelay = 2, kAdaptiveRevision = 3 };

struct StoreOptions {
  bool hogwild = false;  // updates without locks and in place: a pull may mix old and new values
  Compensation compensation = Compensation::kNone;
  double compensation_lambda = 0.04;  // dc-asgd
  uint64_t memory_budget = 0;         // bytes that the server may hold; 0: no limit
  TimeSources time;
};

// A shard of a snapshot. The block does not change while it is held.
struct SavedShard {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  BlockPtr block;
};

struct Shard;

// How pushed gradients update a shard.
struct Binding {
  OptimizerConfig config;
  double weight_decay = 0;
  std::vector<Shard*> slots;
};

// The contributions to a shard in the open step of a synchronous job.
struct ShardSums {
  BlockPtr gradient, delta, assigned;
  int gradient_worker = 0, assigning_worker = 0;  // the lowest ranks that contributed
  StepValues step;                                // of gradient_worker
};

struct Shard {
  uint32_t id = 0;
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  size_t bytes = 0;
  std::optional<Binding> binding;  // changes under Store::Exclude

  std::mutex mutex;  // guards the rest, except with Hogwild, which uses no locks
  BlockPtr block;    // with Hogwild never replaced
  std::atomic<uint64_t> version{1};
  std::atomic<uint64_t> updates{0};  // by gradients
  // Of optimizers/adaptive_revision.h; null without it. Not in snapshots: after a restart the
  // deficits are zeros, which makes the learning rates smaller, and no worker has pulled.
  struct Revision {
    BlockPtr sum, deficit;
  };
  Revision revision;
  // By worker: the shard at the pull that began its step. Empty without delay compensation.
  struct Seen {
    BlockPtr block;  // dc-asgd: the value; adaptive revision: the sum of gradients
    uint64_t updates = 0;
  };
  std::vector<Seen> seen;
  ShardSums sums;
};

// elements * ByteSize(dtype); nothing if that exceeds the payload of a message.
std::optional<uint64_t> BytesOf(DType dtype, uint64_t elements);

class Store {
 public:
  // `workers`: of the job.
  Store(const StoreOptions& options, int workers);

  std::shared_lock<std::shared_mutex> Share() const;
  std::unique_lock<std::shared_mutex> Exclude() const;

  // Under Share; null if there is no such shard.
  Shard* Find(uint32_t id) const;
  bool Has(const std::string& name) const { return FindName(name) != nullptr; }

  // Create and Bind take Exclude themselves. They do all that is asked or nothing, also when they
  // throw OverBudget or std::bad_alloc. `values`: of the entries that have one, in order.
  Status Create(const CreateRequest& request, const std::vector<BlockPtr>& values,
                CreateReply* reply);
  // `replaced` names the shards that had another optimizer before; empty if there are none.
  Status Bind(const BindRequest& request, std::string* replaced);

  // Under Exclude. With Hogwild the blocks are copies.
  std::vector<SavedShard> SnapshotShards();
  std::vector<uint64_t> update_counts() const;
  // Before the server starts.
  Status RestoreShards(const std::vector<SavedShard>& shards);
  // Fails if there is a shard of that name with another dtype or size.
  Status CheckShard(const std::string& name, DType dtype, uint64_t elements) const;
  // A value that is later than the restored shard's. Without such a shard it is unclaimed.
  Status RestoreValue(const SavedShard& saved);
  void RestoreUpdateCounts(const std::vector<uint64_t>& updates);

  // Shards from a checkpoint of another number of servers. The workers decide which server holds a
  // shard: Create uses an unclaimed one of that name; the others are unused until ForgetUnclaimed.
  Status AddUnclaimed(const std::vector<SavedShard>& shards);
  // Under Exclude.
  std::vector<SavedShard> SnapshotUnclaimed() const;
  void ForgetUnclaimed();

  // Under Share; null if there is no such table. A table that is held outlives its replacement.
  Table* FindTable(uint32_t id) const { return HoldTable(id).get(); }
  const std::shared_ptr<Table>& HoldTable(uint32_t id) const;
  // Takes Exclude itself, and creates all tables that do not exist, or none; throws as Create. A
  // table that was restored with another configuration and that no worker has created since is
  // replaced if the request has `resets_slots`: the former table is appended to `replaced`. The
  // replay of a log (`is_replay`) claims no tables, and repeats the replacements.
  Status CreateTables(const TableRequest& request, TableReply* reply,
                      std::vector<std::shared_ptr<Table>>* replaced, bool is_replay = false);
  // The ids of tables that exist, with rows as wide as the request says; takes Share itself.
  Status FindTables(const TableRequest& request, TableReply* reply) const;
  // All tables; takes Share itself.
  std::vector<std::shared_ptr<Table>> tables() const;
  // Under Exclude. Begins a snapshot of all tables, or of none if it throws std::bad_alloc.
  std::vector<std::shared_ptr<Table>> BeginTableSnapshots(bool changed_only);
  // Before the server starts.
  Status RestoreTables(const std::vector<std::shared_ptr<Table>>& tables);

  uint64_t shard_count() const { return count_.load(std::memory_order_relaxed); }
  uint64_t value_bytes() const { return value_bytes_.load(std::memory_order_relaxed); }
  BlockPool& pool() { return pool_; }
  MemoryBudget& memory() const { return *memory_; }
  const std::shared_ptr<MemoryBudget>& shared_memory() const { return memory_; }
  // Calls `act`, which changes nothing if it throws std::bad_alloc. Tries once more after freeing
  // the unused blocks of the pool. Returns whether it succeeded.
  template <typename Do>
  bool TryWithReclaim(const Do& act) const {
    for (int tries = 0; tries < 2; ++tries) {
      try {
        act();
        return true;
      } catch (const std::bad_alloc&) {
        memory_->Reclaim();
      }
    }
    return false;
  }
  RowClock& clock() { return clock_; }
  const RowClock& clock() const { return clock_; }

 private:
  Shard* FindName(const std::string& name) const;
  Status CheckTable(const TableRequest::Entry& entry, uint32_t id, bool is_replay) const;
  Status CheckCreate(const CreateRequest& request) const;
  Status CheckUnclaimed(const CreateRequest::Entry& entry) const;
  Status CheckBind(const OptimizerConfig& config, const BindRequest::Entry& entry) const;
  // Allocates the state of adaptive revision for the bound shards that have none; all or nothing.
  void AddRevisions(const BindRequest& request);
  Shard* Add(const std::string& name, DType dtype, uint64_t elements, BlockPtr block);
  // Removes all shards but the first `count`.
  void Remove(size_t count);

  const size_t tracked_workers_;  // workers with kept pulls; 0 without delay compensation
  const bool hogwild_, revises_;
  mutable std::mutex
      turnstile_;  // a thread that waits to exclude holds it: no other may share then
  mutable std::shared_mutex changes_;
  std::vector<std::unique_ptr<Shard>> shards_;  // by id
  std::unordered_map<std::string, Shard*> by_name_;
  std::unordered_map<std::string, SavedShard> unclaimed_;  // by name
  // One of the unclaimed shards of each variable, by the variable's name.
  std::unordered_map<std::string, std::string> unclaimed_parts_;
  std::vector<std::shared_ptr<Table>> tables_;  // by id
  std::unordered_map<std::string, uint32_t> table_ids_;
  std::unordered_set<uint32_t> unclaimed_tables_;  // restored, and not created by a worker since
  std::atomic<uint64_t> count_{0}, value_bytes_{0};
  const std::shared_ptr<MemoryBudget> memory_;
  BlockPool pool_;
  RowClock clock_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_STORE_H_
