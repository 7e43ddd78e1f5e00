// Opens data connections: dials, encrypts if this process has credentials for TLS, and proves the
// job's key.
#ifndef TFDIST_OPS_CORE_NET_CONNECT_H_
#define TFDIST_OPS_CORE_NET_CONNECT_H_

#include <string>

#include "core/base/status.h"
#include "core/net/authenticate.h"
#include "core/net/socket.h"

namespace tfdist {

// Returns once the PROOF was sent. `address` and `local` are as for Dial. A unix socket is never
// encrypted: the kernel vouches for the process at its other end.
Status Connect(const std::string& address, bool local, const Key& key, const Hello& hello,
               TimePoint deadline, PeerSocket* socket);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_CONNECT_H_
