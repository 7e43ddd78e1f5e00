// A double binary tree: an all-reduce that sends as little as the ring, in a number of steps that
// grows with the logarithm of the ranks.
//
// In a binary tree half of the ranks are leaves, which receive nothing on the way up and send
// nothing on the way down. Two trees share the work: each reduces and broadcasts one half of the
// buffer, and most leaves of one tree are inner nodes of the other one. Sanders, Speck and Traff,
// "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
//
// The trees are in order. The node at place i, counted from 1, is as high as i can be halved. Let h
// be the largest power of two that divides i: its parent is the place i - h or i + h of the
// next height. If that is no rank, the parent is the next node above it. The place of rank r is r +
// 1 in the first tree, and r + 2 in the second one, where the last rank has place 1. With 7 ranks
// the first tree is
//
//     height 2              3
//     height 1       1             5
//     height 0     0   2         4   6
//
// A chunk leaves a node as soon as the chunks of its children have arrived: the steps overlap.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_DOUBLE_TREE_H_
#define TFDIST_OPS_CORE_ALGORITHMS_DOUBLE_TREE_H_

#include <cstddef>
#include <vector>

#include "core/algorithms/plan.h"

namespace tfdist {

// Segment i is [bounds[i], bounds[i + 1]); there are two, one for each tree.
Plan DoubleTree(int rank, int size, const std::vector<size_t>& bounds);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_DOUBLE_TREE_H_
