"""Rules for what folds the joined axis into another one, and takes it out again: time-major rows made flat, halves.

A tensor whose first axis has `blocks` of equal length is joined within each of them: what `[time, batch, width]` is as
`[time * batch, width]`, and what two tensors of the batch are, one behind the other. Split by the number of blocks, or
given its two axes back, it is joined along one axis again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from parallax.analysis.propagation.axis_lengths import ALIKE_LENGTH, lengths_of_reshape, numbers_of_shape
from parallax.analysis.propagation.axis_part import ALIKE, MIXED, AxisPart
from parallax.graph.view import Shape, split_tensor

if TYPE_CHECKING:
    from parallax.analysis.propagation.batch_axis import BatchAxes

_COPIES = ("Identity", "Cast")


def reshape(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Row-major order: rows of whole length may be unfolded, and put under one another with the axes before them."""
    part, before, out = axes.known_part(inputs[0]), axes.shape(inputs[0]), axes.shape(f"{node}:0")
    if part is None or before is None or not out:
        return None
    lengths = lengths_of_reshape(axes, node, inputs)
    if part.axis == 0 and before[0] is None and None not in lengths[1:]:
        return AxisPart(0)  # what the rows of one example are made of is of this example, however many they become
    out = tuple(None if length == ALIKE_LENGTH else length for length in lengths)
    if part.axis == MIXED:
        return _reshaped_blocks(part, before, out)
    width, lead = _size(before[part.axis + 1 :]), before[: part.axis]
    if part.axis == 0 and None not in out[1:] and _keeps_rows(before, width, _size(out[1:])):
        return AxisPart(0)
    if part.axis == 0 or width is None:
        return AxisPart(MIXED) if len(out) == 1 else None
    if len(out) > part.axis and out[: part.axis] == lead and None not in lead:
        if _is_multiple(width, out[part.axis + 1 :]):
            return part
    if _is_multiple(width, out[1:]):
        return AxisPart(MIXED, _size(lead) or 0)
    return AxisPart(MIXED) if len(out) == 1 else None


def _keeps_rows(before: Shape, width: int | None, wanted: int | None) -> bool:
    """Whether the length of a new row is not that of the batch: rows are unfolded, or the batch is open."""
    if before is None or before[0] is None or wanted in (None, 1):
        return True
    return width is not None and bool(wanted) and width % (wanted or 1) == 0


def _reshaped_blocks(part: AxisPart, before: Shape, out: Shape) -> AxisPart | None:
    """Rows in blocks may be unfolded, and each block made an element of a first axis; but not put together anew."""
    width = _size(before[1:] if before else ())
    if width is None or not before or not out:
        return None
    if part.blocks and len(out) > 1 and out[0] == part.blocks and out[1] != out[0] and _is_multiple(width, out[2:]):
        return AxisPart(1)
    return part if _is_multiple(width, out[1:]) else None


def _size(lengths: tuple[int | None, ...]) -> int | None:
    return None if None in lengths else math.prod(length or 0 for length in lengths)


def _is_multiple(width: int, lengths: tuple[int | None, ...]) -> bool:
    """Whether rows of this width are made of rows of these lengths."""
    size = _size(lengths)
    return bool(size) and width % (size or 1) == 0


def concat(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Along another axis the rows stay; along the joined one all rows must be of the batch."""
    pieces, place, shape = inputs[:-1], axes.constant(inputs[-1]), axes.shape(inputs[0])
    parts = [axes.known_part(t) for t in pieces]
    found = {part for part in parts if part is not None}
    if place is None or shape is None or len(found) != 1:
        return None
    (part,) = found
    if not all(p is not None or axes.fits(t) for p, t in zip(parts, pieces, strict=True)):
        return None
    if int(place) % len(shape) != max(part.axis, 0):
        return part if part.axis != MIXED or part.blocks else None
    if part.axis != 0 or None in parts:
        return None
    lengths = {(axes.shape(t) or (None,))[0] for t in pieces}
    return AxisPart(MIXED, len(pieces) if len(lengths) == 1 and None not in lengths else 0)


def split(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Along another axis the rows stay; blocks are split into fewer."""
    by_number = axes.view.op(node) == "Split"
    value, place = (inputs[1], axes.constant(inputs[0])) if by_number else (inputs[0], axes.constant(inputs[2]))
    part, shape = axes.known_part(value), axes.shape(value)
    if part is None or shape is None or place is None:
        return None
    if int(place) % len(shape) != max(part.axis, 0):
        return part if part.axis != MIXED or part.blocks else None
    count = int(axes.view.nodes[node].attr["num_split"].i)
    if not by_number or part.axis != MIXED or not part.blocks or part.blocks % count:
        return None
    return AxisPart(MIXED, part.blocks // count) if part.blocks > count else AxisPart(0)


def in_blocks(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Element by element: operands in as many blocks, or one in blocks; no other operand has the first axis."""
    out = axes.shape(f"{node}:0")
    parts = {t: part for t in inputs if (part := axes.known_part(t)) is not None}
    if out is None or len(set(parts.values())) != 1 or not next(iter(parts.values())).blocks and len(parts) > 1:
        return None
    for tensor in inputs:
        shape = axes.shape(tensor)
        if shape is None or (tensor in parts and len(shape) != len(out)):
            return None
        if tensor not in parts and (not axes.fits(tensor) or (len(shape) == len(out) and shape[0] != 1)):
            return None
    return next(iter(parts.values()))


def fill(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """A shape that has the batch's length in one place, filled with what all workers have alike."""
    if not axes.others_are_equal(inputs, 0):
        return None
    numbers = numbers_of_shape(axes, inputs[0])
    if numbers is not None and None not in numbers:
        return ALIKE  # as long as other axes than the batch's
    view, dims = axes.view, split_tensor(inputs[0])[0]
    while view.op(dims) in _COPIES:
        dims = split_tensor(view.inputs(dims)[0])[0]
    if view.op(dims) == "Shape":
        return axes.known_part(view.inputs(dims)[0])
    if view.op(dims) != "Pack":
        return None
    places = [place for place, length in enumerate(view.inputs(dims)) if is_length(axes, length)]
    rest = [length for place, length in enumerate(view.inputs(dims)) if place not in places]
    return AxisPart(places[0]) if len(places) == 1 and all(axes.is_equal(length) for length in rest) else None


def is_length(axes: BatchAxes, tensor: str) -> bool:
    """Whether a scalar is the length of a tensor along its joined axis: the one process has the sum of the workers'."""
    view, node = axes.view, split_tensor(tensor)[0]
    while view.op(node) in _COPIES:
        node = split_tensor(view.inputs(node)[0])[0]
    if view.op(node) == "Size":
        return axes.of(view.inputs(node)[0]) is not None
    if view.op(node) != "StridedSlice" or view.shape(f"{node}:0") != ():
        return False
    shape, begin = split_tensor(view.inputs(node)[0])[0], axes.constant(view.inputs(node)[1])
    while view.op(shape) in _COPIES:
        shape = split_tensor(view.inputs(shape)[0])[0]
    if view.op(shape) != "Shape" or begin is None or begin.size != 1:
        return False
    axis, rank = axes.of(view.inputs(shape)[0]), len(axes.shape(view.inputs(shape)[0]) or ())
    place = int(begin.reshape(-1)[0])
    return axis is not None and rank > 0 and place % rank == max(axis, 0) and -rank <= place < rank
