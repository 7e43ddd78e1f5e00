#include "core/net/connect.h"

#include <memory>
#include <utility>

#include "core/net/tls/credentials.h"
#include "core/net/tls/tls_transport.h"

namespace tfdist {

Status Connect(const std::string& address, bool local, const Key& key, const Hello& hello,
               TimePoint deadline, PeerSocket* socket) {
  if (Status s = Dial(address, local, deadline, socket); !s.ok()) return s;
  auto credentials = CurrentTlsCredentials();
  if (credentials != nullptr && socket->process == nullptr) {
    std::string host, port;
    Status s = SplitAddress(address, &host, &port);
    if (s.ok()) {
      s = TlsTransport::Dial(socket->fd.get(), std::move(credentials), host, &socket->tls);
    }
    if (s.ok()) s = CompleteHandshake(*socket, deadline);
    if (!s.ok()) return s;
  }
  return Authenticate(*socket, key, hello, deadline);
}

}  // namespace tfdist
