#include "core/collectives/collective_table.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/collectives/join.h"
#include "core/trace/event_ring.h"

namespace tfdist {
namespace {

double SecondsSince(TimePoint start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// How long a collective with this timeout waits between checks of whether the ranks wait in
// different ones.
double CheckSeconds(double timeout_seconds) {
  constexpr double kWithoutTimeout = 60;
  return timeout_seconds > 0 ? timeout_seconds / 10 : kWithoutTimeout;
}

// Limits of the collectives for which a joined rank stands in, at once and in all:
// each takes memory here for a few bytes from any peer.
constexpr size_t kMaxStandIns = 1 << 12;
constexpr size_t kMaxKeysOfOthers = 1 << 18;

// The flight recorder's description of a collective.
Event EventOf(const Collective& collective, const Group& group) {
  const Signature& signature = collective.signature();
  const DType dtype = static_cast<DType>(signature.dtype);
  Event event;
  event.kind = EventKind::kCollective;
  event.communicator = group.id;
  event.key = collective.id().key;
  event.number = collective.id().sequence;
  event.signature = signature.shape_hash;
  event.elements = signature.elements;
  event.rank = group.rank;
  event.size = group.size;
  if (HasRoot(static_cast<CollectiveKind>(signature.kind))) {
    event.peer = static_cast<int32_t>(signature.root);
  }
  SetText(event.operation, KindName(signature.kind));
  if (static_cast<CollectiveKind>(signature.kind) != CollectiveKind::kJoin) {
    event.bytes = std::accumulate(signature.blocks.begin(), signature.blocks.end(),
                                  signature.elements * ByteSize(dtype));
    SetText(event.dtype, Name(dtype));
  }
  SetText(event.name, signature.name);
  SetText(event.detail, signature.shapes);
  return event;
}

}  // namespace

CollectiveTable::CollectiveTable(const Group* group, Connections* connections,
                                 uint64_t stand_in_limit)
    : group_(group),
      connections_(connections),
      stand_in_memory_(stand_in_limit),
      left_(group->size, false),
      waits_(group->size),
      wait_causes_(group->size),
      sent_to_(group->size),
      received_from_(group->size) {}

uint64_t CollectiveTable::NextSequence(uint64_t key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sequences_[key]++;
}

Status CollectiveTable::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void CollectiveTable::AddTo(CommunicatorStats* stats) const {
  stats->collectives = finished_.load(std::memory_order_relaxed);
  stats->bytes_sent = bytes_sent_.load(std::memory_order_relaxed);
  stats->bytes_received = 0;
  for (int peer = 0; peer < group_->size; ++peer) stats->bytes_received += BytesReceivedFrom(peer);
  stats->busy_nanoseconds = busy_.nanoseconds();
  stats->chunks_sent = chunks_sent_.load(std::memory_order_relaxed);
  stats->chunks_resent = resent_.load(std::memory_order_relaxed);
  stats->bytes_sent_to_other_hosts = far_bytes_sent_.load(std::memory_order_relaxed);
}

void CollectiveTable::Submit(Collective* collective) const {
  collective->started = Clock::now();
  collective->event = ProcessEvents().Submit(EventOf(*collective, *group_), collective->started);
  const double timeout = collective->timeout_seconds();
  if (timeout > 0) collective->deadline = collective->started + DurationOf(timeout);
  collective->next_check = collective->started + DurationOf(CheckSeconds(timeout));
}

// The life of a collective.

void CollectiveTable::Begin(std::unique_ptr<Collective> owned) {
  if (failed_) {
    const Status failed = failure();
    const std::string why = StrCat(owned->Title(), ": ", failed.message());
    ended_.push_back({std::move(owned), Status(failed.code(), why)});
    return;
  }
  if (history_.HasStarted(owned->id())) {
    const std::string why =
        StrCat(group_->Self(), ": ", owned->Title(), " was started after this rank had joined");
    ended_.push_back({std::move(owned), Status(StatusCode::kFailedPrecondition, why)});
    return;
  }
  Collective* collective = owned.get();
  const CollectiveId id = collective->id();
  collective->awaits_opens = AwaitsOpens(collective->signature(), group_->rank);
  if (id.key != kJoinKey) ++begun_;
  busy_.Begin(collective->started);
  pending_.push_back(std::move(owned));
  history_.MarkStarted(id);
  if (history_.TakeCancelled(id)) return GiveUp(*collective);
  const std::string open = Encode(collective->signature());
  for (const int peer : collective->Peers()) SendControl(peer, CollectiveFrame::kOpen, id, open);
  collective->Start(*this);
  Replay(collective);
  if (failed_) return;
  if (Find(id) != nullptr) NoteWaits(collective);
  for (const int peer : collective->Peers()) {
    if (left_[peer] && Find(id) != nullptr) OnGoodbye(peer);
    if (failed_) return;
  }
  if (Collective* still = Find(id)) FinishIfComplete(still);
  if (join_ != nullptr && join_ == collective) StandInForUnexpected();
}

// Begins to measure how long peers let this rank wait for their start.
void CollectiveTable::NoteWaits(Collective* collective) {
  for (const int peer : collective->Peers()) {
    const auto& opened = collective->opened_by;
    if (std::find(opened.begin(), opened.end(), peer) != opened.end()) continue;
    waits_[peer].Begin(collective->started);
    collective->waits_for.push_back(peer);
  }
}

// Ends that for one peer.
void CollectiveTable::NoteOpened(Collective* collective, int peer) {
  const auto found = std::find(collective->waits_for.begin(), collective->waits_for.end(), peer);
  if (found == collective->waits_for.end()) return;
  EndWait(*collective, peer, Clock::now());
  collective->waits_for.erase(found);
}

void CollectiveTable::EndWait(const Collective& collective, int peer, TimePoint at) {
  waits_[peer].End(at);
  const Clock::duration waited = at - collective.started;
  if (waited >= WaitCauses::kShortest) wait_causes_[peer].Note(collective.Title(), waited);
}

void CollectiveTable::EndAlone(std::unique_ptr<Collective> collective) {
  finished_.fetch_add(1, std::memory_order_relaxed);
  collective->Finish(Status());
}

// Handles messages that peers have sent before the start.
void CollectiveTable::Replay(Collective* collective) {
  for (const UnexpectedMessages::Open& open : unexpected_.TakeOpens(collective->id())) {
    if (const Status s = CheckOpen(collective, open.peer, open.signature); !s.ok()) {
      return Fail(s, s);
    }
  }
  // A chunk that is still on its way in is handled when it is complete. Other peers do not wait for
  // it: they know that this rank has started, and may send more than an early chunk can be.
  std::unique_ptr<char[]> scratch;
  UnexpectedMessages::Chunk chunk;
  while (unexpected_.TakeChunk(collective->id(), &chunk)) {
    if (scratch == nullptr) scratch.reset(new char[kEagerBytes]);
    std::vector<iovec> target;
    const Status s = collective->Place(chunk.peer, chunk.header, scratch.get(), &target);
    if (!s.ok()) return connections_->Break(chunk.peer, s.message());
    const char* from = chunk.bytes.data();
    for (const iovec& piece : target) {
      std::memcpy(piece.iov_base, from, piece.iov_len);
      from += piece.iov_len;
    }
    collective->Received(*this, chunk.peer, chunk.header, scratch.get());
  }
}

// Notes that `peer` has started this collective too, if it is the same one.
Status CollectiveTable::CheckOpen(Collective* collective, int peer, const Signature& theirs) {
  if (const Status s = Compare(collective->signature(), peer, theirs); !s.ok()) return s;
  std::vector<int>& opened = collective->opened_by;
  if (std::find(opened.begin(), opened.end(), peer) != opened.end()) return Status();
  opened.push_back(peer);
  NoteOpened(collective, peer);
  collective->PeerOpened(*this, peer);
  return Status();
}

Status CollectiveTable::Compare(const Signature& ours, int peer, const Signature& theirs) const {
  if (ours.Matches(theirs) && BlocksAgree(ours, group_->rank, theirs, peer)) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat(group_->Self(), ": the ranks disagree on a collective: expected ",
                       Describe(ours), ", received ", Describe(theirs), " from rank ", peer));
}

void CollectiveTable::Cancel(const CollectiveId& id) {
  if (const Collective* collective = Find(id)) {
    GiveUp(*collective);
  } else if (join_ != nullptr && id == join_named_) {
    GiveUp(*join_);
  } else if (!failed_ && !history_.HasStarted(id)) {
    history_.MarkCancelled(id);  // its start is still to come
  }
}

void CollectiveTable::GiveUp(const Collective& collective) {
  const std::string why = StrCat(group_->Self(), ": cancelled ", collective.Title(),
                                 ", because its step failed or was stopped");
  Fail(Status(StatusCode::kCancelled, why), Status(StatusCode::kUnavailable, why));
}

void CollectiveTable::FinishIfComplete(Collective* collective) {
  if (collective->Complete() && collective->unsent_chunks == 0) Finish(collective, Status());
}

void CollectiveTable::Finish(Collective* collective, const Status& status) {
  const auto found =
      std::find_if(pending_.begin(), pending_.end(),
                   [collective](const auto& owned) { return owned.get() == collective; });
  std::unique_ptr<Collective> owned = std::move(*found);
  pending_.erase(found);
  const TimePoint now = Clock::now();
  owned->RecordEnd(status, now);
  busy_.End(now);
  // Ends the waits for peers whose data was not needed, as in the root of a broadcast.
  for (const int peer : owned->waits_for) EndWait(*owned, peer, now);
  owned->waits_for.clear();
  if (status.ok()) {
    finished_.fetch_add(1, std::memory_order_relaxed);
    history_.MarkEnded(owned->id(), owned->TakeSignature());
  }
  if (owned.get() == join_) {
    join_ = nullptr;
    if (status.ok()) ++joins_;
  }
  ended_.push_back({std::move(owned), status});
  // A join ends when nothing else is pending.
  if (join_ != nullptr && status.ok()) FinishIfComplete(join_);
}

std::vector<CollectiveTable::Ended> CollectiveTable::TakeEnded() {
  return std::exchange(ended_, {});
}

void CollectiveTable::Fail(const Status& status, const Status& tell_peers, bool closes) {
  if (failed_) return;
  failed_ = true;
  stall_check_.reset();
  unexpected_.Clear();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool cancelled = status.code() == StatusCode::kCancelled;
    failure_ = Status(cancelled ? StatusCode::kUnavailable : status.code(), status.message());
  }
  connections_->AbortStreams(tell_peers);
  while (!pending_.empty()) Finish(pending_.front().get(), status);
  // A step that was stopped is no failure of a collective.
  if (!closes && status.code() != StatusCode::kCancelled) NoteFailure(status);
}

Collective* CollectiveTable::Find(const CollectiveId& id) {
  for (const auto& collective : pending_) {
    if (collective->id() == id) return collective.get();
  }
  return nullptr;
}

// Joins, and stand-ins for collectives that peers start meanwhile; see join.h.

std::unique_ptr<Collective> CollectiveTable::MakeJoin(CollectiveOptions options, int* last_rank) {
  {
    // A rank that joins later has numbered more collectives by then: this is none of them.
    const std::lock_guard<std::mutex> lock(mutex_);
    uint64_t& next = sequences_[options.id.key];
    if (next == options.id.sequence + 1) --next;
  }
  const CollectiveId named = options.id;
  options.id = {kJoinKey, joins_};
  options.signature.joins = joins_;
  const auto begin = [this, named] {
    join_ = Find({kJoinKey, joins_});
    join_named_ = named;
    return begun_;
  };
  const auto caught_up = [this](uint64_t count) { return begun_ >= count && pending_.size() == 1; };
  return Join::Make(std::move(options), group_->rank, group_->size, begin, caught_up, last_rank);
}

// The rest of the start of a join: stands in for collectives that peers opened before.
void CollectiveTable::StandInForUnexpected() {
  if (history_.TakeCancelled(join_named_)) return GiveUp(*join_);
  for (const CollectiveId& id : unexpected_.Opened()) StandIn(id);
}

// Begins a collective that peers have opened and this rank, having joined, has not started.
void CollectiveTable::StandIn(const CollectiveId& id) {
  const UnexpectedMessages::Open* const open = unexpected_.FirstOpen(id);
  if (join_ == nullptr || open == nullptr || open->signature.joins != joins_) return;
  const Signature signature = open->signature;
  std::string why = StandInRefused(signature, group_->rank, group_->size);
  std::unique_ptr<Collective> collective;
  if (why.empty() && pending_.size() > kMaxStandIns) {
    why = StrCat("stands in for ", kMaxStandIns, " others already");
  }
  if (why.empty() && !NoteKeyOfOthers(id)) {
    why = StrCat("has stood in for ", kMaxKeysOfOthers, " different collectives");
  }
  if (why.empty())
    collective = MakeStandIn(id, signature, group_->rank, group_->hosts, &stand_in_memory_);
  if (why.empty() && collective == nullptr) why = "has no memory for it";
  if (!why.empty()) {
    const Status status(StatusCode::kInvalidArgument,
                        StrCat(group_->Self(), ": ", Describe(signature), " was started by rank ",
                               open->peer, ", but rank ", group_->rank, " has joined and ", why));
    return Fail(status, status);
  }
  collective->started = Clock::now();
  Begin(std::move(collective));
}

// Counts an execution that this rank has not started itself. False if there are too many keys.
bool CollectiveTable::NoteKeyOfOthers(const CollectiveId& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [sequence, is_new] = sequences_.try_emplace(id.key, 0);
  sequence->second = std::max(sequence->second, id.sequence + 1);
  return !is_new || ++keys_of_others_ <= kMaxKeysOfOthers;
}

// What arrives.

Status CollectiveTable::OnFrame(int peer, const FrameHeader& header, std::string_view meta) {
  const CollectiveId id{header.key, header.sequence};
  switch (static_cast<CollectiveFrame>(header.type)) {
    case CollectiveFrame::kOpen:
      return OnOpen(peer, id, meta);
    case CollectiveFrame::kData:
      if (header.payload_bytes > 0 && meta.empty()) return Status();
      return Status(StatusCode::kInvalidArgument, "an empty DATA frame");
    case CollectiveFrame::kQuery:
      return OnQuery(peer, id);
    case CollectiveFrame::kReply:
      return OnReply(peer, id, meta);
    case CollectiveFrame::kAbort:
      return OnAbort(peer, meta);
    case CollectiveFrame::kGoodbye:
      OnGoodbye(peer);
      return Status();
  }
  return Status(StatusCode::kInternal, StrCat("unexpected frame of type ", int{header.type}));
}

Status CollectiveTable::OnOpen(int peer, const CollectiveId& id, std::string_view meta) {
  Signature theirs;
  if (Status s = Decode(meta, &theirs); !s.ok()) return s;
  if (Collective* collective = Find(id)) {
    if (const Status s = CheckOpen(collective, peer, theirs); !s.ok()) {
      Fail(s, s);
    } else {
      FinishIfComplete(collective);
    }
  } else if (!history_.HasStarted(id)) {
    if (const Status s = unexpected_.AddOpen(id, {peer, std::move(theirs)}); !s.ok()) return s;
    StandIn(id);
  } else if (const Signature* ours = history_.Ended(id)) {
    // It ended here without this peer, as a gather does on other ranks than its root. It must have
    // been the same nevertheless.
    if (const Status s = Compare(*ours, peer, theirs); !s.ok()) Fail(s, s);
  }
  return Status();
}

Status CollectiveTable::OnQuery(int peer, const CollectiveId& id) {
  Reply reply;
  reply.started = history_.HasStarted(id);
  if (!pending_.empty()) {
    const Collective& oldest = *pending_.front();
    reply.doing = oldest.Title();
    reply.key = oldest.id().key;
    reply.sequence = oldest.id().sequence;
    reply.waited_seconds = SecondsSince(oldest.started);
  }
  SendControl(peer, CollectiveFrame::kReply, id, Encode(reply));
  return Status();
}

Status CollectiveTable::OnReply(int peer, const CollectiveId& id, std::string_view meta) {
  Reply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  if (!stall_check_ || !(stall_check_->id() == id)) return Status();
  stall_check_->Answer(peer, std::move(reply));
  if (stall_check_->Complete()) CloseStallCheck();
  return Status();
}

Status CollectiveTable::OnAbort(int peer, std::string_view meta) {
  Abort abort;
  if (Status s = Decode(meta, &abort); !s.ok()) return s;
  Fail(Status(abort.code,
              StrCat(group_->Self(), ": ended by ", group_->Name(peer), ": ", abort.message)),
       Status());
  return Status();
}

// `peer` starts nothing further: it will never open a collective that it has not opened by now.
void CollectiveTable::OnGoodbye(int peer) {
  left_[peer] = true;
  for (const auto& collective : pending_) {
    const std::vector<int>& peers = collective->Peers();
    const auto& opened = collective->opened_by;
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) continue;
    if (std::find(opened.begin(), opened.end(), peer) != opened.end()) continue;
    if (collective->Complete()) continue;
    const Status status(StatusCode::kUnavailable,
                        StrCat(group_->Self(), ": ", collective->Title(), " needs ",
                               group_->Name(peer), ", which has finished its program"));
    return Fail(status, status);
  }
}

Status CollectiveTable::PlaceChunk(int peer, const FrameHeader& header, char* scratch,
                                   std::vector<iovec>* target) {
  received_from_[peer].fetch_add(header.payload_bytes, std::memory_order_relaxed);
  const CollectiveId id{header.key, header.sequence};
  Collective* collective = Find(id);
  if (collective != nullptr) collective->RecordStart();
  if (collective != nullptr && !unexpected_.HasChunks(id, peer)) {
    return collective->Place(peer, header, scratch, target);
  }
  if (collective == nullptr && history_.HasStarted(id)) {
    return Status(StatusCode::kInternal, "a chunk of a collective that has ended");
  }
  return unexpected_.AddChunk(id, peer, header, target);
}

Status CollectiveTable::OnChunk(int peer, const FrameHeader& header, const char* scratch) {
  const CollectiveId id{header.key, header.sequence};
  Collective* collective = Find(id);
  if (unexpected_.CompleteChunk(id, peer)) {
    if (collective != nullptr) Replay(collective);
  } else if (collective != nullptr) {
    collective->Received(*this, peer, header, scratch);
    connections_->Flush();
  }
  if (Collective* still = Find(id)) FinishIfComplete(still);
  return Status();
}

void CollectiveTable::OnChunkSent(Collective* collective, uint64_t bytes) {
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  --collective->unsent_chunks;
  FinishIfComplete(collective);
}

void CollectiveTable::SendControl(int peer, CollectiveFrame type, const CollectiveId& id,
                                  std::string meta) {
  if (!connections_->IsConnected(peer)) return;
  FrameHeader header;
  header.type = static_cast<uint8_t>(type);
  header.key = id.key;
  header.sequence = id.sequence;
  connections_->Send(peer, header, std::move(meta), {}, nullptr);
}

void CollectiveTable::SendChunk(Collective* collective, int peer, uint16_t step, uint64_t offset,
                                std::vector<iovec> pieces) {
  if (!connections_->IsConnected(peer)) {
    collective->cut_off_by = peer;
    return;
  }
  FrameHeader header;
  header.type = static_cast<uint8_t>(CollectiveFrame::kData);
  header.step = step;
  header.key = collective->id().key;
  header.sequence = collective->id().sequence;
  header.offset = offset;
  collective->RecordStart();
  chunks_sent_.fetch_add(1, std::memory_order_relaxed);
  uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  sent_to_[peer].fetch_add(bytes, std::memory_order_relaxed);
  if (group_->hosts[peer] != group_->hosts[group_->rank]) {
    far_bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  }
  ++collective->unsent_chunks;
  connections_->Send(peer, header, "", std::move(pieces), collective);
}

void CollectiveTable::PeerLost(int peer, bool owed, const std::string& how) {
  if (left_[peer] && !owed) {
    gone_ = true;
    return;
  }
  left_[peer] = true;
  const std::string doing = pending_.empty() ? "" : StrCat(" during ", pending_.front()->Title());
  const Status status(StatusCode::kUnavailable,
                      StrCat(group_->Self(), ": lost ", group_->Name(peer), doing, " (", how, ")"));
  Fail(status, status);
}

// A peer that has left and closed its connection has all it needs, and all that it owed is here,
// unless it left in the middle of a collective.
void CollectiveTable::CheckGone() {
  if (!gone_) return;
  for (const auto& collective : pending_) {
    int peer = collective->cut_off_by;
    if (peer < 0 && !collective->Complete()) peer = collective->Awaited();
    if (peer < 0 || connections_->IsConnected(peer)) continue;
    const Status status(StatusCode::kUnavailable,
                        StrCat(group_->Self(), ": ", group_->Name(peer),
                               " has finished its program in the middle of ", collective->Title()));
    return Fail(status, status);
  }
}

// Time.

TimePoint CollectiveTable::NextDue() const {
  if (stall_check_) return stall_check_->ends();
  TimePoint next = TimePoint::max();
  for (const auto& collective : pending_) {
    next = std::min({next, collective->deadline, collective->next_check});
  }
  return next;
}

void CollectiveTable::CheckDeadlines() {
  const TimePoint now = Clock::now();
  if (stall_check_) {
    if (now >= stall_check_->ends()) CloseStallCheck();
    return;
  }
  for (const auto& collective : pending_) {
    if (std::min(collective->deadline, collective->next_check) <= now) {
      return OpenStallCheck(*collective);
    }
  }
}

void CollectiveTable::OpenStallCheck(const Collective& collective) {
  std::vector<int> asked;
  for (int peer = 0; peer < group_->size; ++peer) {
    if (!connections_->IsConnected(peer)) continue;
    SendControl(peer, CollectiveFrame::kQuery, collective.id(), "");
    asked.push_back(peer);
  }
  stall_check_.emplace(collective.id(), group_->size, std::move(asked));
}

void CollectiveTable::CloseStallCheck() {
  const StallCheck check = std::move(*stall_check_);
  stall_check_.reset();
  Collective* collective = Find(check.id());
  if (collective == nullptr) return;  // it has ended since
  const double timeout = collective->timeout_seconds();
  const auto name = [this](int peer) { return group_->Name(peer); };
  const std::string what =
      StrCat(group_->Self(), ": ", collective->Title(), " ", collective->signature().shapes);
  if (collective->deadline <= Clock::now()) {
    const Status status(StatusCode::kDeadlineExceeded,
                        StrCat(what, " waited ", timeout, " s for ",
                               check.FindStraggler(collective->Awaited(), name)));
    return Fail(status, status);
  }
  const double interval = CheckSeconds(timeout);
  const std::string mismatch = check.FindMismatch(
      interval, [this](const CollectiveId& id) { return history_.HasStarted(id); }, name);
  if (!mismatch.empty()) {
    const Status status(StatusCode::kInvalidArgument,
                        StrCat("the ranks wait for each other in different collectives: ", what,
                               ", while ", mismatch));
    return Fail(status, status);
  }
  collective->next_check = Clock::now() + DurationOf(interval);
}

std::string CollectiveTable::Waiting(double seconds) const {
  for (const auto& collective : pending_) {
    const double waited = SecondsSince(collective->started);
    if (waited < seconds || collective->Complete()) continue;
    const int peer = collective->Awaited();
    const bool opened = std::find(collective->opened_by.begin(), collective->opened_by.end(),
                                  peer) != collective->opened_by.end();
    return StrCat(group_->Self(), ": ", collective->Title(), " has waited ",
                  static_cast<int>(waited), " s for ", group_->Name(peer),
                  opened ? ", which takes part" : ", which has not started it");
  }
  return "";
}

}  // namespace tfdist
