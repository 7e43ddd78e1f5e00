#include "core/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace tfdist {
namespace {

Status ErrnoStatus(StatusCode code, const std::string& what) {
  return Status(code, StrCat(what, ": ", std::strerror(errno)));
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Waits for `events` on `fd`. False when the deadline passes first.
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

Status DialOne(const addrinfo& target, TimePoint deadline, Fd* socket) {
  Fd fd(::socket(target.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
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
  SetNoDelay(fd.get());
  *socket = std::move(fd);
  return Status();
}

}  // namespace

void Fd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Status Listen(int port, Fd* listener, int* bound_port) {
  bool v6 = true;
  Fd fd(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    v6 = false;
    fd = Fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  }
  if (!fd.valid()) return ErrnoStatus(StatusCode::kUnavailable, "socket");
  const int on = 1, off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_storage storage{};
  socklen_t size;
  if (v6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    auto* address = reinterpret_cast<sockaddr_in6*>(&storage);
    address->sin6_family = AF_INET6;
    address->sin6_addr = in6addr_any;
    address->sin6_port = htons(static_cast<uint16_t>(port));
    size = sizeof(sockaddr_in6);
  } else {
    auto* address = reinterpret_cast<sockaddr_in*>(&storage);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_ANY);
    address->sin_port = htons(static_cast<uint16_t>(port));
    size = sizeof(sockaddr_in);
  }
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), size) != 0) {
    return ErrnoStatus(StatusCode::kUnavailable, StrCat("cannot bind data port ", port));
  }
  if (listen(fd.get(), SOMAXCONN) != 0) return ErrnoStatus(StatusCode::kUnavailable, "listen");
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &size);
  *bound_port = ntohs(v6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                         : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
  *listener = std::move(fd);
  return Status();
}

Status Dial(const std::string& address, TimePoint deadline, Fd* socket) {
  std::string host, port;
  if (Status s = SplitAddress(address, &host, &port); !s.ok()) return s;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return Status(StatusCode::kUnavailable,
                  StrCat("cannot resolve '", host, "': ", gai_strerror(error)));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  Status status(StatusCode::kUnavailable, StrCat("'", host, "' has no address"));
  for (const addrinfo* target = found; target != nullptr; target = target->ai_next) {
    status = DialOne(*target, deadline, socket);
    if (status.ok()) return status;
  }
  return status;
}

Fd Accept(const Fd& listener) {
  Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.valid()) SetNoDelay(fd.get());
  return fd;
}

Status SendAll(const Fd& socket, const char* data, size_t size, TimePoint deadline) {
  while (size > 0) {
    const ssize_t sent = send(socket.get(), data, size, MSG_NOSIGNAL);
    if (sent > 0) {
      data += sent;
      size -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitFor(socket.get(), POLLOUT, deadline)) {
        return Status(StatusCode::kDeadlineExceeded, "send: deadline passed");
      }
    } else if (errno != EINTR) {
      return ErrnoStatus(StatusCode::kUnavailable, "send");
    }
  }
  return Status();
}

Status ReceiveAll(const Fd& socket, char* data, size_t size, TimePoint deadline) {
  while (size > 0) {
    const ssize_t received = recv(socket.get(), data, size, 0);
    if (received > 0) {
      data += received;
      size -= static_cast<size_t>(received);
    } else if (received == 0) {
      return Status(StatusCode::kUnavailable, "the connection was closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitFor(socket.get(), POLLIN, deadline)) {
        return Status(StatusCode::kDeadlineExceeded, "receive: deadline passed");
      }
    } else if (errno != EINTR) {
      return ErrnoStatus(StatusCode::kUnavailable, "receive");
    }
  }
  return Status();
}

}  // namespace tfdist
