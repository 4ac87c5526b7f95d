"""Layout rules of ops that slice tensors: the sharded axis or a block of it stays intact, or the input is gathered."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from parallax.analysis.layouts.rules.facts import REPLICATED, Dims, Fact, find_limit
from parallax.analysis.layouts.rules.reshaping import find_block, keep_plain, restate_length
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.graph.lengths import ONE, Length
from parallax.graph.view import Edge
from parallax.plans.layouts import Layout, Sharded, ShardedAxis


def split(step: StepWalk, node: str) -> list[Fact] | None:
    """Split, along another axis than the sharded one, or into its blocks."""
    place, fact = step.inputs(node)
    count = len(step.view.outputs(node))
    along = _find_axis(fact, place)
    length = None if along is None or fact.dims is None else fact.dims[along].divide(Length.of(count))
    parts = _split(step, node, fact, along, [length] * count)
    size = len(fact.values() or ()) // count
    return parts if parts is None else _add_values(step, node, parts, fact, [size] * count)


def split_by_sizes(step: StepWalk, node: str) -> list[Fact] | None:
    """SplitV, along another axis than the sharded one, or into some of its blocks each."""
    fact, sizes, place = step.inputs(node)
    values, along = sizes.values(), _find_axis(fact, place)
    if fact.part is not None and along in (None, fact.axis):
        return None if along is None or values is None else _split_blocks(step, node, fact.part, values)
    stated = [None if one is None or one.number == -1 else one for one in values or ()]
    parts = _split(step, node, fact, along, stated or [None] * len(step.view.outputs(node)))
    return parts if parts is None else _add_values(step, node, parts, fact, sizes.numbers())


def _split_blocks(step: StepWalk, node: str, part: ShardedAxis, sizes: Sequence[Length | None]) -> list[Fact] | None:
    """The pieces of a sharded axis, of sizes that are multiples of a block; -1 for the rest."""
    fact, block = step.inputs(node)[0], find_block(part).length
    lengths = [None if one is None else restate_length(step, part, one) for one in sizes]
    counts = [None if one is None else one if one.number == -1 else one.divide(block) for one in lengths]
    numbers = [0 if one is None else one.number or 0 for one in counts]
    numbers = [part.blocks - sum(numbers) - 1 if one == -1 else one for one in numbers]
    if fact.axis is None or min(numbers) < 1 or sum(numbers) != part.blocks:
        return None
    step.localize_axis(node, 1, 0, part, len(sizes))
    pieces = [replace(part, blocks=count) for count in numbers]
    return [
        piece
        for tensor, one in zip(step.view.outputs(node), pieces, strict=True)
        for piece in _make_pieces(step, [tensor], fact, Sharded(fact.axis, one), fact.axis, [one.length])
    ]


def _add_values(step: StepWalk, node: str, parts: list[Fact], fact: Fact, sizes: list[int] | None) -> list[Fact] | None:
    """The pieces of a vector, with the values of its elements where these are known."""
    values, tensors = fact.values(), step.view.outputs(node)
    if fact.rank != 1 or values is None or sizes is None or min(sizes) < 0:
        return parts
    ends = list(itertools.accumulate(sizes))
    pieces = [tuple(values[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    return [
        step.fact(tensor, one.layout, None, piece) for tensor, one, piece in zip(tensors, parts, pieces, strict=True)
    ]


def _find_axis(fact: Fact, place: Fact) -> int | None:
    """The axis of a tensor that a number states; None if that is unknown."""
    picked = place.numbers()
    return None if picked is None or not fact.rank else picked[0] % fact.rank


def _split(
    step: StepWalk, node: str, fact: Fact, along: int | None, sizes: Sequence[Length | None]
) -> list[Fact] | None:
    if fact.part is None or fact.axis is None:
        if is_partial(fact):
            return _make_pieces(step, step.view.outputs(node), fact, fact.layout, along, sizes)
        plain = keep_plain(step, node, step.inputs(node))
        return plain and _make_pieces(step, step.view.outputs(node), fact, plain[0].layout, along, sizes)
    if along is None:
        return None
    if along != fact.axis:
        return _make_pieces(step, step.view.outputs(node), fact, fact.layout, along, sizes)
    if len(sizes) != fact.part.blocks:
        return None
    return _make_pieces(step, step.view.outputs(node), fact, Sharded(fact.axis, find_block(fact.part)), along, sizes)


def _make_pieces(
    step: StepWalk,
    tensors: Sequence[str],
    fact: Fact,
    layout: Layout,
    along: int | None,
    sizes: Sequence[Length | None],
) -> list[Fact]:
    """The pieces of a tensor, which keep the lengths of its other axes."""
    pieces = []
    for tensor, size in zip(tensors, sizes, strict=True):
        piece = step.fact(tensor, layout)
        if along is not None and piece.dims is not None and fact.dims is not None:
            length = piece.dims[along] if size is None else size
            piece = step.fact(tensor, layout, (*fact.dims[:along], length, *fact.dims[along + 1 :]))
        pieces.append(piece)
    return pieces


def slice_strided(step: StepWalk, node: str) -> list[Fact] | None:
    """StridedSlice: the sharded axis must be selected in full, or a block of it."""
    facts = step.inputs(node)
    fact = facts[0]
    begin, end, stride = (f.values() for f in facts[1:])
    masks = _read_masks(step, node)
    if all(f.is_same or f.is_lengths for f in facts):
        has_axes = fact.is_same and fact.value is None and begin is not None and fact.rank is not None
        return keep_plain(step, node, facts, _find_dims(step, node, REPLICATED) if has_axes else None)
    if is_partial(fact):
        step.replicate(node, (1, 2, 3))
        return step.all_outputs(node, fact.layout)
    if begin is None or fact.rank is None or fact.axis is None or fact.part is None:
        return None
    place = _find_axes(len(begin), masks, fact.rank)
    entry, result = place.get(fact.axis, (None, None))
    if result is None:
        return None
    part: ShardedAxis | None = fact.part
    if entry is not None:
        whole = bool(masks["begin"] >> entry & 1 and masks["end"] >> entry & 1)
        step_of = stride[entry] if stride is not None else None
        if step_of != ONE:
            return None
        if not whole:
            part = _take_blocks(step, fact.part, begin, end, masks, entry)
    if part is None:
        return None
    _localize_places(step, node, (1, 2), entry, fact.part)
    return step.all_outputs(node, Sharded(result, part), _find_dims(step, node, Sharded(result, part)))


def _find_dims(step: StepWalk, node: str, layout: Layout) -> Dims | None:
    """The lengths of a StridedSlice, which has those of the axes that it selects in full; None where these are unknown.

    Args:
        step: the traversal.
        node: the slice.
        layout: of its result.
    """
    fact, *bounds = step.inputs(node)
    masks, begin, stride = _read_masks(step, node), bounds[0].values() or (), bounds[2].values()
    if fact.dims is None:
        return None
    place = _find_axes(len(begin), masks, len(fact.dims))
    known = step.fact(f"{node}:0", layout).dims
    count = len(begin) - bin(masks["ellipsis"]).count("1") - bin(masks["shrink_axis"]).count("1")
    dims = list(known or (ONE,) * max(count, *(left + 1 for _, left in place.values() if left is not None), 0))
    for axis, (cut, left) in place.items():
        is_whole = cut is None or (
            masks["begin"] >> cut & 1 and masks["end"] >> cut & 1 and stride and stride[cut] == ONE
        )
        if left is None:
            continue
        if is_whole:
            dims[left] = fact.dims[axis]
        elif cut is not None:
            measured = _measure(fact.dims[axis], bounds, masks, cut)
            if known is None:
                dims[left] = measured or Length.of(f"{step.prefix}{node}[{left}]")
            elif measured is not None and axis != fact.axis:  # whose length is that of the sharding
                dims[left] = measured
            if (limit := find_limit(bounds, masks, cut)) and (fact.dims[axis].number or 0) > 0:
                step.limits[dims[left]] = limit
    return tuple(dims)


def count_ends(step: StepWalk, edge: Edge, axis: int) -> int:
    """The number of first entries of an axis, or negative of last ones, to which a slice is limited; 0 for no limit."""
    node, op = edge.node, step.view.op(edge.node)
    if op not in ("StridedSlice", "Slice") or edge.slot or any(t not in step.facts for t in step.view.inputs(node)):
        return 0
    fact, *bounds = step.inputs(node)
    numbers = [[None if one is None else one.number for one in bound.values() or ()] for bound in bounds]
    if fact.rank is None or not all(numbers):
        return 0
    if op == "Slice":
        first, size = numbers[0][axis], numbers[1][axis]
        return 0 if first is None or size is None or size < 0 else first + size
    masks = _read_masks(step, node)
    entry = _find_axes(len(numbers[0]), masks, fact.rank)[axis][0]
    if entry is None or (numbers[2][entry] or 0) < 1:
        return 0
    first, last = numbers[0][entry], numbers[1][entry]
    if masks["shrink_axis"] >> entry & 1:
        return 0 if first is None else first + (first >= 0)
    if masks["begin"] >> entry & 1:
        first = 0
    if first is not None and first < 0 and (masks["end"] >> entry & 1 or (last is not None and last < 0)):
        return first
    is_of_begin = not masks["end"] >> entry & 1 and first is not None and first >= 0
    return max(last, 0) if is_of_begin and last is not None else 0


def _measure(length: Length, bounds: list[Fact], masks: dict[str, int], entry: int) -> Length | None:
    """The length of a slice of an axis: of one of unknown length, where all but some entries at its ends are taken."""
    begin, end, stride = (fact.numbers() for fact in bounds)
    if begin is None or end is None or stride is None:
        return None
    first = None if masks["begin"] >> entry & 1 else begin[entry]
    last = None if masks["end"] >> entry & 1 else end[entry]
    if length.number is not None:
        return Length.of(len(range(length.number)[first : last : stride[entry]]))
    if stride[entry] != 1 or (first or 0) < 0 or (last or -1) >= 0:
        return None
    return length - Length.of((first or 0) - (last or 0))


def _localize_places(step: StepWalk, node: str, slots: Iterable[int], entry: int | None, part: ShardedAxis) -> None:
    """Limits a slice's begin and end to the worker's piece, where they are positions on the sharded axis."""
    for slot in slots:
        values = step.inputs(node)[slot].values()
        place = values[entry] if values is not None and entry is not None else None
        if place is None or values is None or entry is None:
            continue
        if step.part_of(place) is not None:
            step.localize(node, slot, entry, values)
        elif restate_length(step, part, place) != place:
            step.localize_axis(node, slot, entry, part)


def slice_gradient(step: StepWalk, node: str) -> list[Fact] | None:
    """StridedSliceGrad: zeros around the selected part, in a given shape."""
    facts = step.inputs(node)
    shape, begin, fact = facts[0].values(), facts[1].values(), facts[4]
    if all(f.is_same or f.is_lengths for f in facts):
        return keep_plain(step, node, facts) if facts[0].is_same else None
    if fact.is_sum:
        step.replicate(node, (0, 1, 2, 3))
        return step.all_outputs(node, fact.layout)
    if fact.axis is None or fact.part is None:
        return None
    if (shape is None or begin is None) and facts[0].is_lengths:
        return _fill_around_whole_axis(step, node, fact.axis, fact.part)
    if shape is None or None in shape or begin is None:
        return None
    dims = tuple(n for n in shape if n is not None)
    masks = _read_masks(step, node)
    place = _find_axes(len(begin), masks, len(dims))
    axis, entry = next((axis, entry) for axis, (entry, result) in place.items() if result == fact.axis)
    dims = (*dims[:axis], restate_length(step, fact.part, dims[axis]), *dims[axis + 1 :])
    if dims[axis].number is not None and not step.is_script:  # a number of a front end's is one of the global batch
        return _fill_around_whole_axis(step, node, fact.axis, fact.part)
    part: ShardedAxis | None = fact.part
    if dims[axis] != fact.part.length:
        part = _find_whole(step, fact.part, dims[axis], facts[1:4], masks, entry)
    if part is None:
        return None
    step.localize(node, 0, axis, dims)
    _localize_places(step, node, (1, 2), entry, part)
    return step.all_outputs(node, Sharded(axis, part), dims)


def _find_whole(
    step: StepWalk, part: ShardedAxis, length: Length, bounds: list[Fact], masks: dict[str, int], entry: int | None
) -> ShardedAxis | None:
    """The sharding of an axis of which some blocks were taken, by that of the blocks; None if others were taken."""
    count = length.divide(find_block(part).length)
    begin, end, stride = (fact.values() for fact in bounds)
    if entry is None or count is None or not count.number or stride is None or stride[entry] != ONE:
        return None
    whole = ShardedAxis(part.batch, part.factor, count.number)
    return whole if _take_blocks(step, whole, begin, end, masks, entry) == part else None


def _fill_around_whole_axis(step: StepWalk, node: str, along: int, part: ShardedAxis) -> list[Fact] | None:
    """StridedSliceGrad into a shape of per-worker lengths, or a constant one: where the axis was kept in full.

    Args:
        step: the walk.
        node: the op.
        along: the sharded axis of the gradient.
        part: its sharding.
    """
    shape, begin, _, strides, _ = step.inputs(node)
    rank, entries = ((one.dims[0].number if one.dims else None) for one in (shape, begin))
    if rank is None or entries is None:
        return None
    masks = _read_masks(step, node)
    place = _find_axes(entries, masks, rank)
    axis, entry = next((axis, entry) for axis, (entry, result) in place.items() if result == along)
    steps = strides.values()
    if entry is not None:
        is_open = masks["begin"] >> entry & 1 and masks["end"] >> entry & 1
        if not is_open or steps is None or steps[entry] != ONE:
            return None
    if shape.is_same:
        step.localize_axis(node, 0, axis, part)
    step.keep_local(node, [0])
    return step.all_outputs(node, Sharded(axis, part))


def _read_masks(step: StepWalk, node: str) -> dict[str, int]:
    attributes = step.view.nodes[node].attr
    return {name: attributes[f"{name}_mask"].i for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}


def _find_axes(entries: int, masks: dict[str, int], rank: int) -> dict[int, tuple[int | None, int | None]]:
    """Axis of the input -> (the entry that slices it, or None; its axis of the result, or None where it is dropped)."""
    range_by_axis: dict[int, tuple[int | None, int | None]] = {}
    axis = result = 0
    for entry in range(entries):
        if masks["ellipsis"] >> entry & 1:
            later = sum(1 for e in range(entry + 1, entries) if not masks["new_axis"] >> e & 1)
            while rank - axis > later:
                range_by_axis[axis] = (None, result)
                axis, result = axis + 1, result + 1
        elif masks["new_axis"] >> entry & 1:
            result += 1
        elif masks["shrink_axis"] >> entry & 1:
            range_by_axis[axis] = (entry, None)
            axis += 1
        else:
            range_by_axis[axis] = (entry, result)
            axis, result = axis + 1, result + 1
    while axis < rank:
        range_by_axis[axis] = (None, result)
        axis, result = axis + 1, result + 1
    return range_by_axis


def _take_blocks(
    step: StepWalk,
    part: ShardedAxis,
    begin: list[Length | None] | None,
    end: list[Length | None] | None,
    masks: dict[str, int],
    entry: int,
) -> ShardedAxis | None:
    """The blocks of an axis that a strided slice takes."""
    first = Length() if masks["begin"] >> entry & 1 else begin[entry] if begin is not None else None
    last = part.length if masks["end"] >> entry & 1 else end[entry] if end is not None else None
    return _find_blocks(step, part, first, last)


def _find_blocks(step: StepWalk, part: ShardedAxis, first: Length | None, last: Length | None) -> ShardedAxis | None:
    """The blocks from one length to another, where both are multiples of a block; negative ones count from the end."""
    if first is None or last is None:
        return None
    block = find_block(part).length
    first, last = (restate_length(step, part, n) for n in (first, last))
    begin, end = (Length() if n == Length() else n.divide(block) for n in (first, last))
    if begin is None or end is None or begin.number is None or end.number is None:
        return None
    places = [n + part.blocks if n < 0 else n for n in (begin.number, end.number)]
    if not 0 <= places[0] < places[1] <= part.blocks:
        return None
    return ShardedAxis(part.batch, part.factor, places[1] - places[0])


def slice_plainly(step: StepWalk, node: str) -> list[Fact] | None:
    """Slice, with a beginning and a size for each axis."""
    facts = step.inputs(node)
    fact, begin, size = facts[0], facts[1].values(), facts[2].values()
    if all(f.is_same or f.is_lengths for f in facts):
        return keep_plain(step, node, facts)
    if is_partial(fact):
        step.replicate(node, (1, 2))
        return step.all_outputs(node, fact.layout)
    if begin is None or size is None or fact.axis is None or fact.part is None:
        return None
    first, count = begin[fact.axis], size[fact.axis]
    if count is not None and count.number == -1:
        last: Length | None = fact.part.length
    else:
        last = first + count if first is not None and count is not None else None
    part = _find_blocks(step, fact.part, first, last)
    if part is None:
        return None
    _localize_places(step, node, (1, 2), fact.axis, fact.part)
    inferred = step.fact(f"{node}:0", Sharded(fact.axis, part)).dims or (None,) * len(size)
    dims = [n if stated is None or stated.number == -1 else stated for n, stated in zip(inferred, size, strict=False)]
    known = tuple(n for n in dims if n is not None)
    return step.all_outputs(node, Sharded(fact.axis, part), known if len(known) == len(dims) else None)


def fold_space(step: StepWalk, node: str) -> list[Fact] | None:
    """SpaceToBatchND: the batch of each position within a block, concatenated; BatchToSpaceND is the inverse."""
    fact, block, borders = step.inputs(node)
    places, is_back = block.numbers(), step.view.op(node) == "BatchToSpaceND"
    if fact.part is None or fact.axis != 0 or places is None or not borders.is_same:
        return keep_plain(step, node, step.inputs(node))
    part, count = fact.part, math.prod(places)
    if is_back and part.blocks % count:
        return None
    blocks = part.blocks // count if is_back else part.blocks * count
    return step.all_outputs(node, Sharded(0, ShardedAxis(part.batch, part.factor, blocks)))
