// Join: a rank that has run out of data goes on taking part in what the others start, with nothing
// to contribute, until all ranks have joined.
//
// A rank that joins tells every other how many collectives it has begun so far. From then on, when
// a peer opens a collective that this rank has not started, it begins a stand-in for it: the peer's
// OPEN tells the kind, the sizes and the algorithm, so the stand-in is the same collective on
// memory of its own. As every collective connects all ranks, directly or through others, all joined
// ranks hear of it. With 4 ranks and collectives A to D:
//
//     rank    begins      joins, having begun    stands in for
//     0       A B C D     4
//     1       A B C       3                      D
//     2       A B         2                      C D
//     3       A           1                      B C D
//
// The rank that joins last has begun all there are, so the largest of the numbers says when a rank
// has caught up. The join ends on a rank when all have told theirs, it has caught up, and nothing
// else is pending. Joins are counted too, and each OPEN says after how many of them it comes: what
// a peer starts after the join, a rank that has not seen the end of it keeps for later. Each rank
// sends 8 bytes to every other.
//
// What a stand-in contributes changes nothing: zeros to a sum, and to a mean, which is divided by
// the number of ranks all the same; the identity to a minimum, maximum or product; zeros as its
// block of a gather. It lets others through a barrier. It cannot be the root of a broadcast or
// scatter, nor take part in an all_to_all, whose sizes no other rank knows: both fail on all ranks.
//
// The idea is Horovod's `join`; there a coordinator knows who has joined, here nobody needs to.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_JOIN_H_
#define TFDIST_OPS_CORE_COLLECTIVES_JOIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/collective.h"
#include "core/collectives/plan_executor.h"

namespace tfdist {

// Collectives of this key are joins.
inline constexpr uint64_t kJoinKey = 0xa5f1'0c6e'9b37'd20d;

class Join : public Exchange {
 public:
  using Begin = std::function<uint64_t()>;
  using CaughtUp = std::function<bool(uint64_t most)>;

  // `begin` is asked at the start how many collectives this rank has begun; `caught_up`, when all
  // ranks have told theirs.
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

// Why a rank that has joined cannot stand in for this collective, or empty.
std::string StandInRefused(const Signature& signature, int rank, int size);

// The collective that a peer has opened, contributing nothing. Null if there is not enough memory.
std::unique_ptr<Collective> MakeStandIn(const CollectiveId& id, const Signature& signature,
                                        int rank, const std::vector<int>& hosts);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_JOIN_H_
