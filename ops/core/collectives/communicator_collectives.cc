// What the engine does with collectives: from their start, over the frames that belong to them, to
// their end.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/collectives/communicator.h"
#include "core/collectives/join.h"

namespace tfdist {

void Communicator::Begin(std::unique_ptr<Collective> owned) {
  if (failed_) {
    const Status failure = status();
    const std::string why = StrCat(owned->Title(), ": ", failure.message());
    ended_.push_back({std::move(owned), Status(failure.code(), why)});
    return;
  }
  if (history_.HasStarted(owned->id())) {
    const std::string why =
        StrCat(Who(), ": ", owned->Title(), " was started after this rank had joined");
    ended_.push_back({std::move(owned), Status(StatusCode::kFailedPrecondition, why)});
    return;
  }
  Collective* collective = owned.get();
  collective->awaits_opens = AwaitsOpens(collective->signature(), rank_);
  if (collective->id().key != kJoinKey) ++begun_;
  if (pending_.empty()) busy_since_ = collective->started;
  pending_.push_back(std::move(owned));
  history_.MarkStarted(collective->id());
  if (history_.TakeCancelled(collective->id())) return GiveUp(*collective);
  const std::string open = Encode(collective->signature());
  for (const int peer : collective->Peers()) {
    if (links_[peer] != nullptr) {
      links_[peer]->QueueControl(FrameType::kOpen, collective->id(), open);
    }
  }
  collective->Start(*this);
  ReplayEarly(collective);
  if (failed_) return;
  for (const int peer : collective->Peers()) {
    if (left_[peer] && Find(collective->id()) != nullptr) PeerLeft(peer);
    if (failed_) return;
  }
  if (Collective* still = Find(collective->id())) FinishIfComplete(still);
  if (join_ != nullptr && join_ == collective) StandInForEarly();
}

void Communicator::ReplayEarly(Collective* collective) {
  for (const UnexpectedMessages::Open& open : early_.TakeOpens(collective->id())) {
    if (const Status s = CheckOpen(collective, open.peer, open.signature); !s.ok()) {
      return Fail(s, s);
    }
  }
  // A chunk that is still on its way in is handled when it is complete. Other peers do not wait for
  // it: they know that this rank has started, and may send more than an early chunk can be.
  std::unique_ptr<char[]> scratch;
  UnexpectedMessages::Chunk chunk;
  while (early_.TakeChunk(collective->id(), &chunk)) {
    if (scratch == nullptr) scratch.reset(new char[kEagerBytes]);
    std::vector<iovec> target;
    const Status s = collective->Place(chunk.peer, chunk.header, scratch.get(), &target);
    if (!s.ok()) return PeerLost(chunk.peer, s.message());
    const char* from = chunk.bytes.data();
    for (const iovec& piece : target) {
      std::memcpy(piece.iov_base, from, piece.iov_len);
      from += piece.iov_len;
    }
    collective->Received(*this, chunk.peer, chunk.header, scratch.get());
  }
}

// Takes note that `peer` has started this collective too, if it is the same one.
Status Communicator::CheckOpen(Collective* collective, int peer, const Signature& theirs) {
  if (const Status s = Compare(collective->signature(), peer, theirs); !s.ok()) return s;
  collective->opened_by.push_back(peer);
  collective->PeerOpened(*this, peer);
  return Status();
}

Status Communicator::Compare(const Signature& ours, int peer, const Signature& theirs) const {
  if (ours.Matches(theirs) && BlocksAgree(ours, rank_, theirs, peer)) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat(Who(), ": the ranks disagree on a collective: expected ", Describe(ours),
                       ", received ", Describe(theirs), " from rank ", peer));
}

void Communicator::GiveUp(const Collective& collective) {
  const std::string why =
      StrCat(Who(), ": cancelled ", collective.Title(), ", because its step failed or was stopped");
  Fail(Status(StatusCode::kCancelled, why), Status(StatusCode::kUnavailable, why));
}

void Communicator::FinishIfComplete(Collective* collective) {
  if (collective->Complete() && collective->unsent_chunks == 0) Finish(collective, Status());
}

void Communicator::Finish(Collective* collective, const Status& status) {
  const auto found =
      std::find_if(pending_.begin(), pending_.end(),
                   [collective](const auto& owned) { return owned.get() == collective; });
  std::unique_ptr<Collective> owned = std::move(*found);
  pending_.erase(found);
  if (status.ok()) {
    finished_.fetch_add(1, std::memory_order_relaxed);
    history_.MarkEnded(owned->id(), owned->signature());
  }
  if (pending_.empty()) {
    const auto busy =
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - busy_since_);
    busy_nanoseconds_.fetch_add(static_cast<uint64_t>(busy.count()), std::memory_order_relaxed);
  }
  if (owned.get() == join_) {
    join_ = nullptr;
    if (status.ok()) ++joins_;
  }
  ended_.push_back({std::move(owned), status});
  // A join ends when nothing else is pending.
  if (join_ != nullptr && status.ok()) FinishIfComplete(join_);
}

void Communicator::CheckDeadlines() {
  const TimePoint now = Clock::now();
  if (inquiry_) {
    if (now >= inquiry_->ends()) CloseInquiry();
    return;
  }
  for (const auto& collective : pending_) {
    if (std::min(collective->deadline, collective->next_check) <= now) {
      return OpenInquiry(*collective);
    }
  }
}

void Communicator::OpenInquiry(const Collective& collective) {
  std::vector<int> asked;
  for (int peer = 0; peer < size_; ++peer) {
    if (links_[peer] == nullptr) continue;
    links_[peer]->QueueControl(FrameType::kQuery, collective.id(), "");
    asked.push_back(peer);
  }
  inquiry_.emplace(collective.id(), size_, std::move(asked));
}

void Communicator::CloseInquiry() {
  const StallCheck inquiry = std::move(*inquiry_);
  inquiry_.reset();
  Collective* collective = Find(inquiry.id());
  if (collective == nullptr) return;  // it came to its end while we asked
  const double timeout = collective->timeout_seconds();
  const auto name = [this](int peer) { return PeerName(peer); };
  const std::string what =
      StrCat(Who(), ": ", collective->Title(), " ", collective->signature().shapes);
  if (collective->deadline <= Clock::now()) {
    const Status status(StatusCode::kDeadlineExceeded,
                        StrCat(what, " waited ", timeout, " s for ",
                               inquiry.FindStraggler(collective->Awaited(), name)));
    return Fail(status, status);
  }
  const double interval = CheckSeconds(timeout);
  const std::string opposite = inquiry.FindMismatch(
      interval, [this](const CollectiveId& id) { return history_.HasStarted(id); }, name);
  if (!opposite.empty()) {
    const Status status(StatusCode::kInvalidArgument,
                        StrCat("the ranks wait for each other in different collectives: ", what,
                               ", while ", opposite));
    return Fail(status, status);
  }
  collective->next_check = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(interval));
}

Status Communicator::OnControl(int peer, const FrameHeader& header, std::string_view payload) {
  const CollectiveId id{header.key, header.sequence};
  switch (header.type) {
    case FrameType::kOpen: {
      Signature theirs;
      if (Status s = Decode(payload, &theirs); !s.ok()) return s;
      if (Collective* collective = Find(id)) {
        if (const Status s = CheckOpen(collective, peer, theirs); !s.ok()) {
          Fail(s, s);
          return Status();
        }
        FinishIfComplete(collective);
      } else if (!history_.HasStarted(id)) {
        if (const Status s = early_.AddOpen(id, {peer, std::move(theirs)}); !s.ok()) return s;
        StandIn(id);
      } else if (const Signature* ours = history_.Ended(id)) {
        // It ended here without this peer, as a gather does on other ranks than its root. It must
        // have been the same all the same.
        if (const Status s = Compare(*ours, peer, theirs); !s.ok()) Fail(s, s);
      }
      return Status();
    }
    case FrameType::kQuery: {
      Reply reply;
      reply.started = history_.HasStarted(id);
      if (!pending_.empty()) {
        const Collective& oldest = *pending_.front();
        reply.doing = oldest.Title();
        reply.key = oldest.id().key;
        reply.sequence = oldest.id().sequence;
        reply.waited_seconds = std::chrono::duration<double>(Clock::now() - oldest.started).count();
      }
      links_[peer]->QueueControl(FrameType::kReply, id, Encode(reply));
      return Status();
    }
    case FrameType::kReply: {
      Reply reply;
      if (Status s = Decode(payload, &reply); !s.ok()) return s;
      if (!inquiry_ || !(inquiry_->id() == id)) return Status();
      inquiry_->Answer(peer, std::move(reply));
      if (inquiry_->Complete()) CloseInquiry();
      return Status();
    }
    case FrameType::kAbort: {
      struct Abort abort;
      if (Status s = Decode(payload, &abort); !s.ok()) return s;
      Fail(Status(abort.code, StrCat(Who(), ": ended by ", PeerName(peer), ": ", abort.message)),
           Status());
      return Status();
    }
    case FrameType::kGoodbye:
      PeerLeft(peer);
      return Status();
    case FrameType::kHello:
    case FrameType::kWelcome:
    case FrameType::kChallenge:
    case FrameType::kProof:
    case FrameType::kData:
    case FrameType::kShared:
    case FrameType::kLend:
    case FrameType::kReturn:
      break;
  }
  return Status(StatusCode::kInternal,
                StrCat("unexpected frame of type ", static_cast<int>(header.type)));
}

Status Communicator::OnDataBegin(int peer, const FrameHeader& header, char* scratch,
                                 std::vector<iovec>* target) {
  bytes_received_.fetch_add(header.length, std::memory_order_relaxed);
  const CollectiveId id{header.key, header.sequence};
  Collective* collective = Find(id);
  if (collective != nullptr && !early_.HasChunks(id, peer)) {
    return collective->Place(peer, header, scratch, target);
  }
  if (collective == nullptr && history_.HasStarted(id)) {
    return Status(StatusCode::kInternal, "a chunk of a collective that has ended");
  }
  return early_.AddChunk(id, peer, header, target);
}

Status Communicator::OnDataEnd(int peer, const FrameHeader& header, const char* scratch) {
  const CollectiveId id{header.key, header.sequence};
  Collective* collective = Find(id);
  if (early_.CompleteChunk(id, peer)) {
    if (collective != nullptr) ReplayEarly(collective);
  } else if (collective != nullptr) {
    collective->Received(*this, peer, header, scratch);
    FlushLinks();
  }
  if (Collective* still = Find(id)) FinishIfComplete(still);
  return Status();
}

void Communicator::OnChunkSent(Collective* collective, size_t bytes) {
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  --collective->unsent_chunks;
  FinishIfComplete(collective);
}

void Communicator::SendChunk(Collective* collective, int peer, uint16_t step, uint64_t offset,
                             std::vector<iovec> pieces) {
  FrameHeader header;
  header.type = FrameType::kData;
  header.step = step;
  header.key = collective->id().key;
  header.sequence = collective->id().sequence;
  header.offset = offset;
  for (const iovec& piece : pieces) header.length += static_cast<uint32_t>(piece.iov_len);
  if (links_[peer] == nullptr) {
    collective->cut_off_by = peer;
    return;
  }
  chunks_sent_.fetch_add(1, std::memory_order_relaxed);
  if (hosts_[peer] != hosts_[rank_]) {
    far_bytes_sent_.fetch_add(header.length, std::memory_order_relaxed);
  }
  ++collective->unsent_chunks;
  links_[peer]->QueueChunk(collective, header, std::move(pieces));
}

Collective* Communicator::Find(const CollectiveId& id) {
  for (const auto& collective : pending_) {
    if (collective->id() == id) return collective.get();
  }
  return nullptr;
}

}  // namespace tfdist
