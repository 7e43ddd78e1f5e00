#include <utility>
#include <vector>

#include "kernels/collectives/moving_kernel.h"
#include "kernels/output_pool.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class BroadcastKernel : public MovingKernel {
 public:
  explicit BroadcastKernel(OpKernelConstruction* context) : MovingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("root", &root_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Signature signature = Describe(Inputs(context), false);
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    std::vector<const Tensor*> outputs(count());
    for (int i = 0; i < count(); ++i) {
      Tensor* output = nullptr;
      if (execution->communicator->rank() == root_) {
        context->set_output(i, context->input(i));
        output = context->mutable_output(i);
      } else if (const absl::Status status = ForwardOrAllocate(context, i, i, &output);
                 !status.ok()) {
        return End(context, *execution, status, done);
      }
      outputs[i] = output;
    }
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature = signature;
    execution->communicator->Broadcast(std::move(options), dtype(), static_cast<int>(root_),
                                       Whole(outputs));
  }

 private:
  int64_t root_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfdistBroadcast").Device(tensorflow::DEVICE_CPU), BroadcastKernel);

}  // namespace
}  // namespace tfdist
