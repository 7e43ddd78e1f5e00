// The collectives that reduce tensors element by element: all_reduce, reduce, reduce_scatter.
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/collectives/blocks.h"
#include "kernels/collectives/collective_kernel.h"
#include "kernels/host_kernel.h"
#include "kernels/output_pool.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class ReducingKernel : public CollectiveKernel {
 public:
  explicit ReducingKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &dtype_, &reduce_op_));
    OP_REQUIRES_OK(context, context->GetAttr("N", &count_));
  }

 protected:
  DType dtype() const { return dtype_; }
  ReduceOp reduce_op() const { return reduce_op_; }
  int count() const { return count_; }
  std::vector<const Tensor*> Inputs(OpKernelContext* context) const {
    std::vector<const Tensor*> inputs(count_);
    for (int i = 0; i < count_; ++i) inputs[i] = &context->input(i);
    return inputs;
  }

 private:
  DType dtype_ = DType::kFloat32;
  ReduceOp reduce_op_ = ReduceOp::kSum;
  int count_ = 0;
};

// Reduces the list of tensors as one flat buffer, in place where TensorFlow forwards an input.
class AllReduceKernel : public ReducingKernel {
 public:
  using ReducingKernel::ReducingKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const std::vector<const Tensor*> inputs = Inputs(context);
    std::vector<iovec> in(count()), out(count());
    for (int i = 0; i < count(); ++i) in[i] = Memory(*inputs[i]);
    const Signature signature = Describe(inputs, false);  // before an input may be forwarded
    for (int i = 0; i < count(); ++i) {
      Tensor* output = nullptr;
      OP_REQUIRES_OK_ASYNC(context, ForwardOrAllocate(context, i, i, &output), done);
      out[i] = Memory(*output);
    }
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature = signature;
    execution->communicator->AllReduce(std::move(options), FlatView(std::move(in)),
                                       FlatView(std::move(out)), dtype(), reduce_op());
  }
};

// The reduction on the root, zeros on the other ranks.
class ReduceKernel : public ReducingKernel {
 public:
  explicit ReduceKernel(OpKernelConstruction* context) : ReducingKernel(context) {
    int64_t root;
    OP_REQUIRES_OK(context, context->GetAttr("root", &root));
    root_ = static_cast<int>(root);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    Communicator& communicator = *execution->communicator;
    const bool is_root = communicator.rank() == root_;
    const std::vector<const Tensor*> inputs = Inputs(context);
    std::vector<const Tensor*> outputs(count());
    for (int i = 0; i < count(); ++i) {
      Tensor* output = nullptr;
      if (const absl::Status s = context->allocate_output(i, inputs[i]->shape(), &output);
          !s.ok()) {
        return End(context, *execution, s, done);
      }
      if (!is_root && output->TotalBytes() > 0)
        std::memset(output->data(), 0, output->TotalBytes());
      outputs[i] = output;
    }
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature = Describe(inputs, false);
    communicator.Reduce(std::move(options), Whole(inputs), is_root ? Whole(outputs) : FlatView(),
                        dtype(), reduce_op(), root_);
  }

 private:
  int root_ = 0;
};

// The reduction, cut by rows into a part for each rank.
class ReduceScatterKernel : public ReducingKernel {
 public:
  using ReducingKernel::ReducingKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const std::vector<const Tensor*> inputs = Inputs(context);
    for (int i = 0; i < count(); ++i) {
      OP_REQUIRES_ASYNC(
          context, inputs[i]->dims() > 0,
          absl::InvalidArgumentError(StrCat(
              "'", label(), "': expected at least one dimension, received a scalar as tensor ", i)),
          done);
    }
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    Communicator& communicator = *execution->communicator;
    RowsByRank rows(communicator.size(), count());
    std::vector<const Tensor*> outputs(count());
    if (const absl::Status s = MakeOutputs(context, communicator.rank(), inputs, &rows, &outputs);
        !s.ok()) {
      return End(context, *execution, s, done);
    }
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature = Describe(inputs, false);
    communicator.ReduceScatter(std::move(options), Blocks(inputs, rows), Whole(outputs), dtype(),
                               reduce_op(), BlockBytes(inputs, rows));
  }

 private:
  absl::Status MakeOutputs(OpKernelContext* context, int rank,
                           const std::vector<const Tensor*>& inputs, RowsByRank* rows,
                           std::vector<const Tensor*>* outputs) const {
    const Tensor& given = context->input(count());
    if (given.NumElements() > 0) {
      TF_RETURN_IF_ERROR(rows->Read(given, label()));
      TF_RETURN_IF_ERROR(rows->CheckTotals(inputs, label()));
    }
    for (int i = 0; i < count(); ++i) {
      if (given.NumElements() == 0) rows->Share(i, inputs[i]->dim_size(0));
      TensorShape shape = inputs[i]->shape();
      shape.set_dim(0, rows->at(rank, i));
      Tensor* output = nullptr;
      TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &output));
      (*outputs)[i] = output;
    }
    return absl::OkStatus();
  }
};

REGISTER_HOST_KERNEL("TfdistAllReduce", AllReduceKernel,
                     .HostMemory("inputs").HostMemory("outputs"));
REGISTER_HOST_KERNEL("TfdistReduce", ReduceKernel, .HostMemory("inputs").HostMemory("outputs"));
REGISTER_HOST_KERNEL("TfdistReduceScatter", ReduceScatterKernel,
                     .HostMemory("inputs").HostMemory("rows").HostMemory("outputs"));

}  // namespace
}  // namespace tfdist
