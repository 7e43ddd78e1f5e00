// The local parts of top-k compression: before and after the all-gather.
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/status.h"
#include "core/math/top_k.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

absl::Status CheckKept(int64_t kept, int64_t count, int tensor) {
  if (kept >= 1 && kept <= count && count <= std::numeric_limits<int32_t>::max()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat("tensor ", tensor, ": expected to keep between 1 and all of at most 2^31-1 values, ",
             "received ", kept, " of ", count));
}

class TopKKernel : public tensorflow::OpKernel {
 public:
  explicit TopKKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("kept", &kept_));
    OP_REQUIRES(context, static_cast<int>(kept_.size()) == context->num_inputs(),
                absl::InvalidArgumentError(StrCat("expected a number of values to keep of each of ",
                                                  context->num_inputs(), " tensors, received ",
                                                  kept_.size())));
  }

  void Compute(OpKernelContext* context) override {
    int64_t total = 0;
    for (int i = 0; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, CheckKept(kept_[i], context->input(i).NumElements(), i));
      total += 2 * kept_[i];
    }
    Tensor* payload = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({total}), &payload));
    int32_t* next = payload->flat<int32_t>().data();
    for (int i = 0; i < context->num_inputs(); ++i) {
      const void* const values = context->input(i).data();
      Tensor* rest = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                  {i}, 1 + i, context->input(i).shape(), &rest));
      if (rest->data() != values) std::memcpy(rest->data(), values, rest->TotalBytes());
      const auto k = static_cast<size_t>(kept_[i]);
      TopK(static_cast<float*>(rest->data()), static_cast<size_t>(rest->NumElements()), k, next,
           reinterpret_cast<float*>(next + k));
      next += 2 * k;
    }
  }

 private:
  std::vector<int64_t> kept_;
};

class ScatterAddTopKKernel : public tensorflow::OpKernel {
 public:
  explicit ScatterAddTopKKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("kept", &kept_));
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    OP_REQUIRES_OK(context, context->GetAttr("divisor", &divisor_));
    const auto count = static_cast<size_t>(context->num_outputs());
    OP_REQUIRES(context, kept_.size() == count && shapes_.size() == count,
                absl::InvalidArgumentError(
                    StrCat("expected the shape and the number of kept values of ", count,
                           " tensors, received ", shapes_.size(), " and ", kept_.size())));
    for (size_t i = 0; i < count; ++i) {
      OP_REQUIRES_OK(context, CheckKept(kept_[i], shapes_[i].num_elements(), static_cast<int>(i)));
      total_ += 2 * kept_[i];
    }
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& gathered = context->input(0);
    OP_REQUIRES(
        context, gathered.NumElements() % total_ == 0,
        absl::InvalidArgumentError(StrCat("expected payloads of ", total_, " integers, received ",
                                          gathered.NumElements(), " in all")));
    const auto* const first = gathered.flat<int32_t>().data();
    const auto* const end = first + gathered.NumElements();
    int64_t offset = 0;
    for (int i = 0; i < context->num_outputs(); ++i) {
      Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, shapes_[i], &output));
      auto* const sums = static_cast<float*>(output->data());
      std::memset(sums, 0, output->TotalBytes());
      const auto k = static_cast<size_t>(kept_[i]);
      // In rank order, so that the sum is the same on every rank.
      for (const int32_t* from = first + offset; from < end; from += total_) {
        OP_REQUIRES_OK(context, Add(from, k, output->NumElements(), sums));
      }
      offset += 2 * kept_[i];
    }
  }

 private:
  absl::Status Add(const int32_t* positions, size_t k, int64_t count, float* sums) const {
    const auto divisor = static_cast<float>(divisor_);
    for (size_t j = 0; j < k; ++j) {
      if (positions[j] < 0 || positions[j] >= count) {
        return absl::InvalidArgumentError(
            StrCat("received the position ", positions[j], " in a tensor of ", count, " values"));
      }
      float value;
      std::memcpy(&value, positions + k + j, sizeof(value));
      sums[positions[j]] += value / divisor;
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> kept_;
  std::vector<TensorShape> shapes_;
  int64_t divisor_ = 1;
  int64_t total_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfdistTopK").Device(tensorflow::DEVICE_CPU), TopKKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistScatterAddTopK").Device(tensorflow::DEVICE_CPU),
                        ScatterAddTopKKernel);

}  // namespace
}  // namespace tfdist
