// The chain: broadcast and reduce of large buffers along a line of ranks.
//
// The ranks form a line that begins at the root. A broadcast travels from each rank to the next
// one. A reduce travels in the other direction, and every rank combines its own value. With 4 ranks
// and root 1:
//
//     broadcast   1 -> 2 -> 3 -> 0
//     reduce      1 <- 2 <- 3 <- 0       2 receives c(3)+d(0), and sends b(2)+c(3)+d(0)
//
// A rank forwards each chunk as soon as it has it, so all connections are busy at the same time. No
// rank sends or receives the buffer more than once, for any N, while the root of a tree does so
// log2 N times; but the first chunk needs N-1 steps. A rank cannot receive less than the buffer,
// and a reduce-scatter with a gather costs the root of a reduce twice as much.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_CHAIN_H_
#define TFDIST_OPS_CORE_ALGORITHMS_CHAIN_H_

#include <cstddef>
#include <vector>

#include "core/algorithms/plan.h"

namespace tfdist {

// Output: the buffer, which has its content on the root.
Plan ChainBroadcast(int rank, int size, int root, size_t bytes);

// Output: on the root only.
Plan ChainReduce(int rank, int size, int root, size_t bytes);

// The same for a subset of the ranks, from step `step` of a longer plan. `members` lists the subset
// from the root on; this rank is members[position].
void AddChainBroadcast(int step, int position, const std::vector<int>& members, size_t bytes,
                       Plan* plan);
// `into`: the memory for the sum of a rank that receives. Returns the location of this rank's sum.
Span AddChainReduce(int step, int position, const std::vector<int>& members, Memory into,
                    Finish finish, size_t bytes, Plan* plan);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_CHAIN_H_
