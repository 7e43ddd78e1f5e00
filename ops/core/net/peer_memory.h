// One process reads another's memory (process_vm_readv(2), "cross-memory attach"): one copy, where
// a socket needs two and the kernel's memory between them. Both are on one machine, of one user,
// and connected by a unix socket.
//
// The reader learns from the kernel which process it reads (PeerProcess), and from the peer, over
// that same socket, where: the address of a canary, which is random bytes in the peer's memory, and
// with each message the addresses of what it exposes. No peer can name either over a network.
//
// A process that wants its memory back breaks the canary first. The reader compares the canary
// after each read: an unbroken one says that what was read was still exposed.
#ifndef TFDIST_OPS_CORE_NET_PEER_MEMORY_H_
#define TFDIST_OPS_CORE_NET_PEER_MEMORY_H_

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/net/peer_process.h"

namespace tfdist {

// Where the canary lies, and what it is.
struct CanaryInfo {
  uint64_t address = 0;  // 0: nothing is exposed
  std::array<uint64_t, 2> value{};
};

class ExposedMemory {
 public:
  ExposedMemory();
  // Breaks the canary. Only then may memory be freed or changed that a reader may still be reading.
  ~ExposedMemory();
  ExposedMemory(const ExposedMemory&) = delete;
  ExposedMemory& operator=(const ExposedMemory&) = delete;

  const CanaryInfo& canary() const { return info_; }

 private:
  std::array<std::atomic<uint64_t>, 2> canary_;
  CanaryInfo info_;
};

class PeerMemory {
 public:
  PeerMemory(std::shared_ptr<const PeerProcess> process, const CanaryInfo& canary)
      : process_(std::move(process)), canary_(canary) {}

  // Whether the kernel lets this process read that one, and the canary is whole.
  bool IsReadable() const;

  // Copies from the peer's addresses in `from` into `to`: piece by piece, each as long as the
  // other. If it fails, `to` may hold anything: kUnavailable if the peer exposes no more or is
  // gone, kFailedPrecondition if the kernel does not read these addresses.
  Status Read(const std::vector<iovec>& to, const std::vector<iovec>& from) const;

 private:
  bool HasCanary() const;

  std::shared_ptr<const PeerProcess> process_;
  CanaryInfo canary_;
};

// Exposed memory of a peer, read from front to back.
class RemoteRead {
 public:
  RemoteRead(const PeerMemory& peer, std::vector<iovec> pieces)
      : peer_(peer), pieces_(std::move(pieces)) {}

  // Fills all of `to`, for which there must be enough left.
  Status Read(const iovec* to, size_t count);

 private:
  const PeerMemory peer_;
  std::vector<iovec> pieces_;
  size_t next_ = 0;  // the first that is not read whole; what was read of it is cut off
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_PEER_MEMORY_H_
