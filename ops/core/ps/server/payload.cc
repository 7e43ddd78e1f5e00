#include "core/ps/server/payload.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tfdist::ps {
namespace {

constexpr uint64_t kFirstBytes = 1 << 20;    // of a part whose size is only claimed
constexpr uint64_t kAheadBytes = 256 << 10;  // memory for this many bytes is taken at once
constexpr size_t kMaxRoomPieces = 64;

}  // namespace

void Payload::Expect(std::vector<PayloadPart> parts) {
  parts_ = std::move(parts);
  blocks_.clear();
  part_ = 0;
  filled_ = received_ = 0;
  Advance(0);
}

uint64_t Payload::Room(size_t part) const {
  return blocks_[part]->bytes() - (part == part_ ? filled_ : 0);
}

// A block for a part, or a larger one.
void Payload::MakeRoom(size_t part) {
  const uint64_t bytes = parts_[part].bytes;
  if (part == blocks_.size()) {
    blocks_.push_back(parts_[part].of_shard ? pool_->AllocateWithinBudget(bytes)
                                            : pool_->AllocateAtLeast(std::min(bytes, kFirstBytes)));
  } else if (Room(part) == 0 && filled_ < bytes) {
    const BlockPtr larger = pool_->AllocateAtLeast(std::min(bytes, 2 * filled_));
    std::memcpy(larger->data(), blocks_[part]->data(), filled_);
    blocks_[part] = larger;
  }
}

void Payload::NextRoom(uint64_t received, std::vector<iovec>* room) {
  Advance(received);
  uint64_t bytes = 0;
  for (size_t part = part_;
       part < parts_.size() && room->size() < kMaxRoomPieces && bytes < kAheadBytes; ++part) {
    MakeRoom(part);
    // The last block may be larger than the rest of the part.
    const uint64_t begin = blocks_[part]->bytes() - Room(part);
    const uint64_t size = std::min<uint64_t>(Room(part), parts_[part].bytes - begin);
    if (size > 0) room->push_back({blocks_[part]->data() + begin, size});
    bytes += size;
    if (begin + size < parts_[part].bytes) break;
  }
}

void Payload::Advance(uint64_t received) {
  filled_ += received - received_;
  received_ = received;
  while (part_ < parts_.size() && filled_ >= parts_[part_].bytes) {
    if (parts_[part_].bytes == 0) MakeRoom(part_);
    filled_ -= parts_[part_].bytes;
    ++part_;
  }
}

std::vector<BlockPtr> Payload::Take(uint64_t received) {
  Advance(received);
  parts_.clear();
  part_ = 0;
  return std::exchange(blocks_, {});
}

}  // namespace tfdist::ps
