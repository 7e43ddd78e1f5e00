// The interfaces of the ops that talk to parameter servers. `client` is the number of an open
// client; `parameters` are its numbers of the variables whose handles are the inputs.
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

// Creates a parameter with this value unless its servers have it; the output is theirs.
REGISTER_OP("TfdistPsInitialValue")
    .Input("value: T")
    .Output("initial_value: T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("client: int")
    .Attr("parameter: int")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(UnchangedShape);

// Brings variables up to date; with `begins_step` as the beginning of a step.
REGISTER_OP("TfdistPsPull")
    .Input("variables: N * resource")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .Attr("parameters: list(int)")
    .Attr("begins_step: bool")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Keeps gradients for the push that ends the step. A gradient of rows is two inputs: the rows and
// their numbers. The variables are named so that the push comes later.
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

// Ends a step: sends the gradients that were kept, and what the step changed in the variables.
REGISTER_OP("TfdistPsPush")
    .Input("variables: N * resource")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .Attr("parameters: list(int)")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Gives the variables' values to the servers; without `write`, lets the next pull undo them.
REGISTER_OP("TfdistPsSet")
    .Input("variables: N * resource")
    .Attr("N: int >= 1")
    .Attr("client: int")
    .Attr("parameters: list(int)")
    .Attr("write: bool")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(NoOutputs);

// Adds up tensors over the workers of a synchronous job.
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

// Rows of tables by id: an output for each list of ids, whose shape is that of the ids and the
// table's width. The tables' variables have no values: they are named to order the lookup after
// the pull, and to receive the gradient. Rows travel as `wires`. With a `group`, all lookups of
// this `level` of it that one step makes travel together.
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

// Asks for rows that a lookup of the same ids will need: the next batch's. Waits until those that
// it asked for before were looked up.
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

// Keeps gradients of rows for the push that ends the step. The variables are named so that the push
// comes later.
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

// Edits rows of a table on all servers that have them; done when they have acknowledged it. The
// kind is that of core/ps/table/table_edit.h; `rows` are empty where it brings none. The variable
// is named so that lookups come before or after it.
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

// Which ids have rows; with `values` the rows too, or what they would begin as.
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

// How many rows a table has on all servers together.
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

// Adds up rows of equal ids.
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

}  // namespace
}  // namespace tfdist
