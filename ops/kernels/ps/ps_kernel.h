// The base classes of the kernels that use parameter servers.
#ifndef TFDIST_OPS_KERNELS_PS_PS_KERNEL_H_
#define TFDIST_OPS_KERNELS_PS_PS_KERNEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/ps/client/client.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfdist {

using VarPtr = tensorflow::core::RefCountPtr<tensorflow::Var>;

class PsKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit PsKernel(tensorflow::OpKernelConstruction* context);

 protected:
  // Null if the client was closed; then the context's status is set.
  std::shared_ptr<ps::Client> FindClient(tensorflow::OpKernelContext* context) const;

 private:
  int64_t client_ = 0;
};

// A kernel whose first inputs are the resource handles of variables that are parameters.
class PsVariablesKernel : public PsKernel {
 public:
  explicit PsVariablesKernel(tensorflow::OpKernelConstruction* context);

 protected:
  int count() const { return static_cast<int>(parameters_.size()); }
  const std::vector<int>& parameters() const { return parameters_; }
  absl::Status LookupVariables(tensorflow::OpKernelContext* context,
                               std::vector<VarPtr>* variables) const;
  // The values of the variables, which must be initialized and have the parameters' sizes.
  absl::Status ReadVariables(const ps::Client& client, const std::vector<VarPtr>& variables,
                             std::vector<ps::Client::Value>* values) const;

 private:
  std::vector<int> parameters_;
};

// Sets the context's status if an operation has failed, and calls `done`.
ps::Done Ending(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done);

// The tensor's memory, owned through a reference to the tensor.
ps::Memory Hold(const tensorflow::Tensor& tensor);

// The tensor that Hold references; null for no memory.
tensorflow::Tensor* Held(const ps::Memory& memory);

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_PS_PS_KERNEL_H_
