// Adds lists of tensors that lie in one process's memory, as the replicas of one host hold them.
//
//     replica 0   [ a0 ][ b0 ][    c0    ]
//     replica 1   [ a1 ][ b1 ][    c1    ]      one block at a time: 2 KB of every replica are
//     replica 2   [ a2 ][ b2 ][    c2    ]      added while the sum stays in the first-level cache
//                          ^ block
//     output      [ a  ][ b  ][    c     ]
//
// Each byte of R inputs is read once and each byte of the output written once: (R + 1) K bytes for
// tensors of K bytes, the least that a sum can cost. It stays at that where the output is the first
// input, or is streamed; else the processor reads the output's memory too before it writes there.
#ifndef TFDIST_OPS_CORE_MATH_LOCAL_REDUCE_H_
#define TFDIST_OPS_CORE_MATH_LOCAL_REDUCE_H_

#include <cstddef>
#include <vector>

#include "core/base/flat_view.h"
#include "core/math/dtype.h"

namespace tfdist {

enum class Stores {
  kCached,
  kStreamed,  // around the caches, save where the output is the first input
};

// The faster stores for an output with `bytes` of memory of its own.
Stores ChooseStores(size_t bytes);

// output[begin, end) = the sum or mean over `inputs` of input[begin, end), in bytes; multiples of
// the element size. All views have pieces of the same sizes; `output` may be the first input, whole
// or some pieces of it. Replicas are added in their order.
void LocalReduce(const std::vector<FlatView>& inputs, const FlatView& output, size_t begin,
                 size_t end, DType dtype, ReduceOp reduce_op, Stores stores);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_LOCAL_REDUCE_H_
