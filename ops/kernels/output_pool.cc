#include "kernels/output_pool.h"

#include <sys/mman.h>

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "tensorflow/core/framework/allocator.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

constexpr size_t kMinPooledBytes = size_t{8} << 20;  // smallest output from the pool
constexpr size_t kMaxFreeBytes = size_t{512} << 20;  // limit of all free blocks
constexpr size_t kGranularity = size_t{2} << 20;     // size of blocks: a huge page
// The unused bytes that a reused block may have.
constexpr size_t MaxSlack(size_t bytes) { return bytes / 4; }

class OutputPool : public tensorflow::Allocator {
 public:
  // Never destroyed: tensors may outlive all other objects.
  static OutputPool* Get() {
    static auto* const pool = new OutputPool;
    return pool;
  }

  std::string Name() override { return "tfdist_outputs"; }

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (alignment > kGranularity) return nullptr;
    const size_t size = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto block = free_.begin(); block != free_.end(); ++block) {
        if (block->bytes < size || block->bytes > size + MaxSlack(size)) continue;
        void* const address = block->address;
        free_bytes_ -= block->bytes;
        used_[address] = block->bytes;
        free_.erase(block);
        return address;
      }
    }
    void* const address = Map(size);
    if (address == nullptr) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    used_[address] = size;
    return address;
  }

  void DeallocateRaw(void* address) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto used = used_.find(address);
    const size_t bytes = used->second;
    used_.erase(used);
    // The content is no longer needed: the kernel may reclaim the pages, but keeps them until then.
    madvise(address, bytes, MADV_FREE);
    free_.push_front({address, bytes});
    free_bytes_ += bytes;
    while (free_bytes_ > kMaxFreeBytes) {
      free_bytes_ -= free_.back().bytes;
      munmap(free_.back().address, free_.back().bytes);
      free_.pop_back();
    }
  }

 private:
  struct Block {
    void* address;
    size_t bytes;
  };

  // Aligned to kGranularity, so that the kernel can use huge pages.
  static void* Map(size_t bytes) {
    void* const all = mmap(nullptr, bytes + kGranularity, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return nullptr;
    char* const begin = static_cast<char*>(all);
    const size_t before =
        (kGranularity - reinterpret_cast<size_t>(all) % kGranularity) % kGranularity;
    if (before > 0) munmap(begin, before);
    if (before < kGranularity) munmap(begin + before + bytes, kGranularity - before);
    madvise(begin + before, bytes, MADV_HUGEPAGE);
    return begin + before;
  }

  std::mutex mutex_;
  std::list<Block> free_;  // last freed first
  size_t free_bytes_ = 0;  // in free_
  std::unordered_map<void*, size_t> used_;
};

}  // namespace

absl::Status AllocateOutput(OpKernelContext* context, int output, const TensorShape& shape,
                            Tensor** result) {
  const auto type = context->expected_output_dtype(output);
  const size_t width = static_cast<size_t>(tensorflow::DataTypeSize(type));
  if (width == 0 || static_cast<size_t>(shape.num_elements()) < kMinPooledBytes / width) {
    return context->allocate_output(output, shape, result);
  }
  Tensor tensor(OutputPool::Get(), type, shape);
  if (!tensor.IsInitialized()) return context->allocate_output(output, shape, result);
  context->set_output(output, std::move(tensor));
  *result = context->mutable_output(output);
  return absl::OkStatus();
}

absl::Status ForwardOrAllocate(OpKernelContext* context, int input, int output, Tensor** result) {
  const TensorShape& shape = context->input(input).shape();
  std::unique_ptr<Tensor> forwarded = context->forward_input(
      input, output, context->expected_output_dtype(output), shape,
      context->output_memory_type(output), context->output_alloc_attr(output));
  if (forwarded == nullptr) return AllocateOutput(context, output, shape, result);
  context->set_output(output, *forwarded);
  *result = context->mutable_output(output);
  return absl::OkStatus();
}

}  // namespace tfdist
