"""Layout rules of ops that act along some axes and treat the others independently, of lookups, scatters, random ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallax.analysis.layouts.rules.elementwise import align
from parallax.analysis.layouts.rules.facts import LENGTHS, REPLICATED, SUM, Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.analysis.layouts.rules.values import compute_value, computes_value, reduced_axes
from parallax.graph.lengths import ONE, Length, multiply
from parallax.graph.view import GraphView, split_tensor
from parallax.plans.layouts import OffsetRange, Partial, RowEnds, Sharded, ShardedAxis

Rule = Callable[[StepWalk, str], list[Fact] | None]
FindAxes = Callable[[Sequence[Fact]], Sequence[int] | None]
_LINEAR_ALONG = ("Cumsum", "ReverseV2")
_OF_CONSTANTS = frozenset(
    """
    Const Identity Cast Pack StatelessRandomGetKeyCounter StatelessRandomGetAlg StatelessRandomGetKeyCounterAlg
    """.split()
)


def _is_plain(facts: Sequence[Fact]) -> bool:
    return all(f.is_same or f.is_lengths for f in facts)


def plain(step: StepWalk, node: str) -> list[Fact] | None:
    """The rule of ops without a specific one, where no input is sharded or partial."""
    facts = step.inputs(node)
    if not _is_plain(facts):
        return None
    if all(f.is_same for f in facts):
        return step.all_outputs(node, REPLICATED, None, compute_value(step.view, node, facts))
    if not computes_value(step.view.op(node)):
        return None  # values of the global batch would be combined with per-worker lengths
    return step.all_outputs(node, LENGTHS, None, compute_value(step.view, node, facts))


def with_plain_fallback(of_sharded: Rule) -> Rule:
    """The rule of an op with a specific one for sharded or partial inputs, and the plain one for others."""

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        facts = of_sharded(step, node)
        return plain(step, node) if facts is None else facts

    return rule


def make_axis_rule(find_axes: FindAxes, drops_axes: bool = False, is_alike: bool = False) -> Rule:
    """The rule of ops that act along some axes of the first input and treat the others independently.

    Args:
        find_axes: returns these axes from the inputs' facts; None where they are unknown.
        drops_axes: whether the result lacks them.
        is_alike: whether the result has the shape of the first input.
    """

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        facts = step.inputs(node)
        fact, axes = facts[0], find_axes(facts)
        dims = fact.dims if is_alike else None
        if axes is not None and fact.is_sum and step.view.op(node) in _LINEAR_ALONG:
            return step.all_outputs(node, fact.layout, dims)
        if axes is None or fact.axis is None or fact.part is None or fact.rank is None:
            return None
        over = {axis % fact.rank for axis in axes}
        if fact.axis in over and dims is not None:  # examples interact, in the shape of the input
            step.gather(node)
            return step.all_outputs(node, REPLICATED, dims)
        if fact.axis in over:
            return None
        step.replicate(node, range(1, len(facts)))
        axis = fact.axis - sum(one < fact.axis for one in over) * drops_axes
        return step.all_outputs(node, Sharded(axis, fact.part), dims)

    return rule


def along_last(facts: Sequence[Fact]) -> Sequence[int]:
    """The last axis, as for softmax."""
    return (-1,)


def along_two(facts: Sequence[Fact]) -> Sequence[int]:
    """The last two axes, which are matrices."""
    return (-2, -1)


def along_diagonals(facts: Sequence[Fact]) -> Sequence[int]:
    """The last axis of an input to matrices, or of several diagonals the last two."""
    return (-1,) if len(facts) == 1 or facts[1].rank == 0 else (-2, -1)


def along_named(slot: int) -> FindAxes:
    """The axes given by an input."""
    return lambda facts: facts[slot].numbers()


def make_pair_rule(alike: int) -> Rule:
    """The rule of ops on matrices, the last two axes, and on what the second input has for each of them.

    Args:
        alike: which of the two has the shape of the result.
    """

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        facts = step.inputs(node)
        part, axis = next(((f.part, f.axis) for f in facts[:2] if f.part is not None), (None, None))
        rank = facts[0].rank
        if part is None or axis is None or rank is None or axis >= rank - 2:
            return None
        if any(is_partial(f) or (f.part is not None and f.axis != axis) for f in facts):
            return None
        if any(align(step, node, slot, facts[slot], axis, part).part != part for slot in (0, 1)):
            return None
        for slot in range(2, len(facts)):
            step.require_layout(node, slot, REPLICATED)
        return step.all_outputs(node, Sharded(axis, part), facts[alike].dims)

    return rule


def solve(step: StepWalk, node: str) -> list[Fact] | None:
    """MatrixSolve and similar: right sides, the columns of matrices, for matrices of their own or for one."""
    matrices, right = step.inputs(node)[:2]
    if matrices.rank is None or matrices.rank != right.rank:
        return None
    if matrices.is_same and (right.is_sum or right.axis == matrices.rank - 1):
        return step.all_outputs(node, right.layout, right.dims)
    return make_pair_rule(1)(step, node)


def lookup(step: StepWalk, node: str) -> list[Fact] | None:
    """Gather of rows: sharded as the indices are; along an axis other than the rows', as the params are."""
    view, facts = step.view, step.inputs(node)
    params, indices = facts[0], facts[1]
    if _is_plain(facts) or any(f.rank is None for f in (params, indices)) and view.op(node) == "GatherV2":
        return None
    along = 0
    if view.op(node) == "GatherV2":
        numbers = facts[2].numbers()
        if numbers is None:
            return None
        along = numbers[0] % (params.rank or 1)
    batch_dims = view.nodes[node].attr["batch_dims"].i if "batch_dims" in view.nodes[node].attr else 0
    if batch_dims:
        if params.axis == indices.axis == 0 and params.part == indices.part:
            return step.all_outputs(node, params.layout)
        return None
    dims = None
    if params.dims is not None and indices.dims is not None:
        dims = (*params.dims[:along], *indices.dims, *params.dims[along + 1 :])
    if indices.axis is not None and indices.part is not None:
        if params.part is not None:
            step.mixing[node] = [view.inputs(node)[0]]  # any example may look up the rows of any other
        step.require_layout(node, 0, REPLICATED)
        return step.all_outputs(node, Sharded(along + indices.axis, indices.part), dims)
    if is_partial(indices):
        return None
    step.require_layout(node, 1, REPLICATED)
    if params.is_sum:
        return step.all_outputs(node, params.layout, dims)
    if params.axis is None or params.part is None or params.axis == along:
        return None
    axis = params.axis if params.axis < along else params.axis + (indices.rank or 0) - 1
    return step.all_outputs(node, Sharded(axis, params.part), dims)


def find_in_table(step: StepWalk, node: str) -> list[Fact] | None:
    """LookupTableFind: the value of an immutable table for each key."""
    table, keys = step.view.source(step.view.inputs(node)[0]), step.inputs(node)[1]
    if step.view.op(split_tensor(table)[0]) not in ("HashTable", "HashTableV2") or keys.part is None:
        return None
    step.require_layout(node, 2, REPLICATED)
    return step.all_outputs(node, keys.layout, keys.dims)


def look_up_variable(step: StepWalk, node: str) -> list[Fact] | None:
    """ResourceGather: rows of a replicated variable, by ids."""
    ids = step.inputs(node)[1]
    row = (step.fact(f"{node}:0", REPLICATED).dims or ())[ids.rank or 0 :]
    dims = None if ids.dims is None else (*ids.dims, *row)
    if ids.axis is not None:
        return step.all_outputs(node, ids.layout, dims)
    step.require_layout(node, 1, REPLICATED)
    return step.all_outputs(node, REPLICATED, dims)


def add_by_segment(step: StepWalk, node: str) -> list[Fact] | None:
    """UnsortedSegmentSum and similar: a partial sum, where rows and their segments are sharded alike.

    An axis after those of the segments stays sharded.
    """
    kind = {"UnsortedSegmentSum": "sum", "UnsortedSegmentMax": "max", "UnsortedSegmentMin": "min"}[step.view.op(node)]
    data, segments, count = step.inputs(node)
    if _is_plain((data, segments, count)):
        step.require_layout(node, 2, REPLICATED)
        return step.all_outputs(node, REPLICATED if data.is_same and segments.is_same else LENGTHS)
    step.require_layout(node, 2, REPLICATED)
    if isinstance(data.layout, Partial) and data.layout.kind == kind and segments.is_same:
        return step.all_outputs(node, data.layout)
    if data.axis is not None and data.part is not None and segments.rank and data.axis >= segments.rank:
        step.require_layout(node, 1, REPLICATED)
        return step.all_outputs(node, Sharded(data.axis - segments.rank + 1, data.part))
    part = data.part if data.axis == 0 else segments.part if segments.axis == 0 else None
    if part is None or any(f.axis not in (0, None) for f in (data, segments)):
        return None
    for slot, fact in ((0, data), (1, segments)):
        if align(step, node, slot, fact, 0, part).part is None:
            return None
    if not isinstance(count.value, Length) or data.dims is None or segments.rank is None:
        return step.all_outputs(node, Partial(kind))
    return step.all_outputs(node, Partial(kind), (count.value, *data.dims[segments.rank :]))


def count_values(step: StepWalk, node: str) -> list[Fact] | None:
    """DenseBincount: the count of each value in each row of a matrix, or in a sharded vector."""
    values, _, weights = step.inputs(node)
    if values.part is None or values.axis != 0 or values.rank not in (1, 2):
        return None
    step.require_layout(node, 1, REPLICATED)
    is_weighed = weights.dims is None or Length() not in weights.dims
    if is_weighed and align(step, node, 2, weights, 0, values.part).part is None:
        return None
    if values.rank == 2:
        return step.all_outputs(node, Sharded(0, values.part))
    return step.all_outputs(node, Partial("max") if step.view.flag(node, "binary_output") else SUM)


def search_rows(step: StepWalk, node: str) -> list[Fact] | None:
    """LowerBound and UpperBound: the place of each value in its row among those of the same row."""
    rows, values = step.inputs(node)
    if (values.axis == 1 and rows.is_same) or (values.axis == rows.axis == 0 and values.part == rows.part):
        return step.all_outputs(node, values.layout, values.dims)
    return None


def one_hot(step: StepWalk, node: str) -> list[Fact] | None:
    """A new axis of a replicated depth."""
    indices = step.inputs(node)[0]
    at = step.view.nodes[node].attr["axis"].i
    step.replicate(node, (1, 2, 3))
    if indices.is_same:
        return step.all_outputs(node, REPLICATED)
    if indices.axis is None or indices.part is None or indices.rank is None:
        return None
    depth = step.inputs(node)[1].value
    place = at % (indices.rank + 1)
    dims = None
    if isinstance(depth, Length) and indices.dims is not None:
        dims = (*indices.dims[:place], depth, *indices.dims[place:])
    return step.all_outputs(node, Sharded(indices.axis + (place <= indices.axis), indices.part), dims)


def make_range(step: StepWalk, node: str) -> list[Fact] | None:
    """Range: sharded if it has a number for each entry of a batch; a worker's numbers begin at its offset."""
    facts = step.inputs(node)
    first, limit, delta = (f.value for f in facts)
    count = limit - first if isinstance(limit, Length) and isinstance(first, Length) else None
    length = count.divide(delta) if count is not None and isinstance(delta, Length) else None
    dims = None if length is None or (length.number or 0) < 0 else (length,)
    if all(f.is_same for f in facts):
        return step.all_outputs(node, REPLICATED, dims, compute_value(step.view, node, facts))
    part = step.part_of(length)
    if part is None or not part.is_even or not _is_plain(facts) or first != Length() or not facts[2].is_same:
        step.replicate(node)
        return step.all_outputs(node, REPLICATED, dims)
    step.keep_local(node)
    step.ranges.append(OffsetRange(node, part, times="" if delta == ONE else step.view.inputs(node)[2]))
    return step.all_outputs(node, Sharded(0, part))


def read_shape(step: StepWalk, node: str) -> list[Fact] | None:
    """Shape, ShapeN and Size: lengths, which are per-worker ones where the input is sharded."""
    op, facts = step.view.op(node), []
    step.keep_local(node)
    for tensor, fact in zip(step.view.outputs(node), step.inputs(node), strict=True):
        layout = LENGTHS if fact.part is not None or isinstance(fact.layout, RowEnds) else REPLICATED
        value: Length | tuple[Length | None, ...] | None = fact.dims
        if fact.is_lengths and (fact.dims is not None or op != "Size") and not _is_fixed(step, fact):
            layout, value = LENGTHS, None  # its shape is given by lengths, which are per-worker
        if op == "Size" and value is not None:
            value = multiply(fact.dims or ())
        facts.append(step.fact(tensor, layout, () if op == "Size" else None, value))
    return facts


def _is_fixed(step: StepWalk, fact: Fact) -> bool:
    """Whether a tensor's shape is known to be equal everywhere, or to follow from batch lengths."""
    return fact.dims is not None and all(one.number is not None or step.has_batch(one) for one in fact.dims)


def print_out(step: StepWalk, node: str) -> list[Fact] | None:
    """Print returns its first input; each worker prints its own part of the others."""
    fact = step.inputs(node)[0]
    step.keep_local(node)
    return step.all_outputs(node, fact.layout, fact.dims, fact.value)


def rank_of(step: StepWalk, node: str) -> list[Fact] | None:
    """Rank is the same everywhere."""
    rank = step.inputs(node)[0].rank
    step.keep_local(node)
    return step.all_outputs(node, REPLICATED, (), None if rank is None else Length.of(rank))


def gradient_axes(step: StepWalk, node: str) -> list[Fact] | None:
    """BroadcastGradientArgs: the axes follow from lengths in the program of one process."""
    one, other = step.inputs(node)
    if not _is_plain((one, other)):
        return None
    values = reduced_axes(one, other, step.batch_of)
    if not _can_be_local(step, one, other):
        step.replicate(node)  # per-worker lengths may differ from the global ones next to them
    step.keep_local(node)
    return [
        step.fact(tensor, REPLICATED, (Length.of(len(value)),) if isinstance(value, tuple) else None, value)
        for tensor, value in zip(step.view.outputs(node), values, strict=True)
    ]


def _can_be_local(step: StepWalk, one: Fact, other: Fact) -> bool:
    """Whether two per-worker shapes are compatible if those of one process are: a batch with itself, or with 1."""
    left, right = one.values(), other.values()
    if left is None or right is None:
        return False
    for a, b in zip(reversed(left), reversed(right), strict=False):
        if a is None or b is None:
            return False
        is_one_batch = (a == b or step.batch_of(a) == step.batch_of(b) is not None) and one.layout == other.layout
        if (step.has_batch(a) or step.has_batch(b)) and ONE not in (a, b) and not is_one_batch:
            return False
    return True


def offsets_of_pieces(step: StepWalk, node: str) -> list[Fact] | None:
    """ConcatOffset: the offset of each of several concatenated tensors."""
    facts = step.inputs(node)
    along, shapes = facts[0].numbers(), [fact.values() for fact in facts[1:]]
    if not _is_plain(facts):
        return None
    layout = LENGTHS if all(f.is_lengths for f in facts[1:]) else REPLICATED
    if layout == REPLICATED:
        step.replicate(node)  # per-worker lengths are not those of the full tensor next to them
    step.keep_local(node)
    offsets, begin = list[Fact](), Length()
    for tensor, shape, fact in zip(step.view.outputs(node), shapes, facts[1:], strict=True):
        length = shape[along[0]] if shape is not None and along is not None else None
        if shape is None or along is None or length is None:
            return step.all_outputs(node, layout)
        value = tuple(begin if n == along[0] else Length() for n in range(len(shape)))
        offsets.append(step.fact(tensor, layout, fact.dims, value))
        begin = begin + length
    return offsets


def _has_constant_seed(view: GraphView, node: str) -> bool:
    """Whether a stateless random op draws the same numbers in every step."""
    seeds = [split_tensor(tensor)[0] for tensor in view.inputs(node)[1:]]
    return {view.op(one) for one in view.ancestors(seeds)} <= _OF_CONSTANTS


def draw(step: StepWalk, node: str) -> list[Fact] | None:
    """A random op: per example each worker draws its own numbers, and otherwise all draw equal ones.

    The draw of a constant seed is a constant of one process, which all workers draw in full.
    """
    facts = step.inputs(node)
    dims = facts[0].complete_values()
    if step.view.op(node).startswith("Stateless") and _has_constant_seed(step.view, node):
        step.replicate(node)
        step.equal_draws.append(node)
        return step.all_outputs(node, REPLICATED, dims)
    axes = [axis for axis, n in enumerate(facts[0].values() or ()) if step.part_of(n) is not None]
    step.replicate(node, range(1, len(facts)))
    if facts[0].is_lengths and axes and dims is not None:
        part: ShardedAxis | None = step.part_of(dims[axes[0]])
        if part is not None:
            step.localize(node, 0, axes[0], dims)
            return step.all_outputs(node, Sharded(axes[0], part), dims)
    step.require_layout(node, 0, REPLICATED)
    step.equal_draws.append(node)
    return step.all_outputs(node, REPLICATED, dims)


def pass_each(step: StepWalk, node: str) -> list[Fact] | None:
    """IdentityN and NextIteration: each result has the layout of its input."""
    return list(step.inputs(node))
