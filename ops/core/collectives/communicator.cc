// What any thread may call. The communicator's own thread is in communicator_thread.cc.
#include "core/collectives/communicator.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/collectives/selector.h"
#include "core/net/authenticate.h"

namespace tfdist {
namespace {

TimePoint After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Status Communicator::Create(int rank, int size, const std::string& interface, int port,
                            std::unique_ptr<Communicator>* out, bool shared_memory) {
  if (size < 1 || rank < 0 || rank >= size) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected 0 <= rank < size, received rank ", rank, " and size ", size));
  }
  Listener listener;
  if (Status s = Listener::Listen(interface, port, shared_memory, &listener); !s.ok()) {
    return Status(s.code(), StrCat("rank ", rank, " of ", size, ": ", s.message()));
  }
  std::unique_ptr<Communicator> made(
      new Communicator(rank, size, std::move(listener), shared_memory));
  if (!made->epoll_.valid() || !made->wake_.valid()) {
    return Status(StatusCode::kUnavailable,
                  StrCat(made->Who(), ": no descriptors left: ", std::strerror(errno)));
  }
  *out = std::move(made);
  return Status();
}

Communicator::Communicator(int rank, int size, Listener listener, bool shared_memory)
    : rank_(rank),
      size_(size),
      port_(listener.port()),
      shared_memory_(shared_memory),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      acceptor_(std::move(listener)),
      hosts_(size, 0),
      linked_(size, false),
      links_(size),
      left_(size, false),
      polled_(size, 0),
      watched_(size, 0) {
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
    Wake();
  });
  thread_.join();
  // The destructor may come much later, and peers learn of the end by the connections.
  {
    const EngineLock engine(engine_);
    for (auto& link : links_) link.reset();
    acceptor_.Close();
  }
  Drive();
}

Status Communicator::Connect(const Key& key, uint64_t generation,
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
  hosts_ = NumberHosts(addresses);
  crowded_ =
      std::count(hosts_.begin(), hosts_.end(), hosts_[rank_]) > sysconf(_SC_NPROCESSORS_ONLN);
  acceptor_.Open(
      epoll_.get(), key, generation, static_cast<uint32_t>(rank_),
      [this](uint32_t rank) {
        // Higher ranks dial lower ones, each once.
        return rank < static_cast<uint32_t>(size_) && static_cast<int>(rank) > rank_ &&
               links_[rank] == nullptr;
      },
      [this](uint32_t rank, PeerSocket socket) {
        AdoptLink(static_cast<int>(rank), std::move(socket), std::nullopt);
      });
  running_ = true;
  thread_ = std::thread([this] { Run(); });

  for (int peer = 0; peer < rank_; ++peer) {
    // std::function must be copyable, a descriptor is not.
    auto socket = std::make_shared<PeerSocket>();
    auto welcome = std::make_shared<Welcome>();
    const Status s = DialPeer(peer, key, generation, deadline, socket.get(), welcome.get());
    if (!s.ok()) {
      return Status(s.code(),
                    StrCat(Who(), ": cannot connect to ", PeerName(peer), ": ", s.message()));
    }
    Post([this, peer, socket, welcome] {
      AdoptLink(peer, std::move(*socket), std::move(*welcome));
    });
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
  return Status(StatusCode::kDeadlineExceeded, StrCat(Who(), ": no data connection from ", missing,
                                                      " within ", timeout_seconds, " s"));
}

Status Communicator::DialPeer(int peer, const Key& key, uint64_t generation, TimePoint deadline,
                              PeerSocket* socket, Welcome* welcome) const {
  if (Status s = Dial(addresses_[peer], SharesWith(peer), deadline, socket); !s.ok()) return s;
  Hello hello;
  hello.generation = generation;
  hello.rank = static_cast<uint32_t>(rank_);
  hello.to = static_cast<uint32_t>(peer);
  if (Status s = Authenticate(*socket, key, hello, deadline); !s.ok()) return s;
  HeaderBytes bytes;
  const bool local = socket->process != nullptr;
  Status s = local ? ReceiveWithDescriptor(socket->fd, bytes.data(), bytes.size(),
                                           &welcome->descriptor, deadline)
                   : ReceiveAll(socket->fd, bytes.data(), bytes.size(), deadline);
  FrameHeader header;
  if (s.ok()) s = DecodeHeader(bytes.data(), &header);
  if (!s.ok()) return s;
  if (header.type != FrameType::kWelcome ||
      (header.length != 0 && !(local && header.length == kOfferBytes))) {
    return Status(StatusCode::kInternal,
                  StrCat("expected a WELCOME, received ", header.length,
                         " bytes in a frame of type ", static_cast<int>(header.type)));
  }
  welcome->payload.resize(header.length);
  return ReceiveAll(socket->fd, welcome->payload.data(), welcome->payload.size(), deadline);
}

uint64_t Communicator::NextSequence(uint64_t key) {
  std::lock_guard<std::mutex> lock(mutex_);
  return sequences_[key]++;
}

void Communicator::Cancel(const CollectiveId& id) {
  // Left to another thread: whoever stops a step may not expect its collectives to call back from
  // within.
  Enqueue([this, id] {
    if (const Collective* collective = Find(id)) {
      GiveUp(*collective);
    } else if (join_ != nullptr && id == join_named_) {
      GiveUp(*join_);
    } else if (!failed_ && !history_.HasStarted(id)) {
      history_.MarkCancelled(id);  // it is still on its way here
    }
  });
  Wake();
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

std::string Communicator::Waiting(double seconds) {
  std::string text;
  {
    const EngineLock engine(engine_);
    const TimePoint now = Clock::now();
    for (const auto& collective : pending_) {
      const double waited = std::chrono::duration<double>(now - collective->started).count();
      if (waited < seconds || collective->Complete()) continue;
      const int peer = collective->Awaited();
      const bool opened = std::find(collective->opened_by.begin(), collective->opened_by.end(),
                                    peer) != collective->opened_by.end();
      text = StrCat(Who(), ": ", collective->Title(), " has waited ", static_cast<int>(waited),
                    " s for ", PeerName(peer),
                    opened ? ", which takes part" : ", which has not started it");
      break;
    }
  }
  Drive();
  return text;
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
  stats.rejected_connections = acceptor_.rejected();
  stats.chunks_sent = chunks_sent_.load(std::memory_order_relaxed);
  stats.bytes_sent_to_other_hosts = far_bytes_sent_.load(std::memory_order_relaxed);
  return stats;
}

void Communicator::Submit(std::unique_ptr<Collective> collective) {
  collective->started = Clock::now();
  const double timeout = collective->timeout_seconds();
  if (timeout > 0) collective->deadline = After(timeout);
  collective->next_check = After(CheckSeconds(timeout));
  if (size_ == 1) {
    finished_.fetch_add(1, std::memory_order_relaxed);
    return collective->Finish(Status());
  }
  if (!running_ && status().ok()) {
    return collective->Finish(
        Status(StatusCode::kFailedPrecondition,
               StrCat(Who(), ": ", collective->Title(), " was started before Connect")));
  }
  const CollectiveId id = collective->id();
  const std::vector<int> peers = collective->Peers();
  if (EngineLock engine(engine_, std::try_to_lock); engine) {
    RunCommands();  // one may be to cancel it
    Begin(std::move(collective));
    const bool polls = pending_.size() == 1 && Find(id) != nullptr && MayPoll();
    if (polls) BeginPolling(peers);
    Release(std::move(engine));
    if (polls) Poll(peers, [this, &id] { return Find(id) == nullptr; });
    return Drive();
  }
  // std::function must be copyable.
  auto shared = std::make_shared<std::unique_ptr<Collective>>(std::move(collective));
  Post([this, shared] { Begin(std::move(*shared)); });
}

double Communicator::CheckSeconds(double timeout_seconds) {
  constexpr double kWithoutTimeout = 60;
  return timeout_seconds > 0 ? timeout_seconds / 10 : kWithoutTimeout;
}

std::string Communicator::Who() const { return StrCat("rank ", rank_, " of ", size_); }

std::string Communicator::PeerName(int peer) const {
  return StrCat("rank ", peer, " (", addresses_.empty() ? "?" : addresses_[peer], ")");
}

}  // namespace tfdist
