// The all-reduce of float32 or float64 tensors in 16 bits: see core/math/cast16.h.
#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/math/cast16.h"
#include "kernels/collectives/collective_kernel.h"
#include "kernels/host_kernel.h"
#include "kernels/output_pool.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// Up to this number of bytes the communicator's thread casts a sum back itself; above, TensorFlow's
// threads do, to keep it free for communication.
constexpr size_t kInlineBytes = 64 * 1024;
// A large tensor list is reduced in parts, so that casts overlap with communication. Measured
// between 4 hosts with 1 Gbit/s links, see docs/guides/compression.md.
constexpr size_t kMaxParts = 64;
constexpr size_t kMinPart = 512 * 1024;  // values

// The 16-bit values are stored in the outputs while they are reduced.
class Cast16AllReduceKernel : public CollectiveKernel {
 public:
  explicit Cast16AllReduceKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
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
    const auto execution = Prepare(context, done, kMaxParts);
    if (execution == nullptr) return;
    const auto sum = std::make_shared<Sum>();
    sum->context = context;
    sum->execution = execution;
    sum->done = std::move(done);
    sum->parts = CutIntoParts(pieces);
    sum->unfinished = sum->parts.size();
    for (size_t i = 0; i < sum->parts.size(); ++i) {
      std::vector<iovec> cast;
      for (const Piece& piece : sum->parts[i]) {
        CastTo16(wire_, dtype_, piece.input, piece.output, piece.count);
        cast.push_back({piece.output, piece.count * ByteSize(wire_)});
      }
      Start(sum, i, signature, FlatView(std::move(cast)));
    }
  }

 private:
  // A range of values of one tensor.
  struct Piece {
    const char* input = nullptr;
    char* output = nullptr;  // its beginning holds the 16-bit values
    size_t count = 0;
  };
  using Part = std::vector<Piece>;
  // An execution of the kernel. Its context is invalid after the last part has ended.
  struct Sum {
    OpKernelContext* context;
    std::shared_ptr<Execution> execution;
    DoneCallback done;
    std::vector<Part> parts;
    std::mutex mutex;
    size_t unfinished;    // guarded by mutex
    absl::Status status;  // guarded by mutex; the first failure
  };

  // Cuts the values into parts of equal numbers; the last one may be smaller.
  std::vector<Part> CutIntoParts(const std::vector<Piece>& pieces) const {
    const size_t width = ByteSize(dtype_);
    size_t total = 0;
    for (const Piece& piece : pieces) total += piece.count;
    const size_t max_values = std::max((total + kMaxParts - 1) / kMaxParts, kMinPart);
    std::vector<Part> parts(1);
    size_t room = max_values;
    for (const Piece& piece : pieces) {
      for (size_t begin = 0; begin < piece.count;) {
        if (room == 0) {
          parts.emplace_back();
          room = max_values;
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
             const FlatView& cast) const {
    CollectiveOptions options;
    options.id = Phase(sum->execution->id, part);
    options.timeout_seconds = timeout_seconds();
    options.signature = signature;
    options.done = [this, sum, part, bytes = cast.bytes()](const Status& status) {
      if (!status.ok()) return Finish(*sum, ToTensorFlow(status));
      std::function<void()> finish = [this, sum, part] {
        const int64_t divisor =
            reduce_op_ == ReduceOp::kMean ? sum->execution->communicator->size() : 1;
        for (const Piece& piece : sum->parts[part]) {
          CastFrom16InPlace(wire_, dtype_, piece.output, piece.count, divisor);
        }
        Finish(*sum, absl::OkStatus());
      };
      if (bytes <= kInlineBytes || sum->context->runner() == nullptr) return finish();
      (*sum->context->runner())(std::move(finish));
    };
    sum->execution->communicator->AllReduce(std::move(options), cast, cast, wire_, ReduceOp::kSum);
  }

  // Ends the execution after its last part.
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

REGISTER_HOST_KERNEL("TfdistCast16AllReduce", Cast16AllReduceKernel,
                     .HostMemory("inputs").HostMemory("outputs"));

}  // namespace
}  // namespace tfdist
