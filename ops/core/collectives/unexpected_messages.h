// Messages of peers for collectives that have not started on this rank yet (MPI's term).
//
// All messages together take at most 256 MB, with the overhead of each, which for small ones
// exceeds their bytes. A rank may be hundreds of thousands of small collectives ahead of this one.
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

  static constexpr size_t kMaxBytes = size_t{256} << 20;

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
  // The memory of all messages.
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::vector<Open> opens;
    std::list<Chunk> chunks;
  };
  static constexpr size_t kEntry = sizeof(Entry) + 96;  // with its key, as a node of the map

  static size_t Cost(const Open& open);
  static size_t Cost(const Chunk& chunk);
  Status Charge(int peer, size_t bytes);
  // The entry of a collective, which is charged if it is new.
  Entry& EntryOf(const CollectiveId& id);
  size_t BytesOf(int peer) const;
  void DropIfEmpty(std::map<CollectiveId, Entry>::iterator entry);

  std::map<CollectiveId, Entry> entries_;
  size_t bytes_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_UNEXPECTED_MESSAGES_H_
