// Counts the training steps of this process and their rows, for the metrics of its task.
#include <atomic>
#include <cstdint>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

std::atomic<int64_t> steps_counted{0}, rows_counted{0};

class CountStepKernel : public OpKernel {
 public:
  explicit CountStepKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("steps", &steps_));
  }

  void Compute(OpKernelContext* context) override {
    rows_counted.fetch_add(context->input(0).scalar<int64_t>()(), std::memory_order_relaxed);
    steps_counted.fetch_add(steps_, std::memory_order_relaxed);
  }

  bool IsExpensive() override { return false; }

 private:
  int64_t steps_ = 1;
};

REGISTER_KERNEL_BUILDER(Name("TfdistCountStep").Device(tensorflow::DEVICE_CPU), CountStepKernel);

}  // namespace

extern "C" int64_t tfdist_steps_counted() { return steps_counted.load(std::memory_order_relaxed); }

extern "C" int64_t tfdist_rows_counted() { return rows_counted.load(std::memory_order_relaxed); }

}  // namespace tfdist
