// Kernels that bring values to the servers.
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/collectives/collective_kernel.h"
#include "kernels/ps/ps_kernel.h"
#include "kernels/tensors.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

std::vector<int64_t> RowNumbers(const Tensor& tensor) {
  std::vector<int64_t> rows(tensor.NumElements());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = tensor.dtype() == tensorflow::DT_INT32 ? tensor.flat<int32_t>()(i)
                                                     : tensor.flat<int64_t>()(i);
  }
  return rows;
}

// Elements of a row, also where there are no rows.
uint64_t RowWidth(const tensorflow::TensorShape& shape) {
  uint64_t width = 1;
  for (int i = 1; i < shape.dims(); ++i) width *= static_cast<uint64_t>(shape.dim_size(i));
  return width;
}

class StageKernel : public PsVariablesKernel {
 public:
  explicit StageKernel(OpKernelConstruction* context) : PsVariablesKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("of_rows", &of_rows_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    std::vector<ps::Gradient> gradients(count());
    int input = count();
    for (int i = 0; i < count(); ++i) {
      const Tensor& values = context->input(input++);
      const ps::ParameterSpec& spec = client->parameter(parameters()[i]);
      gradients[i].parameter = parameters()[i];
      gradients[i].values = Hold(values);
      if (of_rows_[i]) {
        gradients[i].rows = RowNumbers(context->input(input++));
        gradients[i].width = RowWidth(values.shape());
      }
      OP_REQUIRES_ASYNC(context,
                        of_rows_[i] || values.NumElements() == static_cast<int64_t>(spec.elements),
                        absl::InvalidArgumentError(
                            StrCat("gradient of '", spec.name, "': expected ", spec.elements,
                                   " elements, received shape ", values.shape().DebugString())),
                        done);
    }
    ps::StepValues step;
    step.learning_rate = context->input(input).scalar<double>()();
    step.step = context->input(input + 1).scalar<int64_t>()();
    client->Stage(step, std::move(gradients));
    done();
  }

 private:
  std::vector<bool> of_rows_;
};

class PushKernel : public PsVariablesKernel {
 public:
  using PsVariablesKernel::PsVariablesKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    std::vector<VarPtr> variables;
    OP_REQUIRES_OK_ASYNC(context, LookupVariables(context, &variables), done);
    std::vector<ps::Client::Value> values;
    OP_REQUIRES_OK_ASYNC(context, ReadVariables(*client, variables, &values), done);
    client->Push(std::move(values), [context, done](const Status& status) {
      if (!status.ok()) context->SetStatus(ToTensorFlow(status));
      done();
    });
  }
};

class SetKernel : public PsVariablesKernel {
 public:
  explicit SetKernel(OpKernelConstruction* context) : PsVariablesKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("write", &write_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    // What was pulled is not what the variables hold now: the next pull is to bring it again.
    for (int parameter : parameters()) client->TakePulled(parameter);
    if (!write_) return done();
    std::vector<VarPtr> variables;
    OP_REQUIRES_OK_ASYNC(context, LookupVariables(context, &variables), done);
    std::vector<ps::Client::Value> values;
    OP_REQUIRES_OK_ASYNC(context, ReadVariables(*client, variables, &values), done);
    client->Set(std::move(values), [context, done](const Status& status) {
      if (!status.ok()) context->SetStatus(ToTensorFlow(status));
      done();
    });
  }

 private:
  bool write_ = false;
};

// Works on copies of its inputs, for others may hold them.
class PsReduceKernel : public PsKernel {
 public:
  explicit PsReduceKernel(OpKernelConstruction* context) : PsKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("key", &key_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    std::vector<ps::Client::Tensor> tensors(context->num_inputs());
    for (int i = 0; i < context->num_inputs(); ++i) {
      Tensor* output = nullptr;
      const Tensor input = context->input(i);
      OP_REQUIRES_OK_ASYNC(context, context->allocate_output(i, input.shape(), &output), done);
      std::memcpy(output->data(), input.data(), input.TotalBytes());
      OP_REQUIRES_OK_ASYNC(context, ToCore(input.dtype(), &tensors[i].dtype), done);
      tensors[i].elements = static_cast<uint64_t>(input.NumElements());
      tensors[i].values = Hold(*output);
    }
    client->Reduce(static_cast<uint64_t>(key_), std::move(tensors),
                   [context, done](const Status& status) {
                     if (!status.ok()) context->SetStatus(ToTensorFlow(status));
                     done();
                   });
  }

 private:
  int64_t key_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfdistPsStage").Device(tensorflow::DEVICE_CPU), StageKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsPush").Device(tensorflow::DEVICE_CPU), PushKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsSet").Device(tensorflow::DEVICE_CPU), SetKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsReduce").Device(tensorflow::DEVICE_CPU), PsReduceKernel);

}  // namespace
}  // namespace tfdist
