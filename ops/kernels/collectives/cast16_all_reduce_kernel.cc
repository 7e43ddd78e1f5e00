#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/math/cast16.h"
#include "kernels/collectives/collective_kernel.h"
#include "kernels/output_pool.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Up to this size the communicator's thread widens what has come; above it has better to do.
constexpr size_t kWidenAtOnce = 64 * 1024;
// Many values travel in parts, so that some are narrowed or widened while others are under way:
// measured between 4 hosts with 1 Gbit/s links, see docs/compression.md.
constexpr size_t kMostParts = 64;
constexpr size_t kLeastPart = 512 * 1024;  // values

// All-reduces floats as 16-bit ones, which lie in the outputs while they travel.
class NarrowAllReduceKernel : public CollectiveKernel {
 public:
  explicit NarrowAllReduceKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &dtype_, &reduce_op_));
    tensorflow::DataType type;
    OP_REQUIRES_OK(context, context->GetAttr("wire_dtype", &type));
    OP_REQUIRES_OK(context, ToCore(type, &wire_));
    wire_name_ = DataTypeString(type);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const int count = context->num_inputs();
    std::vector<const Tensor*> inputs(count);
    std::vector<Piece> pieces(count);
    for (int i = 0; i < count; ++i) {
      inputs[i] = &context->input(i);
      pieces[i].input = static_cast<const char*>(inputs[i]->data());
      pieces[i].count = static_cast<size_t>(inputs[i]->NumElements());
    }
    Signature signature = Describe(inputs, false);  // before an input may be forwarded
    signature.shapes += " as " + wire_name_;
    for (int i = 0; i < count; ++i) {
      Tensor* output = nullptr;
      OP_REQUIRES_OK_ASYNC(context, ForwardOrAllocate(context, i, i, &output), done);
      pieces[i].output = static_cast<char*>(output->data());
    }
    const auto execution = Prepare(context, done, kMostParts);
    if (execution == nullptr) return;
    const auto sum = std::make_shared<Sum>();
    sum->context = context;
    sum->execution = execution;
    sum->done = std::move(done);
    sum->parts = Cut(pieces);
    sum->unfinished = sum->parts.size();
    for (size_t i = 0; i < sum->parts.size(); ++i) {
      std::vector<iovec> narrowed;
      for (const Piece& piece : sum->parts[i]) {
        NarrowTo(wire_, dtype_, piece.input, piece.output, piece.count);
        narrowed.push_back({piece.output, piece.count * ByteSize(wire_)});
      }
      Start(sum, i, signature, FlatView(std::move(narrowed)));
    }
  }

 private:
  // Values of one tensor.
  struct Piece {
    const char* input = nullptr;
    char* output = nullptr;  // the narrowed values lie at its beginning
    size_t count = 0;
  };
  using Part = std::vector<Piece>;
  // An execution of the kernel; its context is gone when the last part has ended.
  struct Sum {
    OpKernelContext* context;
    std::shared_ptr<Execution> execution;
    DoneCallback done;
    std::vector<Part> parts;
    std::mutex mutex;
    size_t unfinished;    // guarded by mutex
    absl::Status status;  // guarded by mutex; the first failure
  };

  // Parts of the same number of values, but for the last.
  std::vector<Part> Cut(const std::vector<Piece>& pieces) const {
    const size_t width = ByteSize(dtype_);
    size_t total = 0;
    for (const Piece& piece : pieces) total += piece.count;
    const size_t most = std::max((total + kMostParts - 1) / kMostParts, kLeastPart);
    std::vector<Part> parts(1);
    size_t room = most;
    for (const Piece& piece : pieces) {
      for (size_t begin = 0; begin < piece.count;) {
        if (room == 0) {
          parts.emplace_back();
          room = most;
        }
        const size_t count = std::min(room, piece.count - begin);
        parts.back().push_back({piece.input + begin * width, piece.output + begin * width, count});
        begin += count;
        room -= count;
      }
    }
    return parts;
  }

  void Start(const std::shared_ptr<Sum>& sum, size_t part, const Signature& signature,
             const FlatView& narrowed) const {
    CollectiveOptions options;
    options.id = Phase(sum->execution->id, part);
    options.timeout_seconds = timeout_seconds();
    options.signature = signature;
    options.done = [this, sum, part, bytes = narrowed.bytes()](const Status& status) {
      if (!status.ok()) return Finish(*sum, ToTensorFlow(status));
      std::function<void()> finish = [this, sum, part] {
        const int64_t divisor =
            reduce_op_ == ReduceOp::kMean ? sum->execution->communicator->size() : 1;
        for (const Piece& piece : sum->parts[part]) {
          WidenInPlace(wire_, dtype_, piece.output, piece.count, divisor);
        }
        Finish(*sum, absl::OkStatus());
      };
      if (bytes <= kWidenAtOnce || sum->context->runner() == nullptr) return finish();
      (*sum->context->runner())(std::move(finish));
    };
    sum->execution->communicator->AllReduce(std::move(options), narrowed, narrowed, wire_,
                                            ReduceOp::kSum);
  }

  // Ends the execution with its last part.
  static void Finish(Sum& sum, const absl::Status& status) {
    {
      std::lock_guard<std::mutex> lock(sum.mutex);
      sum.status.Update(status);
      if (--sum.unfinished > 0) return;
    }
    End(sum.context, *sum.execution, sum.status, sum.done);
  }

  DType dtype_ = DType::kFloat32;
  DType wire_ = DType::kFloat16;
  std::string wire_name_;
  ReduceOp reduce_op_ = ReduceOp::kSum;
};

REGISTER_KERNEL_BUILDER(Name("TfdistNarrowAllReduce").Device(tensorflow::DEVICE_CPU),
                        NarrowAllReduceKernel);

}  // namespace
}  // namespace tfdist
