// Recursive doubling: an all-reduce in the minimal number of steps, for small buffers.
//
// In step k a rank exchanges its partial result with the rank whose number differs in bit k, and
// both combine the two; the groups that share a result double. With 4 ranks that contribute a, b,
// c, d:
//
//     rank      0            1            2            3
//     start     a            b            c            d
//     step 0    0 <-> 1      a+b          2 <-> 3      c+d
//     step 1    0 <-> 2 and 1 <-> 3: all have (a+b)+(c+d)
//
// Both partners combine in the same order, the lower rank's value first, so all have the same bits.
// If N is not a power of two, P is the largest power below N. Each rank r >= P first sends its
// value to rank r - P, which combines it with its own, and receives the result at the end. With 6
// ranks, ranks 4 and 5 send to ranks 0 and 1: one step before the others, and one after.
//
// log2 N steps, each with the whole buffer: N log2 N times the buffer travels. Thakur, Rabenseifner
// and Gropp, "Optimization of collective communication operations in MPICH" (2005).
#ifndef TFDIST_OPS_CORE_ALGORITHMS_RECURSIVE_DOUBLING_H_
#define TFDIST_OPS_CORE_ALGORITHMS_RECURSIVE_DOUBLING_H_

#include <cstddef>

#include "core/algorithms/plan.h"

namespace tfdist {

// Input and output must be different memory: the input may still be in a send queue when the output
// is written.
Plan RecursiveDoubling(int rank, int size, size_t bytes);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_RECURSIVE_DOUBLING_H_
