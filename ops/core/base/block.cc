#include "core/base/block.h"

#include <cstdint>
#include <new>
#include <utility>

#include "core/base/streaming_store.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace tfdist::ps {
namespace {

constexpr std::align_val_t kAlignment{kCacheLine};
constexpr size_t kMinCapacity = 4096;
constexpr size_t kMaxFree = 4;  // blocks of one capacity that AllocateAtLeast keeps

// Rounds up to one of four sizes per power of two.
size_t CapacityFor(size_t bytes) {
  if (bytes > PTRDIFF_MAX) throw std::bad_alloc();  // rounding it up would wrap around
  if (bytes <= kMinCapacity) return kMinCapacity;
  const int bits = 63 - __builtin_clzll(bytes);
  const size_t unit = size_t{1} << (bits - 2);
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

Block::Block(size_t bytes) : Block(bytes, bytes) {}

Block::Block(size_t bytes, size_t capacity) : Block(bytes, capacity, nullptr, false) {}

Block::Block(size_t bytes, size_t capacity, std::shared_ptr<MemoryBudget> budget,
             bool within_budget)
    : bytes_(bytes), capacity_(capacity) {
  charge_.SetBudget(std::move(budget));
  charge_.Grow(capacity, within_budget);
  data_ = static_cast<char*>(::operator new(capacity, kAlignment));
  Resize(bytes);
}

void Block::Resize(size_t bytes) {
  bytes_ = bytes;
#ifdef __SANITIZE_ADDRESS__  // which then reports accesses behind the bytes, too
  ASAN_UNPOISON_MEMORY_REGION(data_, bytes_);
  ASAN_POISON_MEMORY_REGION(data_ + bytes_, capacity_ - bytes_);
#endif
}

Block::~Block() { ::operator delete(data_, kAlignment); }

void Block::ChargeTo(const std::shared_ptr<MemoryBudget>& budget) {
  if (!charge_.is_counted()) charge_.SetBudget(budget);
}

bool IsSoleOwner(const BlockPtr& block) {
  if (block.use_count() != 1) return false;
  // use_count does not order memory accesses, but a release does: releasing a second reference here
  // orders the reads that other holders made before their release before our writes.
  BlockPtr second = block;
  second.reset();
  return true;
}

BlockPool::BlockPool(std::shared_ptr<MemoryBudget> budget)
    : budget_(std::move(budget)), free_lists_(std::make_shared<FreeLists>()) {
  if (budget_ == nullptr) return;
  budget_->SetReclaim([lists = std::weak_ptr<FreeLists>(free_lists_)] {
    if (const std::shared_ptr<FreeLists> held = lists.lock()) Clear(held.get());
  });
}

void BlockPool::Clear(FreeLists* lists) {
  const std::lock_guard<std::mutex> lock(lists->mutex);
  for (auto& [capacity, list] : lists->by_capacity) list.clear();
}

BlockPtr BlockPool::Allocate(size_t bytes) { return Allocate(bytes, bytes, SIZE_MAX, false); }

BlockPtr BlockPool::AllocateWithinBudget(size_t bytes) {
  return Allocate(bytes, bytes, SIZE_MAX, true);
}

BlockPtr BlockPool::AllocateAtLeast(size_t bytes) {
  return Allocate(bytes, CapacityFor(bytes), kMaxFree, true);
}

BlockPtr BlockPool::Allocate(size_t bytes, size_t capacity, size_t max_free, bool within_budget) {
  std::unique_ptr<Block> block;
  {
    const std::lock_guard<std::mutex> lock(free_lists_->mutex);
    auto& list = free_lists_->by_capacity[capacity];
    if (!list.empty()) {
      block = std::move(list.back());
      list.pop_back();
    }
  }
  if (block == nullptr) block = std::make_unique<Block>(bytes, capacity, budget_, within_budget);
  block->Resize(bytes);
  return BlockPtr(block.release(), [lists = free_lists_, max_free](Block* returned) {
    std::unique_ptr<Block> owned(returned);
    const std::lock_guard<std::mutex> lock(lists->mutex);
    const auto list = lists->by_capacity.find(owned->capacity());
    if (list == lists->by_capacity.end() || list->second.size() >= max_free) return;
    try {
      list->second.push_back(std::move(owned));
    } catch (const std::bad_alloc&) {  // the block is freed
    }
  });
}

}  // namespace tfdist::ps
