// A proxy between a client and a server that injects a fault at a given byte.
#ifndef TFDIST_TESTS_CORE_PROXY_H_
#define TFDIST_TESTS_CORE_PROXY_H_

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <thread>

#include "collectives/calls.h"
#include "core/net/socket.h"

namespace tfdist::testing {

// Forwards one connection at a time.
class Proxy {
 public:
  enum Direction { kToServer = 0, kToClient = 1 };
  enum class Fault {
    kNone,
    kCut,    // both connections are closed before the byte
    kStall,  // this direction stops before the byte, until the next connection
    kFlip,   // all bits of the byte are inverted
  };

  explicit Proxy(int target) : target_(target), wake_(eventfd(0, EFD_NONBLOCK)) {
    REQUIRE_OK(Listener::Listen("127.0.0.1", 0, true, &listener_));
    thread_ = std::thread([this] { Run(); });
  }
  ~Proxy() {
    const uint64_t one = 1;
    REQUIRE(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }

  int port() const { return listener_.port(); }

  // Sets the port of the server for later connections.
  void Lead(int target) {
    const std::lock_guard<std::mutex> lock(mutex_);
    target_ = target;
  }
  // Injects the fault once, at byte number `at` in this direction, counted from this call.
  void Arm(Direction direction, uint64_t at, Fault fault) {
    const std::lock_guard<std::mutex> lock(mutex_);
    direction_ = direction;
    at_ = at;
    fault_ = fault;
    passed_ = {0, 0};
  }
  // Bytes since Arm.
  uint64_t passed(Direction direction) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return passed_[direction];
  }

 private:
  void Run() {
    for (;;) {
      std::array<pollfd, 5> entries{};
      entries[0] = {wake_.get(), POLLIN, 0};
      entries[1] = {listener_.tcp().get(), POLLIN, 0};
      entries[2] = {listener_.local().get(), POLLIN, 0};
      for (const Direction direction : {kToServer, kToClient}) {
        entries[3 + direction] = {stalled_[direction] ? -1 : From(direction).get(), POLLIN, 0};
      }
      REQUIRE(poll(entries.data(), entries.size(), -1) > 0);
      if (entries[0].revents != 0) return;
      if (entries[1].revents != 0 || entries[2].revents != 0) {
        Begin(entries[2].revents != 0);
        continue;
      }
      for (const Direction direction : {kToServer, kToClient}) {
        if (entries[3 + direction].revents != 0 && client_.valid()) Pass(direction);
      }
    }
  }

  Fd& From(Direction direction) { return direction == kToServer ? client_ : server_; }
  Fd& To(Direction direction) { return direction == kToServer ? server_ : client_; }

  // Connects to the server by the same kind of socket as the client's: a unix socket, or TCP.
  void Begin(bool local) {
    int target;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      target = target_;
    }
    End();
    PeerSocket client, server;
    Accept(local ? listener_.local() : listener_.tcp(), &client);
    client_ = std::move(client.fd);
    if (!Dial(StrCat("127.0.0.1:", target), local, Soon(), &server).ok()) return End();
    server_ = std::move(server.fd);
  }

  void End() {
    client_.Reset();
    server_.Reset();
    stalled_ = {false, false};
  }

  void Pass(Direction direction) {
    std::array<char, 64 * 1024> bytes;
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t max_bytes = bytes.size();
    const bool armed = fault_ != Fault::kNone && direction == direction_;
    if (armed) {
      max_bytes = std::min<uint64_t>(max_bytes, at_ - passed_[direction]);
      if (max_bytes == 0) {
        const Fault fault = std::exchange(fault_, Fault::kNone);
        if (fault == Fault::kCut) return End();
        if (fault == Fault::kStall) {
          stalled_[direction] = true;
          return;
        }
        max_bytes = 1;
        flip_ = true;
      }
    }
    const ssize_t received = recv(From(direction).get(), bytes.data(), max_bytes, 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (received <= 0) return End();
    if (std::exchange(flip_, false)) bytes[0] = static_cast<char>(~bytes[0]);
    passed_[direction] += static_cast<uint64_t>(received);
    const auto size = static_cast<size_t>(received);
    if (!SendAll(To(direction), bytes.data(), size, Soon()).ok()) End();
  }

  static TimePoint Soon() { return Clock::now() + std::chrono::seconds(20); }

  mutable std::mutex mutex_;
  int target_;                               // guarded by mutex_
  Direction direction_ = kToServer;          // guarded by mutex_
  uint64_t at_ = 0;                          // guarded by mutex_
  Fault fault_ = Fault::kNone;               // guarded by mutex_
  std::array<uint64_t, 2> passed_ = {0, 0};  // guarded by mutex_
  bool flip_ = false;                        // guarded by mutex_
  std::array<bool, 2> stalled_ = {false, false};
  Fd wake_, client_, server_;
  Listener listener_;
  std::thread thread_;
};

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_PROXY_H_
