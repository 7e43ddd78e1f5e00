// The communicator's own thread: it waits for something to happen and drives the links, until one
// breaks or all is said.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/communicator.h"

namespace tfdist {
namespace {

// How long a communicator that ends keeps trying to deliver its last words.
constexpr auto kFarewellTime = std::chrono::seconds(2);

}  // namespace

void Communicator::Run() {
  std::vector<epoll_event> events(64);
  TimePoint farewell = TimePoint::max();
  for (;;) {
    const int ready = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 WaitMilliseconds());
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
    gate_.CheckTime(Clock::now());
    FlushLinks();
    lost_.clear();
    if (!stop_) continue;
    if (farewell == TimePoint::max()) farewell = Clock::now() + kFarewellTime;
    const bool said = std::all_of(links_.begin(), links_.end(),
                                  [](const auto& link) { return link == nullptr || link->idle(); });
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
    next = std::min(next, inquiry_->ends());
  } else {
    for (const auto& collective : pending_) {
      next = std::min({next, collective->deadline, collective->next_check});
    }
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
    if (peer < 0 && !collective->Settled()) peer = collective->WaitingFor();
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
