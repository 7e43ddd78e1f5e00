// Recursive doubling: an all-reduce in as few steps as possible, for small buffers.
//
// In step k a rank exchanges all it has with the rank whose number differs in bit k, and both
// combine the two; the groups that share a result double. With 4 ranks that contribute a, b, c, d:
//
//     rank      0            1            2            3
//     has       a            b            c            d
//     step 0    0 <-> 1      a+b          2 <-> 3      c+d
//     step 1    0 <-> 2 and 1 <-> 3: all have (a+b)+(c+d)
//
// Both partners combine in the same order, the lower rank's value first, so all have the same bits.
// When N is not a power of two, P is the largest one below N: each rank from P on first hands its
// value to the rank P lower, which combines it with its own, and is sent the result at the end.
// With 6 ranks, 4 and 5 hand theirs to 0 and 1: a step before, and one after.
//
// log2 N steps, each with the whole buffer: N log2 N times the buffer travels. Thakur, Rabenseifner
// and Gropp, "Optimization of collective communication operations in MPICH" (2005).
#ifndef TFDIST_OPS_CORE_ALGORITHMS_RECURSIVE_DOUBLING_H_
#define TFDIST_OPS_CORE_ALGORITHMS_RECURSIVE_DOUBLING_H_

#include <cstddef>

#include "core/algorithms/plan.h"

namespace tfdist {

// Input and output must not be the same memory: the input may still be on its way out when the
// output comes to be.
Plan RecursiveDoubling(int rank, int size, size_t bytes);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_RECURSIVE_DOUBLING_H_
