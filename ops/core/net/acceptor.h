// Accepts connections, and lets in only those that prove to know the key (authenticate.h).
//
// Anybody else (a scanner, a worker of an earlier generation, random bytes) is dropped and counted.
// A connection that has proven nothing costs at most one small buffer for a few seconds, and there
// is room for a bounded number of them.
#ifndef TFDIST_OPS_CORE_NET_ACCEPTOR_H_
#define TFDIST_OPS_CORE_NET_ACCEPTOR_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <utility>

#include "core/net/authenticate.h"
#include "core/net/event_loop.h"
#include "core/net/frame.h"
#include "core/net/socket.h"

namespace tfdist {

class Acceptor {
 public:
  // Decides about a peer that has proven the key, and gives the rank that it is to be.
  using Authorize = std::function<bool(uint32_t rank)>;
  using Authorized = std::function<void(uint32_t rank, PeerSocket socket)>;

  explicit Acceptor(Listener listener) : listener_(std::move(listener)) {}

  // Starts to watch the listener with `loop`; events carry a tag from kFirstTag on. Peers must say
  // this generation, and that they mean the rank `to`.
  void Open(EventLoop* loop, const Key& key, uint64_t generation, uint32_t to, Authorize authorize,
            Authorized authorized);

  // Stops listening and drops all pending connections.
  void Close();

  void OnReady(uint64_t tag);
  // Does what is due: drops connections whose time is over, listens again after a pause.
  void CheckTime(TimePoint now);
  TimePoint NextDeadline() const;
  uint64_t rejected() const { return rejected_.load(std::memory_order_relaxed); }

  static constexpr uint64_t kFirstTag = uint64_t{1} << 40;

 private:
  static constexpr uint64_t kTcpTag = kFirstTag, kLocalTag = kFirstTag + 1;

  struct PendingConnection {
    uint64_t tag;
    PeerSocket socket;
    TimePoint deadline;
    std::array<char, kFrameHeaderBytes + std::max(kHelloBytes, kProofBytes)> bytes;
    size_t received = 0;
    bool challenged = false;
    Hello hello;
    Digest expected;  // proof, once it is challenged
  };
  using Position = std::list<PendingConnection>::iterator;

  void AcceptSome(const Fd& listener);
  void OnPending(Position pending);
  // Whether a whole frame of the type and size that must come next has come, and is not bad.
  bool Receive(PendingConnection* pending, bool* whole);
  bool Challenge(PendingConnection* pending);
  bool IsAuthentic(const PendingConnection& pending) const;
  void Watch();
  void Pause();
  void Reject(Position pending);

  Listener listener_;
  EventLoop* loop_ = nullptr;
  Key key_{};
  uint64_t generation_ = 0;
  uint32_t to_ = 0;
  Authorize authorize_;
  Authorized authorized_;
  uint64_t next_tag_ = kLocalTag + 1;
  std::list<PendingConnection> pending_;       // oldest first
  TimePoint paused_until_ = TimePoint::max();  // while there are no descriptors left
  std::atomic<uint64_t> rejected_{0};
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_ACCEPTOR_H_
