// A proxy that records every byte of the connections that pass through it.
#ifndef TFDIST_TESTS_CORE_NET_RECORDER_H_
#define TFDIST_TESTS_CORE_NET_RECORDER_H_

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/net/socket.h"
#include "testing.h"

namespace tfdist::testing {

// Forwards one TCP connection.
class Recorder {
 public:
  explicit Recorder(int target) : target_(target), wake_(eventfd(0, EFD_NONBLOCK)) {
    REQUIRE_OK(Listener::Listen("127.0.0.1", 0, false, &listener_));
    thread_ = std::thread([this] { Run(); });
  }
  ~Recorder() { End(); }

  int port() const { return listener_.port(); }
  // All bytes of both directions; nothing passes any more.
  std::string Bytes() {
    End();
    return bytes_;
  }

 private:
  void Run() {
    PeerSocket client, server;
    if (!WaitFor(listener_.tcp()) || !Accept(listener_.tcp(), &client)) return;
    REQUIRE_OK(Dial(StrCat("127.0.0.1:", target_), false, Soon(), &server));
    for (;;) {
      std::array<pollfd, 3> entries = {pollfd{wake_.get(), POLLIN, 0},
                                       pollfd{client.fd.get(), POLLIN, 0},
                                       pollfd{server.fd.get(), POLLIN, 0}};
      REQUIRE(poll(entries.data(), entries.size(), -1) > 0);
      if (entries[0].revents != 0) return;
      if (entries[1].revents != 0 && !Pass(client.fd, server.fd)) return;
      if (entries[2].revents != 0 && !Pass(server.fd, client.fd)) return;
    }
  }

  bool WaitFor(const Fd& fd) const {
    std::array<pollfd, 2> entries = {pollfd{wake_.get(), POLLIN, 0}, pollfd{fd.get(), POLLIN, 0}};
    REQUIRE(poll(entries.data(), entries.size(), -1) > 0);
    return entries[0].revents == 0;
  }

  bool Pass(const Fd& from, const Fd& to) {
    std::array<char, 64 * 1024> part;
    const ssize_t received = recv(from.get(), part.data(), part.size(), 0);
    if (received <= 0) return received < 0 && (errno == EAGAIN || errno == EINTR);
    const auto size = static_cast<size_t>(received);
    bytes_.append(part.data(), size);
    return SendAll(to, part.data(), size, Soon()).ok();
  }

  void End() {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    REQUIRE(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }

  static TimePoint Soon() { return Clock::now() + std::chrono::seconds(20); }

  const int target_;
  Fd wake_;
  Listener listener_;
  std::string bytes_;  // the thread's, until it has ended
  std::thread thread_;
};

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_NET_RECORDER_H_
