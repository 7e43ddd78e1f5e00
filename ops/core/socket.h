// Thin owners of POSIX descriptors, and the few socket calls the communicator makes.
#ifndef TFDIST_OPS_CORE_SOCKET_H_
#define TFDIST_OPS_CORE_SOCKET_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "core/status.h"

namespace tfdist {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

// Owns one file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
};

// Listens on `port` of every interface (0: the kernel chooses), non-blocking; IPv6 with IPv4 where
// there is IPv6.
Status Listen(int port, Fd* listener, int* bound_port);

// Connects to "host:port" or "[v6]:port" before `deadline`. The socket is non-blocking and without
// Nagle's delay.
Status Dial(const std::string& address, TimePoint deadline, Fd* socket);

// Accepts one waiting connection; an invalid Fd when there is none. Non-blocking, without Nagle's
// delay.
Fd Accept(const Fd& listener);

// Write or read exactly `size` bytes of a non-blocking socket before `deadline`.
Status SendAll(const Fd& socket, const char* data, size_t size, TimePoint deadline);
Status ReceiveAll(const Fd& socket, char* data, size_t size, TimePoint deadline);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_SOCKET_H_
