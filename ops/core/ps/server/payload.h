// The payload of a request while it arrives: one block for each part.
#ifndef TFDIST_OPS_CORE_PS_SERVER_PAYLOAD_H_
#define TFDIST_OPS_CORE_PS_SERVER_PAYLOAD_H_

#include <cstdint>
#include <vector>

#include "core/base/block.h"
#include "core/base/status.h"
#include "core/net/peer_memory.h"

namespace tfdist::ps {

// An expected part: the value of an existing shard, or a size that the sender claims. Memory for a
// claimed size is allocated as its bytes arrive.
struct PayloadPart {
  uint64_t bytes = 0;
  bool of_shard = false;
};

class Payload {
 public:
  explicit Payload(BlockPool* pool) : pool_(pool) {}

  // Begins a request's payload: its parts, or a number of bytes to discard.
  void Expect(std::vector<PayloadPart> parts);
  void Discard(uint64_t bytes);
  // Discards the parts that have arrived, and those that will.
  void DiscardRest();

  bool complete() const { return discard_ == 0 && part_ == parts_.size(); }
  // Reads once from a socket. `received` is 0 if no bytes were available. Like Copy, it throws
  // OverBudget or std::bad_alloc if there is no memory for the payload.
  Status Receive(int socket, uint64_t* received);
  // Reads all of it from the sender's memory.
  Status Copy(RemoteRead* lent);
  std::vector<BlockPtr> Take();

 private:
  uint64_t Room(size_t part) const;
  void MakeRoom(size_t part);
  size_t NextRoom(iovec* pieces, size_t max_pieces);
  void Advance(uint64_t bytes);

  BlockPool* const pool_;
  uint64_t discard_ = 0;
  std::vector<PayloadPart> parts_;
  std::vector<BlockPtr> blocks_;  // of the parts that have started
  size_t part_ = 0;               // the first incomplete one
  uint64_t filled_ = 0;           // bytes of it
};

// One recv. OK with 0 bytes if none are available; an error if the peer has closed the connection.
Status ReceiveSome(int socket, char* data, size_t size, uint64_t* received);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_PAYLOAD_H_
