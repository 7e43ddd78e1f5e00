// The binomial tree: broadcast and reduce in ceil(log2 N) steps, for small buffers.
//
// Ranks are numbered relative to the root, which is relative rank 0. The parent of a relative rank
// is that number without its lowest set bit; a child has one more bit set, below the lowest one.
// With 8 ranks:
//
//     0 -> 4 -> 6 -> 7
//     0 -> 4 -> 5
//     0 -> 2 -> 3
//     0 -> 1
//
// A broadcast goes down the tree, to the deepest subtree first. With 4 ranks: 0 sends to 2; then 0
// to 1 and 2 to 3. A reduce goes up the tree, from the smallest subtree on, and a rank combines the
// values in the order of its children: 1 sends to 0 and 3 to 2; then 2 to 0, which has (a+b)+(c+d).
//
// The root sends, or receives, the buffer ceil(log2 N) times; every other rank receives, or sends,
// it once. Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
// MPICH" (2005).
#ifndef TFDIST_OPS_CORE_ALGORITHMS_TREE_H_
#define TFDIST_OPS_CORE_ALGORITHMS_TREE_H_

#include <cstddef>

#include "core/algorithms/plan.h"

namespace tfdist {

// Output: the buffer, which has its content on the root.
Plan TreeBroadcast(int rank, int size, int root, size_t bytes);

// Output: on the root only.
Plan TreeReduce(int rank, int size, int root, size_t bytes);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_TREE_H_
