// Recursive halving and doubling: an all-reduce of few steps that sends as little as the ring, for
// buffers of medium size among many ranks.
//
// The buffer is cut into as many segments as ranks, a power of two. In each step of the first half
// a rank exchanges with the rank whose number differs in one bit, the highest bit first. Each sends
// the half of its segments that the other one keeps, and combines the other half with the segments
// that it receives. Then rank r holds the finished segment r. In the second half the same pairs
// exchange finished segments in reverse order, and the numbers of segments double. With 4 ranks,
// the steps of rank 0:
//
//     step      0          1       |   2        3
//     with      2          1       |   1        2
//     sends     2, 3       1       |   0        0, 1
//     receives  0, 1 (+)   0 (+)   |   1        2, 3
//               - reduce-scatter -     - all-gather -
//
// If N is not a power of two, P is the largest power below N. Each rank r >= P first sends all of
// its values to rank r - P, and receives the result at the end.
//
// 2 log2 P steps, in which a rank sends 2(P-1)/P of the buffer: Thakur, Rabenseifner and Gropp,
// "Optimization of collective communication operations in MPICH" (2005).
#ifndef TFDIST_OPS_CORE_ALGORITHMS_HALVING_DOUBLING_H_
#define TFDIST_OPS_CORE_ALGORITHMS_HALVING_DOUBLING_H_

#include <cstddef>
#include <vector>

#include "core/algorithms/plan.h"

namespace tfdist {

// Segment i is [bounds[i], bounds[i + 1]); there are LargestPower(size) of them.
Plan HalvingDoubling(int rank, int size, const std::vector<size_t>& bounds);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_HALVING_DOUBLING_H_
