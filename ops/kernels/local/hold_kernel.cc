// Holds a resource until it is released by a call from Python, which then waits for its destructor
// without Python's lock.
#include <cstdint>
#include <memory>

#include "core/base/handle_table.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class HoldKernel : public OpKernel {
 public:
  explicit HoldKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &output));
    output->scalar<int64_t>()() =
        HandleTable<Tensor>::Get().Add(std::make_shared<Tensor>(context->input(0)));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistHold").Device(tensorflow::DEVICE_CPU), HoldKernel);

}  // namespace

extern "C" void tfdist_release(int64_t handle) { HandleTable<Tensor>::Get().Remove(handle); }

}  // namespace tfdist
