// The collectives without tensors: barrier and join.
#include <memory>
#include <utility>

#include "kernels/collectives/collective_kernel.h"
#include "kernels/host_kernel.h"

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

class JoinKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    Tensor* output = nullptr;
    if (const absl::Status s = context->allocate_output(0, tensorflow::TensorShape({}), &output);
        !s.ok()) {
      return End(context, *execution, s, done);
    }
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature = Describe({}, false);
    execution->communicator->Join(std::move(options), output->scalar<int32_t>().data());
  }
};

REGISTER_HOST_KERNEL("TfdistBarrier", BarrierKernel);
REGISTER_HOST_KERNEL("TfdistJoin", JoinKernel, .HostMemory("last_rank"));

}  // namespace
}  // namespace tfdist
