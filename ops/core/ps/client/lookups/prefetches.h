// Requests rows one step before they are needed, so that they are transferred during the
// computation of the step before. Such rows may lack the updates of one step, not more.
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
#include "core/ps/client/lookups/lookup_operation.h"

namespace tfdist::ps {

// Any thread may call it.
class Prefetches {
 public:
  using Send = std::function<void(std::vector<TableLookup>, bool training, ps::Done)>;
  using Later = std::function<void(double seconds, std::function<void()>)>;

  struct Batch;
  using BatchPtr = std::shared_ptr<Batch>;

  // `max_wait_seconds`: how long a batch waits until the one before it is used.
  Prefetches(Send send, Later later, double max_wait_seconds, BlockPool* pool)
      : send_(std::move(send)),
        later_(std::move(later)),
        max_wait_seconds_(max_wait_seconds),
        pool_(pool) {}

  // `owner` is a producer of batches; a later producer has a larger id. The tables of `lookups`
  // exist, with rows of `widths` floats; their `rows` are ignored.
  static BatchPtr Make(uint64_t owner, std::vector<TableLookup> lookups,
                       const std::vector<size_t>& widths, bool training);
  // Requests the batch; `done` is called when it has been requested. A batch waits while an earlier
  // batch of its owner may still be used for one of its tables. The wait is limited, because the
  // earlier batch may never be used. Batches of earlier owners are given up. If a later owner has
  // one of the tables, nothing is requested.
  void Begin(const BatchPtr& batch, ps::Done done);
  // Ends the batch's wait. If it is begun later, it fails.
  void Cancel(const BatchPtr& batch);
  // Returns whether rows of exactly these ids were requested, at most one step ago, and not used
  // yet. If so, they are copied to the lookup when they have arrived, and `done` is called.
  bool Take(const TableLookup& lookup, bool training, ps::Done done);
  // Whether there was any prefetch. Cheap.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // A step of this worker ends.
  void EndStep();
  // Gives up the batch that has the table.
  void Forget(int table);
  // Ends all waits. Later batches fail.
  void Close();

  struct Counts {
    uint64_t requested = 0, used = 0;  // lists of ids
  };
  Counts counts() const;
  uint64_t step() const;

 private:
  struct Entry;
  // Gives up the batches that `batch` still waits for.
  void StopWaiting(const BatchPtr& batch);
  void GiveUp(const BatchPtr& batch);
  std::vector<BatchPtr> TakeReady();
  void Request(const std::vector<BatchPtr>& batches);
  void End(const BatchPtr& batch, const Status& status);

  const Send send_;
  const Later later_;
  const double max_wait_seconds_;
  BlockPool* const pool_;
  mutable std::mutex mutex_;
  uint64_t step_ = 0;
  std::map<int, BatchPtr> by_table_;  // requested, and not used completely
  std::list<BatchPtr> waiting_;
  Counts counts_;
  bool closed_ = false;
  std::atomic<bool> any_{false};
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_LOOKUPS_PREFETCHES_H_
