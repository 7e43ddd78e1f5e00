// What the kernels of all collectives share: attributes, sequence numbers, cancellation, and the
// one conversion of statuses.
#ifndef TFDIST_OPS_KERNELS_COLLECTIVES_COLLECTIVE_KERNEL_H_
#define TFDIST_OPS_KERNELS_COLLECTIVES_COLLECTIVE_KERNEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/collectives/communicator.h"
#include "kernels/tensors.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {

absl::Status ToTensorFlow(const Status& status);

class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* context);

 protected:
  // A kernel of several collectives runs the others, counted from 1, under these identities.
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

  // Finds the communicator, numbers the execution and watches for cancellation, of its so many
  // phases. On failure sets the status, calls done, and returns null.
  std::shared_ptr<Execution> Prepare(tensorflow::OpKernelContext* context, const DoneCallback& done,
                                     size_t phases = 2) const;

  // Options whose end sets the context's status and calls `done`.
  CollectiveOptions Options(tensorflow::OpKernelContext* context,
                            std::shared_ptr<Execution> execution, DoneCallback done) const;

  // Name, shapes and their hash, for a list of tensors; `ignore_first` leaves the first dimension
  // out.
  Signature Describe(const std::vector<const tensorflow::Tensor*>& tensors,
                     bool ignore_first) const;

  // Ends the execution with `status`.
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
