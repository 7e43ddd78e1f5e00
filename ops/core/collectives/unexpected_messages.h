// What peers have sent for collectives that have not started on this rank yet.
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
    bool complete = false;  // all of its bytes are here
  };

  // Keeps an OPEN. Fails when peers have sent too much ahead of us.
  Status AddOpen(const CollectiveId& id, Open open);
  // Makes room for a chunk whose bytes are about to arrive.
  Status AddChunk(const CollectiveId& id, int peer, const FrameHeader& header,
                  std::vector<iovec>* target);
  // The bytes of `peer`'s chunk have arrived. False when no chunk of this peer was expected.
  bool CompleteChunk(const CollectiveId& id, int peer);

  // The collectives that peers have opened.
  std::vector<CollectiveId> Opened() const;
  // The first OPEN of one that is kept, or null.
  const Open* FirstOpen(const CollectiveId& id) const;
  // Whether a chunk of this peer is kept.
  bool HasChunks(const CollectiveId& id, int peer) const;
  std::vector<Open> TakeOpens(const CollectiveId& id);
  // The next chunk of which all is here, of each peer in the order of arrival; a collective takes
  // them until there is none. What remains then are chunks on their way in, one of a peer.
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
