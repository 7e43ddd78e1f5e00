// Carries out a plan: sends what may leave, as soon as it may, and puts what arrives in its place.
//
// A transfer travels in chunks. A chunk may be sent once everything that earlier transfers of the
// plan write into its bytes is there, and the receiver takes it: it has opened, or what it is sent
// is small in all. A chunk to be combined whose own operand is not there yet is kept aside. Chunks
// between two ranks keep the order of the plan.
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

class Exchange : public Collective {
 public:
  // What the plan calls input and output, and what a mean is divided by. Kept memory lives as long
  // as the collective.
  struct Data {
    FlatView input, output;
    DType dtype = DType::kBytes;
    ReduceOp reduce_op = ReduceOp::kSum;
    int divisor = 1;
    std::vector<std::shared_ptr<void>> kept;
  };

  Exchange(CollectiveOptions options, Plan plan, Data data);

  std::vector<int> Peers() const override { return peers_; }
  void Start(ChunkSender& sender) override;
  void PeerOpened(ChunkSender& sender, int peer) override;
  Status Place(int peer, const FrameHeader& chunk, char* scratch,
               std::vector<iovec>* target) override;
  void Received(ChunkSender& sender, int peer, const FrameHeader& chunk,
                const char* scratch) override;
  bool Settled() const override { return unfinished_ == 0; }
  int WaitingFor() const override;

 private:
  // A transfer, and how far it is.
  struct Task {
    Transfer transfer;
    size_t arrived = 0;  // bytes that are here, perhaps aside
    size_t done = 0;     // bytes that were handed to the sender, or are in place
    std::vector<int> needs;
    std::list<std::unique_ptr<char[]>> aside;  // chunks from `done` on
  };
  // The tasks that exchange with one peer, in the order of the plan.
  struct Line {
    int peer;
    bool may_send;
    std::vector<int> sends, receives;
    size_t next_send = 0, next_receive = 0;
  };

  void FindNeeds(int task);
  const FlatView& View(Memory memory) const;
  Line* FindLine(int peer);
  // Whether all is there that chunk [begin, end) of this task reads.
  bool Ready(const Task& task, size_t begin, size_t end) const;
  void Apply(const Task& task, size_t begin, size_t end, const char* received);
  void CatchUp(Task* task);
  void Feed(ChunkSender& sender, Line* line);
  void Advance(Task* task, size_t end);
  void GoOn(ChunkSender& sender);

  const std::vector<int> peers_;
  const Data data_;
  const std::unique_ptr<char[]> work_memory_;
  const FlatView work_;
  std::vector<Task> tasks_;
  std::vector<Line> lines_;
  size_t unfinished_;
  size_t aside_ = 0;  // chunks, of all tasks
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_PLAN_EXECUTOR_H_
