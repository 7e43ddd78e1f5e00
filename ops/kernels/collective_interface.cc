// The collectives' interfaces: names, inputs, attributes, shapes.
//
// Where tensors are cut by rows into one part for each rank, `rows` says how: rows[r, i] is rank
// r's number of rows of tensor i. Without elements it means equal parts, the first ranks having one
// row more where the rows do not divide.
#include <cstdint>

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

// Output i has the shape of input i.
absl::Status SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

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

// `rows` is what this rank sends to each, `received` what each has sent to it.
REGISTER_COLLECTIVE("TfdistAllToAll")
    .Input("inputs: T")
    .Input("rows: int64")
    .Output("outputs: T")
    .Output("received: int64")
    .Attr("T: list(type) >= 1")
    .SetShapeFn([](InferenceContext* c) {
      const int count = c->num_outputs() - 1;
      TF_RETURN_IF_ERROR(OtherRowsAndCounts(c));
      if (InferenceContext::Value(c->NumElements(c->input(count))) != 0) return absl::OkStatus();
      for (int i = 0; i < count; ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    });

REGISTER_COLLECTIVE("TfdistBarrier").SetShapeFn(::tensorflow::shape_inference::NoOutputs);

REGISTER_COLLECTIVE("TfdistJoin")
    .Output("last_rank: int32")
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape);

// Strings as bytes, to travel: see string_kernels.cc. What is unpacked may be several packed
// tensors, one after the other, which become one along the first dimension.
REGISTER_OP("TfdistPackStrings")
    .Input("input: string")
    .Output("packed: uint8")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

REGISTER_OP("TfdistUnpackStrings")
    .Input("packed: uint8")
    .Output("output: string")
    .Attr("concatenate: bool")
    .Attr("label: string")
    .SetShapeFn(::tensorflow::shape_inference::UnknownShape);

}  // namespace
}  // namespace tfdist
