// Direct exchange: every byte travels straight from its source to its destination, in one step.
//
//     gather          rank r sends its block to the root
//     scatter         the root sends block r to rank r
//     all_to_all      rank r sends its part s to rank s, for all s
//     reduce_scatter  the same, and rank s combines the parts that it receives
//
// With 4 ranks, the order in which each rank sends in an all_to_all, so that the ranks do not all
// send to the same rank first:
//
//     rank 0: to 1, 2, 3    rank 1: to 2, 3, 0    rank 2: to 3, 0, 1    rank 3: to 0, 1, 2
//
// A reduce_scatter combines in the order rank, rank + 1, ..., in any order of arrival of the parts,
// so that the same values always give the same bits.
//
// No byte travels twice, which is optimal. The price is N-1 messages at one rank, or at every rank.
// Large blocks are reduce-scattered by the ring, where each rank receives from only one other.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_DIRECT_H_
#define TFDIST_OPS_CORE_ALGORITHMS_DIRECT_H_

#include <cstddef>
#include <vector>

#include "core/algorithms/plan.h"

namespace tfdist {

// Block i is [bounds[i], bounds[i + 1]). This rank's own block is not copied.

// Input: own block. Output, on the root only: all blocks.
Plan DirectGather(int rank, int size, int root, const std::vector<size_t>& bounds);

// Input, on the root only: all blocks. Output: own block.
Plan DirectScatter(int rank, int size, int root, const std::vector<size_t>& bounds);

// Input: the part for each rank. Output: the part from each rank.
Plan DirectAllToAll(int rank, int size, const std::vector<size_t>& send_bounds,
                    const std::vector<size_t>& receive_bounds);

// Input: all blocks. Output: own block, combined.
Plan DirectReduceScatter(int rank, int size, const std::vector<size_t>& bounds);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_DIRECT_H_
