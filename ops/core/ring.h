// The ring: all-reduce and all-gather over ranks that each talk to two neighbours.
//
// Every rank sends to its right neighbour (rank + 1) and receives from its left one (rank - 1). The
// flat buffer is cut into N segments. In step s a rank sends segment (rank - s) and receives
// segment (rank - s - 1), all modulo N.
//
// All-reduce takes 2(N-1) steps. In the first N-1, the reduce-scatter, a received segment is added
// to the rank's own; afterwards rank r holds the finished segment r+1. In the other N-1, the
// all-gather, finished segments travel round and overwrite. With 4 ranks, what rank 0 does:
//
//     step      0        1        2      |   3        4        5
//     sends     0        3        2      |   1        0        3
//     receives  3 (+)    2 (+)    1 (+)  |   0        3        2
//               --- reduce-scatter ---       ---- all-gather ----
//
// All-gather alone takes N-1 steps of the second kind, with segment r being what rank r
// contributes.
//
// Segments are cut into chunks, and a chunk leaves in step s+1 as soon as it has arrived in step s:
// the steps overlap. Each rank sends 2(N-1)/N of the buffer for an all-reduce, which is the least
// that any algorithm can (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
// of workstations", 2009).
#ifndef TFDIST_OPS_CORE_RING_H_
#define TFDIST_OPS_CORE_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/collective.h"
#include "core/flat_view.h"

namespace tfdist {

class Ring : public Collective {
 public:
  // Sums (or averages) `input` over the ranks into `output`, which may be the same memory, piece by
  // piece.
  static std::unique_ptr<Ring> AllReduce(CollectiveOptions options, int rank, int size,
                                         FlatView input, FlatView output, DType dtype,
                                         ReduceOp reduce_op);

  // `output` is the concatenation of one block per rank; this rank's own block is already in place.
  static std::unique_ptr<Ring> AllGather(CollectiveOptions options, int rank, int size,
                                         const std::vector<size_t>& block_bytes, FlatView output);

  std::vector<int> Peers() const override;
  void Start(ChunkSender& sender) override;
  void PeerOpened(ChunkSender& sender, int peer) override;
  Status Place(int peer, const FrameHeader& chunk, char* scratch,
               std::vector<iovec>* target) override;
  void Received(ChunkSender& sender, int peer, const FrameHeader& chunk,
                const char* scratch) override;
  bool Settled() const override { return step_ == steps_ && held_.empty(); }
  int WaitingFor() const override { return step_ < steps_ ? left_ : right_; }

 private:
  struct Chunk {
    int step;
    size_t begin;
    size_t end;
  };

  Ring(CollectiveOptions options, int rank, int size, FlatView input, FlatView output,
       std::vector<size_t> bounds, int reduce_steps, DType dtype, ReduceOp reduce_op);

  int Segment(int step) const { return ((rank_ - step) % size_ + size_) % size_; }
  int ReceivedSegment() const { return Segment(step_ + 1); }
  void Send(ChunkSender& sender, const Chunk& chunk);
  void Reduce(size_t begin, size_t end, const char* received);
  // Moves past segments that are complete or empty.
  void Advance();

  const int rank_, size_, left_, right_;
  const FlatView input_, output_;
  const std::vector<size_t> bounds_;  // segment i is [bounds_[i], bounds_[i + 1])
  const int reduce_steps_;            // steps below this one add, the others overwrite
  const int steps_;
  const DType dtype_;
  const ReduceOp reduce_op_;

  bool may_send_;            // small, or the right neighbour has opened
  std::vector<Chunk> held_;  // what waits for that
  int step_ = 0;             // what arrives next: its step
  size_t offset_ = 0;        // and its first byte
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_RING_H_
