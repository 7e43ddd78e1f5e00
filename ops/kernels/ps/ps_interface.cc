// The interfaces of the ops that use parameter servers. `client`: the handle of a client.
// `parameters`: its ids of the variables whose resource handles are the inputs.
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfdist {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::NoOutputs;
using ::tensorflow::shape_inference::ShapeHandle;
using ::tensorflow::shape_inference::UnchangedShape;

// Creates a parameter with this value unless the servers have it. The output is the servers' value.
REGISTER_OP("TfdistPsInitialValue")
    .Input("value: T")
    .Output("initial_value: T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("client: int")
    .Attr("parameter: int")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(UnchangedShape);

// Updates the variables to the servers' values. With `begins_step` it begins a step.
REGISTER_OP("TfdistPsPull")
    .Input("variables: N * resource")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .Attr("parameters: list(int)")
    .Attr("begins_step: bool")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Stores gradients for the push that ends the step. A gradient of rows is two inputs: the rows and
// their indices. The variables are inputs so that the push is ordered after this op.
REGISTER_OP("TfdistPsStage")
    .Input("variables: N * resource")
    .Input("gradients: T")
    .Input("learning_rate: double")
    .Input("step: int64")
    .Attr("N: int >= 1")
    .Attr("T: list({half, bfloat16, float, double, int32, int64})")
    .Attr("client: int")
    .Attr("parameters: list(int)")
    .Attr("of_rows: list(bool)")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Sends the staged gradients and the other changes of the variables. With `ends_step` it ends a
// step; a step may push several times. With `waits` it waits for the servers' answers.
REGISTER_OP("TfdistPsPush")
    .Input("variables: N * resource")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .Attr("parameters: list(int)")
    .Attr("ends_step: bool = true")
    .Attr("waits: bool = false")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Tells the servers of an elastic job that this worker has done the unit of work whose gradients it
// has pushed. The variables are inputs so that it is ordered after the push.
REGISTER_OP("TfdistPsCommit")
    .Input("variables: N * resource")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Sends the variables' values to the servers; without `write`, makes the next pull overwrite them.
REGISTER_OP("TfdistPsSet")
    .Input("variables: N * resource")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .Attr("parameters: list(int)")
    .Attr("write: bool")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Elastic averaging: the parameters' values c on the servers become c + alpha (x - c), with x in
// `values`. Returns alpha (x - c).
REGISTER_OP("TfdistPsExchange")
    .Input("values: T")
    .Input("alpha: double")
    .Output("moves: T")
    .Attr("T: list({half, bfloat16, float, double}) >= 1")
    .Attr("client: int")
    .Attr("parameters: list(int)")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i + 1 < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    });

// Sums tensors over the workers of a synchronous job.
REGISTER_OP("TfdistPsReduce")
    .Input("inputs: T")
    .Output("outputs: T")
    .Attr("T: list({half, bfloat16, float, double, int32, int64}) >= 1")
    .Attr("client: int")
    .Attr("key: int")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    });

// Looks up rows of tables by id: an output for each list of ids, with the shape of the ids plus the
// table's width. The tables' variables have no values; they are inputs so that the lookup is
// ordered after the pull, and so that they receive the gradient. Rows are sent as `wires`. With a
// `group`, all lookups of one step with this `group` and `level` are sent together.
REGISTER_OP("TfdistPsLookup")
    .Input("variables: N * resource")
    .Input("ids: N * int64")
    .Output("rows: N * float")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .Attr("tables: list(int)")
    .Attr("widths: list(int)")
    .Attr("wires: list({half, bfloat16, float})")
    .Attr("training: bool")
    .Attr("group: int = 0")
    .Attr("level: int = 0")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      std::vector<int> widths;
      TF_RETURN_IF_ERROR(c->GetAttr("widths", &widths));
      const int count = c->num_outputs();
      if (static_cast<int>(widths.size()) != count) {
        return absl::InvalidArgumentError("expected a width for each list of ids");
      }
      for (int i = 0; i < count; ++i) {
        ShapeHandle rows;
        TF_RETURN_IF_ERROR(c->Concatenate(c->input(count + i), c->Vector(widths[i]), &rows));
        c->set_output(i, rows);
      }
      return absl::OkStatus();
    });

// Requests the rows of a later lookup of the same ids, usually the next batch's. Waits until the
// rows that it requested before have been looked up.
REGISTER_OP("TfdistPsPrefetch")
    .Input("ids: N * int64")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .Attr("tables: list(int)")
    .Attr("wires: list({half, bfloat16, float})")
    .Attr("training: bool")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Stores gradients of rows for the push that ends the step. The variables are inputs so that the
// push is ordered after this op.
REGISTER_OP("TfdistPsStageRows")
    .Input("variables: N * resource")
    .Input("ids: N * int64")
    .Input("gradients: N * float")
    .Input("learning_rates: N * double")
    .Input("step: int64")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .Attr("tables: list(int)")
    .Attr("wires: list({half, bfloat16, float})")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Edits rows of a table on all servers that have them, and waits for their acknowledgement. `kind`
// is an EditKind of core/ps/table/table_edit.h; `rows` is empty for kinds without rows. The
// variable is an input so that lookups are ordered before or after this op.
REGISTER_OP("TfdistPsEditRows")
    .Input("variable: resource")
    .Input("ids: int64")
    .Input("rows: float")
    .Attr("client: int")
    .Attr("table: int")
    .Attr("kind: int")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Whether each id has a row; with `values` also the rows, or the initial rows of ids without one.
REGISTER_OP("TfdistPsFindRows")
    .Input("variable: resource")
    .Input("ids: int64")
    .Output("found: bool")
    .Output("rows: float")
    .Attr("client: int")
    .Attr("table: int")
    .Attr("width: int")
    .Attr("values: bool")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      int width = 0;
      bool values = false;
      TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
      TF_RETURN_IF_ERROR(c->GetAttr("values", &values));
      c->set_output(0, c->input(1));
      ShapeHandle rows = c->Vector(0);
      if (values) TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), c->Vector(width), &rows));
      c->set_output(1, rows);
      return absl::OkStatus();
    });

// Looks up rows of a table on the servers of a snapshot. `client` is an input, not an attribute: a
// saved model is bound to its servers after it was loaded. A `client` of 0 is none.
REGISTER_OP("TfdistServedLookup")
    .Input("client: int64")
    .Input("ids: int64")
    .Output("rows: float")
    .Attr("table: string")
    .Attr("width: int >= 1")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      int width = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &rows));
      TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), c->Vector(width), &rows));
      c->set_output(0, rows);
      return absl::OkStatus();
    });

// The number of rows of a table on all servers.
REGISTER_OP("TfdistPsTableSize")
    .Input("variable: resource")
    .Output("size: int64")
    .Attr("client: int")
    .Attr("table: int")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

}  // namespace
}  // namespace tfdist
