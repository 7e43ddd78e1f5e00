// The ring: every rank exchanges data with two neighbours only.
//
// A rank sends to its right neighbour (rank + 1) and receives from its left one (rank - 1). The
// buffer is cut into N segments. In step s a rank sends segment (rank - s) and receives segment
// (rank - s - 1), all modulo N.
//
// All-reduce takes 2(N-1) steps. In the first N-1, the reduce-scatter, a rank combines the received
// segment with its own; afterwards rank r holds the finished segment r+1. In the other N-1, the
// all-gather, finished segments travel around the ring and overwrite the others. With 4 ranks, the
// steps of rank 0:
//
//     step      0        1        2      |   3        4        5
//     sends     0        3        2      |   1        0        3
//     receives  3 (+)    2 (+)    1 (+)  |   0        3        2
//               --- reduce-scatter ---       ---- all-gather ----
//
// All-gather alone takes N-1 steps of the second kind; segment r is the contribution of rank r.
// Reduce-scatter alone takes N-1 steps of the first kind, with the segments numbered one lower, so
// that segment r ends on rank r.
//
// A chunk leaves in step s+1 as soon as it has arrived in step s: the steps overlap. Each rank
// sends 2(N-1)/N of the buffer for an all-reduce, which is the minimum of all algorithms. For the
// other collectives it sends half of that (Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", 2009). For small buffers the number of steps dominates.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_RING_H_
#define TFDIST_OPS_CORE_ALGORITHMS_RING_H_

#include <cstddef>
#include <vector>

#include "core/algorithms/plan.h"

namespace tfdist {

// Segment i is [bounds[i], bounds[i + 1]).
Plan RingAllReduce(int rank, int size, const std::vector<size_t>& bounds);

// Input: all segments. Output: segment `rank`.
Plan RingReduceScatter(int rank, int size, const std::vector<size_t>& bounds);

// Output: all segments, with segment `rank` in place.
Plan RingAllGather(int rank, int size, const std::vector<size_t>& bounds);

// A ring over a subset of the ranks, from step `step` of a longer plan. `members` lists the subset
// in order; this rank is members[position]. This rank's operand is in `own`; the result goes to the
// output.
void AddRingAllReduce(int step, int position, const std::vector<int>& members, Memory own,
                      const std::vector<size_t>& bounds, Plan* plan);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_RING_H_
