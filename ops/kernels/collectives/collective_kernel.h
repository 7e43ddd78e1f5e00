// The base class of the collectives' kernels: attributes, sequence numbers and cancellation.
#ifndef TFDIST_OPS_KERNELS_COLLECTIVES_COLLECTIVE_KERNEL_H_
#define TFDIST_OPS_KERNELS_COLLECTIVES_COLLECTIVE_KERNEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/communicator.h"
#include "kernels/conversions.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* context);

 protected:
  // The identity of a further collective of the same execution; phases count from 1.
  static CollectiveId Phase(const CollectiveId& id, size_t phase) {
    return {id.key ^ (phase * 0x9e3779b97f4a7c15), id.sequence};
  }
  static CollectiveId SecondPhase(const CollectiveId& id) { return Phase(id, 1); }

  // One execution of the kernel.
  struct Execution {
    std::shared_ptr<Communicator> communicator;
    CollectiveId id;
    tensorflow::CancellationToken cancellation = 0;
  };

  // Finds the communicator. On failure sets the context's status, calls `done`, and returns null.
  std::shared_ptr<Communicator> Find(tensorflow::OpKernelContext* context,
                                     const DoneCallback& done) const;

  // The key of this collective in this iteration of a loop.
  uint64_t Key(tensorflow::OpKernelContext* context) const;

  // Finds the communicator, numbers the execution, and registers the cancellation of all its
  // phases. On failure sets the context's status, calls `done`, and returns null.
  std::shared_ptr<Execution> Prepare(tensorflow::OpKernelContext* context, const DoneCallback& done,
                                     size_t phases = 2) const;

  // Options of a collective whose end ends the execution.
  CollectiveOptions Options(tensorflow::OpKernelContext* context,
                            std::shared_ptr<Execution> execution, DoneCallback done) const;

  // A signature with name, shapes and their hash; `ignore_first` excludes the first dimension from
  // the hash.
  Signature Describe(const std::vector<const tensorflow::Tensor*>& tensors,
                     bool ignore_first) const;

  // Ends the execution: sets the context's status and calls `done`.
  static void End(tensorflow::OpKernelContext* context, const Execution& execution,
                  const absl::Status& status, const DoneCallback& done);

  const std::string& label() const { return label_; }
  float timeout_seconds() const { return timeout_seconds_; }

 private:
  int64_t communicator_ = 0;
  int64_t key_ = 0;
  std::string label_;
  float timeout_seconds_ = 0;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_COLLECTIVES_COLLECTIVE_KERNEL_H_
