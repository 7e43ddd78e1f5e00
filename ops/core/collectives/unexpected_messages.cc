#include "core/collectives/unexpected_messages.h"

#include <algorithm>
#include <utility>

namespace tfdist {
namespace {

// An allocation has a header, is rounded up, and is not smaller than this.
constexpr size_t kAllocation = 32;
// A node of a list or a map beside its value.
constexpr size_t kNode = 4 * sizeof(void*) + kAllocation;
// The answer to a chunk in exposed memory, until the peer takes it.
constexpr size_t kRelease = 512;

}  // namespace

// The vector of OPENs has up to twice the memory that they need.
size_t UnexpectedMessages::Cost(const Open& open) {
  return 2 * sizeof(open) + 3 * kAllocation + open.signature.name.size() +
         open.signature.shapes.size() + open.signature.blocks.size() * sizeof(uint64_t);
}

size_t UnexpectedMessages::Cost(const Chunk& chunk) {
  return kNode + sizeof(chunk) + kAllocation + chunk.bytes.size() +
         (chunk.header.exposed > 0 ? kRelease : 0);
}

Status UnexpectedMessages::Charge(int peer, size_t bytes) {
  bytes_ += bytes;
  if (bytes_ <= kMaxBytes) return Status();
  return Status(StatusCode::kInternal,
                StrCat("sent more messages than this rank keeps for collectives that have not "
                       "started: the messages of all ranks take ",
                       bytes_, " bytes, the limit is ", kMaxBytes, "; rank ", peer, "'s take ",
                       BytesOf(peer) + bytes));
}

size_t UnexpectedMessages::BytesOf(int peer) const {
  size_t bytes = 0;
  const auto add = [&bytes, peer](const auto& message) {
    if (message.peer == peer) bytes += Cost(message);
  };
  for (const auto& [id, entry] : entries_) {
    std::for_each(entry.opens.begin(), entry.opens.end(), add);
    std::for_each(entry.chunks.begin(), entry.chunks.end(), add);
  }
  return bytes;
}

UnexpectedMessages::Entry& UnexpectedMessages::EntryOf(const CollectiveId& id) {
  const auto [entry, is_new] = entries_.try_emplace(id);
  if (is_new) bytes_ += kEntry;
  return entry->second;
}

Status UnexpectedMessages::AddOpen(const CollectiveId& id, Open open) {
  if (Status s = Charge(open.peer, Cost(open)); !s.ok()) return s;
  EntryOf(id).opens.push_back(std::move(open));
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
  Chunk chunk{peer, header, std::vector<char>(header.payload_bytes)};
  if (Status s = Charge(peer, Cost(chunk)); !s.ok()) return s;
  std::list<Chunk>& chunks = EntryOf(id).chunks;
  chunks.push_back(std::move(chunk));
  target->push_back({chunks.back().bytes.data(), header.payload_bytes});
  return Status();
}

bool UnexpectedMessages::CompleteChunk(const CollectiveId& id, int peer) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return false;
  // The chunks of a peer arrive one after the other, so the last one is the one to complete.
  std::list<Chunk>& chunks = entry->second.chunks;
  const auto last = std::find_if(chunks.rbegin(), chunks.rend(),
                                 [peer](const Chunk& chunk) { return chunk.peer == peer; });
  return last != chunks.rend() && !std::exchange(last->complete, true);
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
  bytes_ -= Cost(*chunk);
  DropIfEmpty(entry);
  return true;
}

void UnexpectedMessages::DropIfEmpty(std::map<CollectiveId, Entry>::iterator entry) {
  if (!entry->second.opens.empty() || !entry->second.chunks.empty()) return;
  entries_.erase(entry);
  bytes_ -= kEntry;
}

void UnexpectedMessages::Clear() {
  entries_.clear();
  bytes_ = 0;
}

}  // namespace tfdist
