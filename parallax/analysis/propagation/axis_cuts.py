"""Rules for cuts and rolls: the joined axis stays whole, whatever is done along others and wherever new ones come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallax.analysis.propagation.axis_part import MIXED, AxisPart

if TYPE_CHECKING:
    from parallax.analysis.propagation.batch_axis import BatchAxes


def strided_slice(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Cut along other axes, and new ones put in; the joined one is taken whole."""
    part, given, shape = axes.known_part(inputs[0]), axes.shape(inputs[1]), axes.shape(inputs[0])
    strides, attr = axes.constant(inputs[3]), axes.view.nodes[node].attr
    if part is None or strides is None or shape is None or not axes.others_are_equal(inputs, 0):
        return None
    if not given or given[0] is None:
        return None
    axis, count = max(part.axis, 0), given[0]
    masks = {name: attr[f"{name}_mask"].i for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    taken = [place for place in range(count) if not (masks["new_axis"] | masks["ellipsis"]) & (1 << place)]
    read, out = 0, 0  # axes of the input and of the result, so far
    for place in range(count):
        bit = 1 << place
        if masks["ellipsis"] & bit:
            whole = len(shape) - len(taken)
            if read <= axis < read + whole:
                return _moved(part, out + axis - read)
            read, out = read + whole, out + whole
        elif masks["new_axis"] & bit:
            out += 1
        elif read == axis:
            is_whole = masks["begin"] & bit and masks["end"] & bit and int(strides.reshape(-1)[place]) == 1
            if is_whole and not masks["shrink_axis"] & bit:
                return _moved(part, out)
            return _first_block(axes, inputs, masks) if place == 0 and out == 0 else None
        else:
            read, out = read + 1, out + (not masks["shrink_axis"] & bit)
    return _moved(part, out + axis - read)


def _moved(part: AxisPart, axis: int) -> AxisPart | None:
    """The joined axis is now another one; what is joined in blocks of its first axis must have it there still."""
    if part.axis != MIXED:
        return AxisPart(axis)
    return part if axis == 0 else None


def cut(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Slice."""
    axis, begin, size = axes.known(inputs[0]), axes.constant(inputs[1]), axes.constant(inputs[2])
    if axis is None or axis == MIXED or begin is None or size is None:
        return None
    return AxisPart(axis) if int(begin.reshape(-1)[axis]) == 0 and int(size.reshape(-1)[axis]) == -1 else None


def roll(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """Rows moved on along other axes than the joined one."""
    axis, over, shape = axes.known(inputs[0]), axes.constant(inputs[2]), axes.shape(inputs[0])
    if axis is None or axis == MIXED or over is None or not shape or not axes.others_are_equal(inputs, 0):
        return None
    return None if axis in {int(a) % len(shape) for a in over.reshape(-1)} else axis


def _first_block(axes: BatchAxes, inputs: tuple[str, ...], masks: dict[str, int]) -> AxisPart | None:
    """A cut of a constant length along the first axis, of what is joined by hypothesis only, that is a whole block.

    That the constant is the batch's length, and not the same in a larger one, must show where the result meets the
    batch: so no tensor that differs between workers is cut by this rule.
    """
    part, shape, strides = axes.known_part(inputs[0]), axes.shape(inputs[0]), axes.constant(inputs[3])
    begins, ends = axes.constant(inputs[1]), axes.constant(inputs[2])
    if part is None or not shape or not shape[0] or not axes.is_held_alike(inputs[0]) or masks["shrink_axis"] & 1:
        return None
    if begins is None or ends is None or strides is None or int(strides.reshape(-1)[0]) != 1:
        return None
    begin = 0 if masks["begin"] & 1 else int(begins.reshape(-1)[0])
    end = shape[0] if masks["end"] & 1 else int(ends.reshape(-1)[0])
    blocks = part.blocks if part.axis == MIXED else 1
    whole = blocks and begin >= 0 and begin % (shape[0] // blocks) == 0 and end - begin == shape[0] // blocks
    return AxisPart(0) if whole else None
