// The rank and the number of ranks of a communicator.
#include <cstdint>
#include <memory>

#include "core/base/handle_table.h"
#include "core/collectives/communicator.h"
#include "kernels/host_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class WorldKernel : public OpKernel {
 public:
  explicit WorldKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("communicator", &communicator_));
  }

  void Compute(OpKernelContext* context) override {
    const std::shared_ptr<Communicator> communicator =
        HandleTable<Communicator>::Get().Find(communicator_);
    OP_REQUIRES(context, communicator != nullptr,
                absl::FailedPreconditionError("its communicator was closed"));
    const int numbers[] = {communicator->rank(), communicator->size()};
    for (int i = 0; i < 2; ++i) {
      Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, {}, &output));
      output->scalar<int32_t>()() = numbers[i];
    }
  }

 private:
  int64_t communicator_ = 0;
};

REGISTER_HOST_KERNEL("TfdistWorld", WorldKernel, .HostMemory("rank").HostMemory("size"));

}  // namespace
}  // namespace tfdist
