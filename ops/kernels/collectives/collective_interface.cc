// The interfaces of the collectives: names, inputs, attributes and shapes.
//
// The input `rows` of ops that cut tensors by rows: rows[r, i] is the number of rows of tensor i
// for rank r. An empty `rows` means equal parts; the first ranks get one more row each if there is
// a remainder.
#include <cstdint>
#include <vector>

#include "kernels/shape_functions.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// `communicator`: the handle of a communicator. `key`: identifies the collective on every rank.
// `label`: for messages. `timeout_seconds`: 0 means no deadline. The ops are declared as
// distributed communication so that TensorFlow preserves their status codes.
#define REGISTER_COLLECTIVE(name)     \
  REGISTER_OP(name)                   \
      .Attr("communicator: int")      \
      .Attr("key: int")               \
      .Attr("label: string")          \
      .Attr("timeout_seconds: float") \
      .SetIsStateful()                \
      .SetIsDistributedCommunication()

constexpr char kReducible[] =
    "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, bool}";
constexpr char kReduceOps[] = "reduce_op: {'sum', 'mean', 'min', 'max', 'product'}";
constexpr char kSumOrMean[] = "reduce_op: {'sum', 'mean'}";

// Outputs 0 to `count` - 1 have the shapes of the inputs, with any number of rows.
absl::Status OtherRows(InferenceContext* c, int count) {
  for (int i = 0; i < count; ++i) {
    ShapeHandle input, output;
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(i), 1, &input));
    TF_RETURN_IF_ERROR(c->ReplaceDim(input, 0, c->UnknownDim(), &output));
    c->set_output(i, output);
  }
  return absl::OkStatus();
}

// As OtherRows; the last output is the numbers of rows, [ranks, tensors].
absl::Status OtherRowsAndCounts(InferenceContext* c) {
  const int count = c->num_outputs() - 1;
  c->set_output(count, c->Matrix(c->UnknownDim(), count));
  return OtherRows(c, count);
}

REGISTER_COLLECTIVE("TfdistAllReduce")
    .Input("inputs: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr(kReducible)
    .Attr(kReduceOps)
    .SetShapeFn(SameShapes);

// The index of the size of this step's buckets, the same on all ranks: it tries `sizes`, which are
// for messages, beginning with `initial`.
REGISTER_COLLECTIVE("TfdistBucketSize")
    .Output("size: int32")
    .Attr("sizes: list(string) >= 1")
    .Attr("initial: int")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

// Reduces block `block` of a list, together with the other blocks of its bucket. `size` selects the
// bucket in the three lists: its first element of the list, its first block, and its number of
// blocks. `key` belongs to the whole list.
REGISTER_COLLECTIVE("TfdistAllReduceBlock")
    .Input("inputs: N * T")
    .Input("size: int32")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr(kReducible)
    .Attr(kReduceOps)
    .Attr("block: int")
    .Attr("bucket_begins: list(int) >= 1")
    .Attr("first_blocks: list(int) >= 1")
    .Attr("block_counts: list(int) >= 1")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    });

// As TfdistAllReduce; values are sent as `wire_dtype`.
REGISTER_COLLECTIVE("TfdistCast16AllReduce")
    .Input("inputs: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double}")
    .Attr("wire_dtype: {half, bfloat16}")
    .Attr(kSumOrMean)
    .SetShapeFn(SameShapes);

// `table_rows`: the number of rows of the dense tensor; -1 if unknown.
REGISTER_COLLECTIVE("TfdistAllReduceRows")
    .Input("ids: Tindices")
    .Input("rows: T")
    .Input("table_rows: int64")
    .Output("reduced_ids: Tindices")
    .Output("reduced_rows: T")
    .Attr("T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8}")
    .Attr("Tindices: {int32, int64}")
    .Attr(kSumOrMean)
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &rows));
      TF_RETURN_IF_ERROR(c->ReplaceDim(rows, 0, c->UnknownDim(), &rows));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, rows);
      return absl::OkStatus();
    });

REGISTER_COLLECTIVE("TfdistReduce")
    .Input("inputs: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr(kReducible)
    .Attr(kReduceOps)
    .Attr("root: int")
    .SetShapeFn(SameShapes);

REGISTER_COLLECTIVE("TfdistReduceScatter")
    .Input("inputs: N * T")
    .Input("rows: int64")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr(kReducible)
    .Attr(kReduceOps)
    .SetShapeFn([](InferenceContext* c) { return OtherRows(c, c->num_outputs()); });

REGISTER_COLLECTIVE("TfdistBroadcast")
    .Input("inputs: T")
    .Output("outputs: T")
    .Attr("T: list(type) >= 1")
    .Attr("root: int")
    .SetShapeFn(SameShapes);

REGISTER_COLLECTIVE("TfdistAllGather")
    .Input("inputs: T")
    .Output("outputs: T")
    .Output("rows: int64")
    .Attr("T: list(type) >= 1")
    .SetShapeFn(OtherRowsAndCounts);

// `parts`: of each output, as a flat vector, this rank's part, of one dimension.
REGISTER_COLLECTIVE("TfdistAllGatherParts")
    .Input("parts: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("shapes: list(shape) >= 1")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<tensorflow::PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
      if (shapes.size() != static_cast<size_t>(c->num_outputs())) {
        return absl::InvalidArgumentError("expected one shape for each part");
      }
      for (int i = 0; i < c->num_outputs(); ++i) {
        ShapeHandle shape;
        TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        c->set_output(i, shape);
      }
      return absl::OkStatus();
    });

// As TfdistAllGatherParts, into variables.
REGISTER_COLLECTIVE("TfdistAllGatherInto")
    .Input("variables: N * resource")
    .Input("parts: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs);

REGISTER_COLLECTIVE("TfdistGather")
    .Input("inputs: T")
    .Output("outputs: T")
    .Output("rows: int64")
    .Attr("T: list(type) >= 1")
    .Attr("root: int")
    .SetShapeFn(OtherRowsAndCounts);

REGISTER_COLLECTIVE("TfdistScatter")
    .Input("inputs: T")
    .Input("rows: int64")
    .Output("outputs: T")
    .Attr("T: list(type) >= 1")
    .Attr("root: int")
    .SetShapeFn([](InferenceContext* c) { return OtherRows(c, c->num_outputs()); });

// `rows`: the rows that this rank sends to each rank; `received`: the rows that each rank has sent
// to it, which may differ from its own also for equal parts.
REGISTER_COLLECTIVE("TfdistAllToAll")
    .Input("inputs: T")
    .Input("rows: int64")
    .Output("outputs: T")
    .Output("received: int64")
    .Attr("T: list(type) >= 1")
    .SetShapeFn(OtherRowsAndCounts);

REGISTER_COLLECTIVE("TfdistBarrier").SetShapeFn(::tensorflow::shape_inference::NoOutputs);

REGISTER_COLLECTIVE("TfdistJoin")
    .Output("last_rank: int32")
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape);

// Not a collective. This process's rank and the number of ranks, at each execution: stateful, so
// that TensorFlow makes no constants of them.
REGISTER_OP("TfdistWorld")
    .Output("rank: int32")
    .Output("size: int32")
    .Attr("communicator: int")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    });

}  // namespace
}  // namespace tfdist
