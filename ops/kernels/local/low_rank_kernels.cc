// The steps of PowerSGD whose result must be bit-identical on every rank: see core/math/low_rank.h.
#include <cstring>

#include "core/base/status.h"
#include "core/math/low_rank.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class OrthonormalizeKernel : public tensorflow::OpKernel {
 public:
  explicit OrthonormalizeKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor input = context->input(0);
    OP_REQUIRES(context, input.dims() == 2 && input.dim_size(1) <= input.dim_size(0),
                absl::InvalidArgumentError(
                    StrCat("expected a matrix with at most as many columns as rows, received ",
                           input.shape().DebugString())));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    std::memcpy(output->data(), input.data(), input.TotalBytes());
    Orthonormalize(static_cast<float*>(output->data()), static_cast<size_t>(input.dim_size(0)),
                   static_cast<size_t>(input.dim_size(1)));
  }
};

class MultiplyTransposedKernel : public tensorflow::OpKernel {
 public:
  explicit MultiplyTransposedKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& left = context->input(0);
    const Tensor& right = context->input(1);
    OP_REQUIRES(context,
                left.dims() == 2 && right.dims() == 2 && left.dim_size(1) == right.dim_size(1),
                absl::InvalidArgumentError(
                    StrCat("expected matrices with as many columns, received ",
                           left.shape().DebugString(), " and ", right.shape().DebugString())));
    const int64_t rows = left.dim_size(0), columns = right.dim_size(0), rank = left.dim_size(1);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows, columns}), &output));
    const auto* const a = static_cast<const float*>(left.data());
    const auto* const b = static_cast<const float*>(right.data());
    auto* const out = static_cast<float*>(output->data());
    const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(workers.num_threads, workers.workers, rows, columns * (rank + 1),
                      [&](int64_t begin, int64_t end) {
                        MultiplyTransposed(a, b, static_cast<size_t>(begin),
                                           static_cast<size_t>(end), static_cast<size_t>(columns),
                                           static_cast<size_t>(rank), out);
                      });
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistOrthonormalize").Device(tensorflow::DEVICE_CPU),
                        OrthonormalizeKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistMultiplyTransposed").Device(tensorflow::DEVICE_CPU),
                        MultiplyTransposedKernel);

}  // namespace
}  // namespace tfdist
