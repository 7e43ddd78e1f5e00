// Applies pushes to shards and tables: gradients, deltas to add, and values to assign.
#ifndef TFDIST_OPS_CORE_PS_STORE_UPDATE_H_
#define TFDIST_OPS_CORE_PS_STORE_UPDATE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/ps/store/redo_log.h"
#include "core/ps/store/store.h"
#include "core/ps/table/table_batch.h"

namespace tfdist::ps {

// One entry of a push. It is the only owner of its blocks.
struct Update {
  Shard* shard = nullptr;  // null for kTableRows
  Table* table = nullptr;  // only for kTableRows
  uint32_t table_id = 0;   // the same
  UpdateKind kind = UpdateKind::kGradient;
  StepValues step;
  uint64_t width = 0;
  BlockPtr rows;  // kRows: int64 row indices; kTableRows: ids
  BlockPtr values;
  std::unique_ptr<TableBatch> batch;  // kTableRows: of the ids, after ReserveMemory

  uint64_t row_count() const { return rows->bytes() / sizeof(int64_t); }
  int64_t* row_indices() { return reinterpret_cast<int64_t*>(rows->data()); }
  const int64_t* row_indices() const { return reinterpret_cast<const int64_t*>(rows->data()); }
};

// The entries of a push, under Store::Share. Assigned values come first, so that they do not undo a
// gradient or a delta of the same push.
std::vector<Update> UpdatesOf(const PushRequest& request, std::vector<BlockPtr> payload,
                              Store* store);

// Fails if a value is not as large as its shard.
Status CheckValue(const Shard& shard, const Block& value);

// Fails if a row index is out of the bounds of its shard, or if values do not have the size of
// their shard or rows. The request was checked when it began; this checks the blocks themselves.
Status CheckUpdates(const std::vector<Update>& updates);

// Reserves the memory that applying the updates may need, so that a push changes all or nothing.
// `replaces_blocks`: values that readers hold are replaced, not changed in place. Throws OverBudget
// or std::bad_alloc; `table` is then the name of the table that needed the memory, if it was one.
void ReserveMemory(bool replaces_blocks, BlockPool* pool, std::vector<Update>* updates,
                   const std::string** table);

// Applies gradients of a table's rows at the time `now`. Gradients of ids without rows are lost,
// and are removed from `ids` and `gradients`. `batch`: of the ids; null to make one.
AppliedRows ApplyTableRows(Table* table, const StepValues& step, size_t count, int64_t* ids,
                           float* gradients, double now = 0, const TableBatch* batch = nullptr);

// The shards and tables to which a push was not applied, because other requests have used the
// memory that was reserved for it.
class NotApplied {
 public:
  void Add(const Update& update) { Add(update.table ? update.table->name() : update.shard->name); }
  void Add(const std::string& name) {
    if (count_++ == 0) first_ = &name;
  }
  bool empty() const { return count_ == 0; }
  Status status() const;

 private:
  const std::string* first_ = nullptr;
  size_t count_ = 0;
};

// sums[row] += values, for each row of `update`.
void ScatterAdd(const Update& update, char* sums);

// Changes values, each shard under its own lock and the locks of its slots. With Hogwild (Niu et
// al. 2011) it takes no locks and always updates in place: an answer that is sent meanwhile may mix
// old and new values.
class Updater {
 public:
  Updater(const StoreOptions& options, Store* store, RedoLog* log)
      : options_(options), store_(store), pool_(&store->pool()), log_(log) {}

  // Applies a push at once. Each update is applied as a whole or not at all. `tasks`: as in
  // RedoLog::Append, still without shards.
  NotApplied Apply(const Pusher& pusher, std::vector<Update> updates, TaskRecord* tasks = nullptr);

  // `worker`: -1 for a sum over workers, which has no delay to compensate.
  void ApplyGradient(int worker, Shard* shard, const StepValues& step, const BlockPtr& gradient);
  void ApplyRows(int worker, const Update& update);
  void AddDelta(Shard* shard, const BlockPtr& delta);
  void Assign(Shard* shard, BlockPtr value);
  // Elastic averaging: replaces a worker's values x by alpha (x - c), with c the shard's value, and
  // adds that to c if the shard `moves`.
  void Attract(Shard* shard, double alpha, const BlockPtr& values, bool moves);

  // The whole value of a shard, for the redo log.
  ChangedShard Changed(Shard* shard) const;

 private:
  void Apply(int worker, Update* update, std::vector<AppliedRows>* applied);
  // The step of a worker that pulled some updates ago: adadelay (Sra et al. 2016) reduces its
  // learning rate by the delay.
  StepValues Delayed(int worker, const Shard& shard, StepValues step) const;
  // Adds the shards that the updates have changed.
  void AddChanged(const std::vector<Update>& updates, TaskRecord* tasks) const;
  // The shard's copy of the worker's pull, if `compensation` uses it; else null.
  const Block* PulledBy(int worker, const Shard& shard, Compensation compensation) const;

  const StoreOptions& options_;
  Store* const store_;
  BlockPool* const pool_;
  RedoLog* const log_;
  std::mutex turns_;  // of the pushes whose values are logged
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_UPDATE_H_
