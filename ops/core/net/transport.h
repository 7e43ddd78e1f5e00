// The bytes of one connected socket: in the clear, or encrypted (tls/tls_transport.h).
// Non-blocking.
#ifndef TFDIST_OPS_CORE_NET_TRANSPORT_H_
#define TFDIST_OPS_CORE_NET_TRANSPORT_H_

#include <sys/uio.h>

#include <cstddef>
#include <vector>

#include "core/base/status.h"

namespace tfdist {

class Transport {
 public:
  virtual ~Transport() = default;

  // Takes bytes from the front of `pieces`, and returns their number. 0: there is no room for now,
  // or the connection is broken, which Read then reports behind the peer's last bytes.
  virtual size_t Write(const std::vector<iovec>& pieces) = 0;
  // Sends bytes that Write took and the socket did not. True if none are left.
  virtual bool Flush() = 0;
  virtual bool has_output() const = 0;

  // Fills `pieces` with the bytes that are there. *received 0: none for now.
  virtual Status Read(const std::vector<iovec>& pieces, size_t* received) = 0;
  // Whether Read has something that does not make the socket readable, because it was received
  // already.
  virtual bool has_input() const = 0;
};

Status EndOfStream();

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(int fd) : fd_(fd) {}

  size_t Write(const std::vector<iovec>& pieces) override;
  bool Flush() override { return true; }
  bool has_output() const override { return false; }
  Status Read(const std::vector<iovec>& pieces, size_t* received) override;
  bool has_input() const override { return false; }

 private:
  const int fd_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_TRANSPORT_H_
