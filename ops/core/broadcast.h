// Broadcast along a binomial tree.
//
// Ranks are numbered from the root (relative rank 0). The parent of a relative rank is that number
// without its lowest set bit; its children are reached by setting one bit below that lowest one.
// With 8 ranks:
//
//     0 -> 4 -> 6 -> 7
//     0 -> 4 -> 5
//     0 -> 2 -> 3
//     0 -> 1
//
// A rank passes a chunk on as soon as it has it. ceil(log2 N) hops; the root sends the buffer
// ceil(log2 N) times.
#ifndef TFDIST_OPS_CORE_BROADCAST_H_
#define TFDIST_OPS_CORE_BROADCAST_H_

#include <cstddef>
#include <vector>

#include "core/collective.h"
#include "core/flat_view.h"

namespace tfdist {

class Broadcast : public Collective {
 public:
  // `buffer` is read on rank `root` and written on the others.
  Broadcast(CollectiveOptions options, int rank, int size, int root, FlatView buffer);

  std::vector<int> Peers() const override;
  void Start(ChunkSender& sender) override;
  void PeerOpened(ChunkSender& sender, int peer) override;
  Status Place(int peer, const FrameHeader& chunk, char* scratch,
               std::vector<iovec>* target) override;
  void Received(ChunkSender& sender, int peer, const FrameHeader& chunk,
                const char* scratch) override;
  bool Settled() const override;
  int WaitingFor() const override;

 private:
  struct Child {
    int rank;
    bool may_send;
    size_t sent;  // bytes handed to the sender
  };

  void Feed(ChunkSender& sender, Child* child);

  const FlatView buffer_;
  int parent_ = -1;  // -1 on the root
  std::vector<Child> children_;
  size_t received_;  // bytes of the buffer that are here
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BROADCAST_H_
