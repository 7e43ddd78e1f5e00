#include "core/broadcast.h"

#include <algorithm>
#include <utility>

namespace tfdist {

Broadcast::Broadcast(CollectiveOptions options, int rank, int size, int root, FlatView buffer)
    : Collective(std::move(options)), buffer_(std::move(buffer)) {
  const int relative = (rank - root + size) % size;
  const bool eager = buffer_.bytes() <= kEagerBytes;
  received_ = relative == 0 ? buffer_.bytes() : 0;
  int lowest = 1;
  while (lowest < size && (relative & lowest) == 0) lowest <<= 1;
  if (relative != 0) parent_ = (relative - lowest + root) % size;
  // The farthest subtree is the deepest: feed it first.
  for (int bit = lowest >> 1; bit > 0; bit >>= 1) {
    if (relative + bit < size) children_.push_back({(relative + bit + root) % size, eager, 0});
  }
}

std::vector<int> Broadcast::Peers() const {
  std::vector<int> peers;
  if (parent_ >= 0) peers.push_back(parent_);
  for (const Child& child : children_) peers.push_back(child.rank);
  return peers;
}

void Broadcast::Start(ChunkSender& sender) {
  for (Child& child : children_) Feed(sender, &child);
}

void Broadcast::PeerOpened(ChunkSender& sender, int peer) {
  for (Child& child : children_) {
    if (child.rank != peer) continue;
    child.may_send = true;
    Feed(sender, &child);
  }
}

void Broadcast::Feed(ChunkSender& sender, Child* child) {
  while (child->may_send && child->sent < received_) {
    const size_t end = std::min(child->sent + kChunkBytes, received_);
    std::vector<iovec> pieces;
    buffer_.Slice(child->sent, end, &pieces);
    sender.SendChunk(this, child->rank, 0, child->sent, std::move(pieces));
    child->sent = end;
  }
}

Status Broadcast::Place(int peer, const FrameHeader& chunk, char*, std::vector<iovec>* target) {
  if (peer != parent_ || chunk.offset != received_ ||
      chunk.length != std::min(kChunkBytes, buffer_.bytes() - received_)) {
    return Status(StatusCode::kInternal,
                  StrCat(Title(), ": expected offset ", received_, " of ", buffer_.bytes(),
                         " bytes from rank ", parent_, ", received offset ", chunk.offset,
                         " length ", chunk.length, " from rank ", peer));
  }
  buffer_.Slice(chunk.offset, chunk.offset + chunk.length, target);
  return Status();
}

void Broadcast::Received(ChunkSender& sender, int, const FrameHeader& chunk, const char*) {
  received_ += chunk.length;
  for (Child& child : children_) Feed(sender, &child);
}

bool Broadcast::Settled() const {
  return received_ == buffer_.bytes() &&
         std::all_of(children_.begin(), children_.end(),
                     [this](const Child& child) { return child.sent == buffer_.bytes(); });
}

int Broadcast::WaitingFor() const {
  if (received_ < buffer_.bytes()) return parent_;
  for (const Child& child : children_) {
    if (child.sent < buffer_.bytes()) return child.rank;
  }
  return -1;
}

}  // namespace tfdist
