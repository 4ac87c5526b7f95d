"""Rules of gathers and scatters by several indices, of which the first may be the number of the example itself."""

from __future__ import annotations

from parallax.analysis.layouts.along import plain, scatter_rows
from parallax.analysis.layouts.elementwise import align
from parallax.analysis.layouts.facts import Fact
from parallax.analysis.layouts.step_walk import StepWalk
from parallax.graph.view import split_tensor
from parallax.plans.layouts import ExampleNumbers, Sharded, ShardedAxis

_MOVES = ("BroadcastTo", "Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "Tile", "Transpose")
"""Ops that leave each entry with its example, if their results are sharded as what they move."""


def look_up_nested(step: StepWalk, node: str) -> list[Fact] | None:
    """GatherNd: of what all workers have, or of each example's own; else of examples that may be any worker's."""
    params, indices = step.inputs(node)
    if params.part is None and indices.part is None:
        return plain(step, node)
    if indices.part is None or indices.rank is None or indices.axis == indices.rank - 1:
        return None
    if params.is_same:
        return step.all_outputs(node, Sharded(indices.axis or 0, indices.part))
    if params.axis != 0 or params.part != indices.part or not _begins_with_examples(step, node, 1):
        return None
    step.take(node, 1, ExampleNumbers(indices.part))
    return step.all_outputs(node, Sharded(0, indices.part))


def scatter_nested(step: StepWalk, node: str) -> list[Fact] | None:
    """ScatterNd: into each example's own rows, or a partial sum."""
    places, rows, shape = step.inputs(node)
    dims, part = shape.values(), places.part
    is_own = part is not None and dims and dims[0] == part.length and rows.part == part and rows.axis == 0
    if part is None or dims is None or not is_own or not _begins_with_examples(step, node, 0):
        return scatter_rows(step, node)
    step.take(node, 0, ExampleNumbers(part))
    align(step, node, 1, rows, 0, part)
    step.localize(node, 2, 0, dims)
    known = tuple(length for length in dims if length is not None)
    return step.all_outputs(node, Sharded(0, part), known if len(known) == len(dims) else None)


def _begins_with_examples(step: StepWalk, node: str, slot: int) -> bool:
    """Whether the first of an input's numbers, along its last axis, is everywhere that of the example."""
    view, tensor = step.view, step.view.inputs(node)[slot]
    fact = step.facts[tensor]
    if fact.axis != 0 or fact.rank is None or fact.rank < 2 or fact.part is None:
        return False
    if fact.part != ShardedAxis(fact.part.batch):
        return False
    joined = split_tensor(view.source(tensor))[0]
    is_joined = view.op(joined) in ("ConcatV2", "Pack") and _is_along_last(step, joined, fact.rank)
    return _are_examples(step, view.inputs(joined)[0] if is_joined else tensor, fact.part)


def _is_along_last(step: StepWalk, node: str, rank: int) -> bool:
    view = step.view
    if view.op(node) == "Pack":
        return int(view.nodes[node].attr["axis"].i) in (-1, rank - 1)
    axis = step.facts[view.inputs(node)[-1]].numbers()
    return axis is not None and axis[0] in (-1, rank - 1)


def _are_examples(step: StepWalk, tensor: str, part: ShardedAxis) -> bool:
    """Whether every entry of a tensor is the number of the example that it is of."""
    view = step.view
    while True:
        node, fact = split_tensor(tensor)[0], step.facts[tensor]
        if fact.part != part:
            return False
        if view.op(node) == "Range":
            return any(one.node == node for one in step.ranges)
        inputs = view.inputs(node)
        if view.op(node) in _MOVES or (view.op(node) == "Pack" and len(inputs) == 1):
            tensor = inputs[0]
        elif view.op(node) == "Mul" and any(_is_of_ones(step, one) for one in inputs):
            tensor = next((one for one in inputs if not _is_of_ones(step, one)), inputs[0])
        else:
            return False


def _is_of_ones(step: StepWalk, tensor: str) -> bool:
    node = split_tensor(step.view.source(tensor))[0]
    if step.view.op(node) == "OnesLike":
        return True
    value = step.view.constant(step.view.inputs(node)[1]) if step.view.op(node) == "Fill" else None
    return value is not None and bool((value == 1).all())
