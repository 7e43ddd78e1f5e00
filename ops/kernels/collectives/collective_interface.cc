// The collectives' interfaces: names, inputs, attributes, shapes.
//
// Where tensors are cut by rows into one part for each rank, `rows` says how: rows[r, i] is rank
// r's number of rows of tensor i. Without elements it means equal parts, the first ranks having one
// row more where the rows do not divide.
#include <cstdint>

#include "kernels/shape_functions.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// `communicator` is the number of an open communicator, `key` names the collective on every rank,
// `label` is for messages, `timeout_seconds` 0 means no deadline. Declared as distributed
// communication, so that TensorFlow keeps the status codes.
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

// Output i has the shape of input i, for `count` of them, with any number of rows.
absl::Status OtherRows(InferenceContext* c, int count) {
  for (int i = 0; i < count; ++i) {
    ShapeHandle input, output;
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(i), 1, &input));
    TF_RETURN_IF_ERROR(c->ReplaceDim(input, 0, c->UnknownDim(), &output));
    c->set_output(i, output);
  }
  return absl::OkStatus();
}

// As OtherRows, and the last output says how many: one line for each rank.
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

// As TfdistAllReduce, with values of `wire_dtype` travelling.
REGISTER_COLLECTIVE("TfdistNarrowAllReduce")
    .Input("inputs: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {float, double}")
    .Attr("wire_dtype: {half, bfloat16}")
    .Attr(kSumOrMean)
    .SetShapeFn(SameShapes);

// `table_rows`: of how many rows the whole tensor would be; -1 if that is not known.
REGISTER_COLLECTIVE("TfdistAllReduceRows")
    .Input("ids: Tindices")
    .Input("rows: T")
    .Input("table_rows: int64")
    .Output("reduced_ids: Tindices")
    .Output("reduced_rows: T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
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

// `rows` is what this rank sends to each, `received` what each has sent to it. Of equal parts too
// others may have sent other numbers of rows.
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

}  // namespace
}  // namespace tfdist
