#include <utility>
#include <vector>

#include "kernels/collectives/collective_kernel.h"
#include "kernels/output_pool.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Reduces the list of tensors as one flat buffer, in place where TensorFlow lets an input become
// the output.
class AllReduceKernel : public CollectiveKernel {
 public:
  explicit AllReduceKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &dtype_, &reduce_op_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const int count = context->num_inputs();
    std::vector<const Tensor*> inputs(count);
    std::vector<iovec> in(count), out(count);
    for (int i = 0; i < count; ++i) {
      inputs[i] = &context->input(i);
      in[i] = Memory(*inputs[i]);
    }
    const Signature signature = Describe(inputs, false);  // before an input may be forwarded
    for (int i = 0; i < count; ++i) {
      Tensor* output = nullptr;
      OP_REQUIRES_OK_ASYNC(context, ForwardOrAllocate(context, i, i, &output), done);
      out[i] = Memory(*output);
    }
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature = signature;
    execution->communicator->AllReduce(std::move(options), FlatView(std::move(in)),
                                       FlatView(std::move(out)), dtype_, reduce_op_);
  }

 private:
  DType dtype_ = DType::kFloat32;
  ReduceOp reduce_op_ = ReduceOp::kSum;
};

REGISTER_KERNEL_BUILDER(Name("TfdistAllReduce").Device(tensorflow::DEVICE_CPU), AllReduceKernel);

}  // namespace
}  // namespace tfdist
