// Accepts connections whose peers prove that they know the key (authenticate.h); within TLS, if
// this process has credentials for it when the connection begins.
//
// Every other connection (a scanner, a worker of an earlier generation, random bytes) is closed and
// counted. Before its proof a connection costs one small buffer for a few seconds at most, and the
// number of such connections is bounded.
#ifndef TFDIST_OPS_CORE_NET_ACCEPTOR_H_
#define TFDIST_OPS_CORE_NET_ACCEPTOR_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "core/net/authenticate.h"
#include "core/net/event_loop.h"
#include "core/net/frame.h"
#include "core/net/socket.h"

namespace tfdist {

class Acceptor {
 public:
  // Whether to accept a peer that has proven the key, as rank `rank`.
  using Authorize = std::function<bool(uint32_t rank)>;
  using Authorized = std::function<void(uint32_t rank, PeerSocket socket)>;

  explicit Acceptor(Listener listener) : listener_(std::move(listener)) {}

  // Watches the listener with `loop`; the tags of its events are kFirstTag or larger. A peer's
  // HELLO must name this generation, and rank `to` as the rank that it means to reach.
  void Open(EventLoop* loop, const Key& key, uint64_t generation, uint32_t to, Authorize authorize,
            Authorized authorized);

  // Stops listening and drops all pending connections.
  void Close();

  void OnReady(uint64_t tag);
  // Closes connections whose deadline has passed, and resumes accepting after a pause.
  void CheckTime(TimePoint now);
  TimePoint NextDeadline() const;
  uint64_t rejected() const { return rejected_.load(std::memory_order_relaxed); }
  // The peer that was refused last because of TLS, and why; empty if none was. Any thread.
  std::string last_refusal() const;

  static constexpr uint64_t kFirstTag = uint64_t{1} << 40;

 private:
  static constexpr uint64_t kTcpTag = kFirstTag, kLocalTag = kFirstTag + 1;

  struct PendingConnection {
    uint64_t tag;
    PeerSocket socket;
    TimePoint deadline;
    std::array<char, kFrameHeaderBytes + std::max(kHelloBytes, kProofBytes)> bytes;
    size_t received = 0;
    bool begun = false;  // whether it is known if the connection is encrypted
    bool challenged = false;
    AcceptorHandshake handshake;
  };
  using Position = std::list<PendingConnection>::iterator;

  void AcceptSome(const Fd& listener);
  void OnPending(Position pending);
  // After these, false if the connection failed. `ready`: the next step may follow at once, else
  // more has to come.
  bool Begin(PendingConnection* pending, bool* ready);
  bool CompleteHandshake(PendingConnection* pending, bool* ready);
  // Reads up to one frame of the expected type and size. False also if the frame is malformed.
  bool Receive(PendingConnection* pending, bool* ready);
  bool SendChallenge(PendingConnection* pending);
  bool IsForUs(const PendingConnection& pending) const;
  static std::string_view PayloadOf(const PendingConnection& pending, size_t length);
  void Watch();
  void Pause();
  void Reject(Position pending);
  void NoteRefusal(const PendingConnection& pending, const std::string& why);

  Listener listener_;
  EventLoop* loop_ = nullptr;
  Key key_{};
  uint64_t generation_ = 0;
  uint32_t to_ = 0;
  Authorize authorize_;
  Authorized authorized_;
  uint64_t next_tag_ = kLocalTag + 1;
  std::list<PendingConnection> pending_;       // oldest first
  TimePoint paused_until_ = TimePoint::max();  // set when descriptors have run out
  std::atomic<uint64_t> rejected_{0};
  mutable std::mutex refusal_mutex_;
  std::string last_refusal_;  // guarded by refusal_mutex_
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_ACCEPTOR_H_
