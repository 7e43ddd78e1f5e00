#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/collective_kernel.h"
#include "kernels/output_pool.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Concatenates along the first dimension, which may differ between ranks: the ranks first exchange
// their numbers of rows.
class AllGatherKernel : public CollectiveKernel {
 public:
  explicit AllGatherKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    tensorflow::DataType type;
    OP_REQUIRES_OK(context, context->GetAttr("T", &type));
    OP_REQUIRES_OK(context, ToCore(type, &dtype_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    OP_REQUIRES_ASYNC(
        context, context->input(0).dims() >= 1,
        absl::InvalidArgumentError("all_gather expected at least one dimension, received a scalar"),
        done);
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    Communicator& communicator = *execution->communicator;
    auto rows = std::make_shared<std::vector<int64_t>>(communicator.size());
    (*rows)[communicator.rank()] = context->input(0).dim_size(0);

    CollectiveOptions options;
    options.id = execution->id;
    options.signature = Describe({&context->input(0)}, true);
    options.timeout_seconds = timeout_seconds();
    options.done = [this, context, execution, rows, done](const Status& status) {
      if (!status.ok()) return End(context, *execution, ToTensorFlow(status), done);
      GatherRows(context, execution, *rows, done);
    };
    communicator.AllGather(std::move(options), dtype_,
                           std::vector<size_t>(communicator.size(), sizeof(int64_t)),
                           FlatView({{rows->data(), rows->size() * sizeof(int64_t)}}));
  }

 private:
  void GatherRows(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
                  const std::vector<int64_t>& rows, const DoneCallback& done) const {
    const Tensor& input = context->input(0);
    for (const int64_t count : rows) {
      if (count >= 0) continue;
      const auto status = absl::InternalError(StrCat("all_gather received ", count, " rows"));
      return End(context, *execution, status, done);
    }
    TensorShape shape = input.shape();
    shape.set_dim(0, std::accumulate(rows.begin(), rows.end(), int64_t{0}));
    Tensor* output = nullptr;
    if (const absl::Status s = AllocateOutput(context, 0, shape, &output); !s.ok()) {
      return End(context, *execution, s, done);
    }
    shape.set_dim(0, 1);
    const size_t row_bytes = shape.num_elements() * tensorflow::DataTypeSize(input.dtype());
    std::vector<size_t> blocks;
    for (const int64_t count : rows) blocks.push_back(count * row_bytes);
    Communicator& communicator = *execution->communicator;
    char* const own =
        static_cast<char*>(output->data()) +
        std::accumulate(blocks.begin(), blocks.begin() + communicator.rank(), size_t{0});
    if (input.TotalBytes() > 0) std::memcpy(own, input.data(), input.TotalBytes());
    CollectiveOptions options = Options(context, execution, done);
    options.id = SecondPhase(execution->id);
    options.signature = Describe({&input}, true);
    communicator.AllGather(std::move(options), dtype_, blocks,
                           FlatView({{output->data(), output->TotalBytes()}}));
  }

  DType dtype_ = DType::kBytes;
};

REGISTER_KERNEL_BUILDER(Name("TfdistAllGather").Device(tensorflow::DEVICE_CPU), AllGatherKernel);

}  // namespace
}  // namespace tfdist
