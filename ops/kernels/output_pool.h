// Reuses the memory of large outputs of collectives.
//
// malloc maps a block of 32 MB or more for each allocation and unmaps it when it is freed. So every
// page of such an output is zeroed and mapped again, which takes longer than the all-reduce. The
// pool caches freed blocks up to a limit, and lets the kernel reclaim their pages under memory
// pressure.
#ifndef TFDIST_OPS_KERNELS_OUTPUT_POOL_H_
#define TFDIST_OPS_KERNELS_OUTPUT_POOL_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

// Forwards input `input` to output `output` if TensorFlow permits it; else allocates the output.
absl::Status ForwardOrAllocate(tensorflow::OpKernelContext* context, int input, int output,
                               tensorflow::Tensor** result);

// allocate_output, from the pool if the output is large.
absl::Status AllocateOutput(tensorflow::OpKernelContext* context, int output,
                            const tensorflow::TensorShape& shape, tensorflow::Tensor** result);

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_OUTPUT_POOL_H_
