"""Layout rules of gathers and scatters with several indices, of which the first may be the example's index."""

from __future__ import annotations

import numpy as np

from parallax.analysis.layouts.rules.branches import are_zeros
from parallax.analysis.layouts.rules.facts import REPLICATED, SUM, Fact
from parallax.analysis.layouts.rules.lookups import look_up_rows
from parallax.analysis.layouts.rules.reductions import add_by_segment
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.graph.batches import sparse_feeds
from parallax.graph.lengths import ONE, Length
from parallax.graph.view import Edge, node_of, split_tensor
from parallax.plans.layouts import UNEVEN, ExampleNumbers, OffsetRange, Sharded, ShardedAxis

_SPREADS = ("Reshape", "Transpose", "Tile", "BroadcastTo", "ExpandDims", "Squeeze")
_MOVES = (
    "BroadcastTo",
    "Cast",
    "DynamicPartition",
    "ExpandDims",
    "Identity",
    "Reshape",
    "Squeeze",
    "Tile",
    "Transpose",
)
"""Ops that leave each entry with its example, if their results are sharded like their input."""
PARSE = """
    ParseExample ParseExampleV2 StringSplit StringSplitV2 SparseCross SparseCrossV2 SparseCrossHashed CTCGreedyDecoder
    CTCBeamSearchDecoder
    """.split()
"""Ops that make sparse tensors of examples."""
_GIVE_PLACES = ("Where", "SparseFillEmptyRows", *PARSE)
_COUNT = ("ComputeAccidentalHits", *_GIVE_PLACES)


def look_up_nested(step: StepWalk, node: str) -> list[Fact] | None:
    """GatherNd: of a replicated tensor, or of each example's own entries; else of examples of any worker."""
    params, indices = step.inputs(node)
    if params.part is None and indices.part is None:
        return None
    if params.part is not None and params.axis is not None and indices.is_same and indices.rank is not None:
        window = params.axis - (count_components(indices) or params.axis + 1)  # an axis after the indexed ones
        return step.all_outputs(node, Sharded(indices.rank - 1 + window, params.part)) if window >= 0 else None
    if indices.part is None or indices.rank is None or indices.axis == indices.rank - 1:
        return None
    if params.is_same:
        return step.all_outputs(node, Sharded(indices.axis or 0, indices.part))
    is_local = params.axis == 0 and params.part is not None and params.part.batch == indices.part.batch
    numbers = find_first_numbers(step, node, 1, params.part) if is_local and params.part is not None else None
    if numbers is None:
        return None
    step.require_layout(node, 1, numbers)
    return step.all_outputs(node, Sharded(0, indices.part))


def reduce_segments(step: StepWalk, node: str) -> list[Fact] | None:
    """UnsortedSegmentSum and similar: into each worker's own rows, by their numbers; else as for other segments."""
    data, segments, count = step.inputs(node)
    part = step.part_of(count.value) if isinstance(count.value, Length) else None
    is_local = part is not None and part.is_even and data.axis == segments.axis == 0 and data.part == segments.part
    numbers = None
    if part is not None and is_local:
        numbers = find_numbers(step, step.view.inputs(node)[1], part)
    is_vector = segments.rank == 1 or (numbers is not None and numbers.times)
    if part is None or numbers is None or not is_vector or count.value != part.length or not count.is_lengths:
        return add_by_segment(step, node)
    step.require_layout(node, 1, numbers)
    step.keep_local(node, [2])
    dims = None if data.dims is None else (part.length, *data.dims[1:])
    return step.all_outputs(node, Sharded(0, part), dims)


def draw_candidates(step: StepWalk, node: str) -> list[Fact] | None:
    """Candidate samplers: equal draws on all workers for the global batch; expected counts by label."""
    labels = step.inputs(node)[0]
    step.equal_draws.append(node)
    sampled, of_labels, of_sampled = step.view.outputs(node)
    found = Sharded(0, labels.part) if labels.axis == 0 and labels.part is not None else REPLICATED
    if found == REPLICATED:
        step.replicate(node)
    return [step.fact(sampled, REPLICATED), step.fact(of_labels, found, labels.dims), step.fact(of_sampled, REPLICATED)]


def find_hits(step: StepWalk, node: str) -> list[Fact] | None:
    """ComputeAccidentalHits: for each sample that is a label of an example, the example's index and the class."""
    labels, sampled = step.inputs(node)
    if labels.axis != 0 or labels.part is None or labels.part.blocks > 1 or not sampled.is_same:
        return None
    step.ranges.append(OffsetRange(node, labels.part))
    hits = ShardedAxis(labels.part.batch, Length.of(f"{step.prefix}{node}[0]{UNEVEN}"))
    return step.all_outputs(node, Sharded(0, hits))


def multiply_sparse(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseTensorDenseMatMul: rows of examples by a matrix, or the transposed rows by each example's row.

    A matrix that all workers have is multiplied by columns of examples.
    """
    places, values, shape, matrix = step.inputs(node)
    dims, view = shape.values(), step.view
    free = 1 - int(view.flag(node, "adjoint_b"))
    if places.is_same and values.is_same and matrix.part is not None and matrix.axis == free:
        step.replicate(node, [0, 1, 2])
        return step.all_outputs(node, Sharded(1, matrix.part))
    example = step.part_of(dims[0]) if dims else None
    if places.part is None or example is None or dims is None or values.part != places.part:
        return None
    numbers = find_first_numbers(step, node, 0, example)
    is_turned, axis = view.flag(node, "adjoint_a"), 1 - free
    is_by_example = (matrix.axis, matrix.part) == (axis, example)
    if numbers is None or (is_turned and not is_by_example):
        return None
    if is_by_example and not is_turned and numbers.of in sparse_feeds(view):  # its columns are examples
        step.adjacent.add(numbers.of)
    step.require_layout(node, 0, numbers)
    if numbers.of in step.adjacent and is_by_example:
        step.keep_local(node, [2])
        return step.all_outputs(node, Sharded(0, example))
    step.localize(node, 2, 0, dims)
    if is_turned:
        return step.all_outputs(node, SUM)
    step.require_layout(node, 3, REPLICATED)
    return step.all_outputs(node, Sharded(0, example))


def partition(step: StepWalk, node: str) -> list[Fact] | None:
    """DynamicPartition of entries along a sharded axis: each worker has some of each part, in order."""
    data, parts = step.inputs(node)
    if data.axis != 0 or parts.axis != 0 or data.part is None or data.part != parts.part or data.part.blocks > 1:
        return None
    dealt = f"{step.prefix}{step.view.source(step.view.inputs(node)[1])}"  # equally dealt entries have equal lengths
    return [
        step.fact(tensor, Sharded(0, ShardedAxis(data.part.batch, Length.of(f"{dealt} = {number}{UNEVEN}"))))
        for number, tensor in enumerate(step.view.outputs(node))
    ]


def stitch(step: StepWalk, node: str) -> list[Fact] | None:
    """DynamicStitch, of all parts to which entries were dealt out, by their numbers."""
    view, facts = step.view, step.inputs(node)
    count = len(facts) // 2
    makers = [split_tensor(view.source(tensor)) for tensor in view.inputs(node)[:count]]
    dealt = makers[0][0]
    if view.op(dealt) != "DynamicPartition" or makers != [(dealt, n) for n in range(len(view.outputs(dealt)))]:
        return None
    found = step.facts[view.inputs(dealt)[0]]
    numbers = None if found.part is None else find_numbers(step, view.inputs(dealt)[0], found.part)
    if found.part is None or numbers is None or found.rank != 1:
        return None
    for places, rows in zip(facts[:count], facts[count:], strict=True):
        if places.part is None or rows.part != places.part or rows.axis != 0:
            return None
    for slot in range(count):
        step.require_layout(node, slot, numbers)
    row = (facts[count].dims or ())[1:]
    return step.all_outputs(node, Sharded(0, found.part), (found.part.length, *row) if facts[count].dims else None)


def look_up(step: StepWalk, node: str) -> list[Fact] | None:
    """Gather of a worker's own entries by their numbers; else as for other lookups."""
    params, indices = step.inputs(node)[:2]
    numbers = None
    if params.axis == 0 and params.part is not None and indices.axis == 0:
        numbers = find_numbers(step, step.view.inputs(node)[1], params.part)
    axis = step.inputs(node)[2].numbers() if step.view.op(node) == "GatherV2" else [0]
    is_vector = indices.rank == 1 or (numbers is not None and numbers.times)
    if indices.part is None or numbers is None or not is_vector or axis != [0]:
        return look_up_rows(step, node)
    step.require_layout(node, 1, numbers)
    dims = None if params.dims is None or indices.dims is None else (*indices.dims, *params.dims[1:])
    return step.all_outputs(node, Sharded(0, indices.part), dims)


def count_components(indices: Fact) -> int | None:
    """The number of axes from which the last axis of indices selects; None if unknown."""
    return indices.dims[-1].number if indices.dims else None


def find_first_numbers(step: StepWalk, node: str, slot: int, part: ShardedAxis) -> ExampleNumbers | None:
    """The first of an input's numbers along its last axis, if these index the entries of an axis."""
    tensor = step.view.inputs(node)[slot]
    fact = step.facts[tensor]
    if fact.axis != 0 or fact.rank is None or fact.rank < 2 or fact.part is None:
        return None
    numbers = find_numbers(step, tensor, part, is_first=True)
    return numbers if numbers is None or not numbers.times else None  # sums are localized with all columns


def _find_first_column(step: StepWalk, node: str) -> str | None:
    """The first of the tensors that a node joins along its last axis, or that are the rows of a transposed matrix."""
    view, rank = step.view, step.facts[f"{node}:0"].rank
    if view.op(node) == "Transpose" and rank == 2:
        rows = node_of(view.source(view.inputs(node)[0]))
        return view.inputs(rows)[0] if view.op(rows) == "Pack" and _is_along(step, rows, 0) else None
    is_joined = view.op(node) in ("ConcatV2", "Pack") and _is_along(step, node, (rank or 0) - 1)
    return view.inputs(node)[0] if is_joined else None


def _is_along(step: StepWalk, node: str, along: int) -> bool:
    """Whether tensors are joined along an axis of the result."""
    view = step.view
    is_pack = view.op(node) == "Pack"
    axes = [int(view.nodes[node].attr["axis"].i)] if is_pack else step.facts[view.inputs(node)[-1]].numbers() or []
    rank = step.facts[f"{node}:0"].rank
    return bool(axes and rank) and axes[0] % (rank or 1) == along


def find_numbers(step: StepWalk, tensor: str, part: ShardedAxis, is_first: bool = False) -> ExampleNumbers | None:
    """The layout of a tensor of numbers, if each is its entry's index along an axis.

    Args:
        step: the traversal.
        tensor: numbers.
        part: the sharding of the axis.
        is_first: whether only the first number along the last axis is that index.
    """
    counter = _find_counter(step, tensor, part, is_first)
    if counter is not None:
        return ExampleNumbers(part, counter)
    return None if is_first or part.blocks > 1 else _find_sums(step, tensor, part)


def _find_sums(step: StepWalk, tensor: str, part: ShardedAxis) -> ExampleNumbers | None:
    """Sums of an example's index times its number of entries, and other numbers: an index of such an entry."""
    view = step.view
    node = _find_moved(step, tensor)
    if view.op(node) not in ("Add", "AddV2"):
        return None
    found = (find(step, one, part) for one in view.inputs(node) for find in (_find_product, _find_sums))
    return next(filter(None, found), None)


def _find_product(step: StepWalk, tensor: str, part: ShardedAxis) -> ExampleNumbers | None:
    """An example's index times its number of entries, which may itself be a product."""
    view, example = step.view, ShardedAxis(part.batch)
    product = _find_moved(step, tensor)
    for counted in step.ranges:
        is_first = (counted.node, counted.part) == (product, example) and counted.times
        if is_first and step.facts[counted.times].value == part.factor:
            return ExampleNumbers(part, product, (counted.times,))
    times, factor = list[str](), ONE
    while view.op(product) == "Mul":
        inputs = view.inputs(product)
        numbers, other = inputs if step.facts[inputs[1]].is_same else inputs[::-1]
        fact = step.facts[other]
        if not fact.is_same or fact.rank != 0 or not isinstance(fact.value, Length):
            return None
        times, factor = [*times, other], factor * fact.value
        counter = _find_counter(step, numbers, example) if factor == part.factor else None
        if counter is not None:
            return ExampleNumbers(part, counter, tuple(times))
        product = _find_moved(step, numbers)
    return None


def _find_moved(step: StepWalk, tensor: str) -> str:
    """The node that computes the numbers that a tensor has in another shape or type."""
    node = node_of(tensor)
    while step.view.op(node) in _MOVES and step.view.op(node) != "DynamicPartition":
        node = node_of(step.view.inputs(node)[0])
    return node


def _find_counter(step: StepWalk, tensor: str, part: ShardedAxis, is_first: bool = False) -> str | None:
    """The node that has numbered the entries of a tensor along an axis; arguments as `find_numbers`."""
    view = step.view
    while True:
        (node, output), fact = split_tensor(tensor), step.facts[tensor]
        op, inputs = view.op(node), view.inputs(node)
        if op in ("Range", *_COUNT) or node in sparse_feeds(view):
            plain = (node, output, part, "")
            is_counted = any((one.node, one.output, one.part, one.times) == plain for one in step.ranges)
            is_number = is_first or op not in (*_GIVE_PLACES, "Placeholder") or (fact.dims or (ONE,))[-1] == ONE
            return node if is_counted and is_number else None
        if fact.part is None:
            return None
        first = _find_first_column(step, node) if is_first else None
        is_of_places = is_first and first is None and op in _SPREADS
        if is_of_places and (fact.dims or ())[-1:] != (step.facts[inputs[0]].dims or (ONE,))[-1:]:
            return None
        column = _find_column(step, node) if op == "StridedSlice" else None
        if first is not None:
            tensor, is_first = first, op == "ConcatV2" and (step.facts[first].dims or (ONE,))[-1] != ONE
        elif column == 0 or (column == 1 and node_of(view.source(inputs[0])) in step.adjacent):
            tensor, is_first = inputs[0], True
        elif op in _MOVES or (op == "Pack" and len(inputs) == 1) or (op == "StridedSlice" and _adds_axes(step, node)):
            tensor = inputs[0]
        elif op == "SparseReorder" or (op == "SparseReshape" and output == 0):
            tensor = inputs[output]
        elif op in ("GatherV2", "Gather") and isinstance(step.converted_reads.get(Edge(node, 1)), ExampleNumbers):
            tensor = inputs[0]  # some of a worker's own
        elif op in ("Select", "SelectV2") and _is_zero_alone(step, node, part):
            tensor = inputs[1]
        elif op == "Maximum" and any(are_zeros(view, one) for one in inputs):  # numbers are not negative
            tensor = next((one for one in inputs if not are_zeros(view, one)), inputs[0])
        elif op == "Mul" and any(_is_of_ones(step, one, is_first) for one in inputs):
            tensor = next((one for one in inputs if not _is_of_ones(step, one, is_first)), inputs[0])
            is_first = is_first and (step.facts[tensor].dims or (ONE,))[-1] != ONE  # one number for all indices
        elif op == "FloorDiv" and is_first and (step.facts[inputs[1]].values() or [None])[0] == ONE:
            tensor = inputs[0]
        elif op in ("Add", "AddV2") and is_first and any(_begin_with_zero(step, one) for one in inputs):
            tensor = next((one for one in inputs if not _begin_with_zero(step, one)), inputs[0])
        else:
            return None


def _find_column(step: StepWalk, node: str) -> int | None:
    """The column of a matrix that a StridedSlice selects alone, as a vector or a matrix."""
    view, attributes = step.view, step.view.nodes[node].attr
    if step.facts[view.inputs(node)[0]].rank != 2:
        return None
    begin, end, strides = (view.constant(tensor) for tensor in view.inputs(node)[1:4])
    masks = [attributes[f"{name}_mask"].i for name in ("begin", "end", "ellipsis", "new_axis")]
    if begin is None or end is None or strides is None or len(begin) != 2 or masks[2:] != [0, 0]:
        return None
    is_all = bool(masks[0] & 1) and bool(masks[1] & 1)
    is_all = is_all or (int(begin[0]) == 0 and bool(masks[1] & 1))
    column = 0 if masks[0] & 2 else int(begin[1])
    width = (step.facts[view.inputs(node)[0]].dims or (ONE,))[-1].number or 0
    last = int(end[1]) + (width if end[1] < 0 else 0)
    is_alone = column >= 0 and last == column + 1 and not masks[1] & 2
    is_shrunk = attributes["shrink_axis_mask"].i in (0, 2)
    return column if is_all and is_alone and is_shrunk and [int(one) for one in strides] == [1, 1] else None


def _adds_axes(step: StepWalk, node: str) -> bool:
    """Whether a StridedSlice selects a whole tensor, and adds axes of length 1."""
    view, attributes = step.view, step.view.nodes[node].attr
    strides = view.constant(view.inputs(node)[3])
    masks = {name: attributes[f"{name}_mask"].i for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    if strides is None or masks["shrink_axis"]:
        return False
    is_whole = masks["begin"] & masks["end"] | masks["ellipsis"] | masks["new_axis"]
    are_plain = all(int(one) == 1 or masks["new_axis"] >> entry & 1 for entry, one in enumerate(strides))
    return are_plain and is_whole == (1 << len(strides)) - 1


def _is_zero_alone(step: StepWalk, node: str, part: ShardedAxis) -> bool:
    """Whether a Select returns indices, or 0 where an axis has one entry alone, whose index that is."""
    view, (is_more, _, other) = step.view, step.view.inputs(node)
    zero, comparison = view.constant(other), node_of(view.source(is_more))
    if zero is None or np.any(zero != 0) or view.op(comparison) != "Greater":
        return False
    length, one = (step.facts[tensor].value for tensor in view.inputs(comparison))
    return length == part.length and one == ONE


def _is_of_ones(step: StepWalk, tensor: str, is_first: bool) -> bool:
    """Whether a tensor is 1 everywhere, or at least at the first position along its last axis."""
    node = node_of(step.view.source(tensor))
    if step.view.op(node) == "OnesLike":
        return True
    value = (
        step.view.constant(step.view.inputs(node)[1]) if step.view.op(node) == "Fill" else step.view.constant(tensor)
    )
    if value is None or not value.size:
        return False
    return bool(((value[..., 0] if is_first and value.ndim else value) == 1).all())


def _begin_with_zero(step: StepWalk, tensor: str) -> bool:
    """Whether a tensor is 0 at the first of several positions along its last axis."""
    view, fact = step.view, step.facts[tensor]
    node = node_of(tensor)
    while view.op(node) in ("Identity", "Tile", "BroadcastTo", "ExpandDims", "Reshape"):
        tensor = view.inputs(node)[0]
        if (step.facts[tensor].dims or ())[-1:] != (fact.dims or (ONE,))[-1:]:
            return False
        node = node_of(tensor)
    rank = step.facts[tensor].rank
    if view.op(node) not in ("ConcatV2", "Pack") or rank is None or not _is_along(step, node, rank - 1):
        return False
    first = view.inputs(node)[0]
    value = view.constant(first)
    return are_zeros(view, first) or (value is not None and not value.any())
