// The socket calls of the core: listen, connect, accept, and blocking transfers of exact sizes.
#ifndef TFDIST_OPS_CORE_NET_SOCKET_H_
#define TFDIST_OPS_CORE_NET_SOCKET_H_

#include <cstddef>
#include <memory>
#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/net/fd.h"
#include "core/net/peer_process.h"
#include "core/net/tls/tls_transport.h"

namespace tfdist {

// The time (s) in which the silent failure of a peer's machine is detected: it answers neither
// probes nor data.
inline constexpr int kPeerLostSeconds = 25;

// A connected, non-blocking stream socket: TCP without Nagle's algorithm, or a unix socket to a
// process of this machine and user.
struct PeerSocket {
  Fd fd;
  std::shared_ptr<const PeerProcess> process;  // null for TCP
  std::unique_ptr<TlsTransport> tls;           // null: in the clear
};

// A listening TCP port of one address or of all, and an abstract unix socket (unix(7)). The name of
// the unix socket contains the address and port, so that a process of the same machine that
// connects to them finds it.
class Listener {
 public:
  // `interface`: a numeric IPv4 or IPv6 address of this host; empty: all addresses. `port` 0: the
  // kernel chooses. Without `local` there is no unix socket.
  static Status Listen(const std::string& interface, int port, bool local, Listener* out);

  int port() const { return port_; }
  const Fd& tcp() const { return tcp_; }
  const Fd& local() const { return local_; }  // may be invalid
  void Close();

 private:
  int port_ = 0;
  Fd tcp_, local_;
};

// Takes "host:port" or "[v6]:port" apart.
Status SplitAddress(const std::string& address, std::string* host, std::string* port);

// The address of the process at the other end, "10.0.0.1:4711", or "a process of this host".
std::string PeerName(const Fd& socket);

// Connects to "host:port" or "[v6]:port" before `deadline`. With `local` it prefers the unix socket
// of a listener of the same user on this machine; else it uses TCP.
Status Dial(const std::string& address, bool local, TimePoint deadline, PeerSocket* socket);

// Accepts one pending connection of one of a listener's sockets; false, with errno, if there is
// none. For a process of another user at a unix socket `fd` is invalid.
bool Accept(const Fd& listener, PeerSocket* socket);

// Send or receive exactly `size` bytes over a non-blocking socket before `deadline`.
Status SendAll(const Fd& socket, const char* data, size_t size, TimePoint deadline);
Status ReceiveAll(const Fd& socket, char* data, size_t size, TimePoint deadline);

// The same over a connection that may be encrypted.
Status SendAll(const PeerSocket& socket, const char* data, size_t size, TimePoint deadline);
Status ReceiveAll(const PeerSocket& socket, char* data, size_t size, TimePoint deadline);
// Runs the handshake of `socket.tls`.
Status CompleteHandshake(const PeerSocket& socket, TimePoint deadline);

// The same over a unix socket, with a descriptor beside the first byte. If none or several are
// received, the Fd is invalid.
Status SendWithDescriptor(const Fd& socket, const std::string& bytes, int descriptor,
                          TimePoint deadline);
Status ReceiveWithDescriptor(const Fd& socket, char* data, size_t size, Fd* descriptor,
                             TimePoint deadline);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_SOCKET_H_
