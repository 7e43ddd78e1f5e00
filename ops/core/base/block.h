// Reference-counted memory blocks, for values that are read while they change.
//
// Each holder of a block may read it: a send in progress, a snapshot, a backup copy. An update
// writes in place only if it is the sole owner of the block; otherwise it writes to a fresh block
// that replaces it (copy on write).
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
  // A block of `bytes`, which can grow to `capacity`.
  Block(size_t bytes, size_t capacity);
  // With `within_budget`, throws OverBudget if the budget has no room for it.
  Block(size_t bytes, size_t capacity, std::shared_ptr<MemoryBudget> budget, bool within_budget);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  char* data() { return data_; }
  const char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  size_t capacity() const { return capacity_; }
  // At most to the capacity.
  void Resize(size_t bytes);
  // Charges it to a budget, unless it is charged already.
  void ChargeTo(const std::shared_ptr<MemoryBudget>& budget);

 private:
  MemoryCharge charge_{MemoryUse::kTransient};
  size_t bytes_, capacity_;
  char* data_;
};

using BlockPtr = std::shared_ptr<Block>;

// Whether the caller is the only holder of the block, and may write it. The reads of former holders
// happen before its writes.
bool IsSoleOwner(const BlockPtr& block);

// Reuses blocks: page faults of fresh memory cost more than most uses of a block. A block returns
// to the pool when its last holder releases it. Blocks may outlive the pool.
class BlockPool {
 public:
  explicit BlockPool(std::shared_ptr<MemoryBudget> budget = nullptr);
  // The content is undefined.
  BlockPtr Allocate(size_t bytes);
  // For a request that can still be refused: throws OverBudget if there is no room.
  BlockPtr AllocateWithinBudget(size_t bytes);
  // For sizes that hardly recur: rounds the capacity up, so that a block fits similar sizes, and
  // the pool keeps only a few blocks of each capacity. Within the budget.
  BlockPtr AllocateAtLeast(size_t bytes);

 private:
  // The unused blocks, which the pool and its blocks share.
  struct FreeLists {
    std::mutex mutex;
    std::unordered_map<size_t, std::vector<std::unique_ptr<Block>>> by_capacity;
  };
  static void Clear(FreeLists* lists);
  // `max_free`: blocks of this capacity that the pool keeps.
  BlockPtr Allocate(size_t bytes, size_t capacity, size_t max_free, bool within_budget);

  const std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<FreeLists> free_lists_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_BASE_BLOCK_H_
