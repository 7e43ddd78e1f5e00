// The communicator's own thread: it waits for something to happen and drives the engine, until all
// is said. And what becomes of the communicator when a peer is lost.
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/collectives/communicator.h"

namespace tfdist {
namespace {

// How long a communicator that ends keeps trying to deliver its last words.
constexpr auto kFarewellTime = std::chrono::seconds(2);
// How long it sleeps where nothing is due: less than most collectives have until somebody must ask
// after them, because who starts one that is due earlier has to wake it. It then also sees what an
// idle rank was not woken for.
constexpr auto kMostSleep = std::chrono::milliseconds(5000);
constexpr auto kMostSleepFailed = std::chrono::milliseconds(100);

}  // namespace

void Communicator::Run() {
  pthread_setname_np(pthread_self(), "tfdist");  // in profiles and debuggers
  std::vector<epoll_event> events(64);
  TimePoint farewell = TimePoint::max();
  int milliseconds = 0;
  for (bool over = false; !over;) {
    const int ready =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
    awake_ = true;
    EngineLock engine(engine_);
    own_turn_ = true;
    for (int i = 0; i < ready; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kWakeTag) {
        uint64_t count;
        [[maybe_unused]] const ssize_t drained = read(wake_.get(), &count, sizeof(count));
      } else if (tag >= Acceptor::kFirstTag) {
        acceptor_.OnReady(tag);
      } else {
        HandleLink(static_cast<int>(tag), events[i].events);
      }
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (links_[peer] != nullptr && links_[peer]->shares()) ReceiveFrom(peer);
    }
    CheckDeadlines();
    const TimePoint now = Clock::now();
    acceptor_.CheckTime(now);
    FlushLinks();
    if (stop_) {
      if (farewell == TimePoint::max()) farewell = now + kFarewellTime;
      over = now >= farewell || Said();
    }
    sleeps_until_ = std::min(NextDue(), now + (failed_ ? kMostSleepFailed : kMostSleep));
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(sleeps_until_ - now).count();
    const bool lingers = !pending_.empty() && !stop_;
    milliseconds = static_cast<int>(std::max<int64_t>(left, 0));
    if (!Release(std::move(engine))) milliseconds = 0;
    Drive();
    if (lingers) Linger();
  }
}

// In the middle of a collective the next chunk is never far.
void Communicator::Linger() {
  std::vector<int> peers;
  bool polled = false, polls = false;
  {
    const EngineLock engine(engine_);
    for (int peer = 0; peer < size_; ++peer) {
      polled |= polled_[peer] > 0;
      if (links_[peer] != nullptr && links_[peer]->shares()) peers.push_back(peer);
    }
    polls = !polled && !peers.empty() && MayPoll();
    if (polls) BeginPolling(peers);
  }
  if (!polls) return Drive();
  // Who starts a collective looks for itself.
  Poll(peers, [&] {
    return pending_.empty() ||
           std::any_of(peers.begin(), peers.end(), [this](int peer) { return polled_[peer] > 1; });
  });
}

// When the communicator's thread has something to do even if nothing comes.
TimePoint Communicator::NextDue() const {
  TimePoint next = acceptor_.NextDeadline();
  if (inquiry_) return std::min(next, inquiry_->ends());
  for (const auto& collective : pending_) {
    next = std::min({next, collective->deadline, collective->next_check});
  }
  return next;
}

// Whether all that the peers are to know has left.
bool Communicator::Said() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link == nullptr || link->idle(); });
}

void Communicator::HandleLink(int peer, uint32_t events) {
  if (links_[peer] == nullptr) return;
  if (events & EPOLLOUT) {
    links_[peer]->Unblock();
    Watch(peer);
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  links_[peer]->ReadKnocks();
  ReceiveFrom(peer);
}

bool Communicator::SharesWith(int peer) const {
  const auto host = [this](int rank) {
    return addresses_[rank].substr(0, addresses_[rank].rfind(':'));
  };
  return shared_memory_ && host(peer) == host(rank_);
}

void Communicator::AdoptLink(int peer, PeerSocket socket, std::optional<Welcome> welcome) {
  links_[peer] = std::make_unique<Link>(peer, std::move(socket));
  Link& link = *links_[peer];
  if (failed_) link.Detach();
  watched_[peer] = EPOLLIN;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(peer);
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, link.fd(), &event);
  if (!welcome) {
    link.Welcome();
  } else if (const Status s = link.OnWelcome(welcome->payload, std::move(welcome->descriptor));
             !s.ok()) {
    return PeerLost(peer, s.message());
  }
  if (link.settled()) NoteLinked(peer);
}

void Communicator::NoteLinked(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  linked_[peer] = true;
  connected_.notify_all();
}

// `peer` starts nothing further: whatever it has not opened by now will never be.
void Communicator::PeerLeft(int peer) {
  left_[peer] = true;
  for (const auto& collective : pending_) {
    const std::vector<int> peers = collective->Peers();
    const auto& opened = collective->opened_by;
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) continue;
    if (std::find(opened.begin(), opened.end(), peer) != opened.end()) continue;
    if (collective->Complete()) continue;
    const Status status(StatusCode::kUnavailable,
                        StrCat(Who(), ": ", collective->Title(), " needs ", PeerName(peer),
                               ", which has finished its program"));
    return Fail(status, status);
  }
}

void Communicator::PeerLost(int peer, const std::string& how) {
  if (links_[peer] == nullptr) return;
  NoteLinked(peer);  // whoever waits for it learns at its first collective what has become of it
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, links_[peer]->fd(), nullptr);
  const bool owed = links_[peer]->has_chunks();
  links_[peer]->Detach();
  lost_.push_back(std::move(links_[peer]));
  if (left_[peer] && !owed) {
    gone_ = true;
    return;
  }
  left_[peer] = true;
  const std::string doing = pending_.empty() ? "" : StrCat(" during ", pending_.front()->Title());
  const Status status(StatusCode::kUnavailable,
                      StrCat(Who(), ": lost ", PeerName(peer), doing, " (", how, ")"));
  Fail(status, status);
}

// A peer that has left and closed its connection has all it needs, and all that it owed is here,
// unless it left in the middle of a collective.
void Communicator::CheckGone() {
  if (!gone_) return;
  for (const auto& collective : pending_) {
    int peer = collective->cut_off_by;
    if (peer < 0 && !collective->Complete()) peer = collective->Awaited();
    if (peer < 0 || links_[peer] != nullptr) continue;
    const Status status(StatusCode::kUnavailable,
                        StrCat(Who(), ": ", PeerName(peer),
                               " has finished its program in the middle of ", collective->Title()));
    return Fail(status, status);
  }
}

// Ends every pending collective with `status`. `tell_peers` OK: the peers know already.
void Communicator::Fail(const Status& status, const Status& tell_peers) {
  if (failed_) return;
  failed_ = true;
  inquiry_.reset();
  early_.Clear();
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

}  // namespace tfdist
