// The interfaces of the local ops of gradient compression.
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "kernels/shape_functions.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// For each input i, `payload` contains kept[i] positions in its flat values, followed by the values
// at these positions, bit-cast to int32. `rests` are the inputs with zeros at these positions.
REGISTER_OP("TfdistTopK")
    .Input("inputs: N * float")
    .Output("payload: int32")
    .Output("rests: N * float")
    .Attr("N: int >= 1")
    .Attr("kept: list(int)")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> kept;
      TF_RETURN_IF_ERROR(c->GetAttr("kept", &kept));
      int64_t total = 0;
      for (const int64_t k : kept) total += 2 * k;
      c->set_output(0, c->Vector(total));
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(1 + i, c->input(i));
      return absl::OkStatus();
    });

// `gathered` is a concatenation of payloads; `shapes` and `kept` describe each of them. The outputs
// are the sums of their values divided by `divisor`, and zeros elsewhere.
REGISTER_OP("TfdistScatterAddTopK")
    .Input("gathered: int32")
    .Output("sums: N * float")
    .Attr("N: int >= 1")
    .Attr("shapes: list(shape)")
    .Attr("kept: list(int)")
    .Attr("divisor: int >= 1")
    .SetShapeFn(ShapesOfAttribute);

// `payload` contains the encodings of core/math/one_bit.h: for each of `parts` parts of the
// columns, the encodings of all inputs; `splits` are the lengths of the parts. `rests` are the
// inputs minus the decoded values.
REGISTER_OP("TfdistOneBitEncode")
    .Input("inputs: N * float")
    .Output("payload: int32")
    .Output("splits: int64")
    .Output("rests: N * float")
    .Attr("N: int >= 1")
    .Attr("parts: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      int64_t parts = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("parts", &parts));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(parts));
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(2 + i, c->input(i));
      return absl::OkStatus();
    });

// `received` is a concatenation of `payloads` payloads, each in `parts` parts of matrices of
// `shapes`. The outputs are the sums of the decoded payloads, added in this order.
REGISTER_OP("TfdistOneBitSum")
    .Input("received: int32")
    .Output("sums: N * float")
    .Attr("N: int >= 1")
    .Attr("shapes: list(shape)")
    .Attr("parts: int >= 1")
    .Attr("payloads: int >= 1")
    .SetShapeFn(ShapesOfAttribute);

REGISTER_OP("TfdistOrthonormalize")
    .Input("matrix: float")
    .Output("orthonormal: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle matrix;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &matrix));
      c->set_output(0, matrix);
      return absl::OkStatus();
    });

// left right^T, with the order of additions that core/math/low_rank.h guarantees.
REGISTER_OP("TfdistMultiplyTransposed")
    .Input("left: float")
    .Input("right: float")
    .Output("product: float")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle left, right;
      DimensionHandle rank;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &left));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &right));
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(left, 1), c->Dim(right, 1), &rank));
      c->set_output(0, c->Matrix(c->Dim(left, 0), c->Dim(right, 0)));
      return absl::OkStatus();
    });

}  // namespace
}  // namespace tfdist
