// Large outputs of collectives from memory that is used again.
//
// malloc takes a block of 32 MB or more from the kernel each time and gives it back at once, so
// that every page of such an output is zeroed and mapped anew: longer work than to all-reduce it.
// The pool keeps what was freed for the next output, up to a limit, and tells the kernel that it
// may have the pages back if it needs them.
#ifndef TFDIST_OPS_KERNELS_OUTPUT_POOL_H_
#define TFDIST_OPS_KERNELS_OUTPUT_POOL_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

// Input `input` itself where TensorFlow allows it, else new memory of its shape.
absl::Status ForwardOrAllocate(tensorflow::OpKernelContext* context, int input, int output,
                               tensorflow::Tensor** result);

// allocate_output, from the pool where that pays.
absl::Status AllocateOutput(tensorflow::OpKernelContext* context, int output,
                            const tensorflow::TensorShape& shape, tensorflow::Tensor** result);

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_OUTPUT_POOL_H_
