// The open step of a synchronous job: what the workers have contributed to it, added up per shard.
#ifndef TFDIST_OPS_CORE_PS_STORE_STEP_SUMS_H_
#define TFDIST_OPS_CORE_PS_STORE_STEP_SUMS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "core/math/unique_ids.h"
#include "core/ps/store/update.h"

namespace tfdist::ps {

// Gradients of a table's rows, each id once.
struct RowSums {
  StepValues step;  // of the lowest rank that contributed
  int worker = 0;
  UniqueIds ids;
  std::vector<float> gradients;
  MemoryCharge charge{MemoryUse::kTransient};  // of the gradients
};

class StepSums {
 public:
  // `workers`: of the job. Each has divided its loss by that number.
  StepSums(int workers, Updater* updater, Store* store, RedoLog* log)
      : workers_(workers), updater_(updater), store_(store), log_(log) {}

  // Several threads may do so at once.
  NotApplied Collect(int worker, std::vector<Update> updates);

  // Applies the step that `contributions` workers have contributed to; nobody collects meanwhile.
  // A gradient is what it would be if all workers had contributed the same on average; a change is
  // the mean of theirs.
  NotApplied Close(int contributions);

 private:
  void Collect(int worker, Update* update);
  void CollectRows(int worker, const Update& update);
  // Whether there was memory for it.
  bool Apply(Shard* shard, int contributions);

  const int workers_;
  Updater* const updater_;
  Store* const store_;
  RedoLog* const log_;
  std::mutex mutex_;
  std::vector<Shard*> touched_;        // have sums; guarded by mutex_
  std::map<Table*, RowSums> of_rows_;  // guarded by mutex_
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_STORE_STEP_SUMS_H_
