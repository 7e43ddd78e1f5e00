#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/collectives/moving_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Concatenates along the first dimension, which may differ between ranks: the ranks first exchange
// their numbers of rows.
class AllGatherKernel : public MovingKernel {
 public:
  using MovingKernel::MovingKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = PrepareRows(context, done);
    if (execution == nullptr) return;
    ExchangeRows(context, execution, done, [this, context, execution, done](const Rows& rows) {
      std::vector<const Tensor*> outputs;
      absl::Status status =
          AllocateRows(context, [&rows](int i) { return rows.Total(i); }, &outputs);
      if (status.ok()) status = PutRows(context, rows);
      if (!status.ok()) return End(context, *execution, status, done);
      GatherRows(context, execution, outputs, rows, done);
    });
  }

 private:
  void GatherRows(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
                  const std::vector<const Tensor*>& outputs, const Rows& rows,
                  const DoneCallback& done) const {
    const std::vector<const Tensor*> inputs = Inputs(context);
    Communicator& communicator = *execution->communicator;
    for (int i = 0; i < count(); ++i) {
      if (inputs[i]->TotalBytes() == 0) continue;
      size_t before = 0;
      for (int rank = 0; rank < communicator.rank(); ++rank) before += rows.at(rank, i);
      std::memcpy(static_cast<char*>(outputs[i]->data()) + before * RowBytes(*inputs[i]),
                  inputs[i]->data(), inputs[i]->TotalBytes());
    }
    CollectiveOptions options = Options(context, execution, done);
    options.id = SecondPhase(execution->id);
    options.signature = Describe(inputs, true);
    communicator.AllGather(std::move(options), dtype(), BlockBytes(inputs, rows),
                           Blocks(outputs, rows));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistAllGather").Device(tensorflow::DEVICE_CPU), AllGatherKernel);

}  // namespace
}  // namespace tfdist
