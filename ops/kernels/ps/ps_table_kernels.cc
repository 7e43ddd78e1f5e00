// Kernels for embedding tables on the servers.
#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/conversions.h"
#include "kernels/ps/ps_kernel.h"
#include "tensorflow/core/framework/cancellation.h"
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

// Registers `cancel` for a cancellation of the step. Returns the function to call instead of
// `done`. If the step is cancelled already, calls `done` and returns null.
ps::Done Cancellable(OpKernelContext* context, std::function<void()> cancel,
                     const tensorflow::AsyncOpKernel::DoneCallback& done) {
  tensorflow::CancellationManager* const manager = context->cancellation_manager();
  const auto token = manager == nullptr ? 0 : manager->get_cancellation_token();
  if (manager != nullptr && !manager->RegisterCallback(token, std::move(cancel))) {
    context->SetStatus(absl::CancelledError("a lookup was cancelled"));
    done();
    return nullptr;
  }
  return [context, manager, token, done](const Status& status) {
    // Not DeregisterCallback: it would wait for a running cancellation, which may be the caller.
    if (manager != nullptr) manager->TryDeregisterCallback(token);
    if (!status.ok()) context->SetStatus(ToTensorFlow(status));
    done();
  };
}

// A kernel of several tables.
class TablesKernel : public PsKernel {
 public:
  explicit TablesKernel(OpKernelConstruction* context) : PsKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("tables", &tables_));
    int count = 0;
    OP_REQUIRES_OK(context, context->GetAttr("N", &count));
    OP_REQUIRES(context, count == static_cast<int>(tables_.size()),
                absl::InvalidArgumentError(
                    StrCat("expected ", count, " tables, received ", tables_.size())));
    std::vector<tensorflow::DataType> wires;
    OP_REQUIRES_OK(context, context->GetAttr("wires", &wires));
    OP_REQUIRES(context, wires.size() == tables_.size(),
                absl::InvalidArgumentError(
                    StrCat("expected ", count, " wire dtypes, received ", wires.size())));
    wires_.resize(wires.size());
    for (size_t i = 0; i < wires.size(); ++i) {
      OP_REQUIRES_OK(context, ToCore(wires[i], &wires_[i]));
    }
  }

 protected:
  int count() const { return static_cast<int>(tables_.size()); }
  int table(int i) const { return tables_[i]; }
  DType wire(int i) const { return wires_[i]; }
  // The ids of table i, in ops whose first inputs are variables.
  const Tensor& ids(OpKernelContext* context, int i) const { return context->input(count() + i); }

 private:
  std::vector<int> tables_;
  std::vector<DType> wires_;
};

class LookupKernel : public TablesKernel {
 public:
  explicit LookupKernel(OpKernelConstruction* context) : TablesKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("widths", &widths_));
    OP_REQUIRES_OK(context, context->GetAttr("training", &training_));
    OP_REQUIRES_OK(context, context->GetAttr("group", &group_));
    OP_REQUIRES_OK(context, context->GetAttr("level", &level_));
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
      lookups.push_back({table(i), Ids(ids), Hold(*rows), wire(i)});
    }
    if (group_ != 0) return LookupBatched(context, client, std::move(lookups), std::move(done));
    client->tables().Lookup(std::move(lookups), training_, Ending(context, done));
  }

 private:
  void LookupBatched(OpKernelContext* context, const std::shared_ptr<ps::Client>& client,
                     std::vector<ps::TableLookup> lookups, DoneCallback done) {
    const auto member = std::make_shared<ps::LookupGroups::Member>();
    ps::Done end = Cancellable(
        context, [client, member] { client->tables().lookups().groups().Cancel(member); }, done);
    if (end == nullptr) return;
    const auto at = context->frame_iter();
    client->tables().lookups().LookupBatched(
        {group_, static_cast<int>(level_), context->step_id(), at.frame_id, at.iter_id}, member,
        std::move(lookups), training_, std::move(end));
  }

  std::vector<int> widths_;
  bool training_ = false;
  int64_t group_ = 0, level_ = 0;
};

// Each iterator of a dataset has its own kernel, which owns the rows that it prefetches.
class PrefetchKernel : public TablesKernel {
 public:
  explicit PrefetchKernel(OpKernelConstruction* context) : TablesKernel(context) {
    static std::atomic<uint64_t> owners{0};
    owner_ = ++owners;
    OP_REQUIRES_OK(context, context->GetAttr("training", &training_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClient(context);
    if (client == nullptr) return done();
    std::vector<ps::TableLookup> lookups;
    for (int i = 0; i < count(); ++i) {
      lookups.push_back({table(i), Ids(context->input(i)), {}, wire(i)});
    }
    Status status;
    const auto batch =
        client->tables().lookups().MakePrefetch(owner_, std::move(lookups), training_, &status);
    OP_REQUIRES_OK_ASYNC(context, ToTensorFlow(status), done);
    ps::Done end = Cancellable(
        context, [client, batch] { client->tables().lookups().prefetches().Cancel(batch); }, done);
    if (end != nullptr) client->tables().lookups().prefetches().Begin(batch, std::move(end));
  }

 private:
  uint64_t owner_ = 0;
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
      OP_REQUIRES_ASYNC(context, client->tables().Has(table(i)),
                        absl::InvalidArgumentError(StrCat("there is no table ", table(i))), done);
      const int64_t expected = ids.NumElements() * client->tables().width(table(i));
      OP_REQUIRES_ASYNC(context, gradients.NumElements() == expected,
                        absl::InvalidArgumentError(StrCat(
                            "gradients of ", ids.NumElements(), " rows of a table: expected ",
                            expected, " elements, received ", gradients.shape().DebugString())),
                        done);
      ps::StepValues step;
      step.learning_rate = context->input(3 * count() + i).scalar<double>()();
      step.step = context->input(4 * count()).scalar<int64_t>()();
      client->parameters().StageRows(step, {table(i), Ids(ids), Hold(gradients), wire(i)});
    }
    done();
  }
};

// A kernel of one table, whose variable is its first input.
class TableKernel : public PsKernel {
 public:
  explicit TableKernel(OpKernelConstruction* context) : PsKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("table", &table_));
  }

 protected:
  // The client, if it has the table; else null, and the context's status is set.
  std::shared_ptr<ps::Client> FindClientOfTable(OpKernelContext* context) const {
    auto client = FindClient(context);
    if (client == nullptr || client->tables().Has(table_)) return client;
    context->SetStatus(absl::InvalidArgumentError(StrCat("there is no table ", table_)));
    return nullptr;
  }
  int table() const { return table_; }

 private:
  int table_ = 0;
};

class EditRowsKernel : public TableKernel {
 public:
  explicit EditRowsKernel(OpKernelConstruction* context) : TableKernel(context) {
    int kind = 0;
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind));
    kind_ = static_cast<ps::EditKind>(kind);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClientOfTable(context);
    if (client == nullptr) return done();
    const Tensor &ids = context->input(1), &rows = context->input(2);
    const int64_t width = kind_ == ps::EditKind::kUpsert ? client->tables().width(table()) : 0;
    OP_REQUIRES_ASYNC(
        context, rows.NumElements() == ids.NumElements() * width,
        absl::InvalidArgumentError(StrCat("embedding table '", client->tables().name(table()),
                                          "': expected rows of ", width,
                                          " numbers for ids of shape ", ids.shape().DebugString(),
                                          ", received rows of shape ", rows.shape().DebugString())),
        done);
    ps::TableEdit edit;
    edit.kind = kind_;
    edit.count = static_cast<size_t>(ids.NumElements());
    edit.ids = ids.flat<int64_t>().data();
    edit.content = rows.flat<float>().data();
    client->tables().Edit(table(), edit, static_cast<uint64_t>(width), Ending(context, done));
  }

 private:
  ps::EditKind kind_ = ps::EditKind::kRemove;
};

class FindRowsKernel : public TableKernel {
 public:
  explicit FindRowsKernel(OpKernelConstruction* context) : TableKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("values", &values_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClientOfTable(context);
    if (client == nullptr) return done();
    const Tensor& ids = context->input(1);
    tensorflow::TensorShape shape({0});
    if (values_) {
      shape = ids.shape();
      OP_REQUIRES_OK_ASYNC(context, shape.AddDimWithStatus(client->tables().width(table())), done);
    }
    Tensor *found = nullptr, *rows = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, ids.shape(), &found), done);
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(1, shape, &rows), done);
    ps::FoundRows to;
    to.found = reinterpret_cast<uint8_t*>(found->flat<bool>().data());
    if (values_) to.rows = rows->flat<float>().data();
    client->tables().Find(table(), Ids(ids), to, Ending(context, done));
  }

 private:
  bool values_ = false;
};

class TableSizeKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto client = FindClientOfTable(context);
    if (client == nullptr) return done();
    Tensor* size = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, {}, &size), done);
    const auto count = std::make_shared<uint64_t>(0);
    ps::FoundRows to;
    to.size = count.get();
    client->tables().Find(table(), {}, to, [context, size, count, done](const Status& status) {
      if (!status.ok()) context->SetStatus(ToTensorFlow(status));
      size->scalar<int64_t>()() = static_cast<int64_t>(*count);
      done();
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("TfdistPsEditRows").Device(tensorflow::DEVICE_CPU), EditRowsKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsFindRows").Device(tensorflow::DEVICE_CPU), FindRowsKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsTableSize").Device(tensorflow::DEVICE_CPU), TableSizeKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsLookup").Device(tensorflow::DEVICE_CPU), LookupKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsPrefetch").Device(tensorflow::DEVICE_CPU), PrefetchKernel);
REGISTER_KERNEL_BUILDER(Name("TfdistPsStageRows").Device(tensorflow::DEVICE_CPU), StageRowsKernel);

}  // namespace
}  // namespace tfdist
