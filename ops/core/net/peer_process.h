// The process at the other end of a unix socket, identified by the kernel.
#ifndef TFDIST_OPS_CORE_NET_PEER_PROCESS_H_
#define TFDIST_OPS_CORE_NET_PEER_PROCESS_H_

#include <sys/types.h>

#include <memory>

#include "core/net/fd.h"

namespace tfdist {

class PeerProcess {
 public:
  // The process that listened, at the side that connected; the process that connected, at the side
  // that accepted (SO_PEERCRED, unix(7)). Null unless it is alive, visible in this namespace, and
  // of the same user.
  static std::shared_ptr<const PeerProcess> Of(const Fd& socket);

  pid_t id() const { return id_; }
  // While this is true, the kernel has not reused id() for another process.
  bool IsAlive() const;

 private:
  PeerProcess(pid_t id, Fd pidfd) : id_(id), pidfd_(std::move(pidfd)) {}

  const pid_t id_;
  const Fd pidfd_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_PEER_PROCESS_H_
