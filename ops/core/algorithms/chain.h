// The chain: broadcast and reduce of large buffers, through one rank after the other.
//
// Ranks stand in a row that begins at the root. A broadcast goes from each to the next, a reduce
// comes the other way and every rank adds its own. With 4 ranks and root 1:
//
//     broadcast   1 -> 2 -> 3 -> 0
//     reduce      1 <- 2 <- 3 <- 0       2 receives c(3)+d(0) combined, and sends b(2)+that
//
// A rank passes a chunk on as soon as it has it, so all connections are busy at once. Nobody sends
// or receives the buffer more than once, whatever N is, while the root of a tree does so log2 N
// times; but the first chunk has N-1 steps to go. That is the least that a rank can receive, and
// half of what a reduce-scatter and a gather cost the root of a reduce.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_CHAIN_H_
#define TFDIST_OPS_CORE_ALGORITHMS_CHAIN_H_

#include <cstddef>
#include <vector>

#include "core/algorithms/plan.h"

namespace tfdist {

// Output: the buffer, on the root with its content.
Plan ChainBroadcast(int rank, int size, int root, size_t bytes);

// Output: on the root only.
Plan ChainReduce(int rank, int size, int root, size_t bytes);

// The same over some of the ranks, at `step` of a longer plan. `members` lists them from the head
// on, and `position` is this rank's.
void AddChainBroadcast(int step, int position, const std::vector<int>& members, size_t bytes,
                       Plan* plan);
// `into`: where a rank that receives has its sum. Returns where this rank's sum is.
Span AddChainReduce(int step, int position, const std::vector<int>& members, Memory into,
                    Finish finish, size_t bytes, Plan* plan);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_CHAIN_H_
