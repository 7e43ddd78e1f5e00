#include "kernels/ps/ps_kernel.h"

#include <utility>

#include "core/base/handle_table.h"
#include "kernels/conversions.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace tfdist {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

PsKernel::PsKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("client", &client_));
}

std::shared_ptr<ps::Client> PsKernel::FindClient(OpKernelContext* context) const {
  std::shared_ptr<ps::Client> client = HandleTable<ps::Client>::Get().Find(client_);
  if (client == nullptr) {
    context->SetStatus(absl::FailedPreconditionError(
        "the connections to the parameter servers were closed; the strategy that made this graph "
        "has been shut down"));
  }
  return client;
}

PsVariablesKernel::PsVariablesKernel(OpKernelConstruction* context) : PsKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("parameters", &parameters_));
}

absl::Status PsVariablesKernel::LookupVariables(OpKernelContext* context,
                                                std::vector<VarPtr>* variables) const {
  variables->resize(count());
  for (int i = 0; i < count(); ++i) {
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, i),
                                                  &(*variables)[i]));
  }
  return absl::OkStatus();
}

absl::Status PsVariablesKernel::ReadVariables(const ps::Client& client,
                                              const std::vector<VarPtr>& variables,
                                              std::vector<ps::Client::Value>* values) const {
  values->reserve(variables.size());
  for (int i = 0; i < count(); ++i) {
    const ps::ParameterSpec& spec = client.parameters().spec(parameters_[i]);
    tensorflow::tf_shared_lock lock(*variables[i]->mu());
    const Tensor& tensor = *variables[i]->tensor();
    if (!variables[i]->is_initialized ||
        tensor.NumElements() != static_cast<int64_t>(spec.elements)) {
      return absl::FailedPreconditionError(StrCat(
          "variable '", spec.name, "': expected a value of ", spec.elements, " elements, found ",
          variables[i]->is_initialized ? StrCat(tensor.NumElements()) : std::string("none")));
    }
    // In this mode the variable's memory is written in place even if others hold it.
    const bool shared = variables[i]->copy_on_read_mode.load();
    values->push_back(
        {parameters_[i], Hold(shared ? tensorflow::tensor::DeepCopy(tensor) : tensor)});
  }
  return absl::OkStatus();
}

ps::Done Ending(OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done) {
  return [context, done = std::move(done)](const Status& status) {
    if (!status.ok()) context->SetStatus(ToTensorFlow(status));
    done();
  };
}

ps::Memory Hold(const Tensor& tensor) {
  auto owner = std::make_shared<Tensor>(tensor);
  return {static_cast<char*>(owner->data()), owner};
}

Tensor* Held(const ps::Memory& memory) { return static_cast<Tensor*>(memory.owner.get()); }

}  // namespace tfdist
