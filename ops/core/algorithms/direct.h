// Direct exchange: every byte goes straight from the rank that has it to the one that needs it, in
// one step.
//
//     gather          rank r sends its block to the root
//     scatter         the root sends block r to rank r
//     all_to_all      rank r sends its part s to rank s, for all s
//     reduce_scatter  the same, and rank s combines the parts that come
//
// With 4 ranks, what each sends in an all_to_all, in this order, so that no rank is everybody's
// first:
//
//     rank 0: to 1, 2, 3    rank 1: to 2, 3, 0    rank 2: to 3, 0, 1    rank 3: to 0, 1, 2
//
// What arrives in a reduce_scatter is combined in the order rank, rank + 1, ..., whichever comes
// first, so that the same values give the same bits again.
//
// Nothing travels twice, which no algorithm can better. The price are N-1 messages at one rank, or
// at all: a reduce_scatter of large blocks is the ring's, where each rank receives from one other.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_DIRECT_H_
#define TFDIST_OPS_CORE_ALGORITHMS_DIRECT_H_

#include <cstddef>
#include <vector>

#include "core/algorithms/plan.h"

namespace tfdist {

// Block i is [bounds[i], bounds[i + 1]). This rank's own block is not touched.

// Input: own block. Output, on the root only: all blocks.
Plan DirectGather(int rank, int size, int root, const std::vector<size_t>& bounds);

// Input, on the root only: all blocks. Output: own block.
Plan DirectScatter(int rank, int size, int root, const std::vector<size_t>& bounds);

// Input: what goes to each rank. Output: what comes from each rank.
Plan DirectAllToAll(int rank, int size, const std::vector<size_t>& send_bounds,
                    const std::vector<size_t>& receive_bounds);

// Input: all blocks. Output: own block, combined.
Plan DirectReduceScatter(int rank, int size, const std::vector<size_t>& bounds);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_DIRECT_H_
