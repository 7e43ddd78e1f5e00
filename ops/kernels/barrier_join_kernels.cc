#include <memory>
#include <utility>

#include "kernels/collective_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class BarrierKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature = Describe({}, false);
    execution->communicator->Barrier(std::move(options));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistBarrier").Device(tensorflow::DEVICE_CPU), BarrierKernel);

}  // namespace
}  // namespace tfdist
