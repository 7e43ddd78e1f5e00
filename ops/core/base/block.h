// Reference-counted memory, copied on write.
//
// A holder may read a block for as long as it holds it: a send in progress, a snapshot, a backup
// copy. An update writes in place only if it is the sole holder; else it writes into a new block,
// which replaces the old one.
#ifndef TFDIST_OPS_CORE_BASE_BLOCK_H_
#define TFDIST_OPS_CORE_BASE_BLOCK_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/base/memory_budget.h"

namespace tfdist::ps {

// A run of bytes, aligned to a cache line.
class Block {
 public:
  explicit Block(size_t bytes);
  // `bytes` <= `capacity`.
  Block(size_t bytes, size_t capacity);
  // Throws OverBudget if `within_budget` and the budget has no room.
  Block(size_t bytes, size_t capacity, std::shared_ptr<MemoryBudget> budget, bool within_budget);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  char* data() { return data_; }
  const char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  size_t capacity() const { return capacity_; }
  // At most to its capacity.
  void Resize(size_t bytes) { bytes_ = bytes; }
  // Charges the block to `budget`, unless it is charged already.
  void ChargeTo(const std::shared_ptr<MemoryBudget>& budget);

 private:
  MemoryCharge charge_{MemoryUse::kTransient};
  size_t bytes_, capacity_;
  char* data_;
};

using BlockPtr = std::shared_ptr<Block>;

// Whether the caller is the sole holder, so that it may write the block. Reads by earlier holders
// happened before.
bool HeldAlone(const BlockPtr& block);

// Reuses blocks whose last holder has released them, because mapping new memory costs more than the
// work done in it. The pool may be destroyed before its blocks: they keep the free lists alive.
class BlockPool {
 public:
  explicit BlockPool(std::shared_ptr<MemoryBudget> budget = nullptr);
  // The content is undefined.
  BlockPtr Take(size_t bytes);
  // For a request that can still be refused: throws OverBudget if the budget has no room.
  BlockPtr TakeWithinBudget(size_t bytes);
  // For sizes that rarely repeat: rounds the capacity up, and keeps a few free blocks of each
  // capacity. Within the budget.
  BlockPtr AllocateAtLeast(size_t bytes);

 private:
  struct FreeLists {
    std::mutex mutex;
    std::unordered_map<size_t, std::vector<std::unique_ptr<Block>>> by_capacity;
  };
  static void Clear(FreeLists* free_lists);
  BlockPtr Take(size_t bytes, size_t capacity, size_t max_free, bool within_budget);

  const std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<FreeLists> free_lists_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_BASE_BLOCK_H_
