// Kernels that exchange the values of variables with the servers.
#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/conversions.h"
#include "kernels/ps/ps_kernel.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Fails if a tensor, which the message calls `what`, has not as many elements as the parameter.
absl::Status CheckElements(const char* what, const ps::ParameterSpec& spec, const Tensor& tensor) {
  if (tensor.NumElements() == static_cast<int64_t>(spec.elements)) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(what, " of '", spec.name, "': expected ", spec.elements,
                                           " elements, received shape ",
                                           tensor.shape().DebugString()));
}

class InitialValueKernel : public PsKernel {
 public:
  explicit InitialValueKernel(OpKernelConstruction* context) : PsKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("parameter", &parameter_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    const Tensor& value = context->input(0);
    OP_REQUIRES_OK_ASYNC(
        context, CheckElements("initial value", client->parameters().spec(parameter_), value),
        done);
    const ps::Done end = Ending(context, done);
    client->parameters().Create(
        parameter_, Hold(value), [this, context, client, end](const Status& status) {
          if (!status.ok()) return end(status);
          const auto allocate = [context](int) {
            return Hold(Tensor(context->input(0).dtype(), context->input(0).shape()));
          };
          client->parameters().Pull(
              {parameter_}, false, allocate, [this, context, client, end](const Status& status) {
                if (status.ok())
                  context->set_output(0, *Held(client->parameters().Pulled(parameter_)));
                end(status);
              });
        });
  }

 private:
  int parameter_ = 0;
};

// A variable during a pull.
class Destination {
 public:
  explicit Destination(VarPtr variable) : variable_(std::move(variable)) {}

  // Memory for the new value. Reuses the memory of the old value if only the variable and the
  // client hold it: mapping new memory costs more than the work done in it.
  ps::Memory Prepare(const ps::Client& client, int parameter) {
    changed_ = true;
    const ps::Memory pulled = client.parameters().Pulled(parameter);
    Tensor* known = Held(pulled);
    tensorflow::mutex_lock lock(*variable_->mu());
    Tensor* current = variable_->tensor();
    constexpr int kClientAndPulled = 2;  // more: a push without an answer yet
    if (known != nullptr && pulled.owner.use_count() <= kClientAndPulled) {
      const bool shared = known->SharesBufferWith(*current);
      if (shared) *current = Tensor(known->dtype());
      const bool reusable = known->RefCountIsOne();
      // Always: the gradient of tf.while_loop reads the variable's shape without waiting for pulls.
      if (shared) *current = *known;
      if (reusable) return pulled;
    }
    return Hold(Tensor(current->dtype(), current->shape()));
  }

  // Stores the pulled value in the variable, also after a failed pull, which is repeated.
  void Finish(const ps::Client& client, int parameter) {
    if (!changed_) return;
    const Tensor* pulled = Held(client.parameters().Pulled(parameter));
    if (pulled == nullptr) return;
    tensorflow::mutex_lock lock(*variable_->mu());
    // In this mode the variable's memory is written in place even if others hold it.
    *variable_->tensor() =
        variable_->copy_on_read_mode.load() ? tensorflow::tensor::DeepCopy(*pulled) : *pulled;
    variable_->is_initialized = true;
  }

 private:
  VarPtr variable_;
  bool changed_ = false;
};

class PullKernel : public PsVariablesKernel {
 public:
  explicit PullKernel(OpKernelConstruction* context) : PsVariablesKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("begins_step", &begins_step_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    std::vector<VarPtr> variables;
    OP_REQUIRES_OK_ASYNC(context, LookupVariables(context, &variables), done);
    auto destinations = std::make_shared<std::unordered_map<int, Destination>>();
    std::vector<int> wanted;
    for (int i = 0; i < count(); ++i) {
      const int parameter = parameters()[i];
      if (begins_step_ && client->parameters().IsExcluded(parameter)) continue;
      if (destinations->emplace(parameter, std::move(variables[i])).second) {
        wanted.push_back(parameter);
      }
    }
    const auto allocate = [client, destinations](int parameter) {
      return destinations->at(parameter).Prepare(*client, parameter);
    };
    client->parameters().Pull(std::move(wanted), begins_step_, allocate,
                              [context, client, destinations, done](const Status& status) {
                                for (auto& [parameter, destination] : *destinations) {
                                  destination.Finish(*client, parameter);
                                }
                                if (!status.ok()) context->SetStatus(ToTensorFlow(status));
                                done();
                              });
  }

 private:
  bool begins_step_ = false;
};

std::vector<int64_t> RowIndices(const Tensor& tensor) {
  std::vector<int64_t> rows(tensor.NumElements());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = tensor.dtype() == tensorflow::DT_INT32 ? tensor.flat<int32_t>()(i)
                                                     : tensor.flat<int64_t>()(i);
  }
  return rows;
}

// Elements of a row, also for a tensor without rows.
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
      gradients[i].parameter = parameters()[i];
      gradients[i].values = Hold(values);
      if (of_rows_[i]) {
        gradients[i].rows = RowIndices(context->input(input++));
        gradients[i].width = RowWidth(values.shape());
        continue;
      }
      OP_REQUIRES_OK_ASYNC(
          context, CheckElements("gradient", client->parameters().spec(parameters()[i]), values),
          done);
    }
    ps::StepValues step;
    step.learning_rate = context->input(input).scalar<double>()();
    step.step = context->input(input + 1).scalar<int64_t>()();
    client->parameters().Stage(step, std::move(gradients));
    done();
  }

 private:
  std::vector<bool> of_rows_;
};

class PushKernel : public PsVariablesKernel {
 public:
  explicit PushKernel(OpKernelConstruction* context) : PsVariablesKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("ends_step", &ends_step_));
    OP_REQUIRES_OK(context, context->GetAttr("waits", &waits_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    std::vector<VarPtr> variables;
    OP_REQUIRES_OK_ASYNC(context, LookupVariables(context, &variables), done);
    std::vector<ps::Client::Value> values;
    OP_REQUIRES_OK_ASYNC(context, ReadVariables(*client, variables, &values), done);
    client->parameters().Push(std::move(values), Ending(context, done), ends_step_, waits_);
  }

 private:
  bool ends_step_ = true, waits_ = false;
};

class CommitKernel : public PsKernel {
 public:
  using PsKernel::PsKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    client->commits().Commit([end = Ending(context, done)](
                                 const Status& status, const ps::CommitOutcome&) { end(status); });
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
    const Status pushed = client->parameters().PushAccumulated();  // before these values change
    OP_REQUIRES_OK_ASYNC(context, ToTensorFlow(pushed), done);
    // The pulled values differ from the variables now: the next pull transfers them again.
    for (int parameter : parameters()) client->parameters().TakePulled(parameter);
    if (!write_) return done();
    std::vector<VarPtr> variables;
    OP_REQUIRES_OK_ASYNC(context, LookupVariables(context, &variables), done);
    std::vector<ps::Client::Value> values;
    OP_REQUIRES_OK_ASYNC(context, ReadVariables(*client, variables, &values), done);
    client->parameters().Set(std::move(values), Ending(context, done));
  }

 private:
  bool write_ = false;
};

class ExchangeKernel : public PsKernel {
 public:
  explicit ExchangeKernel(OpKernelConstruction* context) : PsKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("parameters", &parameters_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    const size_t count = parameters_.size();
    OP_REQUIRES_ASYNC(context, context->num_inputs() == static_cast<int>(count) + 1,
                      absl::InvalidArgumentError(StrCat("expected ", count, " values, received ",
                                                        context->num_inputs() - 1)),
                      done);
    std::vector<ps::Client::Value> values(count);
    std::vector<ps::Memory> moves(count);
    for (size_t i = 0; i < count; ++i) {
      const Tensor& value = context->input(i);
      OP_REQUIRES_OK_ASYNC(
          context, CheckElements("value", client->parameters().spec(parameters_[i]), value), done);
      Tensor* output = nullptr;
      OP_REQUIRES_OK_ASYNC(context, context->allocate_output(i, value.shape(), &output), done);
      values[i] = {parameters_[i], Hold(value)};
      moves[i] = Hold(*output);
    }
    const double alpha = context->input(count).scalar<double>()();
    client->averaging().Exchange(values, moves, alpha, Ending(context, done));
  }

 private:
  std::vector<int> parameters_;
};

// Reduces copies of its inputs, because others may hold the inputs.
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
    client->averaging().Reduce(static_cast<uint64_t>(key_), std::move(tensors),
                               Ending(context, done));
  }

 private:
  int64_t key_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfdistPsInitialValue").Device(tensorflow::DEVICE_CPU),
                        InitialValueKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsPull").Device(tensorflow::DEVICE_CPU), PullKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsStage").Device(tensorflow::DEVICE_CPU), StageKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsPush").Device(tensorflow::DEVICE_CPU), PushKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsCommit").Device(tensorflow::DEVICE_CPU), CommitKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsSet").Device(tensorflow::DEVICE_CPU), SetKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsExchange").Device(tensorflow::DEVICE_CPU), ExchangeKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsReduce").Device(tensorflow::DEVICE_CPU), PsReduceKernel);

}  // namespace
}  // namespace tfdist
