// The interfaces of the ops that stay in this process: names, inputs, attributes and shapes.
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "kernels/shape_functions.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Input replica * N + i is tensor i of that replica, which messages call tensor positions[i].
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

// Keeps a resource alive until `tfdist_release` is called with the handle.
REGISTER_OP("TfdistHold")
    .Input("resource: resource")
    .Output("handle: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

// Counts training steps and their rows in this process, see step_counter_kernel.cc.
REGISTER_OP("TfdistCountStep")
    .Input("rows: int64")
    .Attr("steps: int = 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows;
      return c->WithRank(c->input(0), 0, &rows);
    });

// Adds rows of equal ids.
REGISTER_OP("TfdistSumRows")
    .Input("ids: int64")
    .Input("rows: float")
    .Output("unique_ids: int64")
    .Output("sums: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids, rows;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &rows));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Matrix(InferenceContext::kUnknownDim, c->Dim(rows, 1)));
      return absl::OkStatus();
    });

// A bundle stays in its process: see bundle_kernels.cc. If `shapes` is empty, the shapes are
// unknown.
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
    .SetShapeFn(ShapesOfAttribute);

// Strings as bytes for collectives: see string_kernels.cc. With `concatenate`, `packed` may be
// several packed tensors, which are concatenated along the first dimension.
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
