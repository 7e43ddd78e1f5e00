// A client of a data port that sends arbitrary bytes.
#ifndef TFDIST_TESTS_CORE_COLLECTIVES_RAW_PEER_H_
#define TFDIST_TESTS_CORE_COLLECTIVES_RAW_PEER_H_

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "collectives/calls.h"
#include "core/net/authenticate.h"
#include "core/net/frame.h"
#include "core/net/socket.h"

namespace tfdist::testing {

inline std::string Bytes(const FrameHeader& header, const std::string& content = "") {
  const FrameHeaderBytes bytes = Encode(header);
  return std::string(bytes.begin(), bytes.end()) + content;
}

// A frame without payload.
template <typename Type>
std::string Frame(Type type, const std::string& meta, uint64_t key = 0, uint64_t sequence = 0) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(type);
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  header.key = key;
  header.sequence = sequence;
  return Bytes(header, meta);
}

inline FrameHeader DataHeader(uint64_t key, uint64_t bytes) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(CollectiveFrame::kData);
  header.payload_bytes = bytes;
  header.key = key;
  return header;
}

inline std::string HelloFrame(const Hello& hello) {
  return Frame(FrameType::kHello, Encode(hello));
}
inline std::string HelloFrame(uint32_t rank, uint64_t generation = 1, uint32_t to = 0) {
  return HelloFrame(Hello{generation, rank, to, {}});
}

class RawPeer {
 public:
  // Connects by TCP, or with `local` by the unix socket of a listener on this machine. A TCP
  // connection is closed with a reset, so that thousands of them leave no state in the kernel.
  explicit RawPeer(int port, bool local = false) {
    PeerSocket socket;
    REQUIRE_OK(Dial(StrCat("127.0.0.1:", port), local, Deadline(), &socket));
    REQUIRE((socket.process != nullptr) == local);
    socket_ = std::move(socket.fd);
    process = std::move(socket.process);
    if (local) return;
    const linger hard{1, 0};
    REQUIRE(setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)) == 0);
  }

  // Whether everything was sent; false if the other side has closed the connection.
  bool Send(const std::string& bytes) {
    return SendAll(socket_, bytes.data(), bytes.size(), Deadline()).ok();
  }
  void Receive(char* data, size_t size) { REQUIRE_OK(ReceiveAll(socket_, data, size, Deadline())); }
  // Whether `size` bytes arrived before the other side closed.
  bool TryReceive(char* data, size_t size) {
    return ReceiveAll(socket_, data, size, Deadline()).ok();
  }
  FrameHeader ReceiveHeader() {
    FrameHeaderBytes bytes;
    Receive(bytes.data(), bytes.size());
    FrameHeader header;
    REQUIRE_OK(Decode(bytes.data(), LimitsOfCollectives, &header));
    return header;
  }
  // Sends HELLO and answers the CHALLENGE with a proof of `key`. False if the other side closes the
  // connection before.
  bool Introduce(const Hello& hello, const Key& key = TestKey()) {
    FrameHeaderBytes head;
    Challenge challenge;
    char bytes[kChallengeBytes];
    if (!Send(HelloFrame(hello)) ||
        !ReceiveAll(socket_, head.data(), head.size(), Deadline()).ok() ||
        !ReceiveAll(socket_, bytes, sizeof(bytes), Deadline()).ok()) {
      return false;
    }
    REQUIRE_OK(Decode(std::string_view(bytes, sizeof(bytes)), &challenge));
    REQUIRE(SameDigest(challenge.proof, AcceptorProof(TestKey(), hello, challenge.nonce)));
    return Send(ProofFrame(DiallerProof(key, hello, challenge.nonce)));
  }
  static std::string ProofFrame(const Digest& proof) {
    return Frame(FrameType::kProof, std::string(proof.begin(), proof.end()));
  }
  // As rank `rank`, which dials rank 0.
  bool Introduce(uint32_t rank, uint64_t generation = 1) {
    return Introduce(Hello{generation, rank, 0, NewNonce()});
  }
  void EndSending() { shutdown(socket_.get(), SHUT_WR); }
  // Discards received bytes until the other side closes.
  void AwaitClose() {
    char bytes[4096];
    const TimePoint deadline = Deadline();
    for (;;) {
      const ssize_t received = recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (received == 0 || (received < 0 && errno == ECONNRESET)) return;
      pollfd entry{socket_.get(), POLLIN, 0};
      if (received < 0) poll(&entry, 1, 100);
      REQUIRE(Clock::now() < deadline);
    }
  }

  // Receives a frame with a descriptor beside its first byte.
  std::string ReceiveWithDescriptor(size_t size, Fd* descriptor) {
    std::string bytes(size, '\0');
    REQUIRE_OK(tfdist::ReceiveWithDescriptor(socket_, bytes.data(), size, descriptor, Deadline()));
    return bytes;
  }

  std::shared_ptr<const PeerProcess> process;  // at the other end of a unix socket

 private:
  static TimePoint Deadline() { return Clock::now() + std::chrono::seconds(60); }

  Fd socket_;
};

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_COLLECTIVES_RAW_PEER_H_
