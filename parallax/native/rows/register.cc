// Registers the inputs and outputs of the row-update ops.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status UpdateShapes(InferenceContext* context) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &unused));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &unused));
  return context->WithRank(context->input(2), 1, &unused);
}

absl::Status GatherShapes(InferenceContext* context) {
  ShapeHandle rows = context->UnknownShape(), all;
  const auto* variable = context->input_handle_shapes_and_types(1);
  if (variable != nullptr && !variable->empty() && context->RankKnown((*variable)[0].shape)) {
    TF_RETURN_IF_ERROR(context->Subshape((*variable)[0].shape, 1, &rows));
  }
  TF_RETURN_IF_ERROR(context->Concatenate(context->input(0), rows, &all));
  context->set_output(0, all);
  return absl::OkStatus();
}

absl::Status ReadShapes(InferenceContext* context) {
  int which = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("which", &which));
  const auto* variable = context->input_handle_shapes_and_types(which);
  const bool known = variable != nullptr && !variable->empty();
  context->set_output(0, known ? (*variable)[0].shape : context->UnknownShape());
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("ParallaxUpdateRows")
    .Input("values: T")
    .Input("indices: Tindices")
    .Input("scalars: T")
    .Input("states: N * resource")
    .Attr("T: {float, double}")
    .Attr("Tindices: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("program: string")
    .Attr("gradients: int >= 1 = 1")
    .Attr("ring: int >= 1 = 16384")
    .SetIsStateful()
    .SetShapeFn(UpdateShapes)
    .Doc(R"doc(
Makes one update of a table and its slots, whose gradient has rows only: at once for these rows, later for the others.

values: the gradient's rows; those of equal indices are added. Of several gradients [n, gradients * elements of a row].
indices: which rows these are.
scalars: of this update, as the program numbers them.
states: the table's variable, then its slots', of one shape.
program: of an update of one element (parallax/graph/row_updates.py).
gradients: how many a row has, one after the other.
ring: how many updates a row may miss. A share of the rows is brought up to date in each update, so that none misses
  more.
)doc");

REGISTER_OP("ParallaxUpdateOnlyRows")
    .Input("values: T")
    .Input("indices: Tindices")
    .Input("scalars: T")
    .Input("states: N * resource")
    .Attr("T: {float, double}")
    .Attr("Tindices: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("program: string")
    .Attr("gradients: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn(UpdateShapes)
    .Doc(R"doc(
Makes an update of those rows of a table and its slots that have a gradient; others stay as they are.

values: the gradient's rows; those of equal indices are added. Of several gradients [n, gradients * elements of a row].
indices: which rows these are.
scalars: of this update, as the program numbers them.
states: the table's variable, then its slots', of one shape.
program: of an update of one element (parallax/graph/row_updates.py).
gradients: how many a row has, one after the other.
)doc");

REGISTER_OP("ParallaxGatherRows")
    .Input("indices: Tindices")
    .Input("states: N * resource")
    .Output("rows: T")
    .Attr("T: {float, double}")
    .Attr("Tindices: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("which: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(GatherShapes)
    .Doc(R"doc(
Looks rows of a table up, which are brought up to date first.

indices: of any shape.
states: as ParallaxUpdateRows has them.
which: of the states is looked up in.
rows: of that state.
)doc");

REGISTER_OP("ParallaxReadRows")
    .Input("states: N * resource")
    .Output("value: T")
    .Attr("T: {float, double}")
    .Attr("N: int >= 1")
    .Attr("which: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(ReadShapes)
    .Doc(R"doc(
Reads all rows of a table or of a slot, which are brought up to date first.

states: as ParallaxUpdateRows has them.
which: of the states is read.
value: of that state, a copy.
)doc");

REGISTER_OP("ParallaxBringUpToDate")
    .Input("states: N * resource")
    .Attr("T: {float, double}")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Brings all rows of a table and its slots up to date. What has not been initialized stays so.

states: as ParallaxUpdateRows has them.
)doc");
