#include "core/collectives/unexpected_messages.h"

#include <algorithm>
#include <utility>

namespace tfdist {
namespace {

// The limit of all stored messages.
constexpr size_t kMaxBytes = size_t{256} << 20;

size_t Cost(const UnexpectedMessages::Open& open) {
  return sizeof(open) + open.signature.name.size() + open.signature.shapes.size() +
         open.signature.blocks.size() * sizeof(uint64_t);
}

}  // namespace

Status UnexpectedMessages::Charge(size_t bytes) {
  bytes_ += bytes;
  if (bytes_ <= kMaxBytes) return Status();
  return Status(StatusCode::kInternal,
                StrCat("sent ", bytes_,
                       " bytes of collectives that have not started, the limit is ", kMaxBytes));
}

Status UnexpectedMessages::AddOpen(const CollectiveId& id, Open open) {
  if (Status s = Charge(Cost(open)); !s.ok()) return s;
  entries_[id].opens.push_back(std::move(open));
  return Status();
}

Status UnexpectedMessages::AddChunk(const CollectiveId& id, int peer, const FrameHeader& header,
                                    std::vector<iovec>* target) {
  if (header.payload_bytes > kEagerBytes) {
    return Status(
        StatusCode::kInternal,
        StrCat("sent a chunk of ", header.payload_bytes,
               " bytes of a collective that has not started, the limit is ", kEagerBytes));
  }
  if (Status s = Charge(header.payload_bytes); !s.ok()) return s;
  std::list<Chunk>& chunks = entries_[id].chunks;
  chunks.push_back({peer, header, std::vector<char>(header.payload_bytes)});
  target->push_back({chunks.back().bytes.data(), header.payload_bytes});
  return Status();
}

bool UnexpectedMessages::CompleteChunk(const CollectiveId& id, int peer) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  for (Chunk& chunk : entry->second.chunks) {
    // The chunks of a peer arrive one after the other.
    if (chunk.peer == peer && !chunk.complete) return chunk.complete = true;
  }
  return false;
}

std::vector<CollectiveId> UnexpectedMessages::Opened() const {
  std::vector<CollectiveId> ids;
  for (const auto& [id, entry] : entries_) {
    if (!entry.opens.empty()) ids.push_back(id);
  }
  return ids;
}

const UnexpectedMessages::Open* UnexpectedMessages::FirstOpen(const CollectiveId& id) const {
  const auto entry = entries_.find(id);
  return entry == entries_.end() || entry->second.opens.empty() ? nullptr
                                                                : &entry->second.opens.front();
}

bool UnexpectedMessages::HasChunks(const CollectiveId& id, int peer) const {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  const std::list<Chunk>& chunks = entry->second.chunks;
  return std::any_of(chunks.begin(), chunks.end(),
                     [peer](const Chunk& chunk) { return chunk.peer == peer; });
}

std::vector<UnexpectedMessages::Open> UnexpectedMessages::TakeOpens(const CollectiveId& id) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return {};
  std::vector<Open> opens = std::exchange(entry->second.opens, {});
  for (const Open& open : opens) bytes_ -= Cost(open);
  DropIfEmpty(entry);
  return opens;
}

bool UnexpectedMessages::TakeChunk(const CollectiveId& id, Chunk* chunk) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  std::list<Chunk>& chunks = entry->second.chunks;
  const auto next = std::find_if(chunks.begin(), chunks.end(),
                                 [](const Chunk& stored) { return stored.complete; });
  if (next == chunks.end()) return false;
  *chunk = std::move(*next);
  chunks.erase(next);
  bytes_ -= chunk->bytes.size();
  DropIfEmpty(entry);
  return true;
}

void UnexpectedMessages::DropIfEmpty(std::map<CollectiveId, Entry>::iterator entry) {
  if (entry->second.opens.empty() && entry->second.chunks.empty()) entries_.erase(entry);
}

void UnexpectedMessages::Clear() {
  entries_.clear();
  bytes_ = 0;
}

}  // namespace tfdist
