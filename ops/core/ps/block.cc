#include "core/ps/block.h"

#include <new>
#include <utility>

#include "core/stream.h"

namespace tfdist::ps {
namespace {

constexpr std::align_val_t kAlignment{kCacheLine};

}  // namespace

Block::Block(size_t bytes)
    : data_(static_cast<char*>(::operator new(bytes, kAlignment))), bytes_(bytes) {}

Block::~Block() { ::operator delete(data_, kAlignment); }

bool HeldAlone(const BlockPtr& block) {
  if (block.use_count() != 1) return false;
  // The count alone orders nothing. To let go of a block is what other holders did last; to do so
  // ourselves, of a second hold, puts what they read before what we write.
  BlockPtr second = block;
  second.reset();
  return true;
}

BlockPtr BlockPool::Take(size_t bytes) {
  std::unique_ptr<Block> block;
  {
    const std::lock_guard<std::mutex> lock(shelves_->mutex);
    auto& shelf = shelves_->by_size[bytes];
    if (!shelf.empty()) {
      block = std::move(shelf.back());
      shelf.pop_back();
    }
  }
  if (block == nullptr) block = std::make_unique<Block>(bytes);
  return BlockPtr(block.release(), [shelves = shelves_](Block* returned) {
    std::unique_ptr<Block> owned(returned);
    const std::lock_guard<std::mutex> lock(shelves->mutex);
    auto& shelf = shelves->by_size[owned->bytes()];
    shelf.push_back(std::move(owned));
  });
}

}  // namespace tfdist::ps
