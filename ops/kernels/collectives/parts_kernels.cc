// All-gather of parts whose sizes are known: each tensor is a flat vector, cut into equal parts,
// one for each rank. So no numbers of rows are exchanged first.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/collectives/blocks.h"
#include "kernels/collectives/collective_kernel.h"
#include "kernels/host_kernel.h"
#include "kernels/output_pool.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::Var;

class PartsKernel : public CollectiveKernel {
 public:
  explicit PartsKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    tensorflow::DataType type;
    OP_REQUIRES_OK(context, context->GetAttr("T", &type));
    OP_REQUIRES_OK(context, ToCore(type, &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("N", &count_));
  }

 protected:
  int count() const { return count_; }

  // Copies this rank's part to its place in vector i.
  absl::Status PutOwnPart(int i, const Tensor& part, int rank, const RowsByRank& elements,
                          Tensor* vector) const {
    if (part.NumElements() != elements.at(rank, i)) {
      return absl::InvalidArgumentError(StrCat("'", label(), "': expected ", elements.at(rank, i),
                                               " elements as rank ", rank, "'s part of tensor ", i,
                                               ", which has ", vector->NumElements(), ", received ",
                                               part.NumElements()));
    }
    if (part.NumElements() == 0) return absl::OkStatus();
    int64_t before = 0;
    for (int r = 0; r < rank; ++r) before += elements.at(r, i);
    std::memcpy(static_cast<char*>(vector->data()) + before * RowBytes(part), part.data(),
                part.TotalBytes());
    return absl::OkStatus();
  }

  // Gathers the parts of all ranks into vectors that hold this rank's.
  void Gather(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
              std::vector<Tensor> vectors, const RowsByRank& elements, DoneCallback done) const {
    // They are the outputs' memory, or the variables', until the collective has ended.
    const auto held = std::make_shared<std::vector<Tensor>>(std::move(vectors));
    std::vector<const Tensor*> flat;
    for (const Tensor& vector : *held) flat.push_back(&vector);
    CollectiveOptions options = Options(context, execution, [held, done = std::move(done)] {
      held->clear();  // so that a variable is the only owner of its memory again
      done();
    });
    options.signature = Describe(flat, false);
    execution->communicator->AllGather(std::move(options), dtype_, BlockBytes(flat, elements),
                                       Blocks(flat, elements));
  }

 private:
  DType dtype_ = DType::kFloat32;
  int count_ = 0;
};

// Into outputs.
class AllGatherPartsKernel : public PartsKernel {
 public:
  explicit AllGatherPartsKernel(OpKernelConstruction* context) : PartsKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    OP_REQUIRES(context, shapes_.size() == static_cast<size_t>(count()),
                absl::InvalidArgumentError(StrCat("'", label(), "': expected ", count(),
                                                  " shapes, received ", shapes_.size())));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = Prepare(context, done, 1);
    if (execution == nullptr) return;
    const Communicator& communicator = *execution->communicator;
    RowsByRank elements(communicator.size(), count());
    std::vector<Tensor> vectors;
    for (int i = 0; i < count(); ++i) {
      Tensor* output = nullptr;
      Tensor vector;
      TensorShape shape;
      absl::Status status = AsShape(shapes_[i], &shape);
      if (status.ok()) status = AllocateOutput(context, i, shape, &output);
      if (status.ok() && !vector.CopyFrom(*output, TensorShape({shape.num_elements()}))) {
        status = absl::InternalError(StrCat("'", label(), "': output ", i, " has no flat form"));
      }
      if (status.ok()) {
        elements.Share(i, shape.num_elements());
        status = PutOwnPart(i, context->input(i), communicator.rank(), elements, &vector);
      }
      if (!status.ok()) return End(context, *execution, status, done);
      vectors.push_back(std::move(vector));
    }
    Gather(context, execution, std::move(vectors), elements, std::move(done));
  }

 private:
  absl::Status AsShape(const tensorflow::PartialTensorShape& partial, TensorShape* shape) const {
    if (partial.AsTensorShape(shape)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat("'", label(), "': expected a known shape, received ", partial.DebugString()));
  }

  std::vector<tensorflow::PartialTensorShape> shapes_;
};

// Into variables, in whose memory the parts of the other ranks are received.
class AllGatherIntoKernel : public PartsKernel {
 public:
  using PartsKernel::PartsKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = Prepare(context, done, 1);
    if (execution == nullptr) return;
    const Communicator& communicator = *execution->communicator;
    RowsByRank elements(communicator.size(), count());
    std::vector<Tensor> vectors;
    for (int i = 0; i < count(); ++i) {
      Tensor vector;
      absl::Status status = Writable(context, i, &vector);
      if (status.ok()) {
        const Tensor& part = context->input(count() + i);
        elements.Share(i, vector.NumElements());
        status = PutOwnPart(i, part, communicator.rank(), elements, &vector);
      }
      if (!status.ok()) return End(context, *execution, status, done);
      vectors.push_back(std::move(vector));
    }
    Gather(context, execution, std::move(vectors), elements, std::move(done));
  }

 private:
  // Returns the memory of variable i as a vector. If others still read it, for example the
  // back-propagation, the variable gets memory of its own first.
  absl::Status Writable(OpKernelContext* context, int i, Tensor* value) const {
    tensorflow::core::RefCountPtr<Var> variable;
    TF_RETURN_IF_ERROR(LookupResource(context, HandleFromInput(context, i), &variable));
    const tensorflow::mutex_lock lock(*variable->mu());
    Tensor& current = *variable->tensor();
    if (!variable->is_initialized || current.dtype() != context->input_dtype(count() + i)) {
      return absl::FailedPreconditionError(StrCat(
          "'", label(), "': expected an initialized variable of ",
          tensorflow::DataTypeString(context->input_dtype(count() + i)), " as variable ", i));
    }
    if (!current.RefCountIsOne()) {
      Tensor own;
      TF_RETURN_IF_ERROR(context->allocate_temp(current.dtype(), current.shape(), &own));
      std::memcpy(own.data(), current.data(), current.TotalBytes());
      current = own;
    }
    if (!value->CopyFrom(current, TensorShape({current.NumElements()}))) {
      return absl::InternalError(StrCat("'", label(), "': variable ", i, " has no flat form"));
    }
    return absl::OkStatus();
  }
};

REGISTER_HOST_KERNEL("TfdistAllGatherParts", AllGatherPartsKernel,
                     .HostMemory("parts").HostMemory("outputs"));
// The variables must be on the CPU. So no kernel is registered for other devices.
REGISTER_KERNEL_BUILDER(Name("TfdistAllGatherInto").Device(tensorflow::DEVICE_CPU),
                        AllGatherIntoKernel);

}  // namespace
}  // namespace tfdist
