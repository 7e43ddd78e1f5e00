#include "core/net/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace tfdist {
namespace {

constexpr const char kEveryInterface[] = "*";
// Keepalive (s): the first probe after kIdle, then one each kInterval, kProbes in total.
constexpr int kIdle = 10, kInterval = 5, kProbes = 3;
static_assert(kIdle + kInterval * kProbes == kPeerLostSeconds);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Status ErrnoStatus(StatusCode code, const std::string& what) {
  return Status(code, StrCat(what, ": ", std::strerror(errno)));
}

void Set(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

void ConfigureTcp(int fd) {
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kInterval);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  // For unacknowledged data, during which no probes are sent (tcp(7)).
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * kPeerLostSeconds);
}

// Waits for `events` on `fd`. False if the deadline passes first.
bool WaitFor(int fd, short events, TimePoint deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

Status DeadlinePassed(const char* call) {
  return Status(StatusCode::kDeadlineExceeded, StrCat(call, ": deadline passed"));
}

// After a failed call: waits until it may be retried and returns OK, else the reason for giving up.
Status Retry(const Fd& socket, short events, TimePoint deadline, const char* call) {
  if (errno == EINTR) return Status();
  if (errno != EAGAIN && errno != EWOULDBLOCK) return ErrnoStatus(StatusCode::kUnavailable, call);
  if (WaitFor(socket.get(), events, deadline)) return Status();
  return DeadlinePassed(call);
}

// A message of one byte with space for a descriptor beside it (unix(7)).
struct ByteWithDescriptor {
  explicit ByteWithDescriptor(char* byte) : piece{byte, 1} {
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  ByteWithDescriptor(const ByteWithDescriptor&) = delete;

  iovec piece;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

Status Resolve(const std::string& host, const std::string& port, int flags, Addresses* found) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &first); error != 0) {
    return Status(StatusCode::kUnavailable,
                  StrCat("cannot resolve '", host, "': ", gai_strerror(error)));
  }
  found->reset(first);
  return Status();
}

std::string NumericHost(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  const int error =
      getnameinfo(address, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST | NI_NUMERICSERV);
  return error == 0 ? host : "";
}

int PortOf(const sockaddr* address) {
  return ntohs(address->sa_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

// An abstract name, which disappears with the last descriptor of its socket. Returns the total
// length.
socklen_t LocalName(const std::string& host, int port, sockaddr_un* address) {
  const std::string name = StrCat("tfdist ", host, " ", port);
  const size_t size = std::min(name.size(), sizeof(address->sun_path) - 1);
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), size);  // after a zero byte
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

// Invalid if there are no unix sockets, or the name is in use.
Fd ListenLocal(const std::string& host, int port) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  const socklen_t size = LocalName(host, port, &name);
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&name), size) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return Fd();
  }
  return fd;
}

bool IsLocalAddress(const addrinfo& target) {
  sockaddr_storage storage{};
  std::memcpy(&storage, target.ai_addr, target.ai_addrlen);
  if (target.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = 0;
  }
  const Fd probe(socket(target.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return probe.valid() &&
         bind(probe.get(), reinterpret_cast<sockaddr*>(&storage), target.ai_addrlen) == 0;
}

// Connects to a listener of the same user at that address on this machine; false if there is none.
bool DialLocal(const addrinfo& target, PeerSocket* out) {
  const std::string host = NumericHost(target.ai_addr, target.ai_addrlen);
  for (const std::string& interface : {host, std::string(kEveryInterface)}) {
    Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    const socklen_t size = LocalName(interface, PortOf(target.ai_addr), &name);
    if (!fd.valid() || connect(fd.get(), reinterpret_cast<sockaddr*>(&name), size) != 0) continue;
    if (auto process = PeerProcess::Of(fd)) {
      *out = {std::move(fd), std::move(process), nullptr};
      return true;
    }
  }
  return false;
}

Status DialTcp(const addrinfo& target, TimePoint deadline, PeerSocket* out) {
  Fd fd(socket(target.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(StatusCode::kUnavailable, "socket");
  if (connect(fd.get(), target.ai_addr, target.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return ErrnoStatus(StatusCode::kUnavailable, "connect");
    if (!WaitFor(fd.get(), POLLOUT, deadline)) {
      return Status(StatusCode::kDeadlineExceeded, "connect: no answer before the deadline");
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    if (error != 0) return ErrnoStatus(StatusCode::kUnavailable, "connect");
  }
  ConfigureTcp(fd.get());
  *out = {std::move(fd), nullptr, nullptr};
  return Status();
}

// The wildcard address: IPv6, which includes IPv4, if the host has it.
Status EveryInterface(int port, Addresses* found) {
  const Fd probe(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return Resolve(probe.valid() ? "::" : "0.0.0.0", std::to_string(port), AI_NUMERICHOST, found);
}

}  // namespace

Status SplitAddress(const std::string& address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("expected an address host:port, received '", address, "'"));
  }
  *host = address.substr(0, colon);
  *port = address.substr(colon + 1);
  if (host->size() > 2 && host->front() == '[' && host->back() == ']') {
    *host = host->substr(1, host->size() - 2);
  }
  return Status();
}

std::string PeerName(const Fd& socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  auto* const address = reinterpret_cast<sockaddr*>(&peer);
  const bool known = getpeername(socket.get(), address, &size) == 0;
  if (!known) return "an unknown peer";
  if (peer.ss_family == AF_UNIX) return "a process of this host";
  std::string host = NumericHost(address, size);
  const std::string mapped = "::ffff:";  // IPv4, at a listener for both
  if (host.compare(0, mapped.size(), mapped) == 0) host.erase(0, mapped.size());
  return StrCat(host, ":", PortOf(address));
}

Status Listener::Listen(const std::string& interface, int port, bool local, Listener* out) {
  Addresses found(nullptr, freeaddrinfo);
  Status status = interface.empty()
                      ? EveryInterface(port, &found)
                      : Resolve(interface, std::to_string(port), AI_NUMERICHOST, &found);
  if (!status.ok()) return status;
  Listener listener;
  listener.tcp_ = Fd(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = listener.tcp_.get();
  if (fd < 0) return ErrnoStatus(StatusCode::kUnavailable, "socket");
  Set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (found->ai_family == AF_INET6) Set(fd, IPPROTO_IPV6, IPV6_V6ONLY, interface.empty() ? 0 : 1);
  if (bind(fd, found->ai_addr, found->ai_addrlen) != 0) {
    return ErrnoStatus(StatusCode::kUnavailable,
                       StrCat("cannot bind data port ", port, " of ",
                              interface.empty() ? "any address" : interface));
  }
  if (::listen(fd, SOMAXCONN) != 0) return ErrnoStatus(StatusCode::kUnavailable, "listen");
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* const address = reinterpret_cast<sockaddr*>(&bound);
  getsockname(fd, address, &size);
  listener.port_ = PortOf(address);
  if (local) {
    const std::string host = interface.empty() ? kEveryInterface : NumericHost(address, size);
    listener.local_ = ListenLocal(host, listener.port_);
  }
  *out = std::move(listener);
  return Status();
}

void Listener::Close() {
  tcp_.Reset();
  local_.Reset();
}

Status Dial(const std::string& address, bool local, TimePoint deadline, PeerSocket* socket) {
  std::string host, port;
  if (Status s = SplitAddress(address, &host, &port); !s.ok()) return s;
  Addresses found(nullptr, freeaddrinfo);
  if (Status s = Resolve(host, port, 0, &found); !s.ok()) return s;
  Status status(StatusCode::kUnavailable, StrCat("'", host, "' has no address"));
  for (const addrinfo* target = found.get(); target != nullptr; target = target->ai_next) {
    if (local && IsLocalAddress(*target) && DialLocal(*target, socket)) return Status();
    status = DialTcp(*target, deadline, socket);
    if (status.ok()) return status;
  }
  return status;
}

bool Accept(const Fd& listener, PeerSocket* socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  Fd fd(accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return false;
  *socket = PeerSocket();
  if (peer.ss_family == AF_UNIX) {
    socket->process = PeerProcess::Of(fd);
    if (socket->process == nullptr) return true;
  } else {
    ConfigureTcp(fd.get());
  }
  socket->fd = std::move(fd);
  return true;
}

Status SendAll(const Fd& socket, const char* data, size_t size, TimePoint deadline) {
  while (size > 0) {
    const ssize_t sent = send(socket.get(), data, size, MSG_NOSIGNAL);
    if (sent < 0) {
      if (Status s = Retry(socket, POLLOUT, deadline, "send"); !s.ok()) return s;
      continue;
    }
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return Status();
}

Status ReceiveAll(const Fd& socket, char* data, size_t size, TimePoint deadline) {
  while (size > 0) {
    const ssize_t received = recv(socket.get(), data, size, 0);
    if (received == 0) return EndOfStream();
    if (received < 0) {
      if (Status s = Retry(socket, POLLIN, deadline, "receive"); !s.ok()) return s;
      continue;
    }
    data += received;
    size -= static_cast<size_t>(received);
  }
  return Status();
}

Status SendAll(const PeerSocket& socket, const char* data, size_t size, TimePoint deadline) {
  if (socket.tls == nullptr) return SendAll(socket.fd, data, size, deadline);
  std::vector<iovec> rest = {{const_cast<char*>(data), size}};
  while (rest[0].iov_len > 0 || socket.tls->has_output()) {
    const size_t sent = rest[0].iov_len > 0 ? socket.tls->Write(rest) : 0;
    rest[0] = {static_cast<char*>(rest[0].iov_base) + sent, rest[0].iov_len - sent};
    if (socket.tls->Flush()) {
      if (sent > 0 || rest[0].iov_len == 0) continue;
      size_t none = 0;  // of bytes, but the reason
      Status s = socket.tls->Read({}, &none);
      return s.ok() ? EndOfStream() : s;
    }
    if (socket.tls->send_failed()) return EndOfStream();
    if (!WaitFor(socket.fd.get(), POLLOUT, deadline)) return DeadlinePassed("send");
  }
  return Status();
}

Status ReceiveAll(const PeerSocket& socket, char* data, size_t size, TimePoint deadline) {
  if (socket.tls == nullptr) return ReceiveAll(socket.fd, data, size, deadline);
  while (size > 0) {
    size_t received = 0;
    if (Status s = socket.tls->Read({{data, size}}, &received); !s.ok()) return s;
    data += received;
    size -= received;
    if (received > 0) continue;
    if (!WaitFor(socket.fd.get(), POLLIN, deadline)) return DeadlinePassed("receive");
  }
  return Status();
}

Status CompleteHandshake(const PeerSocket& socket, TimePoint deadline) {
  for (;;) {
    if (Status s = socket.tls->Handshake(); !s.ok()) return s;
    const bool unsent = !socket.tls->Flush();
    if (socket.tls->connected() && !unsent) return Status();
    if (socket.tls->send_failed()) return EndOfStream();
    const int events = socket.tls->connected() ? POLLOUT : unsent ? POLLIN | POLLOUT : POLLIN;
    if (!WaitFor(socket.fd.get(), static_cast<short>(events), deadline)) {
      return DeadlinePassed("TLS handshake");
    }
  }
}

Status SendWithDescriptor(const Fd& socket, const std::string& bytes, int descriptor,
                          TimePoint deadline) {
  char first = bytes.at(0);
  ByteWithDescriptor sent(&first);
  cmsghdr* const header = CMSG_FIRSTHDR(&sent.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  while (sendmsg(socket.get(), &sent.message, MSG_NOSIGNAL) < 0) {
    if (Status s = Retry(socket, POLLOUT, deadline, "send"); !s.ok()) return s;
  }
  return SendAll(socket, bytes.data() + 1, bytes.size() - 1, deadline);
}

Status ReceiveWithDescriptor(const Fd& socket, char* data, size_t size, Fd* descriptor,
                             TimePoint deadline) {
  ByteWithDescriptor received(data);
  ssize_t count;
  while ((count = recvmsg(socket.get(), &received.message, MSG_CMSG_CLOEXEC)) < 0) {
    if (Status s = Retry(socket, POLLIN, deadline, "receive"); !s.ok()) return s;
  }
  if (count == 0) return EndOfStream();
  // The kernel has closed the descriptors for which there was no space.
  const cmsghdr* const header = CMSG_FIRSTHDR(&received.message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(int));
    *descriptor = Fd(number);
  }
  return ReceiveAll(socket, data + 1, size - 1, deadline);
}

}  // namespace tfdist
