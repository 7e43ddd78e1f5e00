// The sum of sparse rows: core/math/row_sums.h explains the algorithm.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/math/row_sums.h"
#include "core/math/unique_ids.h"
#include "kernels/collectives/collective_kernel.h"
#include "kernels/host_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tfdist {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

template <typename Id>
class AllReduceRowsKernel : public CollectiveKernel {
 public:
  explicit AllReduceRowsKernel(OpKernelConstruction* context) : CollectiveKernel(context) {
    OP_REQUIRES_OK(context, ReadReduction(context, &dtype_, &reduce_op_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& ids = context->input(0);
    const Tensor& rows = context->input(1);
    const Tensor& table_rows = context->input(2);
    OP_REQUIRES_ASYNC(
        context, ids.dims() == 1 && rows.dims() >= 1 && rows.dim_size(0) == ids.dim_size(0),
        absl::InvalidArgumentError(
            StrCat("'", label(), "': expected a vector of ids and as many rows, received ids ",
                   ids.shape().DebugString(), " and rows ", rows.shape().DebugString())),
        done);
    OP_REQUIRES_ASYNC(context, tensorflow::TensorShapeUtils::IsScalar(table_rows.shape()),
                      absl::InvalidArgumentError(StrCat(
                          "'", label(), "': expected a scalar number of rows, received shape ",
                          table_rows.shape().DebugString())),
                      done);
    auto sum = std::make_shared<Sum>();
    sum->context = context;
    sum->done = std::move(done);
    OP_REQUIRES_OK_ASYNC(context, AddOwnRows(sum.get()), sum->done);
    sum->execution = Prepare(context, sum->done);
    if (sum->execution == nullptr) return;
    ExchangeCounts(sum, table_rows.scalar<int64_t>()());
  }

 private:
  // One execution.
  struct Sum {
    OpKernelContext* context = nullptr;
    DoneCallback done;
    std::shared_ptr<Execution> execution;
    size_t width = 0;                                      // elements of a row
    std::vector<Id> own_ids;                               // distinct
    Tensor own_rows;                                       // their sums
    std::vector<RowCount> counts;                          // by rank
    std::vector<Id> ids;                                   // of the other ranks
    std::unique_ptr<char[]> rows;                          // of the other ranks, or the dense table
    std::vector<std::pair<const Id*, const char*>> parts;  // ids and rows by rank
    std::unique_ptr<char[]> ranks_with_row;  // one element for each row of the dense table
  };
  using SumPtr = std::shared_ptr<Sum>;

  size_t RowBytes(const Sum& sum) const { return sum.width * ByteSize(dtype_); }

  static size_t Elements(const Tensor& rows) {
    size_t width = 1;
    for (int d = 1; d < rows.dims(); ++d) width *= rows.dim_size(d);
    return width;
  }

  absl::Status AddOwnRows(Sum* sum) const {
    const Tensor& ids = sum->context->input(0);
    const Tensor& rows = sum->context->input(1);
    sum->width = Elements(rows);
    const auto flat = ids.flat<Id>();
    const std::vector<int64_t> wide(flat.data(), flat.data() + flat.size());
    UniqueIds unique;
    unique.Add(wide.data(), wide.size());
    sum->own_ids.assign(unique.ids().begin(), unique.ids().end());
    sum->own_rows = rows;
    if (unique.ids().size() == wide.size()) return absl::OkStatus();
    TensorShape shape = rows.shape();
    shape.set_dim(0, static_cast<int64_t>(unique.ids().size()));
    TF_RETURN_IF_ERROR(sum->context->allocate_temp(rows.dtype(), shape, &sum->own_rows));
    RowSums sums(dtype_, sum->width, static_cast<char*>(sum->own_rows.data()));
    sums.Add(static_cast<const char*>(rows.data()), unique.indices().data(), wide.size());
    return absl::OkStatus();
  }

  void ExchangeCounts(const SumPtr& sum, int64_t table_rows) const {
    Communicator& communicator = *sum->execution->communicator;
    const bool inside = std::all_of(sum->own_ids.begin(), sum->own_ids.end(), [&](Id id) {
      return id >= 0 && static_cast<int64_t>(id) < table_rows;
    });
    sum->counts.resize(communicator.size());
    sum->counts[communicator.rank()] = {static_cast<int64_t>(sum->own_ids.size()),
                                        inside ? table_rows : -1};
    CollectiveOptions options;
    options.id = sum->execution->id;
    options.signature = Describe({&sum->context->input(0), &sum->context->input(1)}, true);
    options.timeout_seconds = timeout_seconds();
    options.done = [this, sum](const Status& status) {
      if (!status.ok()) return Fail(*sum, ToTensorFlow(status));
      ReduceOrGather(sum);
    };
    communicator.AllGather(std::move(options), DType::kBytes,
                           std::vector<size_t>(communicator.size(), sizeof(RowCount)),
                           FlatView({{sum->counts.data(), sum->counts.size() * sizeof(RowCount)}}));
  }

  void ReduceOrGather(const SumPtr& sum) const {
    uint64_t total = 0;
    for (const RowCount& count : sum->counts) {
      if (count.ids < 0) {
        return Fail(*sum,
                    absl::InternalError(StrCat("'", label(), "' received ", count.ids, " rows")));
      }
      total += count.ids;
    }
    const int64_t table_rows =
        DenseTableRows(sum->counts, RowBytes(*sum), sizeof(Id), ByteSize(dtype_));
    return table_rows >= 0 ? ReduceTable(sum, table_rows) : GatherRows(sum, total);
  }

  CollectiveOptions SecondOptions(const SumPtr& sum) const {
    CollectiveOptions options;
    options.id = SecondPhase(sum->execution->id);
    options.signature = Describe({&sum->context->input(0), &sum->context->input(1)}, true);
    options.timeout_seconds = timeout_seconds();
    return options;
  }

  void GatherRows(const SumPtr& sum, uint64_t total) const {
    Communicator& communicator = *sum->execution->communicator;
    const size_t row_bytes = RowBytes(*sum);
    const uint64_t others = total - sum->own_ids.size();
    sum->ids.resize(others);
    sum->rows.reset(new char[others * row_bytes]);
    Id* ids = sum->ids.data();
    char* rows = sum->rows.get();
    std::vector<iovec> pieces;
    std::vector<size_t> blocks;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const size_t count = sum->counts[rank].ids;
      const bool own = rank == communicator.rank();
      Id* const their_ids = own ? sum->own_ids.data() : ids;
      char* const their_rows = own ? static_cast<char*>(sum->own_rows.data()) : rows;
      sum->parts.emplace_back(their_ids, their_rows);
      pieces.push_back({their_ids, count * sizeof(Id)});
      pieces.push_back({their_rows, count * row_bytes});
      blocks.push_back(count * (sizeof(Id) + row_bytes));
      if (own) continue;
      ids += count;
      rows += count * row_bytes;
    }
    CollectiveOptions options = SecondOptions(sum);
    options.done = [this, sum](const Status& status) {
      if (!status.ok()) return Fail(*sum, ToTensorFlow(status));
      Schedule(*sum, [this, sum] { AddGathered(*sum); });
    };
    communicator.AllGather(std::move(options), DType::kBytes, blocks, FlatView(std::move(pieces)));
  }

  void AddGathered(const Sum& sum) const {
    UniqueIds unique;
    for (size_t rank = 0; rank < sum.parts.size(); ++rank) {
      const Id* const ids = sum.parts[rank].first;
      const std::vector<int64_t> wide(ids, ids + sum.counts[rank].ids);
      unique.Add(wide.data(), wide.size());
    }
    Tensor *ids = nullptr, *rows = nullptr;
    if (const auto s = Allocate(sum, unique.ids().size(), &ids, &rows); !s.ok()) {
      return Fail(sum, s);
    }
    std::copy(unique.ids().begin(), unique.ids().end(), ids->flat<Id>().data());
    const uint32_t* indices = unique.indices().data();
    RowSums sums(dtype_, sum.width, static_cast<char*>(rows->data()));
    for (size_t rank = 0; rank < sum.parts.size(); ++rank) {
      sums.Add(sum.parts[rank].second, indices, sum.counts[rank].ids);
      indices += sum.counts[rank].ids;
    }
    Finish(sum, rows);
  }

  void ReduceTable(const SumPtr& sum, size_t table_rows) const {
    const size_t row_bytes = RowBytes(*sum), element = ByteSize(dtype_);
    sum->rows.reset(new char[table_rows * row_bytes]());
    sum->ranks_with_row.reset(new char[table_rows * element]());
    const char* row = static_cast<const char*>(sum->own_rows.data());
    for (const Id id : sum->own_ids) {
      std::memcpy(sum->rows.get() + id * row_bytes, row, row_bytes);
      row += row_bytes;
      SetOne(dtype_, sum->ranks_with_row.get() + id * element);
    }
    const FlatView table({{sum->rows.get(), table_rows * row_bytes},
                          {sum->ranks_with_row.get(), table_rows * element}});
    CollectiveOptions options = SecondOptions(sum);
    options.done = [this, sum, table_rows](const Status& status) {
      if (!status.ok()) return Fail(*sum, ToTensorFlow(status));
      Schedule(*sum, [this, sum, table_rows] { CollectFromTable(*sum, table_rows); });
    };
    sum->execution->communicator->AllReduce(std::move(options), table, table, dtype_,
                                            ReduceOp::kSum);
  }

  void CollectFromTable(const Sum& sum, size_t table_rows) const {
    const size_t row_bytes = RowBytes(sum), element = ByteSize(dtype_);
    std::vector<Id> found;
    for (size_t id = 0; id < table_rows; ++id) {
      const char* const count = sum.ranks_with_row.get() + id * element;
      if (std::any_of(count, count + element, [](char c) { return c != 0; })) {
        found.push_back(static_cast<Id>(id));
      }
    }
    Tensor *ids = nullptr, *rows = nullptr;
    if (const auto s = Allocate(sum, found.size(), &ids, &rows); !s.ok()) return Fail(sum, s);
    std::copy(found.begin(), found.end(), ids->flat<Id>().data());
    char* out = static_cast<char*>(rows->data());
    for (const Id id : found) {
      std::memcpy(out, sum.rows.get() + id * row_bytes, row_bytes);
      out += row_bytes;
    }
    Finish(sum, rows);
  }

  absl::Status Allocate(const Sum& sum, size_t count, Tensor** ids, Tensor** rows) const {
    TensorShape shape = sum.context->input(1).shape();
    shape.set_dim(0, static_cast<int64_t>(count));
    TF_RETURN_IF_ERROR(
        sum.context->allocate_output(0, TensorShape({static_cast<int64_t>(count)}), ids));
    return sum.context->allocate_output(1, shape, rows);
  }

  // Runs `work` on TensorFlow's threads, to keep the communicator's thread free.
  static void Schedule(const Sum& sum, std::function<void()> work) {
    sum.context->device()->tensorflow_cpu_worker_threads()->workers->Schedule(std::move(work));
  }

  void Finish(const Sum& sum, Tensor* rows) const {
    if (reduce_op_ == ReduceOp::kMean) {
      Divide(dtype_, rows->data(), rows->NumElements(), sum.execution->communicator->size());
    }
    End(sum.context, *sum.execution, absl::OkStatus(), sum.done);
  }

  static void Fail(const Sum& sum, const absl::Status& status) {
    End(sum.context, *sum.execution, status, sum.done);
  }

  DType dtype_ = DType::kFloat32;
  ReduceOp reduce_op_ = ReduceOp::kSum;
};

#define REGISTER(Id)                                                   \
  REGISTER_HOST_KERNEL("TfdistAllReduceRows", AllReduceRowsKernel<Id>, \
                       .TypeConstraint<Id>("Tindices")                 \
                           .HostMemory("ids")                          \
                           .HostMemory("rows")                         \
                           .HostMemory("table_rows")                   \
                           .HostMemory("reduced_ids")                  \
                           .HostMemory("reduced_rows"))
REGISTER(int32_t);
REGISTER(int64_t);
#undef REGISTER

}  // namespace
}  // namespace tfdist
