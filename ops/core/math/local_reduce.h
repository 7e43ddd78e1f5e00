// The sum of lists of tensors in the memory of one process, one list for each replica.
//
//     replica 0   [ a0 ][ b0 ][    c0    ]
//     replica 1   [ a1 ][ b1 ][    c1    ]      block by block: 2 KB of each replica are added
//     replica 2   [ a2 ][ b2 ][    c2    ]      while the sum is in the first-level cache
//                          ^ block
//     output      [ a  ][ b  ][    c     ]
//
// Each byte of R inputs is read once and each byte of the output is written once: (R + 1) K bytes
// for tensors of K bytes, which is the minimum. The minimum is reached if the output is the first
// input, or is written by streaming stores; otherwise the processor also reads the output's memory
// before it writes.
#ifndef TFDIST_OPS_CORE_MATH_LOCAL_REDUCE_H_
#define TFDIST_OPS_CORE_MATH_LOCAL_REDUCE_H_

#include <cstddef>
#include <vector>

#include "core/base/flat_view.h"
#include "core/math/dtype.h"

namespace tfdist {

enum class Stores {
  kCached,
  kStreaming,  // bypass the caches, except where the output is the first input
};

// The faster kind of stores, if `bytes` of the output are not the first input.
Stores ChooseStores(size_t bytes);

// Computes output[begin, end) as the reduction of input[begin, end) over all `inputs`. `begin` and
// `end` are in bytes, multiples of the element size. All views have pieces of the same sizes; any
// piece of `output` may be the same memory as in the first input. Replicas are added in order.
void LocalReduce(const std::vector<FlatView>& inputs, const FlatView& output, size_t begin,
                 size_t end, DType dtype, ReduceOp reduce_op, Stores stores);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_LOCAL_REDUCE_H_
