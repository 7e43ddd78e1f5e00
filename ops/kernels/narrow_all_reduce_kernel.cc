#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/narrow.h"
#include "kernels/collective_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Up to this size the communicator's thread widens what has come; above it has better to do.
constexpr size_t kWidenAtOnce = 64 * 1024;

// All-reduces floats as 16-bit ones, which lie in the outputs while they travel.
class NarrowAllReduceKernel : public CollectiveKernel {
 public:
  explicit NarrowAllReduceKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &dtype_, &reduce_op_));
    tensorflow::DataType type;
    OP_REQUIRES_OK(context, context->GetAttr("wire_dtype", &type));
    OP_REQUIRES_OK(context, ToCore(type, &wire_));
    wire_name_ = DataTypeString(type);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const int count = context->num_inputs();
    std::vector<const Tensor*> inputs(count);
    for (int i = 0; i < count; ++i) inputs[i] = &context->input(i);
    Signature signature = Describe(inputs, false);  // before an input may be forwarded
    signature.shapes += " as " + wire_name_;
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;

    std::vector<Narrowed> outputs(count);
    std::vector<iovec> pieces(count);
    for (int i = 0; i < count; ++i) {
      const void* const input = context->input(i).data();
      Tensor* output = nullptr;
      if (const absl::Status status =
              context->forward_input_or_allocate_output({i}, i, context->input(i).shape(), &output);
          !status.ok()) {
        return End(context, *execution, status, done);
      }
      outputs[i] = {output->data(), static_cast<size_t>(output->NumElements())};
      NarrowTo(wire_, dtype_, input, outputs[i].values, outputs[i].count);
      pieces[i] = {outputs[i].values, outputs[i].count * ByteSize(wire_)};
    }
    const FlatView travelling(std::move(pieces));
    const int64_t divisor = reduce_op_ == ReduceOp::kMean ? execution->communicator->size() : 1;
    CollectiveOptions options = Options(context, execution, done);
    options.signature = std::move(signature);
    options.done = [this, context, execution, outputs = std::move(outputs), divisor,
                    at_once = travelling.bytes() <= kWidenAtOnce,
                    done = std::move(done)](const Status& status) {
      if (!status.ok()) return End(context, *execution, ToTensorFlow(status), done);
      std::function<void()> finish = [this, context, execution, outputs, divisor, done] {
        for (const Narrowed& o : outputs) {
          WidenInPlace(wire_, dtype_, o.values, o.count, divisor);
        }
        End(context, *execution, absl::OkStatus(), done);
      };
      if (at_once || context->runner() == nullptr) return finish();
      (*context->runner())(std::move(finish));
    };
    execution->communicator->AllReduce(std::move(options), travelling, travelling, wire_,
                                       ReduceOp::kSum);
  }

 private:
  struct Narrowed {
    void* values = nullptr;
    size_t count = 0;
  };

  DType dtype_ = DType::kFloat32;
  DType wire_ = DType::kFloat16;
  std::string wire_name_;
  ReduceOp reduce_op_ = ReduceOp::kSum;
};

REGISTER_KERNEL_BUILDER(Name("TfdistNarrowAllReduce").Device(tensorflow::DEVICE_CPU),
                        NarrowAllReduceKernel);

}  // namespace
}  // namespace tfdist
