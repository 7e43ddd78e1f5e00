// Memory that is shared by holding it and changed by replacing it.
//
// Whoever holds a block may read it for as long as they hold it: a send in progress, a snapshot, a
// backup copy. An update writes in place only while nobody else holds the block, else into a fresh
// one that takes its place.
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
  // Begins as one of fewer bytes than there is room for.
  Block(size_t bytes, size_t room);
  // Throws OverBudget if it is to be within the budget, and there is no room for it.
  Block(size_t bytes, size_t room, std::shared_ptr<MemoryBudget> budget, bool within_budget);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  char* data() { return data_; }
  const char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  size_t room() const { return room_; }
  // Up to its room.
  void Resize(size_t bytes) { bytes_ = bytes; }
  // Counts it, if it is not counted yet.
  void ChargeTo(const std::shared_ptr<MemoryBudget>& budget);

 private:
  MemoryCharge charge_{MemoryUse::kTransient};
  size_t bytes_, room_;
  char* data_;
};

using BlockPtr = std::shared_ptr<Block>;

// Whether nobody but the caller holds the block, so that it may be written. Whoever held it before
// has finished reading.
bool HeldAlone(const BlockPtr& block);

// Gives out blocks and takes them back when their last holder lets go: fresh memory costs more than
// what is done with it. May go before its blocks do: they keep the shelves.
class BlockPool {
 public:
  explicit BlockPool(std::shared_ptr<MemoryBudget> budget = nullptr);
  // Content is undefined.
  BlockPtr Take(size_t bytes);
  // The same for a request that can still be refused: throws OverBudget if there is no room.
  BlockPtr TakeWithinBudget(size_t bytes);
  // For sizes that hardly ever occur again: of blocks with room for about as much a few are kept.
  // Within the budget.
  BlockPtr AllocateAtLeast(size_t bytes);

 private:
  struct Shelves {
    std::mutex mutex;
    std::unordered_map<size_t, std::vector<std::unique_ptr<Block>>> by_room;
  };
  static void Free(Shelves* shelves);
  BlockPtr Take(size_t bytes, size_t room, size_t most_kept, bool within_budget);

  const std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<Shelves> shelves_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_BASE_BLOCK_H_
