// Executes a plan: sends each chunk as soon as it may leave, and stores each chunk that arrives.
//
// A transfer travels in chunks. A chunk may be sent when two conditions hold. First, everything
// that earlier transfers of the plan write into its bytes has arrived. Second, the receiver accepts
// it: it has opened the collective, or all data for it is small. A received chunk whose own operand
// is not ready yet is early: it is stored, and combined later. Chunks between two ranks keep the
// order of the plan.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_PLAN_EXECUTOR_H_
#define TFDIST_OPS_CORE_COLLECTIVES_PLAN_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "core/algorithms/plan.h"
#include "core/base/flat_view.h"
#include "core/collectives/collective.h"

namespace tfdist {

class PlanExecutor : public Collective {
 public:
  // The memory that the plan calls input and output, and the divisor of a mean.
  struct Data {
    FlatView input, output;
    DType dtype = DType::kBytes;
    ReduceOp reduce_op = ReduceOp::kSum;
    int divisor = 1;
    std::vector<std::shared_ptr<void>> keepalive;  // held as long as the collective lives
  };

  PlanExecutor(CollectiveOptions options, Plan plan, Data data);

  const std::vector<int>& Peers() const override { return peers_; }
  void Start(ChunkSender& sender) override;
  void PeerOpened(ChunkSender& sender, int peer) override;
  Status Place(int peer, const FrameHeader& chunk, char* scratch,
               std::vector<iovec>* target) override;
  void Received(ChunkSender& sender, int peer, const FrameHeader& chunk,
                const char* scratch) override;
  bool Settled() const override { return unfinished_ == 0; }
  int WaitingFor() const override;

 private:
  // A transfer and its progress, in bytes.
  struct TransferState {
    Transfer transfer;
    size_t arrived = 0;      // received, early chunks included
    size_t done = 0;         // handed to the sender, or stored in their final memory
    std::vector<int> needs;  // indices of the earlier transfers that write its input
    std::list<std::unique_ptr<char[]>> early;  // received chunks from `done` on
  };
  // The transfers with one peer, as indices in the order of the plan.
  struct PeerQueue {
    int peer;
    bool may_send;
    std::vector<int> sends, receives;
    size_t next_send = 0, next_receive = 0;
  };

  void FindNeeds(int index);
  const FlatView& View(Memory memory) const;
  PeerQueue* FindQueue(int peer);
  // Whether everything that chunk [begin, end) of this transfer reads has arrived.
  bool Ready(const TransferState& state, size_t begin, size_t end) const;
  void Apply(const TransferState& state, size_t begin, size_t end, const char* received);
  void CatchUp(TransferState* state);
  void SendReady(ChunkSender& sender, PeerQueue* queue);
  void MarkDone(TransferState* state, size_t end);
  void Advance(ChunkSender& sender);

  const std::vector<int> peers_;
  const Data data_;
  const std::unique_ptr<char[]> work_memory_;
  const FlatView work_;
  std::vector<TransferState> transfers_;
  std::vector<PeerQueue> queues_;
  size_t unfinished_;  // transfers
  size_t early_ = 0;   // chunks, of all transfers
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_PLAN_EXECUTOR_H_
