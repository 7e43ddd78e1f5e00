#include "core/base/block.h"

#include <cstdint>
#include <new>
#include <utility>

#include "core/base/streaming_store.h"

namespace tfdist::ps {
namespace {

constexpr std::align_val_t kAlignment{kCacheLine};
constexpr size_t kLeastRoom = 4096;
constexpr size_t kMostKept = 4;  // of about one size

// Four sizes for each power of two.
size_t RoomFor(size_t bytes) {
  if (bytes <= kLeastRoom) return kLeastRoom;
  const int bits = 63 - __builtin_clzll(bytes);
  const size_t unit = size_t{1} << (bits - 2);
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

Block::Block(size_t bytes) : Block(bytes, bytes) {}

Block::Block(size_t bytes, size_t room) : Block(bytes, room, nullptr, false) {}

Block::Block(size_t bytes, size_t room, std::shared_ptr<MemoryBudget> budget, bool within_budget)
    : bytes_(bytes), room_(room) {
  charge_.SetBudget(std::move(budget));
  charge_.Grow(room, within_budget);
  data_ = static_cast<char*>(::operator new(room, kAlignment));
}

Block::~Block() { ::operator delete(data_, kAlignment); }

void Block::ChargeTo(const std::shared_ptr<MemoryBudget>& budget) {
  if (!charge_.is_counted()) charge_.SetBudget(budget);
}

bool HeldAlone(const BlockPtr& block) {
  if (block.use_count() != 1) return false;
  // The count alone orders nothing. To let go of a block is what other holders did last; to do so
  // ourselves, of a second hold, puts what they read before what we write.
  BlockPtr second = block;
  second.reset();
  return true;
}

BlockPool::BlockPool(std::shared_ptr<MemoryBudget> budget)
    : budget_(std::move(budget)), shelves_(std::make_shared<Shelves>()) {
  if (budget_ == nullptr) return;
  budget_->SetReclaim([shelves = std::weak_ptr<Shelves>(shelves_)] {
    if (const std::shared_ptr<Shelves> held = shelves.lock()) Free(held.get());
  });
}

void BlockPool::Free(Shelves* shelves) {
  const std::lock_guard<std::mutex> lock(shelves->mutex);
  for (auto& [room, shelf] : shelves->by_room) shelf.clear();
}

BlockPtr BlockPool::Take(size_t bytes) { return Take(bytes, bytes, SIZE_MAX, false); }

BlockPtr BlockPool::TakeWithinBudget(size_t bytes) { return Take(bytes, bytes, SIZE_MAX, true); }

BlockPtr BlockPool::AllocateAtLeast(size_t bytes) {
  return Take(bytes, RoomFor(bytes), kMostKept, true);
}

BlockPtr BlockPool::Take(size_t bytes, size_t room, size_t most_kept, bool within_budget) {
  std::unique_ptr<Block> block;
  {
    const std::lock_guard<std::mutex> lock(shelves_->mutex);
    auto& shelf = shelves_->by_room[room];
    if (!shelf.empty()) {
      block = std::move(shelf.back());
      shelf.pop_back();
    }
  }
  if (block == nullptr) block = std::make_unique<Block>(bytes, room, budget_, within_budget);
  block->Resize(bytes);
  return BlockPtr(block.release(), [shelves = shelves_, most_kept](Block* returned) {
    std::unique_ptr<Block> owned(returned);
    const std::lock_guard<std::mutex> lock(shelves->mutex);
    const auto shelf = shelves->by_room.find(owned->room());
    if (shelf == shelves->by_room.end() || shelf->second.size() >= most_kept) return;
    try {
      shelf->second.push_back(std::move(owned));
    } catch (const std::bad_alloc&) {  // then it is not kept
    }
  });
}

}  // namespace tfdist::ps
