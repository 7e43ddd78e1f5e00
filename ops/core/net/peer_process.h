// The process at the other end of a unix socket, as the kernel names it.
#ifndef TFDIST_OPS_CORE_NET_PEER_PROCESS_H_
#define TFDIST_OPS_CORE_NET_PEER_PROCESS_H_

#include <sys/types.h>

#include <memory>

#include "core/net/fd.h"

namespace tfdist {

class PeerProcess {
 public:
  // Null unless the kernel vouches for a process that is alive, visible here, and of our own user:
  // SO_PEERCRED, unix(7). The process that listened, at the side that connected; the one that
  // connected, at the side that accepted.
  static std::shared_ptr<const PeerProcess> Of(const Fd& socket);

  pid_t id() const { return id_; }
  // While it is true, id() has not been given to another process.
  bool IsAlive() const;

 private:
  PeerProcess(pid_t id, Fd pidfd) : id_(id), pidfd_(std::move(pidfd)) {}

  const pid_t id_;
  const Fd pidfd_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_PEER_PROCESS_H_
