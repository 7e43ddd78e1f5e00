// The payload of a request while it arrives: one block for each part.
#ifndef TFDIST_OPS_CORE_PS_SERVER_PAYLOAD_H_
#define TFDIST_OPS_CORE_PS_SERVER_PAYLOAD_H_

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "core/base/block.h"

namespace tfdist::ps {

// The expected bytes: the value of a shard that is here, or as many as the sender says. Memory for
// the latter is taken as its bytes come.
struct PayloadPart {
  uint64_t bytes = 0;
  bool of_shard = false;
};

class Payload {
 public:
  explicit Payload(BlockPool* pool) : pool_(pool) {}

  // Begins with a request's payload. As NextRoom, it throws OverBudget or std::bad_alloc if there
  // is no memory.
  void Expect(std::vector<PayloadPart> parts);
  // Appends memory for the bytes from `received` on; those before have arrived.
  void NextRoom(uint64_t received, std::vector<iovec>* room);
  // Releases the received parts.
  void Discard() {
    parts_.clear();
    blocks_.clear();
  }
  // Ends a payload of which all `received` bytes have arrived.
  std::vector<BlockPtr> Take(uint64_t received);

 private:
  uint64_t Room(size_t part) const;
  void MakeRoom(size_t part);
  void Advance(uint64_t received);

  BlockPool* const pool_;
  std::vector<PayloadPart> parts_;
  std::vector<BlockPtr> blocks_;  // of the parts that have begun
  size_t part_ = 0;               // the first incomplete one
  uint64_t filled_ = 0;           // bytes of it
  uint64_t received_ = 0;         // bytes in all
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_PAYLOAD_H_
