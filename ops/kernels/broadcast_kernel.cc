#include <utility>

#include "kernels/collective_kernel.h"
#include "kernels/output_pool.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("root", &root_));
    tensorflow::DataType type;
    OP_REQUIRES_OK(context, context->GetAttr("T", &type));
    OP_REQUIRES_OK(context, ToCore(type, &dtype_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Signature signature = Describe({&context->input(0)}, false);
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    Tensor* output = nullptr;
    if (execution->communicator->rank() == root_) {
      context->set_output(0, context->input(0));
      output = context->mutable_output(0);
    } else if (const absl::Status status = ForwardOrAllocate(context, 0, 0, &output);
               !status.ok()) {
      return End(context, *execution, status, done);
    }
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature = signature;
    execution->communicator->Broadcast(std::move(options), dtype_, static_cast<int>(root_),
                                       FlatView({{output->data(), output->TotalBytes()}}));
  }

 private:
  int64_t root_ = 0;
  DType dtype_ = DType::kBytes;
};

REGISTER_KERNEL_BUILDER(Name("TfdistBroadcast").Device(tensorflow::DEVICE_CPU), BroadcastKernel);

}  // namespace
}  // namespace tfdist
