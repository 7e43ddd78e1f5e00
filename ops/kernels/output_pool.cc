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

constexpr size_t kPooledBytes = size_t{8} << 20;                 // outputs from this size on
constexpr size_t kMostKept = size_t{512} << 20;                  // in free blocks
constexpr size_t kGranularity = size_t{2} << 20;                 // of blocks: a huge page
constexpr size_t kMostSlack(size_t bytes) { return bytes / 4; }  // in a block that is used again

class OutputPool : public tensorflow::Allocator {
 public:
  // Tensors may outlive everything else.
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
        if (block->bytes < size || block->bytes > size + kMostSlack(size)) continue;
        void* const address = block->address;
        kept_ -= block->bytes;
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
    // Its contents are worth nothing: the kernel may take the pages, and until then they stay.
    madvise(address, bytes, MADV_FREE);
    free_.push_front({address, bytes});
    kept_ += bytes;
    while (kept_ > kMostKept) {
      kept_ -= free_.back().bytes;
      munmap(free_.back().address, free_.back().bytes);
      free_.pop_back();
    }
  }

 private:
  struct Block {
    void* address;
    size_t bytes;
  };

  // Aligned to its granularity, so that it can consist of huge pages.
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
  std::list<Block> free_;  // latest first
  size_t kept_ = 0;        // bytes in free_
  std::unordered_map<void*, size_t> used_;
};

}  // namespace

absl::Status AllocateOutput(OpKernelContext* context, int output, const TensorShape& shape,
                            Tensor** result) {
  const auto type = context->expected_output_dtype(output);
  const size_t width = static_cast<size_t>(tensorflow::DataTypeSize(type));
  if (width == 0 || static_cast<size_t>(shape.num_elements()) < kPooledBytes / width) {
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
