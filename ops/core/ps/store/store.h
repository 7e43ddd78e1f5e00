// The shards of a server: their values, and what is kept beside them.
//
// Requests hold `Share` while they look at shards or change values; to add a shard, to bind one, or
// to take an image, everything else has to stand still for a moment: `Exclude`. Values are guarded
// by the mutex of their shard. Locks are taken in this order: share or exclude, the schedule's
// mutex, then shards' mutexes by rising number.
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
#include "core/ps/optimizers/optimizer.h"
#include "core/ps/protocol/message.h"
#include "core/ps/server/server.h"
#include "core/ps/table/row_clock.h"
#include "core/ps/table/table.h"

namespace tfdist::ps {

struct Shard;

// How pushed gradients update a shard.
struct Binding {
  OptimizerConfig config;
  double weight_decay = 0;
  std::vector<Shard*> slots;
};

// What the open step of a synchronous job has collected for a shard.
struct Sums {
  BlockPtr gradient, delta, assigned;
  int gradient_worker = 0, assigning_worker = 0;  // the lowest ranks that contributed
  StepValues step;                                // of gradient_worker
};

struct Shard {
  uint32_t number = 0;
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  size_t bytes = 0;
  std::optional<Binding> binding;  // changes under Store::Exclude

  std::mutex mutex;  // guards the rest, except in Hogwild, where nothing does
  BlockPtr block;    // in Hogwild always the same
  std::atomic<uint64_t> version{1};
  std::atomic<uint64_t> updates{0};  // by gradients
  // By worker, at the pull that began its step; empty without compensation of delays.
  struct Seen {
    BlockPtr block;
    uint64_t updates = 0;
  };
  std::vector<Seen> seen;
  Sums sums;
};

// elements * ByteSize(dtype). Nothing if that is more than a message may carry.
std::optional<uint64_t> BytesOf(DType dtype, uint64_t elements);

class Store {
 public:
  explicit Store(const ServerOptions& options);

  std::shared_lock<std::shared_mutex> Share() const;
  std::unique_lock<std::shared_mutex> Exclude() const;

  // Under Share; null if there is no such shard.
  Shard* Find(uint32_t number) const;
  bool Has(const std::string& name) const { return FindName(name) != nullptr; }

  // Each takes Exclude itself, and does all of it or nothing, also where it throws OverBudget or
  // std::bad_alloc. `values` are of the entries that have one, in order.
  Status Create(const CreateRequest& request, const std::vector<BlockPtr>& values,
                CreateReply* reply);
  // `replaced` names what had another optimizer before; empty if nothing had.
  Status Bind(const BindRequest& request, std::string* replaced);

  // Under Exclude. In Hogwild the blocks are copies.
  std::vector<SavedShard> Save();
  std::vector<uint64_t> SaveUpdates() const;
  // Before anybody else comes.
  Status Restore(const std::vector<SavedShard>& shards);
  void RestoreUpdates(const std::vector<uint64_t>& updates);

  // Values that were not created here yet. Which server is to hold them is the workers' business,
  // who ask for what they place here; the others stay unused until they are forgotten.
  void PutAside(const std::vector<SavedShard>& shards);
  // Under Exclude.
  std::vector<SavedShard> SaveAside() const;
  void ForgetAside();

  // Under Share; null if there is no such table.
  Table* FindTable(uint32_t number) const;
  // Takes Exclude itself, and creates those that do not exist, or none; throws as Create. Tables
  // that were restored with another configuration and that no worker has created since are replaced
  // if the request says so: they are appended to `replaced`. A log that is replayed
  // (`is_replay`) creates tables for no worker, and repeats the replacements of its time.
  Status CreateTables(const TableRequest& request, TableReply* reply,
                      std::vector<std::shared_ptr<Table>>* replaced, bool is_replay = false);
  // All of them; takes Share itself.
  std::vector<std::shared_ptr<Table>> tables() const;
  // Under Exclude.
  std::vector<std::shared_ptr<Table>> SaveTables(bool changed_only);
  // Before anybody else comes.
  Status RestoreTables(const std::vector<std::shared_ptr<Table>>& tables);

  uint64_t shard_count() const { return count_.load(std::memory_order_relaxed); }
  uint64_t value_bytes() const { return value_bytes_.load(std::memory_order_relaxed); }
  BlockPool& pool() { return pool_; }
  MemoryBudget& memory() const { return *memory_; }
  const std::shared_ptr<MemoryBudget>& shared_memory() const { return memory_; }
  // Carries out what changes nothing if there is no memory for it; again without what the pool
  // holds in reserve. Returns whether it was done.
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
  Status CheckTable(const TableRequest::Entry& entry, uint32_t number, bool is_replay) const;
  Status CheckCreate(const CreateRequest& request) const;
  Status CheckAside(const CreateRequest::Entry& entry) const;
  Status CheckBind(const OptimizerConfig& config, const BindRequest::Entry& entry) const;
  Shard* Add(const std::string& name, DType dtype, uint64_t elements, BlockPtr block);
  // Takes back what was added behind the first `count` shards.
  void Remove(size_t count);

  const size_t watched_workers_;  // whose last pulls are remembered
  const bool hogwild_;
  mutable std::mutex door_;  // held by who wants to exclude: nobody new comes in meanwhile
  mutable std::shared_mutex changes_;
  std::vector<std::unique_ptr<Shard>> shards_;  // by number
  std::unordered_map<std::string, Shard*> by_name_;
  std::unordered_map<std::string, SavedShard> aside_;         // by name
  std::unordered_map<std::string, std::string> aside_parts_;  // one of them by its variable's name
  std::vector<std::shared_ptr<Table>> tables_;                // by number
  std::unordered_map<std::string, uint32_t> table_numbers_;
  std::unordered_set<uint32_t> unclaimed_tables_;  // restored, and not asked for by a worker since
  std::atomic<uint64_t> count_{0}, value_bytes_{0};
  const std::shared_ptr<MemoryBudget> memory_;
  BlockPool pool_;
  RowClock clock_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_STORE_H_
