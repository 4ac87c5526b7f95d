"""How sparse and ragged batches say which of their elements belong to which example.

A sparse batch has three tensors: elements, their places `[n, 2]`, of which the first column numbers the examples, and
the shape of the whole, which is data of no example. One process counts examples on where a worker begins anew. Ragged
rows are added up by numbers that are counted off row by row. Serialized examples are parsed one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.axis_part import AxisPart
from parallax.graph.view import GraphView, split_tensor

if TYPE_CHECKING:
    from parallax.analysis.propagation.batch_axis import BatchAxes

_SHAPES = {
    **dict.fromkeys(("SparseReshape", "SparseToDense"), 1),
    **dict.fromkeys(("SparseFillEmptyRows", "SparseReorder", "SparseSlice", "SparseSoftmax"), 2),
    **dict.fromkeys(("SparseReduceSum", "SparseReduceMax", "SparseTensorDenseMatMul", "SparseTensorDenseAdd"), 2),
    **dict.fromkeys(("SparseDenseCwiseMul", "SparseDenseCwiseDiv", "SparseDenseCwiseAdd"), 2),
    "SparseSplit": 3,
}
"""By op, which of its inputs is the shape of a sparse tensor."""
_FILLS = "SparseFillEmptyRows"
PADS = "RaggedTensorToTensor"
_SEGMENTS = {
    **dict.fromkeys((f"SparseSegment{how}" for how in ("Sum", "Mean", "SqrtN")), 2),
    **dict.fromkeys(("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd"), 1),
}
"""By op, which of its inputs says to which row of the result each element goes."""
_CHOOSE = ("Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
_PASSES = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StridedSlice")


def is_shape_of_sparse(view: GraphView, tensor: str) -> bool:
    """Whether ops take a tensor for the shape of a sparse one: it says how large a batch is, and nothing else of it."""
    return any(_SHAPES.get(view.op(edge.node)) == edge.slot for edge in view.takers(tensor))


def has_every_row(view: GraphView, node: str) -> bool:
    """Whether a node adds up elements by example and has as many rows as the batch, whatever was chosen of it."""
    if view.op(node) == "SparseToDense":
        return _is_length_of_batch(view, view.inputs(node)[1])
    place = _SEGMENTS.get(view.op(node))
    return place is not None and _are_of_filled(view, _first_column(view, view.inputs(node)[place]))


def are_examples(axes: BatchAxes, numbers: str) -> bool:
    """Whether numbers say to which example of a sparse batch each of its elements belongs."""
    places = _first_column(axes.view, numbers)
    return bool(places) and _are_places(axes, places)


def _are_places(axes: BatchAxes, places: str) -> bool:
    """Whether a matrix has the places of a sparse batch: fed, filled, or those of a mask of the batch."""
    view, node = axes.view, split_tensor(places)[0]
    if view.op(node) == "Where":
        mask = view.inputs(node)[0]
        return axes.known(mask) == 0 and len(axes.shape(mask) or ()) == 2
    if view.op(node) == "ConcatV2" and len(view.inputs(node)) == 3:
        return view.op(_giver(view, view.inputs(node)[0])) == "ComputeAccidentalHits"  # pairs of an example and a class
    is_fed = bool(axes.sources_of(node)) and (axes.shape(places) or ())[1:] == (2,)
    return is_fed or _are_of_filled(view, places)


def _giver(view: GraphView, tensor: str) -> str:
    node = split_tensor(tensor)[0]
    while view.op(node) in ("Identity", "Cast", "Reshape", "ExpandDims"):
        node = split_tensor(view.inputs(node)[0])[0]
    return node


def _are_of_filled(view: GraphView, places: str) -> bool:
    """Whether the rows that had no element have been given one, up to a length that no choice says."""
    node, number = split_tensor(places) if places else ("", 0)
    return bool(node) and view.op(node) == _FILLS and number == 0 and _is_length_of_batch(view, view.inputs(node)[2])


def made_dense(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Elements that lie along the batch are put where they belong, into a matrix that has all examples."""
    are_placed = _are_places(axes, axes.view.source(inputs[0])) and _is_length_of_batch(axes.view, inputs[1])
    return AxisPart(0) if are_placed and axes.known(inputs[2]) == 0 and axes.fits(inputs[3]) else None


def product(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """A sparse matrix of the batch times a matrix that all workers have alike."""
    turned = any(axes.view.flag(node, name) for name in ("adjoint_a", "adjoint_b"))
    are_placed = _are_places(axes, axes.view.source(inputs[0])) and _is_length_of_batch(axes.view, inputs[2])
    return AxisPart(0) if are_placed and not turned and axes.known(inputs[1]) == 0 and axes.fits(inputs[3]) else None


def _first_column(view: GraphView, tensor: str) -> str:
    """The matrix of which a vector is the first column; empty for others."""
    node = split_tensor(tensor)[0]
    while view.op(node) in ("Identity", "Cast"):
        node = split_tensor(view.inputs(node)[0])[0]
    if view.op(node) != "StridedSlice":
        return ""
    attr, begin = view.nodes[node].attr, view.constant(view.inputs(node)[1])
    is_whole = attr["begin_mask"].i & attr["end_mask"].i & 1
    is_first = begin is not None and begin.size == 2 and int(begin.reshape(-1)[1]) == 0
    is_column = attr["shrink_axis_mask"].i == 2 and not (attr["new_axis_mask"].i | attr["ellipsis_mask"].i)
    return view.source(view.inputs(node)[0]) if is_whole and is_first and is_column else ""


def filled(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> list[AxisPart | None]:
    """Elements stay in the order of their examples, and for each example it is said whether it had none."""
    is_joined = axes.known(inputs[1]) == 0 and _is_length_of_batch(axes.view, inputs[2])
    return [None, AxisPart(0), AxisPart(0), None] if is_joined else [None] * 4


def is_of_every_row(view: GraphView, node: str, number: int) -> bool:
    """Whether an output of a node says of every row of a sparse batch whether it had no element."""
    return view.op(node) == _FILLS and number == 2 and _is_length_of_batch(view, view.inputs(node)[2])


def _is_length_of_batch(view: GraphView, shape: str) -> bool:
    """Whether nothing that a batch's values choose is counted for the shape of a sparse tensor."""
    waiting, seen = [shape], set[str]()
    while waiting:
        node = split_tensor(waiting.pop())[0]
        if node in seen:
            continue
        seen.add(node)
        if view.op(node) in _CHOOSE:
            return False
        waiting += view.inputs(node)[1:] if view.op(node) == "SparseReshape" else view.inputs(node)
    return True


def are_counted_off(axes: BatchAxes, tensor: str) -> bool:
    """Whether numbers are those of a batch's rows, counted from zero on, each as often as its row has elements.

    One process counts on where a worker begins anew, so what is added up by them is of one row.
    """
    view, node = axes.view, split_tensor(tensor)[0]
    while True:
        inputs = view.inputs(node)
        if view.op(node) == "StridedSlice" and view.nodes[node].attr["new_axis_mask"].i != 2:
            return False  # numbers that are left out or turned round are of other rows
        if view.op(node) in _PASSES or (view.op(node) in ("GatherV2", "Gather") and _is_mask(view, inputs[1])):
            node = split_tensor(inputs[0])[0]
        elif view.op(node) == "Tile" and _repeats_columns(view, axes, inputs):
            node = split_tensor(inputs[0])[0]
        else:
            break
    if view.op(node) != "Range":
        return False
    start, step = axes.constant(view.inputs(node)[0]), axes.constant(view.inputs(node)[2])
    counted = start is not None and step is not None and int(start) == 0 and int(step) == 1
    return counted and is_number_of_rows(axes, view.inputs(node)[1])


def is_by_row(view: GraphView, node: str) -> bool:
    """Whether a node gives rows for elements, whatever number of them each has, where its result is one of rows."""
    op = view.op(node)
    return op in _SEGMENTS or op == PADS or op.startswith("UnsortedSegment")


def are_row_lengths(axes: BatchAxes, node: str) -> bool:
    """Whether a difference gives how many elements ragged rows have: where each ends, less where it begins."""
    view = axes.view
    cuts = [split_tensor(tensor)[0] for tensor in view.inputs(node)]
    if any(view.op(one) != "StridedSlice" for one in cuts):
        return False
    ends, begins = (view.inputs(one)[0] for one in cuts)
    is_of_rows = ends == begins and axes.known(ends) == 0 and len(axes.shape(ends) or ()) == 1
    return is_of_rows and _cut_of(axes, cuts[0]) == slice(1, None) and _cut_of(axes, cuts[1]) == slice(None, -1)


def _cut_of(axes: BatchAxes, node: str) -> slice | None:
    """What a node cuts out of a vector."""
    attr, numbers = axes.view.nodes[node].attr, [axes.constant(t) for t in axes.view.inputs(node)[1:]]
    known = [int(number.reshape(-1)[0]) for number in numbers if number is not None]
    if len(known) < len(numbers) or attr["shrink_axis_mask"].i or attr["new_axis_mask"].i:
        return None
    begin, end, step = known
    first, last = None if attr["begin_mask"].i & 1 else begin, None if attr["end_mask"].i & 1 else end
    return slice(first or None, last) if step == 1 and not attr["ellipsis_mask"].i else None


def padded(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """The rows of a ragged batch, each of which is filled up."""
    are_joined = all(axes.known(tensor) == 0 for tensor in (inputs[1], *inputs[3:]) if not _is_scalar(axes, tensor))
    return AxisPart(0) if are_joined and axes.fits(inputs[0]) and axes.fits(inputs[2]) else None


def _is_scalar(axes: BatchAxes, tensor: str) -> bool:
    return axes.shape(tensor) == ()


def _is_mask(view: GraphView, numbers: str) -> bool:
    node = split_tensor(numbers)[0]
    while view.op(node) in _PASSES:
        node = split_tensor(view.inputs(node)[0])[0]
    return view.op(node) == "Where"


def _repeats_columns(view: GraphView, axes: BatchAxes, inputs: tuple[str, ...]) -> bool:
    """Whether rows are left as many as they were."""
    packed = split_tensor(inputs[1])[0]
    first = view.inputs(packed)[0] if view.op(packed) in ("Pack", "ConcatV2") else inputs[1]
    repeats = axes.constant(first)
    return repeats is not None and repeats.size > 0 and int(repeats.reshape(-1)[0]) == 1


def is_number_of_rows(axes: BatchAxes, tensor: str) -> bool:
    """Whether a scalar is a batch's length, or one less than the length of the places where its rows begin and end."""
    view, node = axes.view, split_tensor(tensor)[0]
    while view.op(node) in ("Identity", "Cast"):
        node = split_tensor(view.inputs(node)[0])[0]
    if view.op(node) == "Sub":
        length, one = view.inputs(node)
        value = axes.constant(one)
        return value is not None and int(value) == 1 and is_length(axes, length)
    return is_length(axes, f"{node}:0")


def parsed(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> list[AxisPart | None]:
    """Dense features and the elements of sparse ones lie along the batch as the examples do that they are parsed of."""
    view, attr = axes.view, axes.view.nodes[node].attr
    outputs = view.outputs(node)
    if axes.known(inputs[0]) != 0 or len(axes.shape(inputs[0]) or ()) != 1:
        return [None] * len(outputs)
    sparse = len(attr["sparse_types"].list.type)
    dense = len(attr["Tdense"].list.type)
    joined = {*range(sparse, 2 * sparse), *range(3 * sparse, 3 * sparse + dense)}
    return [AxisPart(0) if number in joined else None for number in range(len(outputs))]
