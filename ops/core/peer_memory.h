// One process reads another's memory, where both are on one machine and the kernel allows it
// (process_vm_readv(2)): one copy, where a socket needs two and the kernel's memory between them.
//
// Who lends tells the reader, over their connection, its process and a seal: random bytes that lie
// in its memory. The reader compares the seal before it believes that it reads the process that it
// talks to, and again after each read: who wants memory back breaks the seal first, so an unbroken
// seal says that what was read was still lent.
#ifndef TFDIST_OPS_CORE_PEER_MEMORY_H_
#define TFDIST_OPS_CORE_PEER_MEMORY_H_

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/status.h"

namespace tfdist {

using Seal = std::array<uint64_t, 2>;

// How a reader finds what is lent to it.
struct LenderInfo {
  int32_t process = 0;  // 0: lends nothing
  uint64_t seal_address = 0;
  Seal seal{};
};

class Lender {
 public:
  Lender();
  // Breaks the seal. Only then may memory be freed or changed that a reader may still be reading.
  ~Lender();
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

  const LenderInfo& info() const { return info_; }

 private:
  std::array<std::atomic<uint64_t>, 2> seal_;
  LenderInfo info_;
};

class PeerMemory {
 public:
  explicit PeerMemory(const LenderInfo& lender) : lender_(lender) {}

  // Whether this process can read that one, and it is the one that has told us.
  bool IsReadable() const;

  // Copies from the addresses in `from`, which the peer has lent, into `to`: piece by piece, each
  // as long as the other. If it fails, `to` may hold anything: kUnavailable if the peer lends no
  // more or is gone, kFailedPrecondition if the kernel does not read these addresses.
  Status Read(const std::vector<iovec>& to, const std::vector<iovec>& from) const;

 private:
  bool IsSealed() const;

  LenderInfo lender_;
};

// Lent memory, read from front to back.
class Borrowed {
 public:
  Borrowed(const PeerMemory& peer, std::vector<iovec> pieces)
      : peer_(peer), pieces_(std::move(pieces)) {}

  // Fills all of `to`, for which there must be enough left.
  Status Read(const iovec* to, size_t count);

 private:
  const PeerMemory peer_;
  std::vector<iovec> pieces_;
  size_t next_ = 0;  // the first that is not read whole; what was read of it is cut off
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_PEER_MEMORY_H_
