#include <memory>
#include <utility>
#include <vector>

#include "kernels/moving_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Every rank sends a part of its tensors to each. If a rank decides how many rows each gets, it
// first tells them.
class AllToAllKernel : public MovingKernel {
 public:
  using MovingKernel::MovingKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = PrepareRows(context, done);
    if (execution == nullptr) return;
    const std::vector<const Tensor*> inputs = Inputs(context);
    Communicator& communicator = *execution->communicator;
    const Tensor& given = context->input(count());
    auto sent = std::make_shared<Rows>(communicator.size(), count());
    if (given.NumElements() == 0) {
      if (const absl::Status s = ShareEqually(inputs, sent.get()); !s.ok()) {
        return End(context, *execution, s, done);
      }
      return Exchange(context, execution, *sent, *sent, false, done);
    }
    absl::Status status = sent->Read(given, label());
    if (status.ok()) status = sent->CheckTotals(inputs, label());
    if (!status.ok()) return End(context, *execution, status, done);
    auto received = std::make_shared<Rows>(communicator.size(), count());
    CollectiveOptions options;
    options.id = execution->id;
    options.signature = DescribeParts(inputs, true);
    options.timeout_seconds = timeout_seconds();
    options.done = [this, context, execution, sent, received, done](const Status& status) {
      absl::Status result = ToTensorFlow(status);
      if (result.ok()) result = received->CheckReceived(label());
      if (!result.ok()) return End(context, *execution, result, done);
      Exchange(context, execution, *sent, *received, true, done);
    };
    const std::vector<size_t> lines(communicator.size(), sent->line_bytes());
    communicator.AllToAll(std::move(options), DType::kInt64, lines, lines,
                          FlatView({{sent->data(), sent->bytes()}}),
                          FlatView({{received->data(), received->bytes()}}));
  }

 private:
  absl::Status ShareEqually(const std::vector<const Tensor*>& inputs, Rows* rows) const {
    for (int i = 0; i < count(); ++i) {
      const int64_t total = inputs[i]->dim_size(0);
      if (total % rows->ranks() != 0) {
        return absl::InvalidArgumentError(
            StrCat("'", label(), "': expected a number of rows that ", rows->ranks(),
                   " ranks can share equally, or splits, received ", total, " rows of tensor ", i));
      }
      rows->Share(i, total);
    }
    return absl::OkStatus();
  }

  Signature DescribeParts(const std::vector<const Tensor*>& inputs, bool splits) const {
    Signature signature = Describe(inputs, splits);
    if (splits) signature.shapes += " with splits";
    return signature;
  }

  void Exchange(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
                const Rows& sent, const Rows& received, bool splits,
                const DoneCallback& done) const {
    std::vector<const Tensor*> outputs;
    absl::Status status =
        AllocateRows(context, [&received](int i) { return received.Total(i); }, &outputs);
    if (status.ok()) status = PutRows(context, received);
    if (!status.ok()) return End(context, *execution, status, done);
    const std::vector<const Tensor*> inputs = Inputs(context);
    CollectiveOptions options = Options(context, execution, done);
    if (splits) options.id = SecondPhase(execution->id);
    options.signature = DescribeParts(inputs, splits);
    execution->communicator->AllToAll(std::move(options), dtype(), BlockBytes(inputs, sent),
                                      BlockBytes(inputs, received), Blocks(inputs, sent),
                                      Blocks(outputs, received));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistAllToAll").Device(tensorflow::DEVICE_CPU), AllToAllKernel);

}  // namespace
}  // namespace tfdist
