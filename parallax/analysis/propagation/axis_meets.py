"""At which ops examples of a batch meet for certain: what each gives then depends on the others of its worker's batch.

Each rule says under which condition that is so. It is asked where an input lies along the batch (batch_axis.py) and the
result does not; what is merely not proven, such as a choice by a mask, is no meeting.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import tensorflow as tf

from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.axis_einsum import joined_letters
from parallax.analysis.propagation.axis_part import MIXED
from parallax.analysis.propagation.axis_rows import is_every_row
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.analysis.propagation.sparse_batches import are_counted_off
from parallax.graph.view import GraphView, split_tensor

_Rule = Callable[[BatchAxes, str, tuple[str, ...], Set[str]], bool]
_REARRANGES = ("Reshape", "Transpose", "Identity")
_ORDERS = ("TopKV2", "GatherV2", "Reshape", "Squeeze")
"""With a vector they give its elements in another order, or as they are."""


def meets(axes: BatchAxes, node: str, unproven: Set[str]) -> bool:
    """Whether examples meet at a node.

    Args:
        axes: how tensors lie along the batch.
        node: one with an input that does, and a result that is not proven to.
        unproven: tensors that the batch determines in a way that is not proven.
    """
    op, inputs = axes.view.op(node), axes.view.inputs(node)
    rule = _RULES.get(op, _along_two_axes if op in FORWARD_ELEMENTWISE else None)
    return rule is not None and rule(axes, node, inputs, unproven)


def reduces_batch(axes: BatchAxes, node: str) -> bool:
    """Whether a reduction takes the examples together: by constant axes, one of which is the joined one."""
    inputs = axes.view.inputs(node)
    axis, shape = axes.of(inputs[0]), axes.shape(inputs[0])
    if len(inputs) == 1:  # L2Loss
        return axis is not None
    over = axes.constant(inputs[1])
    if axis is None or over is None or shape is None:
        return False
    return max(axis, 0) in {int(a) % len(shape) for a in over.reshape(-1)} if len(shape) else False


def _reduction(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """A maximum, a product or a norm over the joined axis, of real numbers: the largest length only ends a loop."""
    return is_real(axes.view, inputs[0]) and reduces_batch(axes, node)


def _product(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """Both operands are of the batch and no axis of it runs through both, or the sum is along the joined axis."""
    for slot, (tensor, other) in enumerate((inputs, inputs[::-1])):
        axis, shape = axes.of(tensor), axes.shape(tensor)
        if axis is None or axis == MIXED or shape is None or axis < len(shape) - 2:
            continue
        is_turned = any(
            axes.view.flag(node, name[slot]) for name in (("transpose_a", "transpose_b"), ("adj_x", "adj_y"))
        )
        summed = len(shape) - 1 - (slot ^ int(is_turned))
        if axis == summed or axes.of(other) is not None or (other in unproven and not _is_of_samples(axes, other)):
            return True
    return axes.view.op(node) == "MatMul" and all(_is_rearranged(axes, tensor) for tensor in inputs)


def _is_rearranged(axes: BatchAxes, tensor: str) -> bool:
    """Whether a tensor has the elements of a joined one in another order or shape, as `tensordot` makes matrices.

    A product of two such matrices has no axis of its own for the batch: whichever axes are joined, examples meet.
    """
    view = axes.view
    while axes.of(tensor) is None and view.op(split_tensor(tensor)[0]) in _REARRANGES:
        tensor = view.inputs(split_tensor(tensor)[0])[0]
    return axes.of(tensor) is not None


def _einsum(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """The letter of the joined axis is summed over, or is not one letter for all that are joined."""
    found = [axes.of(tensor) for tensor in inputs]  # asks of each, and so all are known
    letters, out = joined_letters(axes, node, inputs)
    return any(axis is not None for axis in found) and bool(letters) and (len(letters) > 1 or not letters <= set(out))


def _over_last(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """What works along the last axis, where that is the joined one."""
    axis, shape = axes.of(inputs[0]), axes.shape(inputs[0])
    is_last = axis is not None and shape is not None and max(axis, 0) == len(shape) - 1
    return is_last and is_real(axes.view, inputs[0])


def _transformed(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """A Fourier transform along the last axis, of real or complex numbers, where that is the joined one."""
    axis, shape = axes.of(inputs[0]), axes.shape(inputs[0])
    return axis is not None and shape is not None and max(axis, 0) == len(shape) - 1


def _along(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """Sums so far and reversals along the joined axis."""
    axis, over, shape = axes.of(inputs[0]), axes.constant(inputs[1]), axes.shape(inputs[0])
    if axis is None or over is None or not shape:
        return False
    return max(axis, 0) in {int(a) % len(shape) for a in over.reshape(-1)}


def _rolled(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """Rows moved on along the joined axis."""
    return _along(axes, node, (inputs[0], inputs[2]), unproven)


def _split(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """Parts of the joined axis: which examples are in one depends on the batch's length."""
    by_number = axes.view.op(node) == "Split"
    value, place = (inputs[1], axes.constant(inputs[0])) if by_number else (inputs[0], axes.constant(inputs[2]))
    axis, shape = axes.of(value), axes.shape(value)
    if axis is None or axis == MIXED or place is None or shape is None:
        return False
    return int(place) % len(shape) == axis and is_real(axes.view, value)


def _cut(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """A cut along the joined first axis by constants, or to one example: they are taken by their place in the batch.

    Of a vector that was put in order it is the place in each worker's own order.
    """
    axis, bounds = axes.of(inputs[0]), [axes.constant(t) for t in inputs[1:]]
    if axis not in (0, MIXED) or not is_real(axes.view, inputs[0]):
        return False
    attr = axes.view.nodes[node].attr
    if (attr["ellipsis_mask"].i | attr["new_axis_mask"].i) & 1:
        return False
    if attr["shrink_axis_mask"].i & 1:
        return True
    is_whole = attr["begin_mask"].i & 1 and attr["end_mask"].i & 1
    if axis == MIXED and (is_whole or not _is_in_order(axes.view, inputs[0])):
        return False  # what was put together of several batches may be taken apart again
    if any(b is None or b.size < 1 for b in bounds):
        return not is_whole and any(_is_part_of_length(axes, tensor) for tensor in inputs[1:3])
    return not is_whole or int(bounds[2].reshape(-1)[0] if bounds[2] is not None else 1) != 1


def _sliced(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """As `_cut`: some rows from a place on, where that or their number is a constant."""
    axis, begin, size = axes.of(inputs[0]), axes.constant(inputs[1]), axes.constant(inputs[2])
    if axis not in (0, MIXED) or not is_real(axes.view, inputs[0]):
        return False
    if axis == MIXED and not _is_in_order(axes.view, inputs[0]):
        return False
    is_all = begin is None or begin.size < 1 or int(begin.reshape(-1)[0]) == 0
    shape = axes.shape(inputs[0]) or (None,)
    return not is_all or (size is not None and size.size > 0 and int(size.reshape(-1)[0]) not in (-1, shape[0]))


def _is_in_order(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is made of what was put in order, element by element."""
    node = split_tensor(tensor)[0]
    while view.op(node) in ("Neg", "Identity"):
        node = split_tensor(view.inputs(node)[0])[0]
    return view.op(node) in ("TopKV2", "TopK")


def _is_part_of_length(axes: BatchAxes, tensor: str) -> bool:
    """Whether the first number of a bound is computed of the batch's length, and is not the length itself."""
    view, node = axes.view, split_tensor(tensor)[0]
    if view.op(node) != "Pack":
        return False
    first = view.inputs(node)[0]
    if is_length(axes, first) or axes.fits(first):
        return False
    behind = view.ancestors([split_tensor(first)[0]])
    return any(is_length(axes, f"{n}:0") for n in behind if view.op(n) in ("StridedSlice", "Size"))


def _gathered(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """Examples taken by numbers that no batch's data determine: constants, or a shuffle."""
    place = axes.constant(inputs[2]) if len(inputs) > 2 else 0
    axis = axes.of(inputs[0])
    if axis is None or place is None or int(place) != max(axis, 0) or axes.of(inputs[1]) is not None:
        return False
    if is_every_row(axes, inputs[0], inputs[1]):
        return False
    return not axes.view.flag(node, "batch_dims") and not _is_of_data(axes, inputs[1])


def _dealt(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """Examples of real numbers that are put into groups, or added up by groups, which other workers have too."""
    is_dealt = axes.of(inputs[0]) in (0, MIXED) and is_real(axes.view, inputs[0])
    return is_dealt and not are_counted_off(axes, inputs[1])


def _dealt_by_labels(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """Examples that are added up by a vector of numbers that they have themselves.

    A column of numbers, as the places of a sparse tensor have, says of which example a row is: these stay apart.
    """
    return _dealt(axes, node, inputs, unproven) and _are_labels(axes, inputs[1])


def _are_labels(axes: BatchAxes, tensor: str) -> bool:
    """Whether numbers are a vector that is fed or read, one for each example, or computed of such."""
    view, node = axes.view, split_tensor(tensor)[0]
    if axes.sources_of(node):
        return len(axes.shape(tensor) or ()) == 1
    own = [t for t in view.inputs(node)[: 1 if view.op(node) in _ORDERS else None] if not axes.fits(t)]
    follows = view.op(node) in FORWARD_ELEMENTWISE or view.op(node) in _ORDERS
    return follows and bool(own) and all(_are_labels(axes, t) for t in own)


def _counted(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """What examples of real numbers add at places that they say themselves."""
    return axes.of(inputs[0]) == 0 and is_real(axes.view, inputs[1])


def _put_into(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """What examples of real numbers put or add at places that they say themselves, into what all workers have alike."""
    return axes.fits(inputs[0]) and axes.of(inputs[1]) == 0 and is_real(axes.view, inputs[2])


def _over_matrix(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """What takes matrices as a whole, where the joined axis is one of theirs."""
    found = [(axes.of(tensor), axes.shape(tensor)) for tensor in inputs]
    return any(axis is not None and shape is not None and max(axis, 0) >= len(shape) - 2 for axis, shape in found)


def _along_two_axes(axes: BatchAxes, node: str, inputs: tuple[str, ...], unproven: Set[str]) -> bool:
    """Element by element, every example with every other: joined along axes that broadcasting does not lay together."""
    places = set()
    for tensor in inputs:
        axis, shape = axes.of(tensor), axes.shape(tensor)
        if axis is not None and axis != MIXED and shape is not None:
            places.add(len(shape) - axis)
    return len(places) > 1


def _is_of_samples(axes: BatchAxes, tensor: str) -> bool:
    """Whether samples drawn beside a batch may be what a tensor is of: looked up with its ids, and cut off again."""
    ops = {axes.view.op(node) for node in axes.view.ancestors([split_tensor(tensor)[0]])}
    return any(op.endswith("CandidateSampler") for op in ops)


def _is_of_data(axes: BatchAxes, tensor: str) -> bool:
    """Whether a tensor is computed of a batch's values, and not of its length alone."""
    view, waiting, seen = axes.view, [split_tensor(tensor)[0]], set[str]()
    while waiting:
        node = waiting.pop()
        if node in seen or view.op(node) in ("Shape", "ShapeN", "Size", "Rank"):
            continue
        seen.add(node)
        if axes.sources_of(node):
            return True
        waiting += [split_tensor(t)[0] for t in view.inputs(node)]
    return False


def is_real(view: GraphView, tensor: str) -> bool:
    """Whether a tensor has real numbers: whole ones are ids, which are put in order and cut to be looked up."""
    return bool(tf.as_dtype(view.dtype(tensor)).is_floating)


def is_bool(view: GraphView, tensor: str) -> bool:
    """Whether a tensor has truth values."""
    return bool(tf.as_dtype(view.dtype(tensor)).is_bool)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("Max", "Min", "Prod", "EuclideanNorm", "ArgMax", "ArgMin"), _reduction),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
    "Einsum": _einsum,
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "TopK"), _over_last),
    **dict.fromkeys(("FFT", "IFFT", "RFFT", "IRFFT"), _transformed),
    **dict.fromkeys(("FFT2D", "IFFT2D", "RFFT2D", "IRFFT2D"), _over_matrix),
    **dict.fromkeys(("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"), _along),
    "Roll": _rolled,
    **dict.fromkeys(("Split", "SplitV"), _split),
    "StridedSlice": _cut,
    "Slice": _sliced,
    **dict.fromkeys(("GatherV2", "Gather"), _gathered),
    **dict.fromkeys(("DynamicPartition", "UnsortedSegmentSum", "UnsortedSegmentMax", "SegmentMean"), _dealt),
    **dict.fromkeys(("UnsortedSegmentMin", "SegmentMax", "SegmentMin"), _dealt),
    **dict.fromkeys(("UnsortedSegmentProd", "SegmentProd"), _dealt),
    "SegmentSum": _dealt_by_labels,
    "ScatterNd": _counted,
    **dict.fromkeys(("TensorScatterAdd", "TensorScatterSub", "TensorScatterUpdate"), _put_into),
    **dict.fromkeys(("TensorScatterMax", "TensorScatterMin"), _put_into),
    **dict.fromkeys(("Svd", "Qr", "SelfAdjointEigV2", "Cholesky", "MatrixInverse", "MatrixDeterminant"), _over_matrix),
    **dict.fromkeys(("LogMatrixDeterminant", "MatrixSolve", "MatrixSolveLs", "MatrixTriangularSolve"), _over_matrix),
}
