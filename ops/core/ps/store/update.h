// How a push changes shards: by gradients, changes to add, and values to put in place.
#ifndef TFDIST_OPS_CORE_PS_STORE_UPDATE_H_
#define TFDIST_OPS_CORE_PS_STORE_UPDATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/ps/store/redo_log.h"
#include "core/ps/store/store.h"
#include "core/ps/table/table_batch.h"

namespace tfdist::ps {

// One entry of a push. Its blocks are held by nobody else.
struct Update {
  Shard* shard = nullptr;  // or, with kTableRows,
  Table* table = nullptr;
  UpdateKind kind = UpdateKind::kGradient;
  StepValues step;
  uint64_t width = 0;
  BlockPtr rows;  // kRows: int64 row numbers; kTableRows: ids
  BlockPtr values;
  std::unique_ptr<Table::Batch> batch;  // kTableRows: of the ids, once there is room for their rows

  uint64_t row_count() const { return rows->bytes() / sizeof(int64_t); }
  int64_t* row_numbers() { return reinterpret_cast<int64_t*>(rows->data()); }
  const int64_t* row_numbers() const { return reinterpret_cast<const int64_t*>(rows->data()); }
};

// The entries of a push, under Store::Share. What is to be put in place comes first, so that it
// does not undo a gradient or a change of the same push.
std::vector<Update> UpdatesOf(const PushRequest& request, std::vector<BlockPtr> payload,
                              Store* store);

// Fails if a row number is not one of its shard's.
Status CheckRows(const std::vector<Update>& updates);

// Takes the memory that applying them may need, so that a push changes all or nothing. Throws
// OverBudget or std::bad_alloc; `table` is then the name of the table it was about, if it was one.
void TakeMemory(const ServerOptions& options, BlockPool* pool, std::vector<Update>* updates,
                const std::string** table);

// Applies gradients at the time `now`. Those of ids without rows are lost, and `ids` and
// `gradients` are closed up to be without them. `batch` is of the ids, if there was one made;
// `lost` has capacity for all of them.
AppliedRows ApplyRows(Table* table, const StepValues& step, size_t count, int64_t* ids,
                      float* gradients, double now = 0, const Table::Batch* batch = nullptr);

// What could not be applied, though memory was taken for it before: requests of others have used it
// since. The names are those of shards and tables.
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

// into[row] += values, for each row of `update`.
void ScatterAdd(const Update& update, char* into);

// Changes values, each shard under its own lock and those of its slots; in Hogwild (Niu et al.
// 2011) without locks and always in place, so that an answer sent meanwhile may mix old and new
// values.
class Updater {
 public:
  Updater(const ServerOptions& options, Store* store, RedoLog* log)
      : options_(options), store_(store), pool_(&store->pool()), log_(log) {}

  // At once, as they come from a worker.
  NotApplied Apply(const Pusher& pusher, std::vector<Update> updates);

  // `worker` is -1 for what several have contributed to: there is no delay to compensate.
  void Gradient(int worker, Shard* shard, const StepValues& step, const BlockPtr& gradient);
  void Rows(int worker, const Update& update);
  void Delta(Shard* shard, const BlockPtr& delta);
  void Assign(Shard* shard, BlockPtr value);

 private:
  void Apply(int worker, Update* update, std::vector<AppliedRows>* applied);
  // The step as a worker that pulled some updates ago may make it: adadelay (Sra et al. 2016)
  // shrinks its step size by the delay.
  StepValues Delayed(int worker, const Shard& shard, StepValues step) const;
  // What the worker pulled, if a gradient is to be corrected for it.
  const Block* PulledBy(int worker, const Shard& shard) const;

  const ServerOptions& options_;
  Store* const store_;
  BlockPool* const pool_;
  RedoLog* const log_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_UPDATE_H_
