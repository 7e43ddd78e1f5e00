// Bruck's all-gather: ceil(log2 N) steps for any N, for small blocks.
//
// Each rank starts with its own block. In step k it sends all blocks that it has, but no more than
// are missing there, to the rank 2^k below, and receives as many from the rank 2^k above. With 4
// ranks, the blocks of each:
//
//     rank      0          1          2          3
//     start     0          1          2          3
//     step 0    0 1        1 2        2 3        3 0         from rank + 1
//     step 1    0 1 2 3    1 2 3 0    2 3 0 1    3 0 1 2     from rank + 2
//
// Blocks are stored at their final positions, so nothing is rotated at the end. Each rank sends N-1
// blocks, as in a ring, in fewer steps. Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient
// algorithms for all-to-all communications in multiport message-passing systems" (1997).
#ifndef TFDIST_OPS_CORE_ALGORITHMS_BRUCK_H_
#define TFDIST_OPS_CORE_ALGORITHMS_BRUCK_H_

#include <cstddef>
#include <vector>

#include "core/algorithms/plan.h"

namespace tfdist {

// Block i is [bounds[i], bounds[i + 1]). Output: all blocks, with block `rank` in place, followed
// by the same memory again, so that every cyclic range of blocks is contiguous.
Plan BruckAllGather(int rank, int size, const std::vector<size_t>& bounds);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_BRUCK_H_
