"""Layout rules of ops that move elements: the sharded axis is followed, or the input gathered where it would split."""

from __future__ import annotations

from dataclasses import replace

from parallax.analysis.layouts.rules.elementwise import add_up, align
from parallax.analysis.layouts.rules.facts import LENGTHS, REPLICATED, Dims, Fact, shift_axis
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.analysis.layouts.rules.values import compute_value, flatten_matrix
from parallax.base.errors import GraphError
from parallax.graph.batches import declared_length, full_length
from parallax.graph.lengths import ONE, Length, multiply
from parallax.graph.view import node_of
from parallax.plans.layouts import Pieces, Sharded, ShardedAxis

_JOINS = ("Pack", "ConcatV2")


def keep_plain(step: StepWalk, node: str, facts: list[Fact], dims: Dims | None = None) -> list[Fact] | None:
    """The result if no input is sharded or partial; None if one is."""
    if not all(f.is_same or f.is_lengths for f in facts):
        return None
    is_length = any(f.is_lengths for f in facts[: len(facts) if step.view.op(node) in _JOINS else 1])
    layout = LENGTHS if is_length else REPLICATED
    if not is_length:  # a replicated tensor is sliced, or created, by the lengths of the global batch
        step.replicate(node)
    return step.all_outputs(node, layout, dims, compute_value(step.view, node, facts))


def reshape(step: StepWalk, node: str) -> list[Fact] | None:
    """Preserves a sharded axis with equally many elements before it whose length is a multiple of the batch length."""
    facts = step.inputs(node)
    fact, shape = facts
    dims = _find_shape_of_reshape(step, node, fact, shape)
    if fact.is_same or fact.is_lengths:
        if shape.is_lengths:
            step.replicate(node)
            return step.all_outputs(node, REPLICATED, dims)
        layout, value = REPLICATED if fact.is_same else LENGTHS, compute_value(step.view, node, facts)
        if value is None and fact.rank == 2 and dims is not None and len(dims) == 1:
            value = flatten_matrix(step, step.view.inputs(node)[0])
        return step.all_outputs(node, layout, dims, value)
    if is_partial(fact):
        step.require_layout(node, 1, REPLICATED)
        return step.all_outputs(node, fact.layout, dims)
    if dims is None or fact.axis is None or fact.part is None or (fact.dims is None and fact.axis > 0):
        return None
    before = multiply((fact.dims or ())[: fact.axis])
    behind = None if fact.dims is None else multiply(fact.dims[fact.axis + 1 :])
    for axis in range(len(dims)):
        part = _part_after_reshape(step, fact.part, before, dims, axis)
        if part is None and dims[axis] == fact.part.length and multiply(dims[axis + 1 :]) == behind:
            part = fact.part  # as many elements lie behind and so before it: one axis may have two lengths
        if part is not None:
            step.localize(node, 1, axis, dims)
            return step.all_outputs(node, Sharded(axis, part), dims)
    if step.is_script and all(length.number is not None for length in dims):
        raise GraphError(
            f"Reshape {node!r} gives a batch of open length the fixed shape {[length.number for length in dims]}, "
            "which cannot fit both the global batch and a per-worker batch. Leave one dimension at -1."
        )
    found = None if step.is_script else _find_numbered_axis(fact.part, dims, before, behind)
    if found is None:
        return None
    place, part = found
    step.localize_axis(node, 1, place, part)
    return step.all_outputs(node, Sharded(place, part), (*dims[:place], part.length, *dims[place + 1 :]))


def _find_numbered_axis(
    part: ShardedAxis, dims: Dims, before: Length, behind: Length | None
) -> tuple[int, ShardedAxis] | None:
    """The axis of a shape with the entries of a sharded axis, and those behind it that it takes or leaves.

    Its length is a number: one of the global batch in a front end's step.

    Args:
        part: the sharding before.
        dims: of the result.
        before: the number of elements before the sharded axis.
        behind: that behind it; None if it is unknown.
    """
    if behind is None or Length.of(0) in (*dims, before, behind):
        return None
    found = []
    for axis in range(len(dims)):
        factor = (part.factor * behind).divide(multiply(dims[axis + 1 :])) if multiply(dims[:axis]) == before else None
        if factor is not None and (part.blocks == 1 or factor == part.factor):
            found.append((axis, replace(part, factor=factor)))
    return found[0] if len(found) == 1 else None


def _part_after_reshape(step: StepWalk, part: ShardedAxis, before: Length, dims: Dims, axis: int) -> ShardedAxis | None:
    """The sharding of an axis of a result, if it has the entries of a sharded axis.

    The blocks of an axis become a separate axis before it, or such an axis becomes blocks.

    Args:
        step: the traversal.
        part: the sharding before.
        before: the number of elements before it.
        dims: of the result.
        axis: of the result.
    """
    left, shard = multiply(dims[:axis]), step.part_of(dims[axis])
    if shard is None or shard.batch != part.batch:
        return None
    if left == before and (part.blocks == 1 or dims[axis] == part.length):
        return shard if part.blocks == 1 else part
    if left == before * Length.of(part.blocks) and dims[axis] == find_block(part).length:
        return find_block(part)
    if left == before and part.is_even:  # entries of each block become several, or a part of one
        factor = shard.factor.divide(Length.of(part.blocks))
        return None if factor is None else ShardedAxis(part.batch, factor, part.blocks)
    blocks = before.divide(left)
    count = None if blocks is None or part.blocks > 1 else blocks.number
    is_of_blocks = count is not None and part.is_even and dims[axis] == part.length * Length.of(count)
    return ShardedAxis(part.batch, part.factor, count or 1) if is_of_blocks else None


def _find_shape_of_reshape(step: StepWalk, node: str, fact: Fact, shape: Fact) -> Dims | None:
    """The lengths of a result, from the requested shape and TensorFlow's inference."""
    static, requested = step.view.shape(f"{node}:0"), shape.values()
    if requested is None and static is None:
        return None
    rank = len(static) if static is not None else len(requested or ())
    lengths: list[Length | None] = [None] * rank
    for axis in range(rank):
        length = requested[axis] if requested is not None else None
        if static is not None and static[axis] is not None:
            lengths[axis] = Length.of(static[axis] or 0)
        elif length is not None and length.number != -1:
            lengths[axis] = length
    unknown = [axis for axis, length in enumerate(lengths) if length is None]
    if len(unknown) == 1 and fact.dims is not None:
        count = multiply(fact.dims).divide(multiply(n for n in lengths if n is not None))
        if count is None and fact.part is not None:  # the lengths that are known may show where the sharded axis is
            count = Length.of(f"{step.prefix}{node}:0[{unknown[0]}]")
        lengths[unknown[0]] = count
    if any(n is None for n in lengths):
        return None
    return tuple(n for n in lengths if n is not None)


def expand_dims(step: StepWalk, node: str) -> list[Fact] | None:
    """A new axis of length 1."""
    facts = step.inputs(node)
    fact, place = facts[0], facts[1].numbers()
    if fact.rank is None or place is None:
        return keep_plain(step, node, facts)
    at = place[0] % (fact.rank + 1)
    dims = (*(fact.dims or ())[:at], ONE, *(fact.dims or ())[at:])
    layout = shift_axis(fact.layout, fact.axis is not None and at <= fact.axis)
    return step.all_outputs(node, layout, dims, compute_value(step.view, node, facts))


def squeeze(step: StepWalk, node: str) -> list[Fact] | None:
    """Axes of length 1 are dropped: those of one process, since a worker may have one example of several."""
    fact = step.inputs(node)[0]
    squeezed_axes = [int(axis) for axis in step.view.nodes[node].attr["squeeze_dims"].list.i]
    has_axes = bool(squeezed_axes)
    if fact.rank is None or fact.dims is None:
        return keep_plain(step, node, [fact])
    if not has_axes:
        squeezed_axes = [axis for axis, length in enumerate(fact.dims) if length == ONE]
        if any(length.number is None and step.part_of(length) is None for length in fact.dims):
            return keep_plain(step, node, [fact])
    squeezed_axes = [axis % fact.rank for axis in squeezed_axes]
    dims = tuple(length for axis, length in enumerate(fact.dims) if axis not in squeezed_axes)
    layout = fact.layout
    if fact.axis is not None and fact.part is not None:
        if fact.axis in squeezed_axes:
            return None
        layout = Sharded(fact.axis - sum(axis < fact.axis for axis in squeezed_axes), fact.part)
        if not has_axes:
            step.squeezed[node] = tuple(squeezed_axes)
    return step.all_outputs(node, layout, dims, compute_value(step.view, node, [fact]))


def transpose(step: StepWalk, node: str) -> list[Fact] | None:
    """Axes are permuted."""
    facts = step.inputs(node)
    fact, order = facts[0], facts[1].numbers()
    if fact.dims is None or order is None:
        return keep_plain(step, node, facts)
    layout = fact.layout
    if fact.axis is not None and fact.part is not None:
        layout = Sharded(order.index(fact.axis), fact.part)
    return step.all_outputs(node, layout, tuple(fact.dims[axis] for axis in order))


def concatenate(step: StepWalk, node: str) -> list[Fact] | None:
    """Along another axis the sharded one is preserved; along that axis blocks are concatenated."""
    facts = step.inputs(node)
    tensors, place = facts[:-1], facts[-1].numbers()
    if isinstance(tensors[0].layout, Pieces):
        return step.all_outputs(node, tensors[0].layout)
    if all(f.is_same or f.is_lengths for f in facts):
        return keep_plain(step, node, facts)
    rank = next((f.rank for f in tensors if f.rank is not None), None)
    if rank is None or place is None:
        return None
    along = place[0] % rank
    dims = _find_dims_of_concat(tensors, along)
    sharded = [f for f in tensors if f.part is not None]
    if not sharded:
        if not all(f.is_sum or f.is_same for f in tensors):
            return None
        return step.all_outputs(node, add_up(step, node, range(len(tensors))), dims)
    axis, part = sharded[0].axis or 0, sharded[0].part
    if part is None:
        return None
    if axis != along:
        for slot, fact in enumerate(tensors):
            if align(step, node, slot, fact, axis, part).part is None:
                return None
        return step.all_outputs(node, Sharded(axis, part), dims)
    are_equal = all(f.axis == axis and f.part is not None and find_block(f.part) == find_block(part) for f in tensors)
    if not are_equal:
        return None
    blocks = ShardedAxis(part.batch, part.factor, sum(f.part.blocks for f in tensors if f.part is not None))
    return step.all_outputs(node, Sharded(axis, blocks), dims)


def find_block(part: ShardedAxis) -> ShardedAxis:
    """One of the blocks of an axis."""
    return ShardedAxis(part.batch, part.factor)


def _find_dims_of_concat(tensors: list[Fact], along: int) -> Dims | None:
    if any(f.dims is None for f in tensors):
        return None
    every = [f.dims for f in tensors if f.dims is not None]
    total = every[0][along]
    for dims in every[1:]:
        total = total + dims[along]
    return (*every[0][:along], total, *every[0][along + 1 :])


def pack(step: StepWalk, node: str) -> list[Fact] | None:
    """A new axis along which tensors are stacked."""
    facts = step.inputs(node)
    dims, known = None, facts[0].dims
    at = step.view.nodes[node].attr["axis"].i
    if known is not None:
        at %= len(known) + 1
        dims = (*known[:at], Length.of(len(facts)), *known[at:])
    if all(f.is_same or f.is_lengths for f in facts):
        return keep_plain(step, node, facts, dims)
    if any(f.rank is None for f in facts):
        return None
    sharded = [f for f in facts if f.part is not None]
    if not sharded:
        if not all(f.is_sum or f.is_same or f.is_lengths for f in facts):
            return None
        return step.all_outputs(node, add_up(step, node, range(len(facts))), dims)
    axis, part = sharded[0].axis or 0, sharded[0].part
    if part is None:
        return None
    for slot in range(len(facts)):
        step.require_layout(node, slot, Sharded(axis, part))
    return step.all_outputs(node, Sharded(axis + (at <= axis), part), dims)


def unpack(step: StepWalk, node: str) -> list[Fact] | None:
    """The slices along an axis."""
    fact = step.inputs(node)[0]
    if fact.rank is None:
        return keep_plain(step, node, [fact])
    at = step.view.nodes[node].attr["axis"].i % fact.rank
    dims = tuple(n for axis, n in enumerate(fact.dims or ()) if axis != at)
    if fact.axis is None or fact.part is None:
        if fact.value is not None and isinstance(fact.value, tuple) and not is_partial(fact):
            return [
                step.fact(tensor, fact.layout, (), one)
                for tensor, one in zip(step.view.outputs(node), fact.value, strict=True)
            ]
        return step.all_outputs(node, fact.layout, dims)
    if fact.axis == at:
        return None
    return step.all_outputs(node, Sharded(fact.axis - (at < fact.axis), fact.part), dims)


def tile(step: StepWalk, node: str) -> list[Fact] | None:
    """Tile: an input repeated for each example is sharded; copies of the sharded axis are blocks of it."""
    facts = step.inputs(node)
    fact, times = facts[0], facts[1].values()
    if times is None or fact.dims is None or len(times) != len(fact.dims) or None in times:
        return keep_plain(step, node, facts) if facts[1].is_same else None
    known = [n for n in times if n is not None]
    dims = tuple(a * b for a, b in zip(fact.dims, known, strict=True))
    if fact.axis is not None:
        copies, part = known[fact.axis].number, fact.part
        if part is None or not copies or (copies > 1 and not part.is_even) or any(step.part_of(n) for n in known):
            return None
        return step.all_outputs(
            node, Sharded(fact.axis, ShardedAxis(part.batch, part.factor, part.blocks * copies)), dims
        )
    axes = [axis for axis, n in enumerate(known) if step.part_of(n) is not None]
    if not axes:
        if is_partial(fact):
            return step.all_outputs(node, fact.layout, dims)
        return step.all_outputs(node, REPLICATED if fact.is_same else LENGTHS, dims)
    if fact.dims[axes[0]] == ONE:
        return _make_for_examples(step, node, 0, 1, axes, dims)
    part = step.part_of(dims[axes[0]])
    if part is None or not fact.is_same or len(axes) > 1:
        return None
    step.localize(node, 1, axes[0], tuple(known))  # a copy of the axis for each example
    return step.all_outputs(node, Sharded(axes[0], part), dims)


def broadcast_to(step: StepWalk, node: str) -> list[Fact] | None:
    """BroadcastTo: an input broadcast to the batch's length is sharded."""
    facts = step.inputs(node)
    fact, dims = facts[0], facts[1].complete_values()
    if dims is None:
        return keep_plain(step, node, facts) if facts[1].is_same else None
    axes = [axis for axis, n in enumerate(dims) if step.part_of(n) is not None]
    if fact.axis is not None and fact.part is not None:
        axis = fact.axis + len(dims) - (fact.rank or 0)
        if is_declared(step, fact.part, dims[axis]):
            step.localize_axis(node, 1, axis, fact.part)
            return step.all_outputs(node, Sharded(axis, fact.part), (*dims[:axis], fact.part.length, *dims[axis + 1 :]))
        if dims[axis] != fact.part.length:
            return None
        step.localize(node, 1, axis, dims)
        return step.all_outputs(node, Sharded(axis, fact.part), dims)
    if not axes:
        if fact.is_sum:
            step.require_layout(node, 1, REPLICATED)
            return step.all_outputs(node, fact.layout, dims)
        return step.all_outputs(node, REPLICATED if all(f.is_same for f in facts) else LENGTHS, dims)
    return _make_for_examples(step, node, 0, 1, axes, dims)


def is_declared(step: StepWalk, part: ShardedAxis, length: Length) -> bool:
    """Whether a number, of an op that accepts no other one, is the length of an axis for the usual global batch."""
    usual = 0 if step.is_script else full_length(step.view.nodes[node_of(part.batch)])
    return usual > 0 and length == Length.of(usual * part.blocks) * part.factor


def restate_length(step: StepWalk, part: ShardedAxis, length: Length) -> Length:
    """The length of some blocks of a sharded axis, where a step that is traced for its batch length has a number.

    Elsewhere an op such as `x[:32]` may have the number, and take the same entries of a shorter batch.
    """
    declared = 0 if step.is_script else declared_length(step.view.nodes[node_of(part.batch)])
    blocks = length.divide(Length.of(declared) * part.factor) if declared > 0 else None
    count = blocks.number if blocks is not None and blocks.number is not None else 0
    return replace(part, blocks=count).length if count > 0 else length


def fill(step: StepWalk, node: str) -> list[Fact] | None:
    """Fill: sharded along the batch's length."""
    shape, value = step.inputs(node)
    dims = shape.complete_values()
    if dims is None:
        return keep_plain(step, node, [shape, value]) if shape.is_same else None
    axes = [axis for axis, n in enumerate(dims) if step.part_of(n) is not None]
    if axes:
        return _make_for_examples(step, node, 1, 0, axes, dims)
    if value.is_sum:
        return step.all_outputs(node, value.layout, dims)
    layout = REPLICATED if value.is_same and shape.is_same else LENGTHS
    return step.all_outputs(node, layout, dims, compute_value(step.view, node, [shape, value]))


def make_empty(step: StepWalk, node: str) -> list[Fact] | None:
    """Empty: sharded along the batch's length."""
    shape = step.inputs(node)[0]
    dims = shape.complete_values()
    if dims is None:
        return keep_plain(step, node, [shape]) if shape.is_same else None
    axis, part = next(((a, p) for a, n in enumerate(dims) if (p := step.part_of(n)) is not None), (0, None))
    if part is None:
        step.replicate(node)
        return step.all_outputs(node, REPLICATED, dims)
    step.localize(node, 0, axis, dims)
    return step.all_outputs(node, Sharded(axis, part), dims)


def _make_for_examples(
    step: StepWalk, node: str, source: int, shape: int, axes: list[int], dims: Dims
) -> list[Fact] | None:
    """The result of expanding a source to a shape with the batch's length: sharded along the first such axis.

    All examples are equal there: it is sharded by blocks where another tensor of this length is.
    """
    part = step.blocks.get(dims[axes[0]]) or step.part_of(dims[axes[0]])
    if part is None:
        return None
    fact = step.inputs(node)[source]
    if fact.dims is None:
        return None
    align(step, node, source, fact, axes[0] - len(dims) + len(fact.dims), part)
    step.localize(node, shape, axes[0], dims)
    return step.all_outputs(node, Sharded(axes[0], part), dims)
