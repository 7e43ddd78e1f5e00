// Somebody who connects to a data port and writes whatever bytes a test likes.
#ifndef TFDIST_TESTS_CORE_RAW_PEER_H_
#define TFDIST_TESTS_CORE_RAW_PEER_H_

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "calls.h"
#include "core/frame.h"
#include "core/socket.h"

namespace tfdist::testing {

inline std::string Bytes(const FrameHeader& header, const std::string& payload = "") {
  const HeaderBytes bytes = EncodeHeader(header);
  return std::string(bytes.begin(), bytes.end()) + payload;
}

inline std::string Frame(FrameType type, const std::string& payload, uint64_t key = 0,
                         uint64_t sequence = 0) {
  FrameHeader header;
  header.type = type;
  header.length = static_cast<uint32_t>(payload.size());
  header.key = key;
  header.sequence = sequence;
  return Bytes(header, payload);
}

inline std::string HelloFrame(uint32_t rank, uint64_t generation = 1,
                              const Token& token = TestToken()) {
  return Frame(FrameType::kHello, Encode(Hello{token, generation, rank}));
}

class RawPeer {
 public:
  // Connects, and closes with a reset, so that thousands of them leave nothing behind in the
  // kernel.
  explicit RawPeer(int port) {
    EXPECT_OK(Dial(StrCat("127.0.0.1:", port), Deadline(), &socket_));
    const linger hard{1, 0};
    EXPECT(setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)) == 0);
  }

  // Whether all was taken; a peer that has closed its end takes nothing.
  bool Send(const std::string& bytes) {
    return SendAll(socket_, bytes.data(), bytes.size(), Deadline()).ok();
  }
  void Receive(char* data, size_t size) { EXPECT_OK(ReceiveAll(socket_, data, size, Deadline())); }
  FrameHeader ReceiveHeader() {
    HeaderBytes bytes;
    Receive(bytes.data(), bytes.size());
    FrameHeader header;
    EXPECT_OK(DecodeHeader(bytes.data(), &header));
    return header;
  }
  void EndSending() { shutdown(socket_.get(), SHUT_WR); }
  // Waits until the other side closes, whatever it sends before.
  void AwaitClose() {
    char bytes[4096];
    const TimePoint deadline = Deadline();
    for (;;) {
      const ssize_t received = recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (received == 0 || (received < 0 && errno == ECONNRESET)) return;
      pollfd entry{socket_.get(), POLLIN, 0};
      if (received < 0) poll(&entry, 1, 100);
      EXPECT(Clock::now() < deadline);
    }
  }

 private:
  static TimePoint Deadline() { return Clock::now() + std::chrono::seconds(20); }

  Fd socket_;
};

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_RAW_PEER_H_
