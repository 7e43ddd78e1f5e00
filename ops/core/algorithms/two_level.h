// Two levels: an all-reduce for several ranks on each host, where the network between hosts is the
// bottleneck.
//
// The lowest rank of each host is its leader. First the ranks of a host reduce to their leader,
// then the leaders run a ring among themselves, then each leader broadcasts the result on its host.
// Reduce and broadcast use a chain (chain.h, ring.h). With 4 ranks on hosts A (0, 1) and B (2, 3)
// that contribute a, b, c, d:
//
//     reduce       1 -> 0: a+b             3 -> 2: c+d
//     ring         0 <-> 2: (a+b)+(c+d), half of the buffer in each of two steps
//     broadcast    0 -> 1                  2 -> 3
//
// The three phases overlap: a chunk is forwarded as soon as it is ready. Between hosts only a ring
// of H ranks communicates: 2(H-1)/H of the buffer for each of H hosts, instead of 2(N-1)/N for each
// pair of neighbours on different hosts. Within a host a rank sends the buffer once or twice.
//
// Horovod's hierarchical all-reduce (HOROVOD_HIERARCHICAL_ALLREDUCE) has the same two levels.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_TWO_LEVEL_H_
#define TFDIST_OPS_CORE_ALGORITHMS_TWO_LEVEL_H_

#include <cstddef>
#include <vector>

#include "core/algorithms/plan.h"

namespace tfdist {

// `hosts[r]` is the index of rank r's host: hosts count from 0 in the order of their leaders. In
// the ring, segment i is [bounds[i], bounds[i + 1]); there is one for each host.
Plan TwoLevelAllReduce(int rank, const std::vector<int>& hosts, const std::vector<size_t>& bounds);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_TWO_LEVEL_H_
