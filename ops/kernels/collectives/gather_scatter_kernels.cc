#include <memory>
#include <utility>
#include <vector>

#include "kernels/collectives/moving_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class RootedKernel : public MovingKernel {
 public:
  explicit RootedKernel(OpKernelConstruction* context) : MovingKernel(context) {
    int64_t root;
    OP_REQUIRES_OK(context, context->GetAttr("root", &root));
    root_ = static_cast<int>(root);
  }

 protected:
  int root() const { return root_; }

 private:
  int root_ = 0;
};

// Concatenates along the first dimension on one rank; the others get no rows. The ranks first
// exchange their numbers of rows.
class GatherKernel : public RootedKernel {
 public:
  using RootedKernel::RootedKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = PrepareRows(context, done);
    if (execution == nullptr) return;
    ExchangeRows(context, execution, done, [this, context, execution, done](const Rows& rows) {
      Communicator& communicator = *execution->communicator;
      const bool here = communicator.rank() == root();
      std::vector<const Tensor*> outputs;
      absl::Status status = AllocateRows(
          context, [&rows, here](int i) { return here ? rows.Total(i) : 0; }, &outputs);
      if (status.ok()) status = PutRows(context, rows);
      if (!status.ok()) return End(context, *execution, status, done);
      const std::vector<const Tensor*> inputs = Inputs(context);
      CollectiveOptions options = Options(context, execution, done);
      options.id = SecondPhase(execution->id);
      options.signature = Describe(inputs, true);
      communicator.Gather(std::move(options), dtype(), BlockBytes(inputs, rows), root(),
                          Whole(inputs), here ? Blocks(outputs, rows) : FlatView());
    });
  }
};

// Cuts one rank's tensors into a part for each. If the ranks are not told the parts, the root first
// tells how many rows it has.
class ScatterKernel : public RootedKernel {
 public:
  using RootedKernel::RootedKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = PrepareRows(context, done);
    if (execution == nullptr) return;
    const std::vector<const Tensor*> inputs = Inputs(context);
    Communicator& communicator = *execution->communicator;
    const Tensor& given = context->input(count());
    if (given.NumElements() > 0) {
      Rows rows(communicator.size(), count());
      absl::Status status = rows.Read(given, label());
      if (status.ok() && communicator.rank() == root()) status = rows.CheckTotals(inputs, label());
      if (!status.ok()) return End(context, *execution, status, done);
      return ScatterRows(context, execution, rows, execution->id, done);
    }
    auto totals = std::make_shared<std::vector<int64_t>>(count());
    for (int i = 0; i < count(); ++i) (*totals)[i] = inputs[i]->dim_size(0);
    CollectiveOptions options;
    options.id = execution->id;
    options.signature = Describe(inputs, true);
    options.timeout_seconds = timeout_seconds();
    options.done = [this, context, execution, totals, done](const Status& status) {
      if (!status.ok()) return End(context, *execution, ToTensorFlow(status), done);
      Rows rows(execution->communicator->size(), count());
      for (int i = 0; i < count(); ++i) rows.Share(i, (*totals)[i]);
      if (const absl::Status s = rows.CheckReceived(label()); !s.ok()) {
        return End(context, *execution, s, done);
      }
      ScatterRows(context, execution, rows, SecondPhase(execution->id), done);
    };
    communicator.Broadcast(std::move(options), DType::kInt64, root(),
                           FlatView({{totals->data(), totals->size() * sizeof(int64_t)}}));
  }

 private:
  void ScatterRows(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
                   const Rows& rows, const CollectiveId& id, const DoneCallback& done) const {
    Communicator& communicator = *execution->communicator;
    const int rank = communicator.rank();
    std::vector<const Tensor*> outputs;
    if (const absl::Status s = AllocateRows(
            context, [&rows, rank](int i) { return rows.at(rank, i); }, &outputs);
        !s.ok()) {
      return End(context, *execution, s, done);
    }
    const std::vector<const Tensor*> inputs = Inputs(context);
    CollectiveOptions options = Options(context, execution, done);
    options.id = id;
    options.signature = Describe(inputs, true);
    communicator.Scatter(std::move(options), dtype(), BlockBytes(inputs, rows), root(),
                         rank == root() ? Blocks(inputs, rows) : FlatView(), Whole(outputs));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistGather").Device(tensorflow::DEVICE_CPU), GatherKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistScatter").Device(tensorflow::DEVICE_CPU), ScatterKernel);

}  // namespace
}  // namespace tfdist
