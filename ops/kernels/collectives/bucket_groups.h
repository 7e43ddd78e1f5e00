// Joins the blocks of a list of tensors to buckets, when a step runs.
//
// Each block is an op of its own, which ends when its bucket is reduced. How many blocks make a
// bucket is an input, so that it can change without a new trace:
//
//     op        block 0   block 1   block 2   block 3
//     size 0    [  0  ]   [  1  ]   [  2  ]   [  3  ]     four collectives
//     size 1    [  0        1  ]    [  2        3  ]      two
//
// A block that arrives waits, without a thread, until the rest of its bucket has arrived. The last
// one starts the collective. If a step is cancelled while blocks wait, all of them end, and the
// peers are told.
#ifndef TFDIST_OPS_KERNELS_COLLECTIVES_BUCKET_GROUPS_H_
#define TFDIST_OPS_KERNELS_COLLECTIVES_BUCKET_GROUPS_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/collectives/communicator.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

// One execution of the op of a block.
struct WaitingBlock {
  tensorflow::OpKernelContext* context = nullptr;
  tensorflow::AsyncOpKernel::DoneCallback done;
  std::vector<iovec> input, output;
  Signature signature;
  tensorflow::CancellationToken cancellation = 0;
};

// The blocks of one bucket of one step.
class BucketGroup {
 public:
  // The attributes that all blocks of the bucket have in common.
  struct Shape {
    std::shared_ptr<Communicator> communicator;
    uint64_t key = 0;    // of the bucket's collective
    uint64_t begin = 0;  // the bucket's first element in the list
    size_t blocks = 0;
    DType dtype = DType::kFloat32;
    ReduceOp reduce_op = ReduceOp::kSum;
    double timeout_seconds = 0;
  };

  explicit BucketGroup(Shape shape) : shape_(std::move(shape)), blocks_(shape_.blocks) {}

  bool Has(size_t position) const;
  enum class Added { kNo, kYes, kCompletes };

  // Adds a block; kNo if the bucket was cancelled.
  Added Add(size_t position, const WaitingBlock& block);
  // Starts the collective of a complete bucket, unless it was cancelled.
  static void Start(const std::shared_ptr<BucketGroup>& group);
  // The step of one of its blocks was cancelled.
  void Cancel();

 private:
  enum class State { kFilling, kStarted, kCancelled, kEnded };

  void End(const absl::Status& status);

  const Shape shape_;
  mutable std::mutex mutex_;
  State state_ = State::kFilling;
  std::vector<WaitingBlock> blocks_;
  size_t arrived_ = 0;
  CollectiveId id_;
};

// The buckets of this process that wait for blocks.
class BucketGroups {
 public:
  static BucketGroups& Get();

  // Returns the bucket that a block belongs to: the oldest bucket that waits for it.
  std::shared_ptr<BucketGroup> Find(const BucketGroup::Shape& shape, size_t position);
  // The bucket waits for nothing any more.
  void Remove(const BucketGroup::Shape& shape, const std::shared_ptr<BucketGroup>& group);

 private:
  using Key = std::pair<const Communicator*, uint64_t>;

  std::mutex mutex_;
  std::map<Key, std::list<std::shared_ptr<BucketGroup>>> waiting_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_COLLECTIVES_BUCKET_GROUPS_H_
