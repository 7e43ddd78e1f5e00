// Messages of peers for collectives that have not started on this rank yet (MPI's term).
#ifndef TFDIST_OPS_CORE_COLLECTIVES_UNEXPECTED_MESSAGES_H_
#define TFDIST_OPS_CORE_COLLECTIVES_UNEXPECTED_MESSAGES_H_

#include <cstddef>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "core/collectives/collective.h"
#include "core/collectives/frames.h"

namespace tfdist {

class UnexpectedMessages {
 public:
  struct Open {
    int peer;
    Signature signature;
  };
  struct Chunk {
    int peer;
    FrameHeader header;
    std::vector<char> bytes;
    bool complete = false;  // all bytes have arrived
  };

  // Stores an OPEN. Fails if peers have sent more than the limit in total.
  Status AddOpen(const CollectiveId& id, Open open);
  // Allocates memory for a chunk whose bytes are about to arrive. Fails like AddOpen.
  Status AddChunk(const CollectiveId& id, int peer, const FrameHeader& header,
                  std::vector<iovec>* target);
  // Marks `peer`'s chunk as complete. False if no incomplete chunk of this peer is stored.
  bool CompleteChunk(const CollectiveId& id, int peer);

  // The collectives that peers have opened.
  std::vector<CollectiveId> Opened() const;
  // The first stored OPEN of a collective, or null.
  const Open* FirstOpen(const CollectiveId& id) const;
  // Whether a chunk of this peer is stored.
  bool HasChunks(const CollectiveId& id, int peer) const;
  std::vector<Open> TakeOpens(const CollectiveId& id);
  // Removes the next complete chunk, in the order of arrival of each peer; false if there is none.
  // The chunks that remain then are incomplete, at most one of each peer.
  bool TakeChunk(const CollectiveId& id, Chunk* chunk);
  void Clear();

 private:
  struct Entry {
    std::vector<Open> opens;
    std::list<Chunk> chunks;
  };

  Status Charge(size_t bytes);
  void DropIfEmpty(std::map<CollectiveId, Entry>::iterator entry);

  std::map<CollectiveId, Entry> entries_;
  size_t bytes_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_UNEXPECTED_MESSAGES_H_
