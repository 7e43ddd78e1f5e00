// Rows that were asked for before the step that needs them, so that they travel while the step
// before computes. They may lack the updates of one step, not more.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_PREFETCHES_H_
#define TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_PREFETCHES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/block.h"
#include "core/base/status.h"
#include "core/ps/client/operations/lookup_operation.h"

namespace tfdist::ps {

// Any thread may call it.
class Prefetches {
 public:
  using Send = std::function<void(std::vector<TableLookup>, bool training, ps::Done)>;
  using Later = std::function<void(double seconds, std::function<void()>)>;

  struct Batch;
  using BatchPtr = std::shared_ptr<Batch>;

  Prefetches(Send send, Later later, double patience_seconds, BlockPool* pool)
      : send_(std::move(send)),
        later_(std::move(later)),
        patience_seconds_(patience_seconds),
        pool_(pool) {}

  // `owner` is who makes prefetches one after the other, numbered as they come to be; of `lookups`
  // the rows' memory is not read, and their tables are there, `widths` floats wide.
  static BatchPtr Make(uint64_t owner, std::vector<TableLookup> lookups,
                       const std::vector<size_t>& widths, bool training);
  // Asks for the batch, and is done when it was asked for. While rows of one of its tables that
  // the same owner asked for before may still be used, it waits, but not for ever: whose batch it
  // is may never use them. An earlier owner's are given up; if a later owner has one of its tables,
  // nothing is asked for.
  void Begin(const BatchPtr& batch, ps::Done done);
  // The batch does not wait any more, and will not.
  void Cancel(const BatchPtr& batch);
  // Whether rows of exactly these ids were asked for, at most one step ago. Then they come to
  // `lookup`, once, and `done` is called when they are there, perhaps at once.
  bool Take(const TableLookup& lookup, bool training, ps::Done done);
  // Whether there is anything to take. Cheap.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // A step of this worker ends.
  void StepEnds();
  // What was asked for of this table, and of others with it, is given up.
  void Forget(int table);
  // Nobody waits any more, and nobody will.
  void Close();

  struct Counts {
    uint64_t asked = 0, used = 0;  // lists of ids
  };
  Counts counts() const;
  uint64_t step() const;

 private:
  struct Entry;
  // What `batch` still waits for is given up.
  void StopWaiting(const BatchPtr& batch);
  void GiveUp(const BatchPtr& batch);
  std::vector<BatchPtr> TakeReady();
  void Ask(const std::vector<BatchPtr>& batches);
  void End(const BatchPtr& batch, const Status& status);

  const Send send_;
  const Later later_;
  const double patience_seconds_;
  BlockPool* const pool_;
  mutable std::mutex mutex_;
  uint64_t step_ = 0;
  std::map<int, BatchPtr> by_table_;  // asked for, and not all used
  std::list<BatchPtr> waiting_;
  Counts counts_;
  bool closed_ = false;
  std::atomic<bool> any_{false};  // has been asked for
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_PREFETCHES_H_
