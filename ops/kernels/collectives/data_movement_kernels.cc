// The collectives that move tensors as bytes: broadcast, all_gather, gather, scatter, all_to_all.
#include <cstring>
#include <functional>
#include <memory>
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

// A kernel that moves a list of tensors, of one type or several.
class DataMovementKernel : public CollectiveKernel {
 public:
  explicit DataMovementKernel(OpKernelConstruction* context);

 protected:
  // The number of moved tensors; the op may have further inputs.
  int count() const { return count_; }
  // The type of the tensors, or kBytes if they have several types.
  DType dtype() const { return dtype_; }
  std::vector<const Tensor*> Inputs(OpKernelContext* context) const;

  // As Prepare; also fails for scalars, which have no rows.
  std::shared_ptr<Execution> PrepareRows(OpKernelContext* context, const DoneCallback& done) const;

  // All-gathers the numbers of rows of each tensor, and calls `then` with them. If that fails, ends
  // the execution instead.
  void ExchangeRows(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
                    const DoneCallback& done, std::function<void(const RowsByRank&)> then) const;

  // Allocates output i like input i, with `rows(i)` rows.
  absl::Status AllocateRows(OpKernelContext* context, const std::function<int64_t(int)>& rows,
                            std::vector<const Tensor*>* outputs) const;

  // Allocates the output after the tensors, and writes `rows` to it.
  absl::Status PutRows(OpKernelContext* context, const RowsByRank& rows) const;

 private:
  int count_ = 0;
  DType dtype_ = DType::kBytes;
};

DataMovementKernel::DataMovementKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
  std::vector<tensorflow::DataType> types;
  OP_REQUIRES_OK(context, context->GetAttr("T", &types));
  count_ = static_cast<int>(types.size());
  bool same = true;
  for (const auto type : types) {
    OP_REQUIRES_OK(context, ToCore(type, &dtype_));
    same = same && type == types[0];
  }
  if (!same) dtype_ = DType::kBytes;
}

std::vector<const Tensor*> DataMovementKernel::Inputs(OpKernelContext* context) const {
  std::vector<const Tensor*> inputs(count_);
  for (int i = 0; i < count_; ++i) inputs[i] = &context->input(i);
  return inputs;
}

std::shared_ptr<CollectiveKernel::Execution> DataMovementKernel::PrepareRows(
    OpKernelContext* context, const DoneCallback& done) const {
  for (int i = 0; i < count_; ++i) {
    if (context->input(i).dims() > 0) continue;
    context->SetStatus(absl::InvalidArgumentError(StrCat(
        "'", label(), "': expected at least one dimension, received a scalar as tensor ", i)));
    done();
    return nullptr;
  }
  return Prepare(context, done);
}

void DataMovementKernel::ExchangeRows(OpKernelContext* context,
                                      const std::shared_ptr<Execution>& execution,
                                      const DoneCallback& done,
                                      std::function<void(const RowsByRank&)> then) const {
  Communicator& communicator = *execution->communicator;
  auto rows = std::make_shared<RowsByRank>(communicator.size(), count_);
  const std::vector<const Tensor*> inputs = Inputs(context);
  for (int i = 0; i < count_; ++i) rows->at(communicator.rank(), i) = inputs[i]->dim_size(0);
  CollectiveOptions options;
  options.id = execution->id;
  options.signature = Describe(inputs, true);
  options.timeout_seconds = timeout_seconds();
  options.done = [this, context, execution, rows, done, then = std::move(then)](Status status) {
    absl::Status result = ToTensorFlow(status);
    if (result.ok()) result = rows->CheckReceived(label());
    if (!result.ok()) return End(context, *execution, result, done);
    then(*rows);
  };
  const std::vector<size_t> blocks(communicator.size(), rows->rank_bytes());
  communicator.AllGather(std::move(options), DType::kInt64, blocks,
                         FlatView({{rows->data(), rows->bytes()}}));
}

absl::Status DataMovementKernel::AllocateRows(OpKernelContext* context,
                                              const std::function<int64_t(int)>& rows,
                                              std::vector<const Tensor*>* outputs) const {
  outputs->clear();
  for (int i = 0; i < count_; ++i) {
    TensorShape shape = context->input(i).shape();
    TF_RETURN_IF_ERROR(shape.SetDimWithStatus(0, rows(i)));
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(context, i, shape, &output));
    outputs->push_back(output);
  }
  return absl::OkStatus();
}

absl::Status DataMovementKernel::PutRows(OpKernelContext* context, const RowsByRank& rows) const {
  Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(
      context->allocate_output(count_, TensorShape({rows.ranks(), rows.tensors()}), &output));
  rows.Write(output);
  return absl::OkStatus();
}

class BroadcastKernel : public DataMovementKernel {
 public:
  explicit BroadcastKernel(OpKernelConstruction* context) : DataMovementKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("root", &root_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Signature signature = Describe(Inputs(context), false);
    const auto execution = Prepare(context, done);
    if (execution == nullptr) return;
    std::vector<const Tensor*> outputs(count());
    for (int i = 0; i < count(); ++i) {
      Tensor* output = nullptr;
      if (execution->communicator->rank() == root_) {
        context->set_output(i, context->input(i));
        output = context->mutable_output(i);
      } else if (const absl::Status status = ForwardOrAllocate(context, i, i, &output);
                 !status.ok()) {
        return End(context, *execution, status, done);
      }
      outputs[i] = output;
    }
    CollectiveOptions options = Options(context, execution, std::move(done));
    options.signature = signature;
    execution->communicator->Broadcast(std::move(options), dtype(), static_cast<int>(root_),
                                       Whole(outputs));
  }

 private:
  int64_t root_ = 0;
};

// Concatenates along the first dimension, which may differ between ranks: the first phase gathers
// the numbers of rows.
class AllGatherKernel : public DataMovementKernel {
 public:
  using DataMovementKernel::DataMovementKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = PrepareRows(context, done);
    if (execution == nullptr) return;
    ExchangeRows(context, execution, done,
                 [this, context, execution, done](const RowsByRank& rows) {
                   std::vector<const Tensor*> outputs;
                   absl::Status status =
                       AllocateRows(context, [&rows](int i) { return rows.Total(i); }, &outputs);
                   if (status.ok()) status = PutRows(context, rows);
                   if (!status.ok()) return End(context, *execution, status, done);
                   GatherRows(context, execution, outputs, rows, done);
                 });
  }

 private:
  void GatherRows(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
                  const std::vector<const Tensor*>& outputs, const RowsByRank& rows,
                  const DoneCallback& done) const {
    const std::vector<const Tensor*> inputs = Inputs(context);
    Communicator& communicator = *execution->communicator;
    for (int i = 0; i < count(); ++i) {
      if (inputs[i]->TotalBytes() == 0) continue;
      size_t before = 0;
      for (int rank = 0; rank < communicator.rank(); ++rank) before += rows.at(rank, i);
      std::memcpy(static_cast<char*>(outputs[i]->data()) + before * RowBytes(*inputs[i]),
                  inputs[i]->data(), inputs[i]->TotalBytes());
    }
    CollectiveOptions options = Options(context, execution, done);
    options.id = SecondPhase(execution->id);
    options.signature = Describe(inputs, true);
    communicator.AllGather(std::move(options), dtype(), BlockBytes(inputs, rows),
                           Blocks(outputs, rows));
  }
};

class RootedKernel : public DataMovementKernel {
 public:
  explicit RootedKernel(OpKernelConstruction* context) : DataMovementKernel(context) {
    int64_t root;
    OP_REQUIRES_OK(context, context->GetAttr("root", &root));
    root_ = static_cast<int>(root);
  }

 protected:
  int root() const { return root_; }

 private:
  int root_ = 0;
};

// Concatenates along the first dimension on the root; the other ranks get no rows. The first phase
// gathers the numbers of rows.
class GatherKernel : public RootedKernel {
 public:
  using RootedKernel::RootedKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = PrepareRows(context, done);
    if (execution == nullptr) return;
    ExchangeRows(
        context, execution, done, [this, context, execution, done](const RowsByRank& rows) {
          Communicator& communicator = *execution->communicator;
          const bool is_root = communicator.rank() == root();
          std::vector<const Tensor*> outputs;
          absl::Status status = AllocateRows(
              context, [&rows, is_root](int i) { return is_root ? rows.Total(i) : 0; }, &outputs);
          if (status.ok()) status = PutRows(context, rows);
          if (!status.ok()) return End(context, *execution, status, done);
          const std::vector<const Tensor*> inputs = Inputs(context);
          CollectiveOptions options = Options(context, execution, done);
          options.id = SecondPhase(execution->id);
          options.signature = Describe(inputs, true);
          communicator.Gather(std::move(options), dtype(), BlockBytes(inputs, rows), root(),
                              Whole(inputs), is_root ? Blocks(outputs, rows) : FlatView());
        });
  }
};

// Cuts the root's tensors into a part for each rank. If the sizes of the parts are not an input,
// the first phase broadcasts the root's numbers of rows.
class ScatterKernel : public RootedKernel {
 public:
  using RootedKernel::RootedKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = PrepareRows(context, done);
    if (execution == nullptr) return;
    const std::vector<const Tensor*> inputs = Inputs(context);
    Communicator& communicator = *execution->communicator;
    const Tensor& given = context->input(count());
    if (given.NumElements() > 0) {
      RowsByRank rows(communicator.size(), count());
      absl::Status status = rows.Read(given, label());
      if (status.ok() && communicator.rank() == root()) status = rows.CheckTotals(inputs, label());
      if (!status.ok()) return End(context, *execution, status, done);
      return ScatterRows(context, execution, rows, execution->id, done);
    }
    auto totals = std::make_shared<std::vector<int64_t>>(count());
    for (int i = 0; i < count(); ++i) (*totals)[i] = inputs[i]->dim_size(0);
    CollectiveOptions options;
    options.id = execution->id;
    options.signature = Describe(inputs, true);
    options.timeout_seconds = timeout_seconds();
    options.done = [this, context, execution, totals, done](const Status& status) {
      if (!status.ok()) return End(context, *execution, ToTensorFlow(status), done);
      RowsByRank rows(execution->communicator->size(), count());
      for (int i = 0; i < count(); ++i) rows.Share(i, (*totals)[i]);
      if (const absl::Status s = rows.CheckReceived(label()); !s.ok()) {
        return End(context, *execution, s, done);
      }
      ScatterRows(context, execution, rows, SecondPhase(execution->id), done);
    };
    communicator.Broadcast(std::move(options), DType::kInt64, root(),
                           FlatView({{totals->data(), totals->size() * sizeof(int64_t)}}));
  }

 private:
  void ScatterRows(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
                   const RowsByRank& rows, const CollectiveId& id, const DoneCallback& done) const {
    Communicator& communicator = *execution->communicator;
    const int rank = communicator.rank();
    std::vector<const Tensor*> outputs;
    if (const absl::Status s = AllocateRows(
            context, [&rows, rank](int i) { return rows.at(rank, i); }, &outputs);
        !s.ok()) {
      return End(context, *execution, s, done);
    }
    const std::vector<const Tensor*> inputs = Inputs(context);
    CollectiveOptions options = Options(context, execution, done);
    options.id = id;
    options.signature = Describe(inputs, true);
    communicator.Scatter(std::move(options), dtype(), BlockBytes(inputs, rows), root(),
                         rank == root() ? Blocks(inputs, rows) : FlatView(), Whole(outputs));
  }
};

// Every rank sends a part of its tensors to each rank. A rank does not know the number of rows that
// it will receive, so the first phase exchanges these numbers.
class AllToAllKernel : public DataMovementKernel {
 public:
  using DataMovementKernel::DataMovementKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto execution = PrepareRows(context, done);
    if (execution == nullptr) return;
    const std::vector<const Tensor*> inputs = Inputs(context);
    Communicator& communicator = *execution->communicator;
    const Tensor& given = context->input(count());
    auto sent = std::make_shared<RowsByRank>(communicator.size(), count());
    if (given.NumElements() == 0) {
      ShareEqually(inputs, sent.get());
    } else {
      absl::Status status = sent->Read(given, label());
      if (status.ok()) status = sent->CheckTotals(inputs, label());
      if (!status.ok()) return End(context, *execution, status, done);
    }
    auto received = std::make_shared<RowsByRank>(communicator.size(), count());
    CollectiveOptions options;
    options.id = execution->id;
    options.signature = Describe(inputs, true);
    options.timeout_seconds = timeout_seconds();
    options.done = [this, context, execution, sent, received, done](const Status& status) {
      absl::Status result = ToTensorFlow(status);
      if (result.ok()) result = CheckShared(*received);
      if (result.ok()) result = received->CheckReceived(label());
      if (!result.ok()) return End(context, *execution, result, done);
      SendRows(context, execution, *sent, *received, done);
    };
    const std::vector<size_t> blocks(communicator.size(), sent->rank_bytes());
    communicator.AllToAll(std::move(options), DType::kInt64, blocks, blocks,
                          FlatView({{sent->data(), sent->bytes()}}),
                          FlatView({{received->data(), received->bytes()}}));
  }

 private:
  // A number of rows that is not divisible by the number of ranks is sent as a negative number, so
  // that all ranks return the error and none waits for the rank that has it.
  void ShareEqually(const std::vector<const Tensor*>& inputs, RowsByRank* rows) const {
    for (int i = 0; i < count(); ++i) {
      const int64_t total = inputs[i]->dim_size(0);
      if (total % rows->ranks() == 0) {
        rows->Share(i, total);
        continue;
      }
      for (int rank = 0; rank < rows->ranks(); ++rank) rows->at(rank, i) = -total;
    }
  }

  absl::Status CheckShared(const RowsByRank& received) const {
    for (int rank = 0; rank < received.ranks(); ++rank) {
      for (int i = 0; i < count(); ++i) {
        if (received.at(rank, i) >= 0) continue;
        return absl::InvalidArgumentError(
            StrCat("'", label(), "': expected a number of rows that ", received.ranks(),
                   " ranks can share equally, or splits, received ", -received.at(rank, i),
                   " rows of tensor ", i, " on rank ", rank));
      }
    }
    return absl::OkStatus();
  }

  void SendRows(OpKernelContext* context, const std::shared_ptr<Execution>& execution,
                const RowsByRank& sent, const RowsByRank& received,
                const DoneCallback& done) const {
    std::vector<const Tensor*> outputs;
    absl::Status status =
        AllocateRows(context, [&received](int i) { return received.Total(i); }, &outputs);
    if (status.ok()) status = PutRows(context, received);
    if (!status.ok()) return End(context, *execution, status, done);
    const std::vector<const Tensor*> inputs = Inputs(context);
    CollectiveOptions options = Options(context, execution, done);
    options.id = SecondPhase(execution->id);
    options.signature = Describe(inputs, true);
    execution->communicator->AllToAll(std::move(options), dtype(), BlockBytes(inputs, sent),
                                      BlockBytes(inputs, received), Blocks(inputs, sent),
                                      Blocks(outputs, received));
  }
};

REGISTER_HOST_KERNEL("TfdistBroadcast", BroadcastKernel,
                     .HostMemory("inputs").HostMemory("outputs"));
REGISTER_HOST_KERNEL("TfdistAllGather", AllGatherKernel,
                     .HostMemory("inputs").HostMemory("outputs").HostMemory("rows"));
REGISTER_HOST_KERNEL("TfdistGather", GatherKernel,
                     .HostMemory("inputs").HostMemory("outputs").HostMemory("rows"));
REGISTER_HOST_KERNEL("TfdistScatter", ScatterKernel,
                     .HostMemory("inputs").HostMemory("rows").HostMemory("outputs"));
REGISTER_HOST_KERNEL(
    "TfdistAllToAll", AllToAllKernel,
    .HostMemory("inputs").HostMemory("rows").HostMemory("outputs").HostMemory("received"));

}  // namespace
}  // namespace tfdist
