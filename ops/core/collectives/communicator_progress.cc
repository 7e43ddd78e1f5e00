// Who drives the engine, and when: commands, polling, and what is due before the engine is let go.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/collectives/communicator.h"

namespace tfdist {
namespace {

// How long a thread looks for what comes next before it leaves that to the communicator's own
// thread: as long as nothing comes, in all, and while another thread has the engine, which may need
// this processor to go on. Ranks that do the same work come to a collective within a millisecond of
// each other, and to sleep through that would cost as much again. It does not yield the processor
// between two looks: where others compute, it would get it back after milliseconds, later than a
// thread that sleeps.
constexpr auto kMostPolling = std::chrono::milliseconds(5);
constexpr auto kEnginePatience = std::chrono::microseconds(20);
// Where nothing came in time a peer computes for longer, or has no processor, and looking takes one
// away: the next time is left out, then the next 3, 7 and so on up to `most_skipped`, until once
// something comes in time. Where a host has more ranks than processors it is their own peers whom
// they would keep from going on (Open MPI, too, polls less where it is "oversubscribed").
struct Polling {
  std::chrono::microseconds patience;
  int most_skipped;
};
constexpr Polling kPolling = {std::chrono::microseconds(1000), 1};
constexpr Polling kCrowdedPolling = {std::chrono::microseconds(100), 63};
// A `done` may start a collective whose `done` starts the next one, and so on.
constexpr int kMostNested = 4;
// Times that what came meanwhile is received before the engine is let go.
constexpr int kMostLate = 4;

thread_local int nested = 0;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Communicator::Enqueue(Command command) {
  std::lock_guard<std::mutex> lock(mutex_);
  commands_.push_back(std::move(command));
  commanded_ = true;
}

// Runs `command` here or, if the engine is taken, on the thread that has it.
void Communicator::Post(Command command) {
  Enqueue(std::move(command));
  Drive();
}

// To be called by everyone who has let go of the engine: until then others may have left commands.
void Communicator::Drive() {
  while (commanded_) {
    EngineLock engine(engine_, std::try_to_lock);
    if (!engine) return;
    RunCommands();
    Release(std::move(engine));
  }
}

void Communicator::RunCommands() {
  if (!commanded_) return;
  std::vector<Command> commands;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
    commanded_ = false;
  }
  for (const Command& command : commands) command();
}

bool Communicator::Release(EngineLock engine) {
  // Cheaper than to wake a thread for it.
  for (int peer = 0; peer < size_; ++peer) {
    for (int i = 0; i < kMostLate && !Rests(peer); ++i) ReceiveFrom(peer);
  }
  CheckGone();
  FlushLinks();
  lost_.clear();
  looked_ = begun_;
  bool rests = true;
  for (int peer = 0; peer < size_; ++peer) rests &= Rests(peer);
  if (std::exchange(own_turn_, false)) {
    awake_ = false;
  } else if (!rests || NextDue() < sleeps_until_) {
    Wake();
  }
  std::vector<Ended> ended;
  // Too deep, and the communicator's own thread tells them.
  if (nested <= kMostNested) {
    ended.swap(ended_);
  } else if (!ended_.empty()) {
    Wake();
  }
  engine.unlock();
  ++nested;
  for (const Ended& one : ended) one.collective->Finish(one.status);
  --nested;
  return rests;
}

// Whether this side is told of what comes, or somebody looks.
bool Communicator::Rests(int peer) {
  if (links_[peer] == nullptr || polled_[peer] > 0) return true;
  // To wake a thread for what a peer begins early takes time from whoever computes here, and for
  // nothing: the thread that begins it here will look, and so does one that begins another.
  const bool idle = pending_.empty() && looked_ == begun_ && !failed_ && !stop_;
  return links_[peer]->Rest(idle);
}

// Looks at the links of `peers` itself, until `over` or for as long as it pays. After BeginPolling.
void Communicator::Poll(const std::vector<int>& peers, const std::function<bool()>& over) {
  const Polling& how = crowded_ ? kCrowdedPolling : kPolling;
  const TimePoint start = Clock::now();
  TimePoint last = start, had_engine = start;
  for (bool done = false; !done;) {
    if (EngineLock engine(engine_, std::try_to_lock); engine) {
      bool any = false;
      for (const int peer : peers) any |= ReceiveFrom(peer);
      const TimePoint now = had_engine = Clock::now();
      if (any) last = now;
      const bool came = over(), late = now - last > how.patience;
      if (came) skipped_ = 0;
      if (late && !came) to_skip_ = skipped_ = std::min(2 * skipped_ + 1, how.most_skipped);
      done = came || late || now - start > kMostPolling;
      if (done) EndPolling(peers);
      if (done || any) Release(std::move(engine));
    } else if (Clock::now() - had_engine > kEnginePatience) {
      // Who has it may need this processor.
      Post([this, peers] { EndPolling(peers); });
      done = true;
    }
    Drive();
    Pause();
  }
}

// Whether to poll, this time; with the engine.
bool Communicator::MayPoll() {
  if (to_skip_ > 0) {
    --to_skip_;
    return false;
  }
  return nested < kMostNested;
}

void Communicator::BeginPolling(const std::vector<int>& peers) {
  for (const int peer : peers) {
    ++polled_[peer];
    Watch(peer);
  }
}

void Communicator::EndPolling(const std::vector<int>& peers) {
  for (const int peer : peers) {
    --polled_[peer];
    Watch(peer);
  }
}

// False if nothing has come.
bool Communicator::ReceiveFrom(int peer) {
  if (links_[peer] == nullptr) return false;
  bool any = false;
  const bool settled = links_[peer]->settled();
  if (const Status s = links_[peer]->Receive(*this, &any); !s.ok()) {
    PeerLost(peer, s.message());
    return true;
  }
  if (!settled && links_[peer]->settled()) NoteLinked(peer);
  return any;
}

void Communicator::FlushLinks() {
  for (int peer = 0; peer < size_; ++peer) {
    Link* link = links_[peer].get();
    if (link == nullptr || link->idle() || link->blocked()) continue;
    link->Flush(*this);
    if (link->blocked()) Watch(peer);
  }
}

// Tells epoll what to report of a link: not what comes while somebody looks anyway.
void Communicator::Watch(int peer) {
  const Link* link = links_[peer].get();
  if (link == nullptr) return;
  uint32_t events = 0;
  if (polled_[peer] == 0 || link->shares()) events |= EPOLLIN;
  if (link->blocked() && link->writes_socket()) events |= EPOLLOUT;
  if (events == watched_[peer]) return;
  watched_[peer] = events;
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<uint64_t>(peer);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link->fd(), &event);
}

// The communicator's thread, which is then to take the engine and to run commands.
void Communicator::Wake() {
  if (awake_) return;
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

}  // namespace tfdist
