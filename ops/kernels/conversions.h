// Conversions between types of TensorFlow and of the core: element types, memory, statuses.
#ifndef TFDIST_OPS_KERNELS_CONVERSIONS_H_
#define TFDIST_OPS_KERNELS_CONVERSIONS_H_

#include <sys/uio.h>

#include "core/base/status.h"
#include "core/math/dtype.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

// kBytes for a type that can be moved but not reduced; an error for a type that is not plain
// memory.
absl::Status ToCore(tensorflow::DataType type, DType* dtype);

// Reads the attributes `T` and `reduce_op` of an op that reduces.
absl::Status ReadReduction(tensorflow::OpKernelConstruction* context, DType* dtype,
                           ReduceOp* reduce_op);

absl::Status ToTensorFlow(const Status& status);

inline iovec Memory(const tensorflow::Tensor& tensor) {
  return {tensor.data(), tensor.TotalBytes()};
}

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_CONVERSIONS_H_
