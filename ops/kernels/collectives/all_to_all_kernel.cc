#include <memory>
#include <utility>
#include <vector>

#include "kernels/collectives/moving_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Every rank sends a part of its tensors to each. A rank does not know how many rows it will
// receive, so the ranks first exchange these numbers.
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
      ShareEqually(inputs, sent.get());
    } else {
      absl::Status status = sent->Read(given, label());
      if (status.ok()) status = sent->CheckTotals(inputs, label());
      if (!status.ok()) return End(context, *execution, status, done);
    }
    auto received = std::make_shared<Rows>(communicator.size(), count());
    CollectiveOptions options;
    options.id = execution->id;
    options.signature = Describe(inputs, true);
    options.timeout_seconds = timeout_seconds();
    options.done = [this, context, execution, sent, received, done](const Status& status) {
      absl::Status result = ToTensorFlow(status);
      if (result.ok()) result = CheckShared(*received);
      if (result.ok()) result = received->CheckReceived(label());
      if (!result.ok()) return End(context, *execution, result, done);
      Exchange(context, execution, *sent, *received, done);
    };
    const std::vector<size_t> lines(communicator.size(), sent->line_bytes());
    communicator.AllToAll(std::move(options), DType::kInt64, lines, lines,
                          FlatView({{sent->data(), sent->bytes()}}),
                          FlatView({{received->data(), received->bytes()}}));
  }

 private:
  // A number of rows that the ranks cannot share equally is sent as what no number of rows can be,
  // so that all ranks refuse it and none waits for the one that has it.
  void ShareEqually(const std::vector<const Tensor*>& inputs, Rows* rows) const {
    for (int i = 0; i < count(); ++i) {
      const int64_t total = inputs[i]->dim_size(0);
      if (total % rows->ranks() == 0) {
        rows->Share(i, total);
        continue;
      }
      for (int rank = 0; rank < rows->ranks(); ++rank) rows->at(rank, i) = -total;
    }
  }

  absl::Status CheckShared(const Rows& received) const {
    for (int rank = 0; rank < received.ranks(); ++rank) {
      for (int i = 0; i < count(); ++i) {
        if (received.at(rank, i) >= 0) continue;
        return absl::InvalidArgumentError(
            StrCat("'", label(), "': expected a number of rows that ", received.ranks(),
                   " ranks can share equally, or splits, received ", -received.at(rank, i),
                   " rows of tensor ", i, " on rank ", rank));
      }
    }
    return absl::OkStatus();
  }

  void Exchange(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
                const Rows& sent, const Rows& received, const DoneCallback& done) const {
    std::vector<const Tensor*> outputs;
    absl::Status status =
        AllocateRows(context, [&received](int i) { return received.Total(i); }, &outputs);
    if (status.ok()) status = PutRows(context, received);
    if (!status.ok()) return End(context, *execution, status, done);
    const std::vector<const Tensor*> inputs = Inputs(context);
    CollectiveOptions options = Options(context, execution, done);
    options.id = SecondPhase(execution->id);
    options.signature = Describe(inputs, true);
    execution->communicator->AllToAll(std::move(options), dtype(), BlockBytes(inputs, sent),
                                      BlockBytes(inputs, received), Blocks(inputs, sent),
                                      Blocks(outputs, received));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistAllToAll").Device(tensorflow::DEVICE_CPU), AllToAllKernel);

}  // namespace
}  // namespace tfdist
