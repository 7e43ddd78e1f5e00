// The socket calls of the core: listen, connect, accept, and blocking transfers of exact sizes.
#ifndef TFDIST_OPS_CORE_NET_SOCKET_H_
#define TFDIST_OPS_CORE_NET_SOCKET_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/net/fd.h"
#include "core/net/peer_process.h"

namespace tfdist {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

// A peer's machine that disappears without a word is noticed within this time, in which it answers
// neither probes nor data (s).
inline constexpr int kPeerLostSeconds = 25;

// A connected, non-blocking stream socket: TCP without Nagle's delay, or a unix socket to a process
// of this machine and user.
struct PeerSocket {
  Fd fd;
  std::shared_ptr<const PeerProcess> process;  // null for TCP
};

// Where a process takes connections: a TCP port of one address, or of all, and beside it an
// abstract unix socket (unix(7)), whose name is made of that address and port, so that a process of
// the same machine finds it when it connects to them.
class Listener {
 public:
  // `interface` is a numeric IPv4 or IPv6 address of this host, or empty for all there are; `port`
  // 0 lets the kernel choose. Without `local` there is no unix socket.
  static Status Listen(const std::string& interface, int port, bool local, Listener* out);

  int port() const { return port_; }
  const Fd& tcp() const { return tcp_; }
  const Fd& local() const { return local_; }  // may be invalid
  void Close();

 private:
  int port_ = 0;
  Fd tcp_, local_;
};

// Connects to "host:port" or "[v6]:port" before `deadline`: with `local` to the unix socket of a
// listener on this machine, where there is one of our own user; else by TCP.
Status Dial(const std::string& address, bool local, TimePoint deadline, PeerSocket* socket);

// Accepts one waiting connection at one of a listener's sockets; false when there is none, with
// errno. A process of another user at a unix socket is an invalid `fd`.
bool Accept(const Fd& listener, PeerSocket* socket);

// Write or read exactly `size` bytes of a non-blocking socket before `deadline`.
Status SendAll(const Fd& socket, const char* data, size_t size, TimePoint deadline);
Status ReceiveAll(const Fd& socket, char* data, size_t size, TimePoint deadline);

// The same over a unix socket, with a descriptor beside the first byte. A receiver that is sent
// none, or more than one, gets an invalid Fd.
Status SendWithDescriptor(const Fd& socket, const std::string& bytes, int descriptor,
                          TimePoint deadline);
Status ReceiveWithDescriptor(const Fd& socket, char* data, size_t size, Fd* descriptor,
                             TimePoint deadline);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_SOCKET_H_
