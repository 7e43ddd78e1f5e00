// The first words on a connection to a server: one question after the other, each answered before
// the next is asked.
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
#include "core/ps/client/connection.h"
#include "core/ps/protocol/message.h"

namespace tfdist::ps {

class Handshake {
 public:
  explicit Handshake(TimePoint deadline) : deadline_(deadline) {}

  // Connects, with `local` to a server of this machine and user by a unix socket, and proves the
  // key.
  Status Begin(const std::string& address, bool local, const Key& key, const Hello& hello);

  template <typename Question, typename Answer>
  Status Ask(MessageType type, const Question& question, const std::vector<iovec>& payload,
             Answer* answer) {
    std::string meta;
    if (Status s = Exchange(type, Encode(question), payload, &meta); !s.ok()) return s;
    return Decode(meta, answer);
  }
  Status Tell(MessageType type, const std::string& meta) {
    std::string nothing;
    return Exchange(type, meta, {}, &nothing);
  }

  // What of each other's memory the two ends of a unix socket can read; nothing over TCP.
  Status AgreeToLend(Lending* lending);

  Fd TakeSocket() { return std::move(socket_.fd); }

 private:
  Status Exchange(MessageType type, const std::string& meta, const std::vector<iovec>& payload,
                  std::string* answer);

  const TimePoint deadline_;
  PeerSocket socket_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_HANDSHAKE_H_
