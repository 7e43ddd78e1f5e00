#include "core/communicator.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/broadcast.h"
#include "core/ring.h"

namespace tfdist {
namespace {

constexpr uint64_t kWakeTag = uint64_t{1} << 39;
// Bounds what peers may send ahead of us.
constexpr size_t kMaxEarlyBytes = size_t{256} << 20;
// How many ended collectives are kept in mind for peers that come to them late.
constexpr size_t kMaxRemembered = 1024;
// How long peers may take to say where they are, once a deadline has passed.
constexpr auto kInquiryTime = std::chrono::milliseconds(1000);
// How long a communicator that ends keeps trying to deliver its last words.
constexpr auto kFarewellTime = std::chrono::seconds(2);

TimePoint After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Status TooEarly(size_t bytes) {
  return Status(StatusCode::kInternal,
                StrCat("sent ", bytes, " bytes too many of collectives that have not started"));
}

std::string Seconds(double seconds) { return StrCat(seconds, " s"); }

}  // namespace

Status Communicator::Create(int rank, int size, int port, std::unique_ptr<Communicator>* out) {
  if (size < 1 || rank < 0 || rank >= size) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected 0 <= rank < size, received rank ", rank, " and size ", size));
  }
  Fd listener;
  int bound_port = 0;
  if (Status s = Listen(port, &listener, &bound_port); !s.ok()) {
    return Status(s.code(), StrCat("rank ", rank, " of ", size, ": ", s.message()));
  }
  std::unique_ptr<Communicator> made(
      new Communicator(rank, size, std::move(listener), bound_port));
  if (!made->epoll_.valid() || !made->wake_.valid()) {
    return Status(StatusCode::kUnavailable,
                  StrCat(made->Who(), ": no descriptors left: ", std::strerror(errno)));
  }
  *out = std::move(made);
  return Status();
}

Communicator::Communicator(int rank, int size, Fd listener, int port)
    : rank_(rank),
      size_(size),
      port_(port),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      gate_(std::move(listener)),
      linked_(size, false),
      links_(size),
      left_(size, false) {
  linked_[rank_] = true;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
}

Communicator::~Communicator() { Close(); }

void Communicator::Close() {
  if (!running_.exchange(false)) return;
  Post([this] {
    const std::string why = StrCat(Who(), ": the communicator was closed here");
    Fail(Status(StatusCode::kUnavailable, why), Status());
    stop_ = true;
  });
  thread_.join();
  // The destructor may come much later, and peers learn of the end by the connections.
  for (auto& link : links_) link.reset();
  gate_.Close();
}

Status Communicator::Connect(const Token& token, uint64_t generation,
                             const std::vector<std::string>& addresses, double timeout_seconds) {
  if (static_cast<int>(addresses.size()) != size_) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(Who(), ": expected ", size_, " addresses, received ", addresses.size()));
  }
  if (running_) {
    return Status(StatusCode::kFailedPrecondition, StrCat(Who(), ": is connected already"));
  }
  const TimePoint deadline = After(timeout_seconds);
  addresses_ = addresses;
  gate_.Open(
      epoll_.get(), token, generation,
      [this](uint32_t rank) {
        // Higher ranks dial lower ones, each once.
        return rank < static_cast<uint32_t>(size_) && static_cast<int>(rank) > rank_ &&
               links_[rank] == nullptr;
      },
      [this](uint32_t rank, Fd socket) {
        AdoptLink(static_cast<int>(rank), std::move(socket));
        links_[rank]->QueueControl(FrameType::kWelcome, {}, "");
      });
  running_ = true;
  thread_ = std::thread([this] { Run(); });

  const std::string hello = Encode(Hello{token, generation, static_cast<uint32_t>(rank_)});
  FrameHeader header;
  header.type = FrameType::kHello;
  header.length = static_cast<uint32_t>(hello.size());
  const HeaderBytes head = EncodeHeader(header);
  const std::string greeting = std::string(head.begin(), head.end()) + hello;
  for (int peer = 0; peer < rank_; ++peer) {
    Fd socket;
    Status s = Dial(addresses_[peer], deadline, &socket);
    if (s.ok()) s = SendAll(socket, greeting.data(), greeting.size(), deadline);
    HeaderBytes welcome;
    if (s.ok()) s = ReceiveAll(socket, welcome.data(), welcome.size(), deadline);
    if (s.ok()) s = DecodeHeader(welcome.data(), &header);
    if (s.ok() && (header.type != FrameType::kWelcome || header.length != 0)) {
      s = Status(StatusCode::kInternal, StrCat("expected a WELCOME, received a frame of type ",
                                               static_cast<int>(header.type)));
    }
    if (!s.ok()) {
      return Status(s.code(),
                    StrCat(Who(), ": cannot connect to ", PeerName(peer), ": ", s.message()));
    }
    // std::function must be copyable, an Fd is not.
    auto shared = std::make_shared<Fd>(std::move(socket));
    Post([this, peer, shared] { AdoptLink(peer, std::move(*shared)); });
  }

  std::unique_lock<std::mutex> lock(mutex_);
  const auto complete = [this] {
    return std::all_of(linked_.begin(), linked_.end(), [](bool linked) { return linked; });
  };
  if (connected_.wait_until(lock, deadline, complete)) return Status();
  std::string missing;
  for (int peer = 0; peer < size_; ++peer) {
    if (!linked_[peer]) missing += StrCat(missing.empty() ? "" : ", ", PeerName(peer));
  }
  return Status(StatusCode::kDeadlineExceeded,
                StrCat(Who(), ": no data connection from ", missing, " within ",
                       Seconds(timeout_seconds)));
}

uint64_t Communicator::NextSequence(uint64_t key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return sequences_[key]++;
}

void Communicator::AllReduce(CollectiveOptions options, FlatView input, FlatView output,
                             DType dtype, ReduceOp reduce_op) {
  Signature& signature = options.signature;
  signature.kind = static_cast<uint8_t>(CollectiveKind::kAllReduce);
  signature.dtype = static_cast<uint8_t>(dtype);
  signature.reduce_op = static_cast<uint8_t>(reduce_op);
  signature.elements = output.bytes() / ByteSize(dtype);
  if (size_ == 1) input.CopyTo(output);
  Submit(Ring::AllReduce(std::move(options), rank_, size_, std::move(input), std::move(output),
                         dtype, reduce_op));
}

void Communicator::AllGather(CollectiveOptions options, DType dtype,
                             const std::vector<size_t>& block_bytes, FlatView output) {
  options.signature.kind = static_cast<uint8_t>(CollectiveKind::kAllGather);
  options.signature.dtype = static_cast<uint8_t>(dtype);
  Submit(Ring::AllGather(std::move(options), rank_, size_, block_bytes, std::move(output)));
}

void Communicator::Broadcast(CollectiveOptions options, DType dtype, int root, FlatView buffer) {
  if (root < 0 || root >= size_) {
    return options.done(Status(StatusCode::kInvalidArgument,
                               StrCat(Who(), ": broadcast '", options.signature.name,
                                      "' expected a root from 0 to ", size_ - 1, ", received ",
                                      root)));
  }
  Signature& signature = options.signature;
  signature.kind = static_cast<uint8_t>(CollectiveKind::kBroadcast);
  signature.dtype = static_cast<uint8_t>(dtype);
  signature.root = static_cast<uint32_t>(root);
  signature.elements = buffer.bytes() / ByteSize(dtype);
  Submit(std::make_unique<class Broadcast>(std::move(options), rank_, size_, root,
                                           std::move(buffer)));
}

void Communicator::Cancel(const CollectiveId& id) {
  Post([this, id] {
    if (const Collective* collective = Find(id)) {
      GiveUp(*collective);
    } else if (!failed_ && !HasStarted(id)) {
      cancelled_.insert(id);  // it is still on its way here
    }
  });
}

void Communicator::Abort(const Status& status) {
  Post([this, status] { Fail(status, status); });
}

void Communicator::Leave() {
  Post([this] {
    if (failed_) return;
    for (auto& link : links_) {
      if (link != nullptr) link->QueueControl(FrameType::kGoodbye, {}, "");
    }
  });
}

Status Communicator::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

CommunicatorStats Communicator::stats() const {
  CommunicatorStats stats;
  stats.collectives = finished_.load(std::memory_order_relaxed);
  stats.bytes_sent = bytes_sent_.load(std::memory_order_relaxed);
  stats.bytes_received = bytes_received_.load(std::memory_order_relaxed);
  stats.busy_nanoseconds = busy_nanoseconds_.load(std::memory_order_relaxed);
  stats.rejected_connections = gate_.rejected();
  return stats;
}

bool Communicator::Post(std::function<void()> command) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return false;
    commands_.push_back(std::move(command));
  }
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  return true;
}

void Communicator::Submit(std::unique_ptr<Collective> collective) {
  collective->started = Clock::now();
  if (collective->timeout_seconds() > 0) {
    collective->deadline = After(collective->timeout_seconds());
  }
  if (size_ == 1) {
    finished_.fetch_add(1, std::memory_order_relaxed);
    return collective->Finish(Status());
  }
  if (!running_ && status().ok()) {
    return collective->Finish(Status(StatusCode::kFailedPrecondition,
                                     StrCat(Who(), ": ", collective->Title(),
                                            " was started before Connect")));
  }
  // std::function must be copyable.
  auto shared = std::make_shared<std::unique_ptr<Collective>>(std::move(collective));
  if (!Post([this, shared] { Begin(std::move(*shared)); })) Refuse(**shared);
}

void Communicator::Refuse(Collective& collective) const {
  const Status failure = status();
  collective.Finish(Status(failure.code(), StrCat(collective.Title(), ": ", failure.message())));
}

void Communicator::Run() {
  std::vector<epoll_event> events(64);
  TimePoint farewell = TimePoint::max();
  for (;;) {
    const int ready =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), WaitMilliseconds());
    for (int i = 0; i < ready; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kWakeTag) {
        uint64_t count;
        [[maybe_unused]] const ssize_t drained = read(wake_.get(), &count, sizeof(count));
      } else if (tag == Gate::kListenerTag) {
        gate_.OnListenerReady();
      } else if (tag >= Gate::kFirstGuestTag) {
        gate_.OnGuestReady(tag);
      } else {
        HandleLink(static_cast<int>(tag), events[i].events);
      }
    }
    RunCommands();
    CheckGone();
    CheckDeadlines();
    gate_.DropOverdue(Clock::now());
    FlushLinks();
    lost_.clear();
    if (!stop_) continue;
    if (farewell == TimePoint::max()) farewell = Clock::now() + kFarewellTime;
    const bool said = std::all_of(links_.begin(), links_.end(), [](const auto& link) {
      return link == nullptr || link->idle();
    });
    if (said || Clock::now() >= farewell) break;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  RunCommands();  // what came in until then is refused, not forgotten
}

int Communicator::WaitMilliseconds() const {
  TimePoint next = gate_.NextDeadline();
  if (inquiry_) {
    next = std::min(next, inquiry_->ends);
  } else {
    for (const auto& collective : pending_) next = std::min(next, collective->deadline);
  }
  if (next == TimePoint::max()) return failed_ ? 100 : 3600 * 1000;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, failed_ ? 100 : 3600 * 1000));
}

void Communicator::RunCommands() {
  std::vector<std::function<void()>> commands;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
  }
  for (const auto& command : commands) command();
}

void Communicator::HandleLink(int peer, uint32_t events) {
  if (links_[peer] == nullptr) return;
  if (events & EPOLLOUT) {
    links_[peer]->Unblock();
    WatchWritable(peer, false);
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  if (const Status s = links_[peer]->Receive(*this); !s.ok()) PeerLost(peer, s.message());
}

void Communicator::AdoptLink(int peer, Fd socket) {
  links_[peer] = std::make_unique<Link>(peer, std::move(socket));
  if (failed_) links_[peer]->Detach();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(peer);
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, links_[peer]->fd(), &event);
  std::lock_guard<std::mutex> lock(mutex_);
  linked_[peer] = true;
  connected_.notify_all();
}

void Communicator::FlushLinks() {
  for (int peer = 0; peer < size_; ++peer) {
    Link* link = links_[peer].get();
    if (link == nullptr || link->idle() || link->blocked()) continue;
    link->Flush(*this);
    if (link->blocked()) WatchWritable(peer, true);
  }
}

void Communicator::WatchWritable(int peer, bool on) {
  epoll_event event{};
  event.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(peer);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, links_[peer]->fd(), &event);
}

void Communicator::Begin(std::unique_ptr<Collective> owned) {
  if (failed_) return Refuse(*owned);
  Collective* collective = owned.get();
  if (pending_.empty()) busy_since_ = collective->started;
  pending_.push_back(std::move(owned));
  MarkStarted(collective->id());
  if (cancelled_.erase(collective->id()) > 0) return GiveUp(*collective);
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
}

void Communicator::ReplayEarly(Collective* collective) {
  const auto found = early_.find(collective->id());
  if (found == early_.end()) return;
  Early& early = found->second;
  for (const auto& [peer, signature] : early.opens) {
    if (const Status s = CheckOpen(collective, peer, signature); !s.ok()) return Fail(s, s);
  }
  early.opens.clear();
  early_bytes_ -= std::exchange(early.open_bytes, 0);
  // A chunk that is still on its way in is handled when it is complete, and everything after it too.
  const auto scratch = std::make_unique<char[]>(kEagerBytes);
  while (!early.chunks.empty() && early.chunks.front().complete) {
    const EarlyChunk& chunk = early.chunks.front();
    std::vector<iovec> target;
    const Status s = collective->Place(chunk.peer, chunk.header, scratch.get(), &target);
    if (!s.ok()) return PeerLost(chunk.peer, s.message());
    const char* from = chunk.bytes.data();
    for (const iovec& piece : target) {
      std::memcpy(piece.iov_base, from, piece.iov_len);
      from += piece.iov_len;
    }
    collective->Received(*this, chunk.peer, chunk.header, scratch.get());
    early_bytes_ -= chunk.bytes.size();
    early.chunks.pop_front();
  }
  if (early.chunks.empty()) early_.erase(found);
}

// Takes note that `peer` has started this collective too, if it is the same one.
Status Communicator::CheckOpen(Collective* collective, int peer, const Signature& theirs) {
  if (const Status s = Compare(collective->signature(), peer, theirs); !s.ok()) return s;
  collective->opened_by.push_back(peer);
  collective->PeerOpened(*this, peer);
  return Status();
}

Status Communicator::Compare(const Signature& ours, int peer, const Signature& theirs) const {
  if (ours.Matches(theirs)) return Status();
  const auto describe = [](const Signature& s) {
    std::string text = StrCat(KindName(static_cast<CollectiveKind>(s.kind)), " '", s.name, "' ");
    if (s.kind == static_cast<uint8_t>(CollectiveKind::kAllReduce)) {
      text += s.reduce_op == static_cast<uint8_t>(ReduceOp::kMean) ? "(mean) " : "(sum) ";
    }
    if (s.kind == static_cast<uint8_t>(CollectiveKind::kBroadcast)) {
      text += StrCat("(root ", s.root, ") ");
    }
    return text + s.shapes;
  };
  return Status(StatusCode::kInvalidArgument,
                StrCat(Who(), ": the ranks disagree on a collective: expected ", describe(ours),
                       ", received ", describe(theirs), " from rank ", peer));
}

// What `peer` opened has ended here without it, as a broadcast does on its root. It must have been the same all the same.
Status Communicator::CheckLateOpen(const CollectiveId& id, int peer,
                                   const Signature& theirs) const {
  const auto found = ended_signatures_.find(id);
  return found == ended_signatures_.end() ? Status() : Compare(found->second, peer, theirs);
}

void Communicator::Remember(const Collective& collective) {
  if (ended_order_.size() == kMaxRemembered) {
    ended_signatures_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  ended_signatures_[collective.id()] = collective.signature();
  ended_order_.push_back(collective.id());
}

void Communicator::GiveUp(const Collective& collective) {
  const std::string why =
      StrCat(Who(), ": cancelled ", collective.Title(), ", because its step failed or was stopped");
  Fail(Status(StatusCode::kCancelled, why), Status(StatusCode::kUnavailable, why));
}

void Communicator::FinishIfComplete(Collective* collective) {
  if (collective->Settled() && collective->unsent_chunks == 0) Finish(collective, Status());
}

void Communicator::Finish(Collective* collective, const Status& status) {
  const auto found =
      std::find_if(pending_.begin(), pending_.end(),
                   [collective](const auto& owned) { return owned.get() == collective; });
  const std::unique_ptr<Collective> owned = std::move(*found);
  pending_.erase(found);
  if (status.ok()) {
    finished_.fetch_add(1, std::memory_order_relaxed);
    Remember(*owned);
  }
  if (pending_.empty()) {
    const auto busy =
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - busy_since_);
    busy_nanoseconds_.fetch_add(static_cast<uint64_t>(busy.count()), std::memory_order_relaxed);
  }
  owned->Finish(status);
}

bool Communicator::HasStarted(const CollectiveId& id) const {
  const auto found = started_.find(id.key);
  if (found == started_.end()) return false;
  return id.sequence < found->second.below || found->second.above.count(id.sequence) > 0;
}

void Communicator::MarkStarted(const CollectiveId& id) {
  StartedSet& set = started_[id.key];
  set.above.insert(id.sequence);
  while (set.above.erase(set.below) > 0) ++set.below;
}

void Communicator::CheckDeadlines() {
  const TimePoint now = Clock::now();
  if (inquiry_) {
    if (now >= inquiry_->ends) CloseInquiry();
    return;
  }
  for (const auto& collective : pending_) {
    if (collective->deadline <= now) return OpenInquiry(*collective);
  }
}

void Communicator::OpenInquiry(const Collective& collective) {
  inquiry_ = Inquiry{collective.id(), Clock::now() + kInquiryTime,
                     std::vector<std::optional<Reply>>(size_)};
  for (auto& link : links_) {
    if (link != nullptr) link->QueueControl(FrameType::kQuery, collective.id(), "");
  }
}

void Communicator::CloseInquiry() {
  const Collective* collective = Find(inquiry_->id);
  if (collective != nullptr) {
    const Status status = DeadlineStatus(*collective);
    inquiry_.reset();
    return Fail(status, status);
  }
  inquiry_.reset();  // it came to its end while we asked
}

// Names the rank at fault: one that does not answer at all, else one that has not started the collective.
Status Communicator::DeadlineStatus(const Collective& collective) const {
  std::string silent, absent;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || links_[peer] == nullptr) continue;
    const std::optional<Reply>& reply = inquiry_->replies[peer];
    if (!reply) {
      silent += StrCat(silent.empty() ? "" : ", ", PeerName(peer));
    } else if (!reply->started) {
      absent += StrCat(absent.empty() ? "" : "; ", PeerName(peer), ", which has not started it and ",
                       reply->doing.empty() ? "has no collective pending"
                                            : StrCat("waits in ", reply->doing));
    }
  }
  std::string culprit;
  if (!silent.empty()) {
    culprit = silent + ", which does not respond";
  } else if (!absent.empty()) {
    culprit = absent;
  } else {
    culprit = StrCat(PeerName(std::max(0, collective.WaitingFor())), ", which has started it too");
  }
  return Status(StatusCode::kDeadlineExceeded,
                StrCat(Who(), ": ", collective.Title(), " ", collective.signature().shapes,
                       " waited ", Seconds(collective.timeout_seconds()), " for ", culprit));
}

// `peer` starts nothing further: whatever it has not opened by now will never be.
void Communicator::PeerLeft(int peer) {
  left_[peer] = true;
  for (const auto& collective : pending_) {
    const std::vector<int> peers = collective->Peers();
    const auto& opened = collective->opened_by;
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) continue;
    if (std::find(opened.begin(), opened.end(), peer) != opened.end()) continue;
    if (collective->Settled()) continue;
    const Status status(StatusCode::kUnavailable,
                        StrCat(Who(), ": ", collective->Title(), " needs ", PeerName(peer),
                               ", which has finished its program"));
    return Fail(status, status);
  }
}

void Communicator::PeerLost(int peer, const std::string& how) {
  if (links_[peer] == nullptr) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, links_[peer]->fd(), nullptr);
  const bool owed = links_[peer]->has_chunks();
  links_[peer]->Detach();
  lost_.push_back(std::move(links_[peer]));
  if (left_[peer] && !owed) {
    gone_ = true;
    return;
  }
  left_[peer] = true;
  const std::string doing = pending_.empty() ? "" : StrCat(" during ", Doing());
  const Status status(StatusCode::kUnavailable,
                      StrCat(Who(), ": lost ", PeerName(peer), doing, " (", how, ")"));
  Fail(status, status);
}

// A peer that has left and closed its connection has all it needs, and all that it owed is here, unless it left in the middle of
// a collective.
void Communicator::CheckGone() {
  if (!gone_) return;
  for (const auto& collective : pending_) {
    int peer = collective->cut_off_by;
    if (peer < 0 && !collective->Settled()) peer = collective->WaitingFor();
    if (peer < 0 || links_[peer] != nullptr) continue;
    const Status status(StatusCode::kUnavailable,
                        StrCat(Who(), ": ", PeerName(peer), " has finished its program in the middle of ",
                               collective->Title()));
    return Fail(status, status);
  }
}

// Ends every pending collective with `status`. `tell_peers` OK: the peers know already.
void Communicator::Fail(const Status& status, const Status& tell_peers) {
  if (failed_) return;
  failed_ = true;
  inquiry_.reset();
  early_.clear();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool cancelled = status.code() == StatusCode::kCancelled;
    failure_ = Status(cancelled ? StatusCode::kUnavailable : status.code(), status.message());
  }
  for (auto& link : links_) {
    if (link == nullptr) continue;
    link->Detach();
    if (!tell_peers.ok()) {
      link->QueueControl(FrameType::kAbort, {},
                         Encode(::tfdist::Abort{tell_peers.code(), tell_peers.message()}));
    }
  }
  while (!pending_.empty()) Finish(pending_.front().get(), status);
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
      } else if (!HasStarted(id)) {
        const size_t bytes = sizeof(Early) + payload.size();
        if ((early_bytes_ += bytes) > kMaxEarlyBytes) return TooEarly(bytes);
        Early& early = early_[id];
        early.opens.emplace_back(peer, std::move(theirs));
        early.open_bytes += bytes;
      } else if (const Status s = CheckLateOpen(id, peer, theirs); !s.ok()) {
        Fail(s, s);
      }
      return Status();
    }
    case FrameType::kQuery: {
      const Reply reply{HasStarted(id), Doing()};
      links_[peer]->QueueControl(FrameType::kReply, id, Encode(reply));
      return Status();
    }
    case FrameType::kReply: {
      Reply reply;
      if (Status s = Decode(payload, &reply); !s.ok()) return s;
      if (!inquiry_ || !(inquiry_->id == id)) return Status();
      inquiry_->replies[peer] = std::move(reply);
      const auto answered = std::count_if(inquiry_->replies.begin(), inquiry_->replies.end(),
                                          [](const auto& r) { return r.has_value(); });
      if (answered == size_ - 1) CloseInquiry();
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
    case FrameType::kData:
      break;
  }
  return Status(StatusCode::kInternal,
                StrCat("unexpected frame of type ", static_cast<int>(header.type)));
}

Status Communicator::OnDataBegin(int peer, const FrameHeader& header, char* scratch,
                                 std::vector<iovec>* target) {
  bytes_received_.fetch_add(header.length, std::memory_order_relaxed);
  const CollectiveId id{header.key, header.sequence};
  const auto early = early_.find(id);
  Collective* collective = Find(id);
  if (collective != nullptr && (early == early_.end() || early->second.chunks.empty())) {
    return collective->Place(peer, header, scratch, target);
  }
  if (collective == nullptr && HasStarted(id)) {
    return Status(StatusCode::kInternal, "a chunk of a collective that has ended");
  }
  early_bytes_ += header.length;
  if (header.length > kEagerBytes || early_bytes_ > kMaxEarlyBytes) {
    return TooEarly(header.length);
  }
  std::list<EarlyChunk>& chunks = early_[id].chunks;
  chunks.push_back({peer, header, std::vector<char>(header.length)});
  target->push_back({chunks.back().bytes.data(), header.length});
  return Status();
}

Status Communicator::OnDataEnd(int peer, const FrameHeader& header, const char* scratch) {
  const CollectiveId id{header.key, header.sequence};
  Collective* collective = Find(id);
  if (const auto early = early_.find(id); early != early_.end()) {
    for (EarlyChunk& chunk : early->second.chunks) {
      if (chunk.peer == peer && !chunk.complete) {
        chunk.complete = true;
        if (collective != nullptr) ReplayEarly(collective);
        if (collective != nullptr && !failed_) FinishIfComplete(collective);
        return Status();
      }
    }
  }
  if (collective == nullptr) return Status();
  collective->Received(*this, peer, header, scratch);
  FlushLinks();
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
  ++collective->unsent_chunks;
  links_[peer]->QueueChunk(collective, header, std::move(pieces));
}

Collective* Communicator::Find(const CollectiveId& id) {
  for (const auto& collective : pending_) {
    if (collective->id() == id) return collective.get();
  }
  return nullptr;
}

std::string Communicator::Who() const { return StrCat("rank ", rank_, " of ", size_); }

std::string Communicator::PeerName(int peer) const {
  return StrCat("rank ", peer, " (", addresses_.empty() ? "?" : addresses_[peer], ")");
}

std::string Communicator::Doing() const {
  return pending_.empty() ? "" : pending_.front()->Title();
}

}  // namespace tfdist
