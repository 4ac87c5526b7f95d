"""Layout rules of ops that create tensors: ranges, one-hot vectors, random draws."""

from __future__ import annotations

from parallax.analysis.layouts.rules.axes import make_example_rule
from parallax.analysis.layouts.rules.elementwise import align
from parallax.analysis.layouts.rules.facts import REPLICATED, Fact
from parallax.analysis.layouts.rules.plain import is_plain
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.analysis.layouts.rules.values import compute_value
from parallax.graph.lengths import ONE, Length
from parallax.graph.ops import is_constant, seed_slots
from parallax.plans.layouts import OffsetRange, Sharded, ShardedAxis


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
    if part is None or not part.is_even or not is_plain(facts) or first != Length() or not facts[2].is_same:
        step.replicate(node)
        return step.all_outputs(node, REPLICATED, dims)
    step.keep_local(node)
    step.ranges.append(OffsetRange(node, part, times="" if delta == ONE else step.view.inputs(node)[2]))
    return step.all_outputs(node, Sharded(0, part))


def draw_by_example(step: StepWalk, node: str) -> list[Fact] | None:
    """Multinomial: each worker draws classes for its own examples, unless a constant seed makes them one process's."""
    slots = seed_slots(step.view.op(node))
    if slots and is_constant(step.view, [step.view.inputs(node)[slot] for slot in slots]):
        return None
    return make_example_rule(0)(step, node)


def draw_by_parameter(step: StepWalk, node: str) -> list[Fact] | None:
    """RandomGamma and RandomPoisson: draws of a given shape for each parameter, of which a worker has its examples'."""
    shape, parameter = step.inputs(node)
    leading = shape.complete_values()
    if leading is None or parameter.part is None or parameter.axis is None:
        return None
    step.require_layout(node, 0, REPLICATED)
    dims = None if parameter.dims is None else (*leading, *parameter.dims)
    return step.all_outputs(node, Sharded(len(leading) + parameter.axis, parameter.part), dims)


def draw(step: StepWalk, node: str) -> list[Fact] | None:
    """A random op: per example each worker draws its own numbers, and otherwise all draw equal ones.

    The draw of a constant seed is a constant of one process, which all workers draw in full.
    """
    facts = step.inputs(node)
    dims = facts[0].complete_values()
    slots = seed_slots(step.view.op(node))
    if slots and is_constant(step.view, [step.view.inputs(node)[slot] for slot in slots]):
        step.replicate(node)
        step.equal_draws.append(node)
        return step.all_outputs(node, REPLICATED, dims)
    axes = [axis for axis, n in enumerate(facts[0].values() or ()) if step.part_of(n) is not None]
    if facts[0].is_lengths and axes and dims is not None:
        part: ShardedAxis | None = step.part_of(dims[axes[0]])
        if part is not None:
            step.replicate(node, slots)
            for slot in range(1, len(facts)):
                if slot not in slots:  # a parameter, which is broadcast to the draws
                    align(step, node, slot, facts[slot], axes[0] - len(dims) + (facts[slot].rank or 0), part)
            step.localize(node, 0, axes[0], dims)
            return step.all_outputs(node, Sharded(axes[0], part), dims)
    step.replicate(node)
    step.equal_draws.append(node)
    return step.all_outputs(node, REPLICATED, dims)
