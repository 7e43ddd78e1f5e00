// Bundles: many tensors that move to another device of this process as one.
//
// TensorFlow sends each tensor between devices separately, which takes a few microseconds each even
// if the devices share memory and nothing is copied. A bundle is one scalar tensor that refers to
// the others.
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_op_registry.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::Variant;

// With the functions that TensorFlow requires of the content of a variant.
struct Bundle {
  std::string TypeName() const { return "tfdist::Bundle"; }
  std::string DebugString() const { return StrCat("Bundle of ", tensors.size(), " tensors"); }
  void Encode(tensorflow::VariantTensorData* data) const {
    for (const Tensor& tensor : tensors) *data->add_tensors() = tensor;
  }
  bool Decode(const tensorflow::VariantTensorData& data) {
    tensors = data.tensors();
    return true;
  }

  std::vector<Tensor> tensors;
};

REGISTER_UNARY_VARIANT_DECODE_FUNCTION(Bundle, "tfdist::Bundle");

class BundleKernel : public tensorflow::OpKernel {
 public:
  explicit BundleKernel(OpKernelConstruction* context) : OpKernel(context) {}

  // Runs inline: too little work for a thread of its own.
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    Bundle bundle;
    for (int i = 0; i < context->num_inputs(); ++i) bundle.tensors.push_back(context->input(i));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape(), &output));
    output->scalar<Variant>()() = std::move(bundle);
  }
};

class UnbundleKernel : public tensorflow::OpKernel {
 public:
  explicit UnbundleKernel(OpKernelConstruction* context) : OpKernel(context) {}

  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    OP_REQUIRES(
        context, tensorflow::TensorShapeUtils::IsScalar(input.shape()),
        absl::InvalidArgumentError(StrCat("expected a bundle, which is a scalar, received shape ",
                                          input.shape().DebugString())));
    const auto* bundle = input.scalar<Variant>()().get<Bundle>();
    const auto count = static_cast<size_t>(context->num_outputs());
    OP_REQUIRES(context, bundle != nullptr && bundle->tensors.size() == count,
                absl::InvalidArgumentError(
                    StrCat("expected a bundle of ", count, " tensors, received ",
                           bundle == nullptr ? "another variant" : bundle->DebugString())));
    for (size_t i = 0; i < count; ++i) {
      const auto type = context->expected_output_dtype(static_cast<int>(i));
      OP_REQUIRES(context, bundle->tensors[i].dtype() == type,
                  absl::InvalidArgumentError(StrCat("tensor ", i, " of the bundle: expected ",
                                                    DataTypeString(type), ", received ",
                                                    DataTypeString(bundle->tensors[i].dtype()))));
      context->set_output(static_cast<int>(i), bundle->tensors[i]);
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistBundle").Device(tensorflow::DEVICE_CPU), BundleKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistUnbundle").Device(tensorflow::DEVICE_CPU), UnbundleKernel);

}  // namespace
}  // namespace tfdist
