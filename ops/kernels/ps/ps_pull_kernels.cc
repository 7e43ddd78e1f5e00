// Kernels that bring values from the servers.
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/collectives/collective_kernel.h"
#include "kernels/ps/ps_kernel.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class InitialValueKernel : public PsKernel {
 public:
  explicit InitialValueKernel(OpKernelConstruction* context) : PsKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("parameter", &parameter_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    const Tensor& value = context->input(0);
    const ps::ParameterSpec& spec = client->parameter(parameter_);
    OP_REQUIRES_ASYNC(context, value.NumElements() == static_cast<int64_t>(spec.elements),
                      absl::InvalidArgumentError(
                          StrCat("initial value of '", spec.name, "': expected ", spec.elements,
                                 " elements, received shape ", value.shape().DebugString())),
                      done);
    auto end = [context, done](const Status& status) {
      if (!status.ok()) context->SetStatus(ToTensorFlow(status));
      done();
    };
    client->Create(parameter_, Hold(value), [this, context, client, end](const Status& status) {
      if (!status.ok()) return end(status);
      const auto allocate = [context](int) {
        return Hold(Tensor(context->input(0).dtype(), context->input(0).shape()));
      };
      client->Pull({parameter_}, false, allocate,
                   [this, context, client, end](const Status& status) {
                     if (status.ok()) context->set_output(0, *Held(client->Pulled(parameter_)));
                     end(status);
                   });
    });
  }

 private:
  int parameter_ = 0;
};

// A variable while a pull is under way.
class Destination {
 public:
  explicit Destination(VarPtr variable) : variable_(std::move(variable)) {}

  // Memory for the new value: that of the old one if only the variable and the client hold it, for
  // fresh memory costs more than what is done with it.
  ps::Memory Prepare(const ps::Client& client, int parameter) {
    changed_ = true;
    const ps::Memory pulled = client.Pulled(parameter);
    Tensor* known = Held(pulled);
    tensorflow::mutex_lock lock(*variable_->mu());
    Tensor* current = variable_->tensor();
    constexpr int kClientAndPulled = 2;  // more: a push that is not answered yet
    if (known != nullptr && pulled.owner.use_count() <= kClientAndPulled) {
      const bool shared = known->SharesBufferWith(*current);
      if (shared) *current = Tensor(known->dtype());
      if (known->RefCountIsOne()) return pulled;
      if (shared) *current = *known;
    }
    const tensorflow::TensorShape shape = current->shape();
    return Hold(Tensor(current->dtype(), shape));
  }

  // Gives the variable what was pulled, also when that failed midway and must be pulled again.
  void Finish(const ps::Client& client, int parameter) {
    if (!changed_) return;
    const Tensor* pulled = Held(client.Pulled(parameter));
    if (pulled == nullptr) return;
    tensorflow::mutex_lock lock(*variable_->mu());
    // In this mode the variable's memory is written in place, whoever else holds it.
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
      if (begins_step_ && client->IsExcluded(parameter)) continue;
      if (destinations->emplace(parameter, std::move(variables[i])).second) {
        wanted.push_back(parameter);
      }
    }
    const auto allocate = [client, destinations](int parameter) {
      return destinations->at(parameter).Prepare(*client, parameter);
    };
    client->Pull(std::move(wanted), begins_step_, allocate,
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

REGISTER_KERNEL_BUILDER(Name("TfdistPsInitialValue").Device(tensorflow::DEVICE_CPU),
                        InitialValueKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsPull").Device(tensorflow::DEVICE_CPU), PullKernel);

}  // namespace
}  // namespace tfdist
