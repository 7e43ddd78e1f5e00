// The handshake on a connection to a server: blocking requests, each answered before the next.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_HANDSHAKE_H_
#define TFDIST_OPS_CORE_PS_CLIENT_HANDSHAKE_H_

#include <sys/uio.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/net/authenticate.h"
#include "core/net/frame.h"
#include "core/net/socket.h"
#include "core/ps/protocol/message.h"

namespace tfdist::ps {

class Handshake {
 public:
  explicit Handshake(TimePoint deadline) : deadline_(deadline) {}

  // Connects and proves the key. With `local`, uses a unix socket to a server of this machine and
  // user.
  Status Begin(const std::string& address, bool local, const Key& key, const Hello& hello);

  template <typename Message, typename Reply>
  Status Ask(MessageType type, const Message& message, const std::vector<iovec>& payload,
             Reply* reply) {
    std::string meta;
    if (Status s = Exchange(type, Encode(message), payload, &meta); !s.ok()) return s;
    return Decode(meta, reply);
  }
  Status Tell(MessageType type, const std::string& meta) {
    std::string nothing;
    return Exchange(type, meta, {}, &nothing);
  }

  PeerSocket TakeSocket() { return std::move(socket_); }
  // The meta of the server's WELCOME, for the stream that takes the socket.
  const std::string& welcome() const { return welcome_; }

 private:
  Status Exchange(MessageType type, const std::string& meta, const std::vector<iovec>& payload,
                  std::string* answer);
  Status ReceiveFrame(FrameHeader* header, std::string* meta);

  const TimePoint deadline_;
  PeerSocket socket_;
  std::string welcome_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_HANDSHAKE_H_
