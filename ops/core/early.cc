#include "core/early.h"

#include <algorithm>
#include <utility>

namespace tfdist {
namespace {

// Bounds what peers may send ahead of us.
constexpr size_t kMaxBytes = size_t{256} << 20;

size_t Cost(const EarlyArrivals::Open& open) {
  return sizeof(open) + open.signature.name.size() + open.signature.shapes.size() +
         open.signature.blocks.size() * sizeof(uint64_t);
}

}  // namespace

Status EarlyArrivals::Charge(size_t bytes) {
  bytes_ += bytes;
  if (bytes_ <= kMaxBytes) return Status();
  return Status(StatusCode::kInternal,
                StrCat("sent ", bytes_,
                       " bytes of collectives that have not started, the limit is ", kMaxBytes));
}

Status EarlyArrivals::AddOpen(const CollectiveId& id, Open open) {
  if (Status s = Charge(Cost(open)); !s.ok()) return s;
  entries_[id].opens.push_back(std::move(open));
  return Status();
}

Status EarlyArrivals::AddChunk(const CollectiveId& id, int peer, const FrameHeader& header,
                               std::vector<iovec>* target) {
  if (header.length > kEagerBytes) {
    return Status(
        StatusCode::kInternal,
        StrCat("sent a chunk of ", header.length,
               " bytes of a collective that has not started, the limit is ", kEagerBytes));
  }
  if (Status s = Charge(header.length); !s.ok()) return s;
  std::list<Chunk>& chunks = entries_[id].chunks;
  chunks.push_back({peer, header, std::vector<char>(header.length)});
  target->push_back({chunks.back().bytes.data(), header.length});
  return Status();
}

bool EarlyArrivals::CompleteChunk(const CollectiveId& id, int peer) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  for (Chunk& chunk : entry->second.chunks) {
    // A peer's chunks arrive one after the other.
    if (chunk.peer == peer && !chunk.complete) return chunk.complete = true;
  }
  return false;
}

std::vector<CollectiveId> EarlyArrivals::Opened() const {
  std::vector<CollectiveId> ids;
  for (const auto& [id, entry] : entries_) {
    if (!entry.opens.empty()) ids.push_back(id);
  }
  return ids;
}

const EarlyArrivals::Open* EarlyArrivals::FirstOpen(const CollectiveId& id) const {
  const auto entry = entries_.find(id);
  return entry == entries_.end() || entry->second.opens.empty() ? nullptr
                                                                : &entry->second.opens.front();
}

bool EarlyArrivals::HasChunks(const CollectiveId& id, int peer) const {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  const std::list<Chunk>& chunks = entry->second.chunks;
  return std::any_of(chunks.begin(), chunks.end(),
                     [peer](const Chunk& chunk) { return chunk.peer == peer; });
}

std::vector<EarlyArrivals::Open> EarlyArrivals::TakeOpens(const CollectiveId& id) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return {};
  std::vector<Open> opens = std::exchange(entry->second.opens, {});
  for (const Open& open : opens) bytes_ -= Cost(open);
  DropIfEmpty(entry);
  return opens;
}

bool EarlyArrivals::TakeChunk(const CollectiveId& id, Chunk* chunk) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  std::list<Chunk>& chunks = entry->second.chunks;
  const auto next =
      std::find_if(chunks.begin(), chunks.end(), [](const Chunk& kept) { return kept.complete; });
  if (next == chunks.end()) return false;
  *chunk = std::move(*next);
  chunks.erase(next);
  bytes_ -= chunk->bytes.size();
  DropIfEmpty(entry);
  return true;
}

void EarlyArrivals::DropIfEmpty(std::map<CollectiveId, Entry>::iterator entry) {
  if (entry->second.opens.empty() && entry->second.chunks.empty()) entries_.erase(entry);
}

void EarlyArrivals::Clear() {
  entries_.clear();
  bytes_ = 0;
}

}  // namespace tfdist
