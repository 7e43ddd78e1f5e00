// Reads the memory of another process (process_vm_readv(2), "cross-memory attach"): one copy
// instead of two through a socket. Both processes are on one machine, of one user, and connected by
// a unix socket.
//
// The reader gets the identity of the process from the kernel (PeerProcess). It gets addresses from
// the peer, over the same socket. The first is the address of a canary, which is random bytes in
// the peer's memory. With each message come the addresses of the exposed memory. A peer on the
// network can supply neither.
//
// A process breaks its canary before it frees or changes exposed memory. The reader copies the
// canary after the memory: if it is intact, the memory was still exposed during the read.
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

// The address and the value of a canary.
struct CanaryInfo {
  uint64_t address = 0;  // 0: nothing is exposed
  std::array<uint64_t, 2> value{};
};

class ExposedMemory {
 public:
  ExposedMemory();
  // Breaks the canary. Memory that a reader may still be reading may be freed or changed only after
  // this.
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

  // Whether the kernel permits the read, and the canary is intact.
  bool IsReadable() const;

  // Copies from the peer's addresses in `from` to `to`; piece i of both has the same size. After a
  // failure the content of `to` is undefined. kUnavailable if the peer no longer exposes its memory
  // or has ended, kFailedPrecondition if the kernel does not read these addresses: it cannot
  // (EFAULT), or may no longer (EPERM).
  Status Read(std::vector<iovec> to, std::vector<iovec> from) const;

 private:
  // Reads the bytes at the canary's address; false if the kernel refuses.
  bool ReadCanary(CanaryInfo* found) const;
  bool IsWithdrawn() const;

  std::shared_ptr<const PeerProcess> process_;
  CanaryInfo canary_;
};

// Reads exposed memory of a peer sequentially.
class RemoteRead {
 public:
  RemoteRead(const PeerMemory& peer, std::vector<iovec> pieces)
      : peer_(peer), pieces_(std::move(pieces)) {}

  // Fills `to` with the next bytes. Fails if fewer are left.
  Status Read(const iovec* to, size_t count);

 private:
  const PeerMemory peer_;
  std::vector<iovec> pieces_;
  size_t next_ = 0;  // first piece that is not read entirely; its read part is cut off
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_PEER_MEMORY_H_
