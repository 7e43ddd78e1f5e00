// The kernel of lookups in served tables.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/handle_table.h"
#include "kernels/conversions.h"
#include "kernels/ps/ps_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

class ServedLookupKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit ServedLookupKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("table", &table_));
    OP_REQUIRES_OK(context, context->GetAttr("width", &width_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const int64_t handle = context->input(0).scalar<int64_t>()();
    const auto client = HandleTable<ps::Client>::Get().Find(handle);
    OP_REQUIRES_ASYNC(
        context, client != nullptr,
        absl::FailedPreconditionError(StrCat(
            "table '", table_, "': ", handle == 0 ? "the model has no servers" : "was closed",
            "; expected a model that tfdist.serving.load has loaded")),
        done);
    const int table = client->tables().Find(table_);
    OP_REQUIRES_ASYNC(
        context, table >= 0 && client->tables().width(table) == width_,
        absl::InvalidArgumentError(StrCat("table '", table_, "': expected rows of ", width_,
                                          " numbers on the servers, which have none of these")),
        done);
    const Tensor& ids = context->input(1);
    tensorflow::TensorShape shape = ids.shape();
    OP_REQUIRES_OK_ASYNC(context, shape.AddDimWithStatus(width_), done);
    Tensor* rows = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape, &rows), done);
    const auto flat = ids.flat<int64_t>();
    std::vector<ps::TableLookup> lookups;
    lookups.push_back({table, std::vector<int64_t>(flat.data(), flat.data() + flat.size()),
                       Hold(*rows), DType::kFloat32});
    client->tables().lookups().Serve(std::move(lookups), Ending(context, std::move(done)));
  }

 private:
  std::string table_;
  int width_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfdistServedLookup").Device(tensorflow::DEVICE_CPU),
                        ServedLookupKernel);

}  // namespace
}  // namespace tfdist
