// Join: a rank that has no more data takes part in the collectives of the others, without a
// contribution, until all ranks have joined.
//
// A rank that joins sends every other rank the number of collectives that it has begun. From then
// on, if a peer opens a collective that this rank has not started, it begins a stand-in. The peer's
// OPEN contains the kind, the sizes and the algorithm, so the stand-in is the same collective on
// memory of its own. Every collective connects all ranks, directly or through others, so all joined
// ranks receive an OPEN. With 4 ranks and collectives A to D:
//
//     rank    begins      joins, having begun    stands in for
//     0       A B C D     4
//     1       A B C       3                      D
//     2       A B         2                      C D
//     3       A           1                      B C D
//
// The last rank to join has begun all collectives, so a rank has caught up when it has begun as
// many as the largest of the numbers. The join ends on a rank when all ranks have sent their
// numbers, the rank has caught up, and nothing else is pending. Joins are counted too, and each
// OPEN contains the number of joins before it. If a peer starts a collective after the join, a rank
// on which the join has not ended stores the OPEN for later. Each rank sends 8 bytes to every
// other.
//
// The contribution of a stand-in is neutral: zeros for a sum, and for a mean, which is still
// divided by the number of ranks; the identity of a minimum, maximum or product; zeros as its block
// of a gather. It lets the others pass a barrier. It cannot be the root of a broadcast or scatter,
// nor take part in an all_to_all, whose sizes no other rank knows: both fail on all ranks.
//
// The idea is Horovod's `join`, where a coordinator knows the joined ranks; here there is none.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_JOIN_H_
#define TFDIST_OPS_CORE_COLLECTIVES_JOIN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/collective.h"
#include "core/collectives/plan_executor.h"

namespace tfdist {

// The key of all joins.
inline constexpr uint64_t kJoinKey = 0xa5f1'0c6e'9b37'd20d;

class Join : public PlanExecutor {
 public:
  using Begin = std::function<uint64_t()>;
  using CaughtUp = std::function<bool(uint64_t max_begun)>;

  // `begin` is called at the start and returns the number of collectives that this rank has begun.
  // `caught_up` is called when all ranks have sent theirs, with the largest.
  static std::unique_ptr<Join> Make(CollectiveOptions options, int rank, int size, Begin begin,
                                    CaughtUp caught_up, int* last_rank);

  void Start(ChunkSender& sender) override;
  bool Settled() const override;

 private:
  using Counts = std::vector<uint64_t>;
  Join(CollectiveOptions options, Plan plan, Data data, std::shared_ptr<Counts> counts, int rank,
       Begin begin, CaughtUp caught_up);

  const int rank_;
  const Begin begin_;
  const std::shared_ptr<Counts> counts_;  // by rank
  const CaughtUp caught_up_;
};

// The reason why a joined rank cannot stand in for this collective, or empty.
std::string StandInRefused(const Signature& signature, int rank, int size);

// The memory of all stand-ins that have not ended. A peer says how large they are, so there is a
// limit.
class StandInMemory {
 public:
  explicit StandInMemory(uint64_t limit);
  // Half of this machine's memory.
  static uint64_t Limit();

  // Zeros, which occupy no memory until they are touched. Null if there is not enough.
  std::shared_ptr<char> Take(uint64_t bytes);

 private:
  const uint64_t limit_;
  const std::shared_ptr<std::atomic<uint64_t>> taken_;
};

// A stand-in for the collective that a peer has opened. Null if there is not enough memory.
std::unique_ptr<Collective> MakeStandIn(const CollectiveId& id, const Signature& signature,
                                        int rank, const std::vector<int>& hosts,
                                        StandInMemory* memory);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_JOIN_H_
