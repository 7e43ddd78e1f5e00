#include "core/collectives/progress_engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tfdist {
namespace {

// Limits of a thread's polling, after which the engine's own thread takes over: in total, and while
// another thread has the engine, which may need this processor. Ranks that do the same work come to
// a collective within a millisecond of each other, and sleeping for that time would cost as much
// again. A polling thread does not yield the processor: where others compute, it would get it back
// after milliseconds, later than a thread that sleeps.
constexpr auto kMaxPolling = std::chrono::milliseconds(5);
constexpr auto kEnginePatience = std::chrono::microseconds(20);
// If no data came in time, a peer computes for longer, or has no processor, and polling takes one
// away. Then the next poll is skipped, then the next 3, 7 and so on up to `max_skipped`, until data
// comes in time once. On a host with more ranks than processors, polling blocks the peers
// themselves (Open MPI also polls less where it is "oversubscribed").
struct Polling {
  std::chrono::microseconds patience;
  int max_skipped;
};
constexpr Polling kPolling = {std::chrono::microseconds(1000), 1};
constexpr Polling kOversubscribedPolling = {std::chrono::microseconds(100), 63};
// A `done` may start a collective whose `done` starts the next one, and so on.
constexpr int kMaxNested = 4;
// Number of times that new data is received before the engine is released.
constexpr int kMaxLate = 4;
// How long an engine that ends keeps trying to deliver its last frames.
constexpr auto kFarewellTime = std::chrono::seconds(2);
// How long its thread sleeps where nothing is due. It is less than the time to the first check of
// most collectives, because a thread that starts a collective with an earlier check has to wake it.
// It then also receives data for which an idle rank was not woken.
constexpr auto kMaxSleep = std::chrono::milliseconds(5000);
constexpr auto kMaxSleepFailed = std::chrono::milliseconds(100);

// REPLYs that wait to be sent to a peer. An honest one asks once a second, and reads meanwhile.
constexpr size_t kMaxReplies = 64;

thread_local int nested = 0;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

StreamOptions OptionsOf(bool share_memory) {
  StreamOptions options;
  options.limits_of = LimitsOfCollectives;
  options.share_memory = share_memory;
  options.awaits_reason = true;
  return options;
}

bool IsOfSameCollective(const FrameHeader& a, const FrameHeader& b) {
  return a.key == b.key && a.sequence == b.sequence;
}

bool IsSameChunk(const FrameHeader& a, const FrameHeader& b) {
  return a.step == b.step && a.offset == b.offset && a.payload_bytes == b.payload_bytes;
}

}  // namespace

// One peer.

void ProgressEngine::Peer::Open(CollectiveTable* table, int rank, PeerSocket socket,
                                bool share_memory) {
  table_ = table;
  rank_ = rank;
  unreadable_.reset();
  scratch_.reset(new char[kChunkBytes]);
  stream = std::make_unique<MessageStream>(std::move(socket), OptionsOf(share_memory));
}

Status ProgressEngine::Peer::OnFrame(const FrameHeader& header, std::string_view meta) {
  if (header.type == static_cast<uint8_t>(CollectiveFrame::kQuery) &&
      stream->Waiting(static_cast<uint8_t>(CollectiveFrame::kReply)) >= kMaxReplies) {
    return Status(StatusCode::kInternal,
                  StrCat("asks again and does not read the answers; ", kMaxReplies, " wait"));
  }
  return table_->OnFrame(rank_, header, meta);
}

Status ProgressEngine::Peer::OnPayload(const FrameHeader& header, uint64_t,
                                       std::vector<iovec>* target) {
  if (unreadable_ && IsOfSameCollective(header, unreadable_->header)) {
    if (!IsSameChunk(header, unreadable_->header)) {
      return Status(StatusCode::kInternal, "a chunk ahead of an earlier one, to be sent again");
    }
    *target = std::move(unreadable_->target);
    unreadable_.reset();
    return Status();
  }
  return table_->PlaceChunk(rank_, header, scratch_.get(), target);
}

Status ProgressEngine::Peer::OnFrameEnd(const FrameHeader& header) {
  if (header.payload_bytes == 0) return Status();
  return table_->OnChunk(rank_, header, scratch_.get());
}

void ProgressEngine::Peer::OnSent(void* token, uint64_t payload_bytes) {
  table_->OnChunkSent(static_cast<Collective*>(token), payload_bytes);
}

void ProgressEngine::Peer::OnUnreadable(const FrameHeader& header, std::vector<iovec> target) {
  unreadable_ = Unreadable{header, std::move(target)};
}

void ProgressEngine::Peer::OnResent(size_t payloads) { table_->NoteResent(payloads); }

// Start and end.

ProgressEngine::ProgressEngine(const Group* group, Listener listener, bool share_memory)
    : group_(group),
      share_memory_(share_memory),
      acceptor_(std::move(listener)),
      connected_(group->size, false),
      table_(group, this),
      peers_(group->size) {
  connected_[group->rank] = true;
}

ProgressEngine::~ProgressEngine() { Close(); }

Status ProgressEngine::Create() { return loop_.Create(); }

void ProgressEngine::Start(const Key& key, uint64_t generation) {
  const auto here =
      std::count(group_->hosts.begin(), group_->hosts.end(), group_->hosts[group_->rank]);
  oversubscribed_ = here > sysconf(_SC_NPROCESSORS_ONLN);
  acceptor_.Open(
      &loop_, key, generation, static_cast<uint32_t>(group_->rank),
      [this](uint32_t rank) {
        // Higher ranks dial lower ones, each once.
        return rank < static_cast<uint32_t>(group_->size) &&
               static_cast<int>(rank) > group_->rank && !IsConnected(static_cast<int>(rank));
      },
      [this](uint32_t rank, PeerSocket socket) {
        Adopt(static_cast<int>(rank), std::move(socket), std::nullopt);
      });
  running_ = true;
  thread_ = std::thread([this] { Run(); });
}

void ProgressEngine::AddDialled(int peer, PeerSocket socket, Welcome welcome) {
  // std::function must be copyable, a descriptor is not.
  auto shared_socket = std::make_shared<PeerSocket>(std::move(socket));
  auto shared_welcome = std::make_shared<Welcome>(std::move(welcome));
  Post([this, peer, shared_socket, shared_welcome] {
    Adopt(peer, std::move(*shared_socket), std::move(*shared_welcome));
  });
}

std::vector<int> ProgressEngine::WaitForPeers(TimePoint deadline) {
  std::unique_lock<std::mutex> lock(connected_mutex_);
  connected_changed_.wait_until(lock, deadline, [this] {
    return std::all_of(connected_.begin(), connected_.end(),
                       [](bool connected) { return connected; });
  });
  std::vector<int> missing;
  for (int peer = 0; peer < group_->size; ++peer) {
    if (!connected_[peer]) missing.push_back(peer);
  }
  return missing;
}

void ProgressEngine::Close() {
  if (!running_.exchange(false)) {
    // An engine that never connected still holds its port, which another may be about to bind.
    const Lock engine(mutex_);
    acceptor_.Close();
    return;
  }
  Post([this] {
    const std::string why = StrCat(group_->Self(), ": the communicator was closed here");
    table_.Fail(Status(StatusCode::kUnavailable, why), Status(), /*closes=*/true);
    stop_ = true;
    Wake();
  });
  thread_.join();
  // The destructor may come much later, and peers learn of the end by the connections.
  {
    const Lock engine(mutex_);
    for (Peer& peer : peers_) peer.stream.reset();
    acceptor_.Close();
  }
  Drive();
}

void ProgressEngine::Cancel(const CollectiveId& id) {
  // Left to another thread: a caller that stops a step may not expect callbacks from within.
  commands_.Push([this, id] { table_.Cancel(id); });
  Wake();
}

void ProgressEngine::Abort(const Status& status) {
  Post([this, status] { table_.Fail(status, status); });
}

void ProgressEngine::Leave() {
  Post([this] {
    if (table_.failed()) return;
    FrameHeader header;
    header.type = static_cast<uint8_t>(CollectiveFrame::kGoodbye);
    for (int peer = 0; peer < group_->size; ++peer) {
      if (IsConnected(peer)) Send(peer, header, "", {}, nullptr);
    }
  });
}

std::string ProgressEngine::Waiting(double seconds) {
  std::string text;
  {
    const Lock engine(mutex_);
    text = table_.Waiting(seconds);
  }
  Drive();
  return text;
}

// Which thread drives the engine, and when.

// Runs `command` here or, if the engine is taken, on the thread that has it.
void ProgressEngine::Post(CommandQueue::Command command) {
  commands_.Push(std::move(command));
  Drive();
}

// To be called by every thread that has released the engine: until then others may have left
// commands.
void ProgressEngine::Drive() {
  while (commands_.pending()) {
    Lock engine(mutex_, std::try_to_lock);
    if (!engine) return;
    commands_.Run();
    Release(std::move(engine));
  }
}

void ProgressEngine::Submit(std::unique_ptr<Collective> collective) {
  const CollectiveId id = collective->id();
  const std::vector<int> peers = collective->Peers();  // it may end meanwhile
  if (Lock engine(mutex_, std::try_to_lock); engine) {
    commands_.Run();  // one may be to cancel it
    table_.Begin(std::move(collective));
    const bool polls = table_.size() == 1 && table_.Find(id) != nullptr && MayPoll();
    if (polls) BeginPolling(peers);
    Release(std::move(engine));
    if (polls) Poll(peers, [this, &id] { return table_.Find(id) == nullptr; });
    return Drive();
  }
  // std::function must be copyable.
  auto shared = std::make_shared<std::unique_ptr<Collective>>(std::move(collective));
  Post([this, shared] { table_.Begin(std::move(*shared)); });
}

bool ProgressEngine::Release(Lock engine) {
  // Cheaper than to wake a thread for it.
  for (int peer = 0; peer < group_->size; ++peer) {
    for (int i = 0; i < kMaxLate && !IsQuiescent(peer); ++i) ReceiveFrom(peer);
  }
  table_.CheckGone();
  Flush();
  lost_.clear();
  looked_ = table_.begun();
  bool quiescent = true;
  for (int peer = 0; peer < group_->size; ++peer) quiescent &= IsQuiescent(peer);
  if (std::exchange(own_turn_, false)) {
    awake_ = false;
  } else if (!quiescent || NextDue() < sleeps_until_) {
    Wake();
  }
  std::vector<CollectiveTable::Ended> ended;
  // Too deep, and the engine's own thread calls them.
  if (nested <= kMaxNested) {
    ended = table_.TakeEnded();
  } else if (table_.has_ended()) {
    Wake();
  }
  engine.unlock();
  ++nested;
  for (const CollectiveTable::Ended& one : ended) one.collective->Finish(one.status);
  --nested;
  return quiescent;
}

// Whether new data makes the socket readable, or some thread polls.
bool ProgressEngine::IsQuiescent(int peer) {
  if (!IsConnected(peer) || peers_[peer].pollers > 0) return true;
  // Waking a thread for a peer's early start takes time from a thread that computes here, without
  // use: the next thread that begins a collective here receives the data.
  const bool idle = table_.empty() && looked_ == table_.begun() && !table_.failed() && !stop_;
  return peers_[peer].stream->Sleep(idle);
}

// Looks at the streams of `peers`, until `over` or for as long as it pays. After BeginPolling.
void ProgressEngine::Poll(const std::vector<int>& peers, const std::function<bool()>& over) {
  const Polling& how = oversubscribed_ ? kOversubscribedPolling : kPolling;
  const TimePoint start = Clock::now();
  TimePoint last = start, had_engine = start;
  for (bool done = false; !done;) {
    if (Lock engine(mutex_, std::try_to_lock); engine) {
      bool any = false;
      for (const int peer : peers) any |= ReceiveFrom(peer);
      const TimePoint now = had_engine = Clock::now();
      if (any) last = now;
      const bool came = over(), late = now - last > how.patience;
      if (came) skipped_ = 0;
      if (late && !came) to_skip_ = skipped_ = std::min(2 * skipped_ + 1, how.max_skipped);
      done = came || late || now - start > kMaxPolling;
      if (done) EndPolling(peers);
      if (done || any) Release(std::move(engine));
    } else if (Clock::now() - had_engine > kEnginePatience) {
      // The thread that has it may need this processor.
      Post([this, peers] { EndPolling(peers); });
      done = true;
    }
    Drive();
    Pause();
  }
}

// Whether to poll, this time.
bool ProgressEngine::MayPoll() {
  if (to_skip_ > 0) {
    --to_skip_;
    return false;
  }
  return nested < kMaxNested;
}

void ProgressEngine::BeginPolling(const std::vector<int>& peers) {
  for (const int peer : peers) {
    ++peers_[peer].pollers;
    Watch(peer);
  }
}

void ProgressEngine::EndPolling(const std::vector<int>& peers) {
  for (const int peer : peers) {
    --peers_[peer].pollers;
    Watch(peer);
  }
}

// The engine's thread.

void ProgressEngine::Run() {
  pthread_setname_np(pthread_self(), "tfdist");  // in profiles and debuggers
  TimePoint farewell = TimePoint::max(), until = Clock::now();
  for (bool over = false; !over;) {
    // Events are kept until this thread has the engine.
    std::vector<std::pair<uint64_t, uint32_t>> events;
    loop_.Wait(until, [&](uint64_t tag, uint32_t what) { events.emplace_back(tag, what); });
    awake_ = true;
    Lock engine(mutex_);
    own_turn_ = true;
    for (const auto& [tag, what] : events) {
      if (tag >= Acceptor::kFirstTag) {
        acceptor_.OnReady(tag);
      } else {
        HandleEvents(static_cast<int>(tag), what);
      }
    }
    for (int peer = 0; peer < group_->size; ++peer) {
      if (IsConnected(peer) && peers_[peer].stream->shares_memory()) ReceiveFrom(peer);
    }
    table_.CheckDeadlines();
    const TimePoint now = Clock::now();
    acceptor_.CheckTime(now);
    Flush();
    if (stop_) {
      if (farewell == TimePoint::max()) farewell = now + kFarewellTime;
      over = now >= farewell || AllSent();
    }
    until = sleeps_until_ =
        std::min(NextDue(), now + (table_.failed() ? kMaxSleepFailed : kMaxSleep));
    const bool lingers = !table_.empty() && !stop_;
    if (!Release(std::move(engine))) until = now;
    Drive();
    if (lingers) Linger();
  }
}

// In the middle of a collective the next chunk is never far.
void ProgressEngine::Linger() {
  std::vector<int> peers;
  bool polled = false, polls = false;
  {
    const Lock engine(mutex_);
    for (int peer = 0; peer < group_->size; ++peer) {
      polled |= peers_[peer].pollers > 0;
      if (IsConnected(peer) && peers_[peer].stream->shares_memory()) peers.push_back(peer);
    }
    polls = !polled && !peers.empty() && MayPoll();
    if (polls) BeginPolling(peers);
  }
  if (!polls) return Drive();
  // A thread that starts a collective polls itself.
  Poll(peers, [&] {
    return table_.empty() || std::any_of(peers.begin(), peers.end(),
                                         [this](int peer) { return peers_[peer].pollers > 1; });
  });
}

// When the engine's thread has something to do even if nothing comes.
TimePoint ProgressEngine::NextDue() const {
  return std::min(acceptor_.NextDeadline(), table_.NextDue());
}

bool ProgressEngine::AllSent() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.stream == nullptr || peer.stream->idle();
  });
}

// Connections.

void ProgressEngine::HandleEvents(int peer, uint32_t events) {
  if (!IsConnected(peer)) return;
  if (events & EPOLLOUT) {
    peers_[peer].stream->Unblock();
    Watch(peer);
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  peers_[peer].stream->ReadNotifications();
  ReceiveFrom(peer);
}

// False if nothing has come.
bool ProgressEngine::ReceiveFrom(int peer) {
  MessageStream* const stream = peers_[peer].stream.get();
  if (stream == nullptr) return false;
  bool any = false;
  const bool settled = stream->settled();
  if (const Status s = stream->Receive(peers_[peer], &any); !s.ok()) {
    Lose(peer, s.message());
    return true;
  }
  if (!settled && IsConnected(peer) && stream->settled()) NoteConnected(peer);
  return any;
}

void ProgressEngine::Adopt(int peer, PeerSocket socket, std::optional<Welcome> welcome) {
  Peer& to = peers_[peer];
  to.Open(&table_, peer, std::move(socket), share_memory_);
  if (table_.failed()) to.stream->Detach();
  to.watched = EPOLLIN;
  loop_.Add(to.stream->fd(), static_cast<uint64_t>(peer), EPOLLIN);
  if (!welcome) {
    to.stream->Welcome();
  } else if (const Status s = to.stream->OnWelcome(welcome->meta, std::move(welcome->descriptor));
             !s.ok()) {
    return Lose(peer, s.message());
  }
  if (to.stream->settled()) NoteConnected(peer);
}

void ProgressEngine::NoteConnected(int peer) {
  const std::lock_guard<std::mutex> lock(connected_mutex_);
  connected_[peer] = true;
  connected_changed_.notify_all();
}

void ProgressEngine::Lose(int peer, const std::string& how) {
  std::unique_ptr<MessageStream>& stream = peers_[peer].stream;
  if (stream == nullptr) return;
  NoteConnected(peer);  // a thread that waits for it learns of the loss at its first collective
  loop_.Remove(stream->fd());
  const bool owed = stream->has_payloads();
  stream->Detach();
  lost_.push_back(std::move(stream));
  table_.PeerLost(peer, owed, how);
}

void ProgressEngine::Send(int peer, const FrameHeader& header, std::string meta,
                          std::vector<iovec> payload, void* token) {
  // A rank that has not started a collective need not look at its OPENs and chunks.
  const auto type = static_cast<CollectiveFrame>(header.type);
  const bool urgent = type != CollectiveFrame::kOpen && type != CollectiveFrame::kData;
  peers_[peer].stream->Queue(header, std::move(meta), std::move(payload), {}, token, urgent);
}

void ProgressEngine::Flush() {
  for (int peer = 0; peer < group_->size; ++peer) {
    MessageStream* const stream = peers_[peer].stream.get();
    if (stream == nullptr || stream->idle() || stream->blocked()) continue;
    stream->Flush(peers_[peer]);
    if (stream->blocked()) Watch(peer);
  }
}

void ProgressEngine::AbortStreams(const Status& reason) {
  for (int rank = 0; rank < group_->size; ++rank) {
    NoteConnected(rank);  // as in Lose: none completes its handshake any more
    Peer& peer = peers_[rank];
    if (peer.stream == nullptr) continue;
    peer.stream->Detach();
    if (reason.ok()) continue;
    FrameHeader header;
    header.type = static_cast<uint8_t>(CollectiveFrame::kAbort);
    peer.stream->Queue(header, Encode(tfdist::Abort{reason.code(), reason.message()}));
  }
}

// Tells the event loop which events of a stream to report: not new data while some thread polls it
// anyway.
void ProgressEngine::Watch(int peer) {
  const MessageStream* const stream = peers_[peer].stream.get();
  if (stream == nullptr) return;
  uint32_t events = 0;
  if (peers_[peer].pollers == 0 || stream->shares_memory()) events |= EPOLLIN;
  if (stream->blocked() && stream->writes_socket()) events |= EPOLLOUT;
  if (events == peers_[peer].watched) return;
  peers_[peer].watched = events;
  loop_.Change(stream->fd(), static_cast<uint64_t>(peer), events);
}

// The engine's thread, which is then to take the engine and to run commands.
void ProgressEngine::Wake() {
  if (!awake_) loop_.Wake();
}

}  // namespace tfdist
