"""Layout rules of sparse tensors: indices of a batch's entries, bags of rows, and ids deduplicated on each worker.

The indices that Where returns begin with the example's index, so segment sums by these indices produce one row for each
example (`find_numbers` of indexed_ops.py). tf.unique over ids of a batch gives each worker its own distinct ids; one
process, too, has each of these ids once. Rows of distinct ids are looked up by their positions. The gradients of these
rows are partial sums, which the exchange of rows completes by id. For any other op, tf.unique reads the ids of all
workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parallax.analysis.layouts.rules.elementwise import ADDS, COPIES, is_linear
from parallax.analysis.layouts.rules.facts import COUNTED, LENGTHS, REPLICATED, SUM, Fact
from parallax.analysis.layouts.rules.indexed_ops import PARSE, find_first_numbers, find_numbers
from parallax.analysis.layouts.rules.reductions import without_axes
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.base.errors import GraphError
from parallax.graph.batches import SparseFeed, sparse_feeds
from parallax.graph.lengths import ONE, Length
from parallax.graph.view import node_of
from parallax.plans.layouts import (
    DISTINCT,
    UNEVEN,
    Distinct,
    FilledRows,
    OffsetRange,
    Positions,
    Sharded,
    ShardedAxis,
)

_COPIES = ("Cast", "StridedSlice", "Reshape", "Squeeze")
Rule = Callable[[StepWalk, str], list[Fact] | None]


def find_nonzero(step: StepWalk, node: str) -> list[Fact] | None:
    """Where: a row for each true entry, which begins with the index of the example."""
    fact = step.inputs(node)[0]
    if fact.axis != 0 or fact.part is None or fact.part.blocks > 1 or fact.rank is None:
        return None
    step.ranges.append(OffsetRange(node, fact.part, along=step.view.inputs(node)[0]))
    mask = step.view.source(step.view.inputs(node)[0])  # entries that are selected alike have equal lengths
    while step.view.op(node_of(mask)) == "Reshape":
        mask = step.view.source(step.view.inputs(node_of(mask))[0])
    shard = ShardedAxis(fact.part.batch, Length.of(f"{step.prefix}true of {mask}{UNEVEN}"))
    return step.all_outputs(node, Sharded(0, shard), (shard.length, Length.of(fact.rank)))


def visit_sparse_feed(step: StepWalk, node: str, feed: SparseFeed, batch: str) -> list[Fact]:
    """A part of a sparse tensor that each worker is fed for its examples.

    Where its columns index examples, too, as in an adjacency matrix, the global tensor is block-diagonal.
    """
    example = ShardedAxis(batch)
    entries = ShardedAxis(batch, Length.of(f"{feed.places}[0]{UNEVEN}"))
    rank = (step.view.shape(f"{feed.places}:0") or (None, None))[1] or 2  # of open rank: a matrix
    if node == feed.shape:
        other = _find_columns(step, feed, batch) if rank == 2 and feed.places not in step.adjacent else None
        return step.all_outputs(node, LENGTHS, (Length.of(rank),), (example.length, *[other] * (rank - 1)))
    if node == feed.places:
        columns = 2 if node in step.adjacent else 1
        step.ranges.append(OffsetRange(node, example, columns=columns, shape=f"{feed.shape}:0"))
        return step.all_outputs(node, Sharded(0, entries), (entries.length, Length.of(rank)))
    return step.all_outputs(node, Sharded(0, entries), (entries.length,))


def _find_columns(step: StepWalk, feed: SparseFeed, batch: str) -> Length:
    """The number of columns of a fed matrix: what the script states, or else what each worker feeds."""
    stated = [step.view.constant(tensor) for tensor in step.view.inputs(feed.shape)]
    if stated and stated[0] is not None and stated[0][1] > 0:
        return Length.of(int(stated[0][1]))
    return Length.of(batch) * Length.of(f"{feed.places}[0]{DISTINCT}")


def reshape_places(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseReshape to the same shape, with which lookups of bags begin; -1 may be the last length of a matrix."""
    places, before, after = step.inputs(node)
    dims, new_dims = before.complete_values(), after.complete_values()
    if places.part is None or not dims or not new_dims:
        return None
    if dims != new_dims and (len(dims) != 2 or new_dims != (dims[0], Length.of(-1))):
        return None
    step.keep_local(node)
    first, second = step.view.outputs(node)
    return [step.fact(first, places.layout, places.dims), step.fact(second, LENGTHS, None, before.value)]


def sort_entries(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseReorder: entries are sorted by example first, and each worker has those of its own examples."""
    places, values, shape = step.inputs(node)
    dims, part = shape.values(), places.part
    example = step.part_of(dims[0]) if dims else None
    if part is None or part.blocks > 1 or example is None or values.part != part:
        return None
    if find_first_numbers(step, node, 0, example) is None:
        return None
    step.require_layout(node, 2, REPLICATED)  # which no number exceeds
    of_places, of_values = step.view.outputs(node)
    return [step.fact(of_places, places.layout, places.dims), step.fact(of_values, values.layout, values.dims)]


def fill_empty_rows(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseFillEmptyRows: an entry for each example that has none."""
    places, values, shape, default = step.inputs(node)
    dims, part = shape.values(), places.part
    example = step.part_of(dims[0]) if dims else None
    if part is None or example is None or dims is None or values.part != part or not default.is_same:
        return None
    numbers = find_first_numbers(step, node, 0, example)
    if numbers is None:
        return None
    step.require_layout(node, 0, numbers)
    step.localize(node, 2, 0, dims)
    step.ranges.append(OffsetRange(node, example, along=f"{node}:2"))
    shard = ShardedAxis(part.batch, Length.of(f"{step.prefix}filled of {part.factor}{UNEVEN}"))
    of_places, of_values, are_empty, back = step.view.outputs(node)
    return [
        step.fact(of_places, Sharded(0, shard), None if places.dims is None else (shard.length, *places.dims[1:])),
        step.fact(of_values, Sharded(0, shard)),
        step.fact(are_empty, Sharded(0, example)),
        step.fact(back, Positions(node, part), (part.length,)),
    ]


def add_up_bags(step: StepWalk, node: str) -> list[Fact] | None:
    """SegmentSum, SparseSegmentSum and similar: for each example a function of the rows with its index."""
    data, *others = step.inputs(node)
    if step.view.op(node).startswith("Sparse"):
        positions = others[0]
        is_local = data.is_same and positions.part is not None
        is_local = is_local or _are_positions_of(positions, data)
    else:
        positions, is_local = data, data.axis == 0 and data.part is not None
    if not is_local:
        return None
    example = _take_numbers(step, node, len(others), _find_part(positions))
    if example is None:
        return None
    step.filled.append(FilledRows(node, example.batch))
    row = (step.fact(f"{node}:0", REPLICATED).dims or (ONE,))[1:]
    return step.all_outputs(node, Sharded(0, example), (example.length, *row))


def bag_gradient(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseSegmentSumGrad and similar: each looked-up row's part of the examples' gradients."""
    gradient, positions, numbers, count = step.inputs(node)
    if gradient.axis != 0 or gradient.part is None:
        return None
    of = positions.layout.of if isinstance(positions.layout, Positions) else None
    example = _take_numbers(step, node, 2, _find_part(positions)) if of or positions.part is not None else None
    if example is None or gradient.part != example:
        return None
    row = (gradient.dims or (ONE,))[1:]
    if step.view.op(node).endswith("V2"):
        if of is not None:
            return None
        step.replicate(node, [3])
        length = _count_distinct(node, example.batch)
        values, ids = step.view.outputs(node)
        return [
            step.fact(values, Distinct(node, is_sum=True), (length, *row)),
            step.fact(ids, Distinct(node), (length,)),
        ]
    if of is None:
        step.replicate(node, [3])
        return step.all_outputs(node, COUNTED)
    length = _count_distinct(of, example.batch)
    if count.value != length:
        return None
    step.keep_local(node, [3])
    return step.all_outputs(node, Distinct(of, is_sum=True), (length, *row))


def take_distinct(step: StepWalk, node: str) -> list[Fact] | None:
    """Unique: each worker has the distinct ids of its own part of a batch, and the positions of all its ids in them."""
    ids = step.inputs(node)[0]
    outputs = step.view.outputs(node)
    is_vector = ids.rank == 1 and ids.axis == 0 and ids.part is not None and ids.part.blocks == 1
    if not is_vector or ids.part is None or step.prefix or len(outputs) > 2:
        return None
    return [
        step.fact(outputs[0], Distinct(node), (_count_distinct(node, ids.part.batch),)),
        step.fact(outputs[1], Positions(node, ids.part), (ids.part.length,)),
    ]


def look_up(step: StepWalk, node: str) -> list[Fact] | None:
    """Gather: rows of distinct ids, from a replicated tensor; and the row of each id among these, by its position."""
    params, ids, *others = step.inputs(node)
    if others and others[0].numbers() != [0]:
        return None
    row = (step.fact(f"{node}:0", REPLICATED).dims or (ONE,))[1:]
    if isinstance(ids.layout, Positions) and _are_positions_of(ids, params) and ids.rank == 1:
        return step.all_outputs(node, Sharded(0, ids.layout.part), (ids.layout.part.length, *row))
    if not isinstance(ids.layout, Distinct) or ids.layout.is_sum or ids.rank != 1 or ids.dims is None:
        return None
    step.replicate(node, [0])
    return step.all_outputs(node, ids.layout, (ids.dims[0], *row))


def add_up_positions(step: StepWalk, node: str) -> list[Fact] | None:
    """UnsortedSegmentSum by positions: the gradients of rows that were looked up several times, summed.

    By the distinct ids themselves, as where the gradient of a regularization is added, it is a partial sum.
    """
    data, positions, count = step.inputs(node)
    layout = positions.layout
    if isinstance(layout, Distinct) and data.layout == replace(layout, is_sum=True):
        step.require_layout(node, 2, REPLICATED)
        dims = (count.value, *data.dims[1:]) if isinstance(count.value, Length) and data.dims else None
        return step.all_outputs(node, SUM, dims)
    if not isinstance(layout, Positions) or data.axis != 0 or data.part != layout.part or positions.rank != 1:
        return None
    length = _count_distinct(layout.of, layout.part.batch)
    if count.value != length:
        return None
    step.keep_local(node, [2])
    return step.all_outputs(node, Distinct(layout.of, is_sum=True), (length, *(data.dims or (ONE,))[1:]))


def combine(step: StepWalk, node: str) -> list[Fact] | None:
    """Elementwise ops on rows of the same distinct ids and on tensors broadcast over them."""
    facts, op = step.inputs(node), step.view.op(node)
    if op in COPIES or op == "Cast":
        return step.all_outputs(node, facts[0].layout, facts[0].dims)
    layouts = {f.layout.of: f for f in facts if isinstance(f.layout, Distinct)}
    rank = max((f.rank or 0 for f in layouts.values()), default=0)
    if len(layouts) != 1 or any(isinstance(f.layout, Positions) for f in facts):
        return None
    ((of, first),) = layouts.items()
    if any(not isinstance(f.layout, Distinct) and not _is_broadcast(f, rank) for f in facts):
        return None
    sums = [isinstance(f.layout, Distinct) and f.layout.is_sum for f in facts]
    if any(sums) and not (is_linear(op, sums) or (op in ADDS and all(sums))):
        return None
    dims = next(f.dims for f in layouts.values() if f.rank == rank) if first.dims is not None else None
    return step.all_outputs(node, Distinct(of, is_sum=any(sums)), dims)


def reduce_rows(step: StepWalk, node: str) -> list[Fact] | None:
    """Reductions within rows; a sum over all rows, if they are partial, is a partial sum."""
    fact, axes = step.inputs(node)
    picked = axes.numbers()
    if not isinstance(fact.layout, Distinct) or picked is None or not fact.rank:
        return None
    over, op = {axis % fact.rank for axis in picked}, step.view.op(node)
    if fact.layout.is_sum and not (op == "Sum" or (op == "Mean" and 0 not in over)):
        return None
    remaining_dims = without_axes(step, node, fact, picked)
    if 0 not in over:
        return step.all_outputs(node, fact.layout, remaining_dims)
    return step.all_outputs(node, SUM, remaining_dims) if fact.layout.is_sum else None


def _count_distinct(of: str, batch: str) -> Length:
    """The number of a worker's distinct ids: a separate symbol."""
    return Length.of(batch) * Length.of(f"{of}{DISTINCT}")


def _find_part(positions: Fact) -> ShardedAxis | None:
    return positions.layout.part if isinstance(positions.layout, Positions) else positions.part


def _are_positions_of(positions: Fact, rows: Fact) -> bool:
    """Whether numbers are positions among the distinct ids of rows."""
    if not isinstance(positions.layout, Positions) or not isinstance(rows.layout, Distinct):
        return False
    return positions.layout.of == rows.layout.of and not rows.layout.is_sum


def _take_numbers(step: StepWalk, node: str, slot: int, along: ShardedAxis | None) -> ShardedAxis | None:
    """Makes an input of example indices per-worker; returns the axis that they index."""
    numbers = step.inputs(node)[slot]
    if numbers.part is None or numbers.part != along or numbers.rank != 1:
        return None
    tensor = step.view.inputs(node)[slot]
    if step.is_script and _is_fed(step, tensor):
        raise GraphError(
            f"{step.view.op(node)} {node!r} sums rows by segment ids that are fed, but each worker's ids count only "
            "its own examples. Feed dense ids, or use ragged tensors with Keras or parallax.function."
        )
    for example in {one.part for one in step.ranges}:
        counted = find_numbers(step, tensor, example)
        if counted is not None and example == ShardedAxis(example.batch):
            step.require_layout(node, slot, counted)
            return example
    return None


def _is_fed(step: StepWalk, tensor: str) -> bool:
    """Whether numbers are a batch's feed, or a column of it; the indices of a fed sparse tensor are not."""
    node = node_of(step.view.source(tensor))
    while step.view.op(node) in _COPIES:
        node = node_of(step.view.source(step.view.inputs(node)[0]))
    return node in step.batches and node not in sparse_feeds(step.view)


def _is_broadcast(fact: Fact, rank: int) -> bool:
    """Whether a tensor is equal for all rows of one with `rank` axes."""
    if not fact.is_same or fact.rank is None or fact.dims is None:
        return False
    return fact.rank < rank or (fact.rank == rank and fact.dims[0] == ONE)


def _is_derivable(lengths: Fact) -> bool:
    """Whether lengths of the global batch follow from its number of examples."""
    values = lengths.values()
    if values is None or None in values:
        return False
    symbols = {symbol for one in values if one is not None for product, _ in one.terms for symbol in product}
    return not any(symbol.endswith(DISTINCT) for symbol in symbols)


def find_counted_lengths(step: StepWalk) -> set[str]:
    """The tensors that give each worker per-worker lengths where those of the global batch are required."""
    lengths_read = [
        tensor
        for (tensor, layout), edges in step.changes.items()
        if edges and layout == REPLICATED and step.facts[tensor].is_lengths and not _is_derivable(step.facts[tensor])
    ]
    lengths_read += [step.view.inputs(one.edge.node)[one.edge.slot] for one in step.shapes]
    lengths, seen = set[str](), set[str]()
    while lengths_read:
        tensor = lengths_read.pop()
        if tensor in seen or tensor not in step.facts:
            continue
        seen.add(tensor)
        layout = step.facts[tensor].layout
        if isinstance(layout, Distinct | Positions):
            lengths.add(layout.of)
        elif layout == LENGTHS:
            node = node_of(tensor)
            lengths |= {node} if step.view.op(node) in PARSE else set()
            lengths_read += step.view.inputs(node)
    return lengths
