// The two ends of a connection in one thread: a target drives the project's end, and is the peer.
#ifndef TFDIST_TESTS_FUZZ_PEER_H_
#define TFDIST_TESTS_FUZZ_PEER_H_

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "core/net/frame.h"
#include "core/net/socket.h"
#include "testing.h"

namespace tfdist::fuzz {

// Two connected unix sockets, which do not block. With `local`, each knows the process at the other
// end, which is this one.
struct SocketPair {
  explicit SocketPair(bool local) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    ours.fd = Fd(ends[0]);
    theirs = Fd(ends[1]);
    // Room for a chunk of a collective, and for an answer.
    const int bytes = 1 << 20;
    for (const int end : ends) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    if (local) ours.process = PeerProcess::Of(ours.fd);
  }

  PeerSocket ours;  // goes to the code under test
  Fd theirs;
};

// Sends as much as there is room for; a target whose peer is slow loses the rest.
inline void Send(const Fd& socket, const std::string& bytes) {
  if (!socket.valid() || bytes.empty()) return;
  [[maybe_unused]] const ssize_t sent =
      send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// All that has come.
inline std::string ReceiveAll(const Fd& socket) {
  static std::vector<char> buffer(256 << 10);
  std::string bytes;
  for (;;) {
    const ssize_t received = recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (received <= 0) return bytes;
    bytes.append(buffer.data(), static_cast<size_t>(received));
  }
}

// A frame as it travels; `payload` follows its meta.
inline std::string FrameBytes(FrameHeader header, const std::string& meta,
                              const std::string& payload = "") {
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  if (header.exposed == 0) header.payload_bytes = payload.size();
  const FrameHeaderBytes head = Encode(header);
  return std::string(head.begin(), head.end()) + meta + payload;
}

}  // namespace tfdist::fuzz

#endif  // TFDIST_TESTS_FUZZ_PEER_H_
