// Packs string tensors into bytes for collectives. The format, with 64-bit numbers:
//
//     number of dimensions | dimensions | length of each string | the strings' bytes
//
// Packed tensors can be concatenated and unpacked again.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

class PackStringsKernel : public tensorflow::OpKernel {
 public:
  explicit PackStringsKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const auto strings = input.flat<tstring>();
    std::vector<int64_t> numbers = {input.dims()};
    for (int d = 0; d < input.dims(); ++d) numbers.push_back(input.dim_size(d));
    int64_t bytes = 0;
    for (int64_t i = 0; i < strings.size(); ++i) {
      numbers.push_back(static_cast<int64_t>(strings(i).size()));
      bytes += numbers.back();
    }
    const int64_t head = static_cast<int64_t>(numbers.size() * sizeof(int64_t));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({head + bytes}), &output));
    char* out = static_cast<char*>(output->data());
    std::memcpy(out, numbers.data(), head);
    out += head;
    for (int64_t i = 0; i < strings.size(); ++i) {
      out = std::copy_n(strings(i).data(), strings(i).size(), out);
    }
  }
};

class UnpackStringsKernel : public tensorflow::OpKernel {
 public:
  explicit UnpackStringsKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("concatenate", &concatenate_));
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& packed = context->input(0);
    const char* at = static_cast<const char*>(packed.data());
    const char* const end = at + packed.NumElements();
    TensorShape shape;
    std::vector<tstring> strings;
    bool first = true;
    OP_REQUIRES(context, concatenate_ || at < end, OtherRoots("none"));
    while (first || at < end) {
      TensorShape block;
      OP_REQUIRES_OK(context, ReadTensor(&at, end, &block, &strings));
      OP_REQUIRES(context, concatenate_ || first, OtherRoots("several"));
      OP_REQUIRES(context, !concatenate_ || block.dims() > 0,
                  absl::InvalidArgumentError(StrCat(
                      "'", label_, "': expected at least one dimension, received a scalar")));
      OP_REQUIRES_OK(context, Append(block, first, &shape));
      first = false;
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    auto out = output->flat<tstring>();
    for (size_t i = 0; i < strings.size(); ++i) out(i) = std::move(strings[i]);
  }

 private:
  static absl::Status Damaged() {
    return absl::InvalidArgumentError("expected packed strings, received other bytes");
  }

  // A broadcast gathers the strings of every rank that considers itself the root: exactly one.
  absl::Status OtherRoots(const std::string& received) const {
    return absl::InvalidArgumentError(StrCat("the ranks disagree on broadcast '", label_,
                                             "': expected the strings of one root, received ",
                                             received, ": they name different roots"));
  }

  static absl::Status ReadNumber(const char** at, const char* end, int64_t* number) {
    if (end - *at < static_cast<int64_t>(sizeof(*number))) return Damaged();
    std::memcpy(number, *at, sizeof(*number));
    *at += sizeof(*number);
    return *number < 0 ? Damaged() : absl::OkStatus();
  }

  // Reads one packed tensor from [*at, end) and advances *at.
  static absl::Status ReadTensor(const char** at, const char* end, TensorShape* shape,
                                 std::vector<tstring>* strings) {
    int64_t dims = 0;
    TF_RETURN_IF_ERROR(ReadNumber(at, end, &dims));
    if (dims > TensorShape::MaxDimensions()) return Damaged();
    for (int64_t d = 0; d < dims; ++d) {
      int64_t size = 0;
      TF_RETURN_IF_ERROR(ReadNumber(at, end, &size));
      TF_RETURN_IF_ERROR(shape->AddDimWithStatus(size));
    }
    const int64_t count = shape->num_elements();
    if (count > (end - *at) / static_cast<int64_t>(sizeof(int64_t))) return Damaged();
    std::vector<int64_t> lengths(count);
    for (int64_t& length : lengths) TF_RETURN_IF_ERROR(ReadNumber(at, end, &length));
    for (const int64_t length : lengths) {
      if (length > end - *at) return Damaged();
      strings->emplace_back(*at, static_cast<size_t>(length));
      *at += length;
    }
    return absl::OkStatus();
  }

  absl::Status Append(const TensorShape& block, bool first, TensorShape* shape) const {
    if (first) {
      *shape = block;
      return absl::OkStatus();
    }
    bool alike = block.dims() == shape->dims();
    for (int d = 1; alike && d < block.dims(); ++d) {
      alike = block.dim_size(d) == shape->dim_size(d);
    }
    if (!alike) {
      return absl::InvalidArgumentError(
          StrCat("'", label_, "': the ranks' strings differ in more than the first dimension: ",
                 shape->DebugString(), " and ", block.DebugString()));
    }
    return shape->SetDimWithStatus(0, shape->dim_size(0) + block.dim_size(0));
  }

  bool concatenate_ = false;
  std::string label_;
};

REGISTER_KERNEL_BUILDER(Name("TfdistPackStrings").Device(tensorflow::DEVICE_CPU),
                        PackStringsKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistUnpackStrings").Device(tensorflow::DEVICE_CPU),
                        UnpackStringsKernel);

}  // namespace
}  // namespace tfdist
