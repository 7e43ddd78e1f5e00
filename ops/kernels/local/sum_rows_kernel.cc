// Adds up the gradients of rows that occur several times, for what looks at them before the
// servers.
#include <algorithm>

#include "core/base/status.h"
#include "core/ps/table/unique_ids.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class SumRowsKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& ids = context->input(0);
    const Tensor& rows = context->input(1);
    OP_REQUIRES(context, ids.dims() == 1 && rows.dims() == 2 && rows.dim_size(0) == ids.dim_size(0),
                absl::InvalidArgumentError(StrCat(
                    "a sum of rows: expected a vector of ids and as many rows, received ids ",
                    ids.shape().DebugString(), " and rows ", rows.shape().DebugString())));
    ps::UniqueIds unique;
    unique.Add(ids.flat<int64_t>().data(), ids.NumElements());
    const auto count = static_cast<int64_t>(unique.ids().size());
    const int64_t width = rows.dim_size(1);
    Tensor *unique_ids = nullptr, *sums = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {count}, &unique_ids));
    OP_REQUIRES_OK(context, context->allocate_output(1, {count, width}, &sums));
    std::copy(unique.ids().begin(), unique.ids().end(), unique_ids->flat<int64_t>().data());
    float* const out = sums->flat<float>().data();
    const float* from = rows.flat<float>().data();
    int64_t known = 0;
    for (const uint32_t place : unique.indices()) {
      float* const sum = out + place * width;
      // Places are counted up as ids occur first.
      if (place == known) {
        std::copy_n(from, width, sum);
        ++known;
      } else {
        for (int64_t i = 0; i < width; ++i) sum[i] += from[i];
      }
      from += width;
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistSumRows").Device(tensorflow::DEVICE_CPU), SumRowsKernel);

}  // namespace
}  // namespace tfdist
