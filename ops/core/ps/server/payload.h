// The payload of a request while it arrives: one block for each part.
#ifndef TFDIST_OPS_CORE_PS_SERVER_PAYLOAD_H_
#define TFDIST_OPS_CORE_PS_SERVER_PAYLOAD_H_

#include <cstdint>
#include <vector>

#include "core/base/block.h"
#include "core/base/status.h"
#include "core/net/peer_memory.h"

namespace tfdist::ps {

// What is expected: the value of a shard that is here, or as much as the sender says. Memory for
// the latter is taken as its bytes come.
struct PayloadPart {
  uint64_t bytes = 0;
  bool of_shard = false;
};

class Payload {
 public:
  explicit Payload(BlockPool* pool) : pool_(pool) {}

  // Begins with a request's payload: its parts, or that many bytes to throw away.
  void Expect(std::vector<PayloadPart> parts);
  void Discard(uint64_t bytes);
  // Throws the rest away, and what has come.
  void DiscardRest();

  bool complete() const { return discard_ == 0 && part_ == parts_.size(); }
  // Reads once from a socket, as much as there is. `received` is 0 if nothing has come. As Copy, it
  // throws OverBudget or std::bad_alloc if there is no memory for what comes.
  Status Receive(int socket, uint64_t* received);
  // Reads all of it where it was lent.
  Status Copy(RemoteRead* lent);
  std::vector<BlockPtr> Take();

 private:
  uint64_t Room(size_t part) const;
  void MakeRoom(size_t part);
  size_t NextRoom(iovec* pieces, size_t most);
  void Advance(uint64_t bytes);

  BlockPool* const pool_;
  uint64_t discard_ = 0;
  std::vector<PayloadPart> parts_;
  std::vector<BlockPtr> blocks_;  // of the parts that have begun
  size_t part_ = 0;               // the first incomplete one
  uint64_t filled_ = 0;           // bytes of it
};

// One recv or readv that is not interrupted: OK with 0 bytes if nothing is there, an error if the
// other side has closed the connection.
Status ReceiveSome(int socket, char* data, size_t size, uint64_t* received);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_PAYLOAD_H_
