#include "core/ps/server/payload.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tfdist::ps {
namespace {

constexpr uint64_t kFirstBytes = 1 << 20;    // of a part of claimed size
constexpr uint64_t kAheadBytes = 256 << 10;  // of parts that are started at once
constexpr size_t kPiecesOfPayload = 64;
constexpr size_t kScratchBytes = 64 << 10;

Status Outcome(ssize_t result, uint64_t* received) {
  *received = result > 0 ? static_cast<uint64_t>(result) : 0;
  if (result > 0) return Status();
  if (result == 0) return Status(StatusCode::kUnavailable, "the connection was closed");
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return Status();
  return Status(StatusCode::kUnavailable, std::strerror(errno));
}

}  // namespace

Status ReceiveSome(int socket, char* data, size_t size, uint64_t* received) {
  return Outcome(recv(socket, data, size, 0), received);
}

void Payload::Expect(std::vector<PayloadPart> parts) {
  parts_ = std::move(parts);
  blocks_.clear();
  part_ = 0;
  filled_ = 0;
  Advance(0);
}

void Payload::Discard(uint64_t bytes) {
  Expect({});
  discard_ = bytes;
}

void Payload::DiscardRest() {
  uint64_t left = 0;
  for (size_t part = part_; part < parts_.size(); ++part) left += parts_[part].bytes;
  left -= filled_;
  parts_.clear();
  blocks_.clear();
  part_ = 0;
  filled_ = 0;
  discard_ = left;
}

uint64_t Payload::Room(size_t part) const {
  return blocks_[part]->bytes() - (part == part_ ? filled_ : 0);
}

// Allocates a block for a part, or a larger one if its block is full.
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

Status Payload::Receive(int socket, uint64_t* received) {
  if (discard_ > 0) {
    std::array<char, kScratchBytes> scratch;
    const size_t size = std::min<uint64_t>(discard_, scratch.size());
    const Status status = ReceiveSome(socket, scratch.data(), size, received);
    discard_ -= *received;
    return status;
  }
  std::array<iovec, kPiecesOfPayload> pieces;
  const size_t count = NextRoom(pieces.data(), pieces.size());
  const Status status = Outcome(readv(socket, pieces.data(), static_cast<int>(count)), received);
  Advance(*received);
  return status;
}

Status Payload::Copy(RemoteRead* lent) {
  std::array<iovec, kPiecesOfPayload> pieces;
  while (!complete()) {
    const size_t count = NextRoom(pieces.data(), pieces.size());
    if (Status s = lent->Read(pieces.data(), count); !s.ok()) return s;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; ++i) bytes += pieces[i].iov_len;
    Advance(bytes);
  }
  return Status();
}

// Memory for the next bytes.
size_t Payload::NextRoom(iovec* pieces, size_t max_pieces) {
  size_t count = 0;
  uint64_t bytes = 0;
  for (size_t part = part_; part < parts_.size() && count < max_pieces && bytes < kAheadBytes;
       ++part) {
    MakeRoom(part);
    const uint64_t room = Room(part);
    pieces[count++] = {blocks_[part]->data() + blocks_[part]->bytes() - room, room};
    bytes += room;
    if (blocks_[part]->bytes() < parts_[part].bytes) break;
  }
  return count;
}

void Payload::Advance(uint64_t bytes) {
  filled_ += bytes;
  while (part_ < parts_.size() && filled_ >= parts_[part_].bytes) {
    if (parts_[part_].bytes == 0) MakeRoom(part_);
    filled_ -= parts_[part_].bytes;
    ++part_;
  }
}

std::vector<BlockPtr> Payload::Take() {
  parts_.clear();
  part_ = 0;
  return std::exchange(blocks_, {});
}

}  // namespace tfdist::ps
