// Owns one file descriptor.
#ifndef TFDIST_OPS_CORE_NET_FD_H_
#define TFDIST_OPS_CORE_NET_FD_H_

#include <unistd.h>

#include <utility>

namespace tfdist {

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
  void Reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_FD_H_
