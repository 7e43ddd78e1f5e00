#include "kernels/collectives/collective_kernel.h"

#include <utility>

#include "core/base/handle_table.h"
#include "tensorflow/core/framework/cancellation.h"

namespace tfdist {

using ::tensorflow::DataTypeString;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

namespace {

// Iterations of a loop may overlap and start an op in any order, so each needs its own key.
// TensorFlow runs at most `parallel_iterations` of them at a time; keys repeat after kKeys
// iterations, because a communicator stores every key.
uint64_t KeyOfIteration(uint64_t key, int64_t iteration) {
  constexpr int64_t kKeys = 1024;
  return iteration <= 0 ? key
                        : key ^ (static_cast<uint64_t>(iteration % kKeys) * 0xc2b2ae3d27d4eb4f);
}

}  // namespace

CollectiveKernel::CollectiveKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("communicator", &communicator_));
  OP_REQUIRES_OK(context, context->GetAttr("key", &key_));
  OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  OP_REQUIRES_OK(context, context->GetAttr("timeout_seconds", &timeout_seconds_));
}

std::shared_ptr<Communicator> CollectiveKernel::Find(OpKernelContext* context,
                                                     const DoneCallback& done) const {
  std::shared_ptr<Communicator> communicator = HandleTable<Communicator>::Get().Find(communicator_);
  if (communicator == nullptr) {
    context->SetStatus(absl::FailedPreconditionError(
        StrCat("'", label_,
               "': its communicator was closed; the strategy that made this graph has "
               "been shut down")));
    done();
  }
  return communicator;
}

uint64_t CollectiveKernel::Key(OpKernelContext* context) const {
  return KeyOfIteration(static_cast<uint64_t>(key_), context->frame_iter().iter_id);
}

std::shared_ptr<CollectiveKernel::Execution> CollectiveKernel::Prepare(OpKernelContext* context,
                                                                       const DoneCallback& done,
                                                                       size_t phases) const {
  auto execution = std::make_shared<Execution>();
  execution->communicator = Find(context, done);
  if (execution->communicator == nullptr) return nullptr;
  execution->id.key = Key(context);
  execution->id.sequence = execution->communicator->NextSequence(execution->id.key);
  if (tensorflow::CancellationManager* manager = context->cancellation_manager()) {
    execution->cancellation = manager->get_cancellation_token();
    const bool registered = manager->RegisterCallback(
        execution->cancellation,
        [communicator = execution->communicator, id = execution->id, phases] {
          for (size_t phase = 0; phase < phases; ++phase) communicator->Cancel(Phase(id, phase));
        });
    if (!registered) {
      // The peers wait for this execution, which will not happen.
      execution->communicator->Abort(
          Status(StatusCode::kUnavailable,
                 StrCat("'", label_, "' was cancelled, because its step failed or was stopped")));
      context->SetStatus(absl::CancelledError(StrCat("'", label_, "' was cancelled")));
      done();
      return nullptr;
    }
  }
  return execution;
}

CollectiveOptions CollectiveKernel::Options(OpKernelContext* context,
                                            std::shared_ptr<Execution> execution,
                                            DoneCallback done) const {
  CollectiveOptions options;
  options.id = execution->id;
  options.timeout_seconds = timeout_seconds_;
  options.done = [context, execution = std::move(execution),
                  done = std::move(done)](const Status& status) {
    End(context, *execution, ToTensorFlow(status), done);
  };
  return options;
}

void CollectiveKernel::End(OpKernelContext* context, const Execution& execution,
                           const absl::Status& status, const DoneCallback& done) {
  if (tensorflow::CancellationManager* manager = context->cancellation_manager()) {
    // Not DeregisterCallback: it would wait for a running cancellation, which may wait for this
    // step.
    manager->TryDeregisterCallback(execution.cancellation);
  }
  if (!status.ok()) context->SetStatus(status);
  done();
}

Signature CollectiveKernel::Describe(const std::vector<const Tensor*>& tensors,
                                     bool ignore_first) const {
  constexpr size_t kShown = 3;
  constexpr uint64_t kFnvPrime = 0x100000001b3;
  Signature signature;
  signature.name = label_;
  signature.shape_hash = 0xcbf29ce484222325;
  const auto mix = [&signature](uint64_t value) {
    signature.shape_hash = (signature.shape_hash ^ value) * kFnvPrime;
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const tensorflow::TensorShape& shape = tensors[i]->shape();
    mix(tensors[i]->dtype());
    mix(shape.dims());
    for (int d = ignore_first ? 1 : 0; d < shape.dims(); ++d) mix(shape.dim_size(d));
    if (i < kShown) {
      signature.shapes +=
          StrCat(i == 0 ? "" : ", ", DataTypeString(tensors[i]->dtype()), shape.DebugString());
    }
  }
  if (tensors.size() > kShown) {
    signature.shapes += StrCat(" and ", tensors.size() - kShown, " more");
  }
  return signature;
}

}  // namespace tfdist
