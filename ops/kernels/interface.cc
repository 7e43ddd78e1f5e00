// The ops' interfaces: names, inputs, attributes, shapes.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// `communicator` is the number of an open communicator, `key` names the collective on every rank,
// `label` is for messages, `timeout_seconds` 0 means no deadline. Declared as distributed
// communication, so that TensorFlow keeps the status codes.

REGISTER_OP("TfdistAllReduce")
    .Input("inputs: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("reduce_op: {'sum', 'mean'}")
    .Attr("communicator: int")
    .Attr("key: int")
    .Attr("label: string")
    .Attr("timeout_seconds: float")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    });

REGISTER_OP("TfdistAllGather")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: type")
    .Attr("communicator: int")
    .Attr("key: int")
    .Attr("label: string")
    .Attr("timeout_seconds: float")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle input, output;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &input));
      TF_RETURN_IF_ERROR(c->ReplaceDim(input, 0, c->UnknownDim(), &output));
      c->set_output(0, output);
      return absl::OkStatus();
    });

REGISTER_OP("TfdistBroadcast")
    .Input("input: T")
    .Output("output: T")
    .Attr("T: type")
    .Attr("root: int >= 0")
    .Attr("communicator: int")
    .Attr("key: int")
    .Attr("label: string")
    .Attr("timeout_seconds: float")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(::tensorflow::shape_inference::UnchangedShape);

}  // namespace
}  // namespace tfdist
