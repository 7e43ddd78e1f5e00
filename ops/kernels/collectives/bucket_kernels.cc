// All-reduce in buckets whose size is found while the job trains: see bucket_tuner.h,
// bucket_groups.h.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/collectives/bucket_tuner.h"
#include "kernels/collectives/bucket_groups.h"
#include "kernels/collectives/collective_kernel.h"
#include "kernels/host_kernel.h"
#include "kernels/output_pool.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Sentences about sizes that were chosen, for Python's log.
class Announcements {
 public:
  static Announcements& Get() {
    static Announcements* const announcements = new Announcements;
    return *announcements;
  }

  void Add(std::string text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    texts_.push_back(std::move(text));
    added_.notify_one();
  }

  std::string Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    added_.wait(lock, [this] { return !texts_.empty(); });
    std::string text = std::move(texts_.front());
    texts_.pop_front();
    return text;
  }

 private:
  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::string> texts_;
};

// Outputs the index of the size of this step's buckets: the same on all ranks.
class BucketSizeKernel : public CollectiveKernel {
 public:
  explicit BucketSizeKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    int64_t initial;
    OP_REQUIRES_OK(context, context->GetAttr("sizes", &sizes_));
    OP_REQUIRES_OK(context, context->GetAttr("initial", &initial));
    const int64_t count = static_cast<int64_t>(sizes_.size());
    OP_REQUIRES(context, 0 <= initial && initial < count,
                absl::InvalidArgumentError(
                    StrCat("expected an initial size below ", count, ", received ", initial)));
    initial_ = static_cast<int>(initial);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    Tensor* output = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, TensorShape({}), &output), done);
    int32_t* const size = output->flat<int32_t>().data();
    const std::shared_ptr<Communicator> communicator = Find(context, done);
    if (communicator == nullptr) return;
    std::shared_ptr<Search> search;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      // New ranks have tried nothing, so all begin again.
      if (search_ == nullptr || search_->communicator.lock() != communicator) {
        search_ = std::make_shared<Search>(communicator, static_cast<int>(sizes_.size()), initial_);
      }
      search = search_;
      const bool decides = search->tuner.Begin(Clock::now());
      *size = search->tuner.size();
      if (!decides) return done();
      search->seconds = search->tuner.Medians();
    }
    Decide(context, std::move(search), size, std::move(done));
  }

 private:
  struct Search {
    Search(const std::shared_ptr<Communicator>& ranks, int sizes, int initial)
        : communicator(ranks), tuner(sizes, initial) {}
    const std::weak_ptr<Communicator> communicator;
    BucketTuner tuner;
    std::vector<double> seconds;
  };

  // The slowest rank decides how fast a size is.
  void Decide(OpKernelContext* context, std::shared_ptr<Search> search, int32_t* size,
              DoneCallback done) {
    const auto execution = Prepare(context, done, 1);
    if (execution == nullptr) return;
    Communicator& communicator = *execution->communicator;
    const iovec times = {search->seconds.data(), search->seconds.size() * sizeof(double)};
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature.name = label();
    options.signature.shapes = "times of sizes of buckets";
    options.signature.shape_hash = search->seconds.size();
    options.done = [this, search = std::move(search), size, rank = communicator.rank(),
                    end = std::move(options.done)](const Status& status) {
      if (status.ok()) {
        const std::lock_guard<std::mutex> lock(mutex_);
        search->tuner.Decide(search->seconds);
        *size = search->tuner.size();
        // All ranks have chosen the same.
        if (rank == 0) Announcements::Get().Add(Announcement(*search));
      }
      end(status);
    };
    communicator.AllReduce(std::move(options), FlatView({times}), FlatView({times}),
                           DType::kFloat64, ReduceOp::kMax);
  }

  std::string Announcement(const Search& search) const {
    std::string text =
        StrCat("rank 0: bytes_per_pack \"auto\" has chosen ", sizes_[search.tuner.size()], " for '",
               label(), "'; seconds of a step:");
    for (size_t i = 0; i < sizes_.size(); ++i) {
      char seconds[32];
      std::snprintf(seconds, sizeof(seconds), "%.4g", search.seconds[i]);
      text += StrCat(i == 0 ? " " : ", ", sizes_[i], ": ", seconds);
    }
    return text;
  }

  std::vector<std::string> sizes_;
  int initial_ = 0;
  std::mutex mutex_;
  std::shared_ptr<Search> search_;
};

// Reduces a block of a list together with the other blocks of its bucket.
class AllReduceBlockKernel : public CollectiveKernel {
 public:
  explicit AllReduceBlockKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &dtype_, &reduce_op_));
    OP_REQUIRES_OK(context, context->GetAttr("N", &count_));
    OP_REQUIRES_OK(context, context->GetAttr("block", &block_));
    OP_REQUIRES_OK(context, context->GetAttr("bucket_begins", &begins_));
    OP_REQUIRES_OK(context, context->GetAttr("first_blocks", &firsts_));
    OP_REQUIRES_OK(context, context->GetAttr("block_counts", &counts_));
    const bool same_sizes = begins_.size() == firsts_.size() && firsts_.size() == counts_.size();
    OP_REQUIRES(context, same_sizes,
                absl::InvalidArgumentError("expected as many bucket_begins as first_blocks and "
                                           "block_counts"));
    for (size_t i = 0; i < firsts_.size(); ++i) {
      OP_REQUIRES(
          context, 0 <= begins_[i] && firsts_[i] <= block_ && block_ < firsts_[i] + counts_[i],
          absl::InvalidArgumentError(StrCat("expected a bucket with block ", block_, ", received ",
                                            counts_[i], " blocks from ", firsts_[i], " on")));
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& choice = context->input(count_);
    OP_REQUIRES_ASYNC(context, choice.NumElements() == 1,
                      absl::InvalidArgumentError("expected one index of a size"), done);
    const int64_t size = choice.flat<int32_t>()(0);
    OP_REQUIRES_ASYNC(context, 0 <= size && size < static_cast<int64_t>(firsts_.size()),
                      absl::InvalidArgumentError(
                          StrCat("expected an index below ", firsts_.size(), ", received ", size)),
                      done);
    BucketGroup::Shape bucket;
    bucket.communicator = Find(context, done);
    if (bucket.communicator == nullptr) return;
    WaitingBlock block;
    std::vector<const Tensor*> inputs(count_);
    for (int i = 0; i < count_; ++i) {
      inputs[i] = &context->input(i);
      block.input.push_back(Memory(*inputs[i]));
    }
    block.signature = Describe(inputs, false);  // before an input may be forwarded
    for (int i = 0; i < count_; ++i) {
      Tensor* output = nullptr;
      OP_REQUIRES_OK_ASYNC(context, ForwardOrAllocate(context, i, i, &output), done);
      block.output.push_back(Memory(*output));
    }
    bucket.key = KeyOfBucket(Key(context), size, firsts_[size]);
    bucket.begin = static_cast<uint64_t>(begins_[size]);
    bucket.blocks = static_cast<size_t>(counts_[size]);
    bucket.dtype = dtype_;
    bucket.reduce_op = reduce_op_;
    bucket.timeout_seconds = timeout_seconds();
    Add(context, bucket, static_cast<size_t>(block_ - firsts_[size]), std::move(block),
        std::move(done));
  }

 private:
  // Not the multiplier of `Phase`: eager collectives share a key, and some have a second phase.
  static uint64_t KeyOfBucket(uint64_t key, int64_t size, int64_t first_block) {
    constexpr uint64_t kMaxBlocks = uint64_t{1} << 32;
    const uint64_t bucket = static_cast<uint64_t>(size) * kMaxBlocks + first_block + 1;
    return key ^ (bucket * 0xd6e8feb86659fd93);
  }

  void Add(OpKernelContext* context, const BucketGroup::Shape& bucket, size_t position,
           WaitingBlock block, DoneCallback done) const {
    const std::shared_ptr<BucketGroup> group = BucketGroups::Get().Find(bucket, position);
    block.context = context;
    block.done = std::move(done);
    const auto cancel = [bucket, group] {
      BucketGroups::Get().Remove(bucket, group);
      group->Cancel();
    };
    // Before the block is added: afterwards it may end at any time, and its step with it.
    tensorflow::CancellationManager* const manager = context->cancellation_manager();
    if (manager != nullptr) {
      block.cancellation = manager->get_cancellation_token();
      if (!manager->RegisterCallback(block.cancellation, cancel)) cancel();
    }
    switch (group->Add(position, block)) {
      case BucketGroup::Added::kYes:
        return;
      case BucketGroup::Added::kCompletes:
        BucketGroups::Get().Remove(bucket, group);
        return BucketGroup::Start(group);
      case BucketGroup::Added::kNo:
        if (manager != nullptr) manager->TryDeregisterCallback(block.cancellation);
        context->SetStatus(absl::CancelledError(StrCat("'", label(), "' was cancelled")));
        return block.done();
    }
  }

  DType dtype_ = DType::kFloat32;
  ReduceOp reduce_op_ = ReduceOp::kSum;
  int count_ = 0;
  int64_t block_ = 0;
  std::vector<int64_t> begins_, firsts_, counts_;
};

REGISTER_HOST_KERNEL("TfdistBucketSize", BucketSizeKernel, .HostMemory("size"));
REGISTER_HOST_KERNEL("TfdistAllReduceBlock", AllReduceBlockKernel,
                     .HostMemory("inputs").HostMemory("size").HostMemory("outputs"));

}  // namespace

// Waits until a size of buckets was chosen, and writes a sentence about it.
extern "C" void tfdist_bucket_size_chosen(char* text, size_t bytes) {
  if (bytes == 0) return;
  const std::string chosen = Announcements::Get().Wait();
  const size_t length = std::min(bytes - 1, chosen.size());
  std::memcpy(text, chosen.data(), length);
  text[length] = '\0';
}

}  // namespace tfdist
