// What the core wants to know of TensorFlow's tensors.
#ifndef TFDIST_OPS_KERNELS_TENSORS_H_
#define TFDIST_OPS_KERNELS_TENSORS_H_

#include <sys/uio.h>

#include "core/math/dtype.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

// kBytes for a type that can be moved but not added; an error for one that is not plain memory.
absl::Status ToCore(tensorflow::DataType type, DType* dtype);

// The attributes `T` and `reduce_op` of an op that reduces.
absl::Status ReadReduction(tensorflow::OpKernelConstruction* context, DType* dtype,
                           ReduceOp* reduce_op);

inline iovec Memory(const tensorflow::Tensor& tensor) {
  return {tensor.data(), tensor.TotalBytes()};
}

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_TENSORS_H_
