#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/math/local_reduce.h"
#include "kernels/conversions.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// The unit of work of TensorFlow's threads: a multiple of every element size.
constexpr int64_t kGrainBytes = 64 * 1024;

// Input replica * N + i is tensor i of that replica. Output i is their reduction, in the memory of
// replica 0 if TensorFlow forwards it.
class LocalReduceKernel : public tensorflow::OpKernel {
 public:
  explicit LocalReduceKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &dtype_, &reduce_op_));
    OP_REQUIRES_OK(context, context->GetAttr("positions", &positions_));
    // Checked by the op's shape function too, but eager execution does not call it.
    const int count = context->num_outputs();
    replicas_ = context->num_inputs() / count;
    OP_REQUIRES(
        context,
        context->num_inputs() == replicas_ * count && static_cast<int>(positions_.size()) == count,
        absl::InvalidArgumentError(
            StrCat("expected ", count, " tensors of each replica and their positions, received ",
                   context->num_inputs(), " tensors and ", positions_.size(), " positions")));
  }

  void Compute(OpKernelContext* context) override {
    const int count = context->num_outputs();
    std::vector<FlatView> inputs;
    for (int r = 0; r < replicas_; ++r) {
      std::vector<iovec> pieces(count);
      for (int i = 0; i < count; ++i) {
        const Tensor& tensor = context->input(r * count + i);
        const Tensor& first = context->input(i);
        OP_REQUIRES(context, tensor.shape() == first.shape(),
                    absl::InvalidArgumentError(StrCat("replica ", r, ", tensor ", positions_[i],
                                                      ": expected ", first.shape().DebugString(),
                                                      " as on replica 0, received ",
                                                      tensor.shape().DebugString())));
        pieces[i] = Memory(tensor);
      }
      inputs.emplace_back(std::move(pieces));
    }
    std::vector<iovec> pieces(count);
    size_t fresh_bytes = 0;
    for (int i = 0; i < count; ++i) {
      const iovec input = Memory(context->input(i));
      Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {i}, i, context->input(i).shape(), &output));
      pieces[i] = Memory(*output);
      if (pieces[i].iov_base != input.iov_base) fresh_bytes += input.iov_len;
    }
    Reduce(context, inputs, FlatView(std::move(pieces)), ChooseStores(fresh_bytes));
  }

 private:
  // Runs LocalReduce on TensorFlow's threads.
  void Reduce(OpKernelContext* context, const std::vector<FlatView>& inputs, const FlatView& output,
              Stores stores) const {
    const auto bytes = static_cast<int64_t>(output.bytes());
    const int64_t grains = (bytes + kGrainBytes - 1) / kGrainBytes;
    const auto grain_cycles = kGrainBytes / 4 * static_cast<int64_t>(inputs.size());
    const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(workers.num_threads, workers.workers, grains, grain_cycles,
                      [&](int64_t begin, int64_t end) {
                        LocalReduce(inputs, output, static_cast<size_t>(begin * kGrainBytes),
                                    static_cast<size_t>(std::min(end * kGrainBytes, bytes)), dtype_,
                                    reduce_op_, stores);
                      });
  }

  int replicas_ = 0;
  std::vector<int64_t> positions_;
  DType dtype_ = DType::kFloat32;
  ReduceOp reduce_op_ = ReduceOp::kSum;
};

REGISTER_KERNEL_BUILDER(Name("TfdistLocalReduce").Device(tensorflow::DEVICE_CPU),
                        LocalReduceKernel);

}  // namespace
}  // namespace tfdist
