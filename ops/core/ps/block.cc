#include "core/ps/block.h"

#include <cstdint>
#include <new>
#include <utility>

#include "core/stream.h"

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

Block::Block(size_t bytes, size_t room)
    : data_(static_cast<char*>(::operator new(room, kAlignment))), bytes_(bytes), room_(room) {}

Block::~Block() { ::operator delete(data_, kAlignment); }

bool HeldAlone(const BlockPtr& block) {
  if (block.use_count() != 1) return false;
  // The count alone orders nothing. To let go of a block is what other holders did last; to do so
  // ourselves, of a second hold, puts what they read before what we write.
  BlockPtr second = block;
  second.reset();
  return true;
}

BlockPtr BlockPool::Take(size_t bytes) { return Take(bytes, bytes, SIZE_MAX); }

BlockPtr BlockPool::TakeRoughly(size_t bytes) { return Take(bytes, RoomFor(bytes), kMostKept); }

BlockPtr BlockPool::Take(size_t bytes, size_t room, size_t most_kept) {
  std::unique_ptr<Block> block;
  {
    const std::lock_guard<std::mutex> lock(shelves_->mutex);
    auto& shelf = shelves_->by_room[room];
    if (!shelf.empty()) {
      block = std::move(shelf.back());
      shelf.pop_back();
    }
  }
  if (block == nullptr) block = std::make_unique<Block>(bytes, room);
  block->Resize(bytes);
  return BlockPtr(block.release(), [shelves = shelves_, most_kept](Block* returned) {
    std::unique_ptr<Block> owned(returned);
    const std::lock_guard<std::mutex> lock(shelves->mutex);
    auto& shelf = shelves->by_room[owned->room()];
    if (shelf.size() < most_kept) shelf.push_back(std::move(owned));
  });
}

}  // namespace tfdist::ps
