#include "core/net/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tfdist {

std::shared_ptr<const PeerProcess> PeerProcess::Of(const Fd& socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 ||
      credentials.pid <= 0 || credentials.uid != geteuid()) {
    return nullptr;
  }
  // By system call: glibc has a wrapper only since 2.36.
  Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)));
  if (!pidfd.valid()) return nullptr;
  std::shared_ptr<const PeerProcess> process(new PeerProcess(credentials.pid, std::move(pidfd)));
  // If the process ended before pidfd_open, its id may belong to another process by now. Its end of
  // the socket is then closed, unless a child holds it.
  pollfd hung_up{socket.get(), 0, 0};
  if (poll(&hung_up, 1, 0) != 0 || !process->IsAlive()) return nullptr;
  return process;
}

bool PeerProcess::IsAlive() const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) == 0;
}

}  // namespace tfdist
