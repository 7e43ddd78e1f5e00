// The interfaces of the ops that stay in this process: names, inputs, attributes, shapes.
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Input replica * N + i is tensor i of that replica, in messages number positions[i]. Stateless: it
// talks to nobody.
REGISTER_OP("TfdistLocalReduce")
    .Input("inputs: M * T")
    .Output("outputs: N * T")
    .Attr("M: int >= 1")
    .Attr("N: int >= 1")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("reduce_op: {'sum', 'mean'}")
    .Attr("positions: list(int)")
    .SetShapeFn([](InferenceContext* c) {
      const int count = c->num_outputs();
      std::vector<int64_t> positions;
      TF_RETURN_IF_ERROR(c->GetAttr("positions", &positions));
      if (c->num_inputs() % count != 0 || static_cast<int>(positions.size()) != count) {
        return absl::InvalidArgumentError(
            StrCat("expected ", count, " tensors of each replica and their positions, received ",
                   c->num_inputs(), " tensors and ", positions.size(), " positions"));
      }
      for (int i = 0; i < c->num_inputs(); ++i) {
        const ShapeHandle known = i < count ? c->UnknownShape() : c->output(i % count);
        ShapeHandle merged;
        if (!c->Merge(known, c->input(i), &merged).ok()) {
          return absl::InvalidArgumentError(StrCat(
              "replica ", i / count, ", tensor ", positions[i % count], ": expected ",
              c->DebugString(known), " as on replica 0, received ", c->DebugString(c->input(i))));
        }
        c->set_output(i % count, merged);
      }
      return absl::OkStatus();
    });

// A bundle stays in its process: see bundle_kernel.cc. Without `shapes` nothing is known of them.
REGISTER_OP("TfdistBundle")
    .Input("inputs: T")
    .Output("bundle: variant")
    .Attr("T: list(type) >= 1")
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape);

REGISTER_OP("TfdistUnbundle")
    .Input("bundle: variant")
    .Output("outputs: T")
    .Attr("T: list(type) >= 1")
    .Attr("shapes: list(shape)")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<::tensorflow::PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
      shapes.resize(c->num_outputs());
      for (int i = 0; i < c->num_outputs(); ++i) {
        ShapeHandle shape;
        TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        c->set_output(i, shape);
      }
      return absl::OkStatus();
    });

// `table_rows`: of how many rows the whole tensor would be; -1 if that is not known.
REGISTER_OP("TfdistAllReduceRows")
    .Input("ids: Tindices")
    .Input("rows: T")
    .Input("table_rows: int64")
    .Output("reduced_ids: Tindices")
    .Output("reduced_rows: T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("Tindices: {int32, int64}")
    .Attr("reduce_op: {'sum', 'mean'}")
    .Attr("communicator: int")
    .Attr("key: int")
    .Attr("label: string")
    .Attr("timeout_seconds: float")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &rows));
      TF_RETURN_IF_ERROR(c->ReplaceDim(rows, 0, c->UnknownDim(), &rows));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, rows);
      return absl::OkStatus();
    });

}  // namespace
}  // namespace tfdist
