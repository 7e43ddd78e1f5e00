// The open step of a synchronous job: the sums of the workers' contributions to it, by shard and by
// table.
#ifndef TFDIST_OPS_CORE_PS_STORE_STEP_SUMS_H_
#define TFDIST_OPS_CORE_PS_STORE_STEP_SUMS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/math/unique_ids.h"
#include "core/ps/store/update.h"

namespace tfdist::ps {

// The sums of gradients of a table's rows.
struct TableSums {
  size_t width = 0;
  StepValues step;  // of the lowest rank that contributed
  int worker = 0;
  UniqueIds ids;
  std::vector<float> gradients;
  MemoryCharge charge{MemoryUse::kTransient};  // of the gradients
};

class StepSums {
 public:
  // `workers`: of the job. Each worker has divided its loss by that number.
  StepSums(int workers, Updater* updater, Store* store, RedoLog* log)
      : workers_(workers), updater_(updater), store_(store), log_(log) {}

  // Under Store::Share, or Store::Exclude:

  // Adds a push. Thread-safe.
  NotApplied Collect(int worker, std::vector<Update> updates);

  // Forgets the open step; no thread collects meanwhile.
  void Drop();

  // Applies the step, to which `contributions` workers have contributed; no thread collects
  // meanwhile. Gradients are scaled by workers / contributions, as if all workers had contributed.
  // Deltas are averaged over the contributions. `tasks`: as in RedoLog::Append, still without
  // shards.
  NotApplied Close(int contributions, TaskRecord* tasks = nullptr);

 private:
  // Shards and tables with sums; the next step begins without. Tables are named by their ids: a
  // table may be replaced while the step is open.
  std::pair<std::vector<Shard*>, std::map<uint32_t, TableSums>> Take();
  void Collect(int worker, Update* update);
  void CollectRows(int worker, const Update& update);
  // Adds the values that the step has changed.
  void AddChanged(const std::vector<Shard*>& touched, TaskRecord* tasks) const;
  // Returns whether there was memory for it.
  bool Apply(Shard* shard, int contributions);

  const int workers_;
  Updater* const updater_;
  Store* const store_;
  RedoLog* const log_;
  std::mutex mutex_;
  std::vector<Shard*> touched_;               // shards with sums; guarded by mutex_
  std::map<uint32_t, TableSums> table_sums_;  // guarded by mutex_
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_STEP_SUMS_H_
