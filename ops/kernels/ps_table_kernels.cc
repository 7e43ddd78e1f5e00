// Kernels for embeddings whose tables are on the servers.
#include <utility>
#include <vector>

#include "kernels/collective_kernel.h"
#include "kernels/ps_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

std::vector<int64_t> Ids(const Tensor& tensor) {
  const auto ids = tensor.flat<int64_t>();
  return std::vector<int64_t>(ids.data(), ids.data() + ids.size());
}

// A kernel of so many tables, whose first inputs are their variables and ids.
class TablesKernel : public PsKernel {
 public:
  explicit TablesKernel(OpKernelConstruction* context) : PsKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("tables", &tables_));
    int count = 0;
    OP_REQUIRES_OK(context, context->GetAttr("N", &count));
    OP_REQUIRES(context, count == static_cast<int>(tables_.size()),
                absl::InvalidArgumentError(
                    StrCat("expected ", count, " tables, received ", tables_.size())));
  }

 protected:
  int count() const { return static_cast<int>(tables_.size()); }
  int table(int i) const { return tables_[i]; }
  const Tensor& ids(OpKernelContext* context, int i) const { return context->input(count() + i); }

 private:
  std::vector<int> tables_;
};

class LookupKernel : public TablesKernel {
 public:
  explicit LookupKernel(OpKernelConstruction* context) : TablesKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("widths", &widths_));
    OP_REQUIRES_OK(context, context->GetAttr("training", &training_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    std::vector<ps::TableLookup> lookups;
    for (int i = 0; i < count(); ++i) {
      const Tensor& ids = this->ids(context, i);
      tensorflow::TensorShape shape = ids.shape();
      OP_REQUIRES_OK_ASYNC(context, shape.AddDimWithStatus(widths_[i]), done);
      Tensor* rows = nullptr;
      OP_REQUIRES_OK_ASYNC(context, context->allocate_output(i, shape, &rows), done);
      lookups.push_back({table(i), Ids(ids), Hold(*rows)});
    }
    client->Lookup(std::move(lookups), training_, [context, done](const Status& status) {
      if (!status.ok()) context->SetStatus(ToTensorFlow(status));
      done();
    });
  }

 private:
  std::vector<int> widths_;
  bool training_ = false;
};

class StageRowsKernel : public TablesKernel {
 public:
  using TablesKernel::TablesKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    for (int i = 0; i < count(); ++i) {
      const Tensor& ids = this->ids(context, i);
      const Tensor& gradients = context->input(2 * count() + i);
      OP_REQUIRES_ASYNC(context, client->HasTable(table(i)),
                        absl::InvalidArgumentError(StrCat("there is no table ", table(i))), done);
      const int64_t expected = ids.NumElements() * client->table_width(table(i));
      OP_REQUIRES_ASYNC(context, gradients.NumElements() == expected,
                        absl::InvalidArgumentError(StrCat(
                            "gradients of ", ids.NumElements(), " rows of a table: expected ",
                            expected, " elements, received ", gradients.shape().DebugString())),
                        done);
      ps::StepValues step;
      step.learning_rate = context->input(3 * count() + i).scalar<double>()();
      step.step = context->input(4 * count()).scalar<int64_t>()();
      client->StageRows(step, {table(i), Ids(ids), Hold(gradients)});
    }
    done();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistPsLookup").Device(tensorflow::DEVICE_CPU), LookupKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsStageRows").Device(tensorflow::DEVICE_CPU), StageRowsKernel);

}  // namespace
}  // namespace tfdist
