"""Layout rules of ops that treat each example independently, whichever axis of an input or result has the examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parallax.analysis.layouts.rules.elementwise import align
from parallax.analysis.layouts.rules.facts import REPLICATED, SUM, Dims, Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.plans.layouts import Layout, Sharded

Rule = Callable[[StepWalk, str], list[Fact] | None]
_FindDims = Callable[[list[Fact]], Mapping[int | None, Dims | None]]


def by_example(*slots: int, shaped_as_first: int | None = None) -> Rule:
    """The rule of ops with examples along the first axis of some inputs, and of all results."""
    return by_axes(dict.fromkeys(slots, 0), (0,), lambda facts: {shaped_as_first: facts[0].dims})


def by_axes(
    input_axes: Mapping[int, int], output_axes: tuple[int | None, ...], find_dims: _FindDims | None = None
) -> Rule:
    """The rule of ops that treat each example independently; inputs without examples are read in full.

    Args:
        input_axes: the example axis of an input, by its index.
        output_axes: the example axis of each result; None: it is a sum over the examples. Unnamed results have the last
            one's.
        find_dims: returns the lengths of results, by their index, from the inputs' facts.
    """

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        facts, outputs = step.inputs(node), step.view.outputs(node)
        present = {slot: axis for slot, axis in input_axes.items() if slot < len(facts)}
        parts = [facts[slot].part for slot, axis in present.items() if facts[slot].axis == axis]
        if not parts or any(facts[slot].axis not in (axis, None) for slot, axis in present.items()) or parts[0] is None:
            return None
        if any(facts[slot].part is None and facts[slot].rank is None for slot in present):
            return None  # it is unknown whether it has the axis
        for slot, fact in enumerate(facts):
            if slot in present:
                align(step, node, slot, fact, present[slot], parts[0])
            elif fact.is_lengths:  # the shape of an input is per-worker
                step.keep_local(node, (slot,))
            else:
                step.require_layout(node, slot, REPLICATED)
        axes = [*output_axes, *output_axes[-1:] * len(outputs)][: len(outputs)]
        layouts: list[Layout] = [SUM if axis is None else Sharded(axis, parts[0]) for axis in axes]
        dims = find_dims(facts) if find_dims is not None else {}
        results = enumerate(zip(outputs, layouts, strict=True))
        return [step.fact(tensor, layout, dims.get(place)) for place, (tensor, layout) in results]

    return rule


def number_within_examples(*slots: int) -> Rule:
    """The rule of ops that number values within their example, unless they number them within the batch."""
    of_examples = by_example(*slots)

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        return None if step.view.flag(node, "include_batch_in_index") else of_examples(step, node)

    return rule


def dims_over_time(facts: list[Fact]) -> dict[int | None, Dims | None]:
    """BlockLSTM: all steps of a cell, [time, batch, state] each, of inputs [time, batch, width] and states."""
    inputs, state = facts[1].dims, facts[2].dims
    return {} if inputs is None or state is None else dict.fromkeys(range(7), (inputs[0], *state))


def turn_sequences(step: StepWalk, node: str) -> list[Fact] | None:
    """ReverseSequence, for examples of individual lengths."""
    axis = step.view.nodes[node].attr["batch_dim"].i
    return by_axes({0: axis, 1: 0}, (axis,))(step, node)
