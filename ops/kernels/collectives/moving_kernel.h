// What the kernels share that move lists of tensors, of one type or several, as bytes.
#ifndef TFDIST_OPS_KERNELS_COLLECTIVES_MOVING_KERNEL_H_
#define TFDIST_OPS_KERNELS_COLLECTIVES_MOVING_KERNEL_H_

#include <functional>
#include <memory>
#include <vector>

#include "kernels/collectives/blocks.h"
#include "kernels/collectives/collective_kernel.h"

namespace tfdist {

class MovingKernel : public CollectiveKernel {
 public:
  explicit MovingKernel(tensorflow::OpKernelConstruction* context);

 protected:
  // How many tensors are moved; the op may have inputs after them.
  int count() const { return count_; }
  // The type of all tensors, or kBytes if they have several.
  DType dtype() const { return dtype_; }
  std::vector<const tensorflow::Tensor*> Inputs(tensorflow::OpKernelContext* context) const;

  // As Prepare; also fails for tensors that have no rows because they have no dimension.
  std::shared_ptr<Execution> PrepareRows(tensorflow::OpKernelContext* context,
                                         const DoneCallback& done) const;

  // Tells every rank how many rows each tensor has here. `then` gets the rows of all, unless the
  // execution has failed and ended.
  void ExchangeRows(tensorflow::OpKernelContext* context,
                    const std::shared_ptr<Execution>& execution, const DoneCallback& done,
                    std::function<void(const Rows&)> then) const;

  // Makes output i like input i, with `rows(i)` rows.
  absl::Status AllocateRows(tensorflow::OpKernelContext* context,
                            const std::function<int64_t(int)>& rows,
                            std::vector<const tensorflow::Tensor*>* outputs) const;

  // Makes the output after the tensors: `rows`.
  absl::Status PutRows(tensorflow::OpKernelContext* context, const Rows& rows) const;

 private:
  int count_ = 0;
  DType dtype_ = DType::kBytes;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_KERNELS_COLLECTIVES_MOVING_KERNEL_H_
