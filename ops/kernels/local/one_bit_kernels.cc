// The local parts of 1-bit compression: before and after the collectives.
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/status.h"
#include "core/math/one_bit.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

ColumnRange PartOf(const TensorShape& shape, int64_t part, int64_t parts) {
  return PartOfColumns(static_cast<size_t>(shape.dim_size(0)),
                       static_cast<size_t>(shape.dim_size(1)), static_cast<size_t>(part),
                       static_cast<size_t>(parts));
}

absl::Status CheckMatrix(const TensorShape& shape, int tensor) {
  if (shape.dims() == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("tensor ", tensor, ": expected a matrix, received ", shape.dims(), " dimensions"));
}

class OneBitEncodeKernel : public tensorflow::OpKernel {
 public:
  explicit OneBitEncodeKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("parts", &parts_));
  }

  void Compute(OpKernelContext* context) override {
    const int count = context->num_inputs();
    std::vector<float*> rests(count);
    std::vector<int64_t> words(parts_, 0);
    int64_t total = 0;
    for (int i = 0; i < count; ++i) {
      const TensorShape& shape = context->input(i).shape();
      OP_REQUIRES_OK(context, CheckMatrix(shape, i));
      for (int64_t part = 0; part < parts_; ++part) {
        words[part] += static_cast<int64_t>(PartOf(shape, part, parts_).words());
      }
    }
    for (const int64_t of_part : words) total += of_part;
    Tensor *payload = nullptr, *splits = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({total}), &payload));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({parts_}), &splits));
    std::memcpy(splits->data(), words.data(), words.size() * sizeof(int64_t));
    std::vector<TensorShape> shapes;
    for (int i = 0; i < count; ++i) {
      shapes.push_back(context->input(i).shape());
      const void* const values = context->input(i).data();
      Tensor* rest = nullptr;
      OP_REQUIRES_OK(context,
                     context->forward_input_or_allocate_output({i}, 2 + i, shapes.back(), &rest));
      if (rest->data() != values) std::memcpy(rest->data(), values, rest->TotalBytes());
      rests[i] = static_cast<float*>(rest->data());
    }
    auto* next = static_cast<uint32_t*>(payload->data());
    for (int64_t part = 0; part < parts_; ++part) {
      for (int i = 0; i < count; ++i) {
        const ColumnRange range = PartOf(shapes[i], part, parts_);
        EncodeOneBit(range, rests[i], next);
        next += range.words();
      }
    }
  }

 private:
  int64_t parts_ = 1;
};

class OneBitSumKernel : public tensorflow::OpKernel {
 public:
  explicit OneBitSumKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    OP_REQUIRES_OK(context, context->GetAttr("parts", &parts_));
    OP_REQUIRES_OK(context, context->GetAttr("payloads", &payloads_));
    OP_REQUIRES(context, static_cast<int>(shapes_.size()) == context->num_outputs(),
                absl::InvalidArgumentError(StrCat("expected the shapes of ", context->num_outputs(),
                                                  " tensors, received ", shapes_.size())));
    for (size_t i = 0; i < shapes_.size(); ++i) {
      OP_REQUIRES_OK(context, CheckMatrix(shapes_[i], static_cast<int>(i)));
      for (int64_t part = 0; part < parts_; ++part) {
        words_ += static_cast<int64_t>(PartOf(shapes_[i], part, parts_).words());
      }
    }
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& received = context->input(0);
    OP_REQUIRES(context, received.NumElements() == payloads_ * words_,
                absl::InvalidArgumentError(StrCat("expected ", payloads_, " payloads of ", words_,
                                                  " integers, received ", received.NumElements(),
                                                  " in all")));
    std::vector<float*> sums;
    for (int i = 0; i < context->num_outputs(); ++i) {
      Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, shapes_[i], &output));
      std::memset(output->data(), 0, output->TotalBytes());
      sums.push_back(static_cast<float*>(output->data()));
    }
    const auto* next = static_cast<const uint32_t*>(received.data());
    for (int64_t payload = 0; payload < payloads_; ++payload) {
      for (int64_t part = 0; part < parts_; ++part) {
        for (size_t i = 0; i < sums.size(); ++i) {
          const ColumnRange range = PartOf(shapes_[i], part, parts_);
          AddOneBit(range, next, sums[i]);
          next += range.words();
        }
      }
    }
  }

 private:
  std::vector<TensorShape> shapes_;
  int64_t parts_ = 1, payloads_ = 1, words_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfdistOneBitEncode").Device(tensorflow::DEVICE_CPU),
                        OneBitEncodeKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistOneBitSum").Device(tensorflow::DEVICE_CPU), OneBitSumKernel);

}  // namespace
}  // namespace tfdist
