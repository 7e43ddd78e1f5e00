// What any thread may call. The communicator's own thread is in communicator_thread.cc.
#include "core/communicator.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/choose.h"
namespace tfdist {
namespace {

TimePoint After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Status Communicator::Create(int rank, int size, int port, std::unique_ptr<Communicator>* out,
                            bool shared_memory) {
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
      new Communicator(rank, size, std::move(listener), bound_port, shared_memory));
  if (!made->epoll_.valid() || !made->wake_.valid()) {
    return Status(StatusCode::kUnavailable,
                  StrCat(made->Who(), ": no descriptors left: ", std::strerror(errno)));
  }
  *out = std::move(made);
  return Status();
}

Communicator::Communicator(int rank, int size, Fd listener, int port, bool shared_memory)
    : rank_(rank),
      size_(size),
      port_(port),
      shared_memory_(shared_memory),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      gate_(std::move(listener)),
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
    gate_.Close();
  }
  Drive();
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
  hosts_ = NumberHosts(addresses);
  crowded_ =
      std::count(hosts_.begin(), hosts_.end(), hosts_[rank_]) > sysconf(_SC_NPROCESSORS_ONLN);
  gate_.Open(
      epoll_.get(), token, generation,
      [this](uint32_t rank) {
        // Higher ranks dial lower ones, each once.
        return rank < static_cast<uint32_t>(size_) && static_cast<int>(rank) > rank_ &&
               links_[rank] == nullptr;
      },
      [this](uint32_t rank, Fd socket) {
        AdoptLink(static_cast<int>(rank), std::move(socket), std::nullopt);
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
    if (s.ok() && (header.type != FrameType::kWelcome ||
                   (header.length != 0 && header.length != kOfferBytes))) {
      s = Status(StatusCode::kInternal,
                 StrCat("expected a WELCOME, received ", header.length,
                        " bytes in a frame of type ", static_cast<int>(header.type)));
    }
    std::string offer(s.ok() ? header.length : 0, '\0');
    if (s.ok()) s = ReceiveAll(socket, offer.data(), offer.size(), deadline);
    if (!s.ok()) {
      return Status(s.code(),
                    StrCat(Who(), ": cannot connect to ", PeerName(peer), ": ", s.message()));
    }
    // std::function must be copyable, an Fd is not.
    auto shared = std::make_shared<Fd>(std::move(socket));
    Post([this, peer, shared, offer] { AdoptLink(peer, std::move(*shared), offer); });
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
