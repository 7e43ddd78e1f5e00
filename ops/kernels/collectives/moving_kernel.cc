#include "kernels/collectives/moving_kernel.h"

#include <utility>

#include "kernels/output_pool.h"

namespace tfdist {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

MovingKernel::MovingKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
  std::vector<tensorflow::DataType> types;
  OP_REQUIRES_OK(context, context->GetAttr("T", &types));
  count_ = static_cast<int>(types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    DType dtype;
    OP_REQUIRES_OK(context, ToCore(types[i], &dtype));
    dtype_ = types[i] == types[0] ? dtype : DType::kBytes;
    if (types[i] != types[0]) break;
  }
  for (const auto type : types) {
    DType ignored;
    OP_REQUIRES_OK(context, ToCore(type, &ignored));
  }
}

std::vector<const Tensor*> MovingKernel::Inputs(OpKernelContext* context) const {
  std::vector<const Tensor*> inputs(count_);
  for (int i = 0; i < count_; ++i) inputs[i] = &context->input(i);
  return inputs;
}

std::shared_ptr<CollectiveKernel::Execution> MovingKernel::PrepareRows(
    OpKernelContext* context, const DoneCallback& done) const {
  for (int i = 0; i < count_; ++i) {
    if (context->input(i).dims() > 0) continue;
    context->SetStatus(absl::InvalidArgumentError(StrCat(
        "'", label(), "': expected at least one dimension, received a scalar as tensor ", i)));
    done();
    return nullptr;
  }
  return Prepare(context, done);
}

void MovingKernel::ExchangeRows(OpKernelContext* context,
                                const std::shared_ptr<Execution>& execution,
                                const DoneCallback& done,
                                std::function<void(const Rows&)> then) const {
  Communicator& communicator = *execution->communicator;
  auto rows = std::make_shared<Rows>(communicator.size(), count_);
  const std::vector<const Tensor*> inputs = Inputs(context);
  for (int i = 0; i < count_; ++i) rows->at(communicator.rank(), i) = inputs[i]->dim_size(0);
  CollectiveOptions options;
  options.id = execution->id;
  options.signature = Describe(inputs, true);
  options.timeout_seconds = timeout_seconds();
  options.done = [this, context, execution, rows, done, then = std::move(then)](Status status) {
    absl::Status result = ToTensorFlow(status);
    if (result.ok()) result = rows->CheckReceived(label());
    if (!result.ok()) return End(context, *execution, result, done);
    then(*rows);
  };
  const std::vector<size_t> lines(communicator.size(), rows->line_bytes());
  communicator.AllGather(std::move(options), DType::kInt64, lines,
                         FlatView({{rows->data(), rows->bytes()}}));
}

absl::Status MovingKernel::AllocateRows(OpKernelContext* context,
                                        const std::function<int64_t(int)>& rows,
                                        std::vector<const Tensor*>* outputs) const {
  outputs->clear();
  for (int i = 0; i < count_; ++i) {
    TensorShape shape = context->input(i).shape();
    TF_RETURN_IF_ERROR(shape.SetDimWithStatus(0, rows(i)));
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(context, i, shape, &output));
    outputs->push_back(output);
  }
  return absl::OkStatus();
}

absl::Status MovingKernel::PutRows(OpKernelContext* context, const Rows& rows) const {
  Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(
      context->allocate_output(count_, TensorShape({rows.ranks(), rows.tensors()}), &output));
  rows.Write(output);
  return absl::OkStatus();
}

}  // namespace tfdist
