"""Layout rules of ops that act along some axes, and treat examples along the others independently."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parallax.analysis.layouts.rules.elementwise import align
from parallax.analysis.layouts.rules.facts import REPLICATED, SUM, Dims, Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.plans.layouts import Layout, Sharded

Rule = Callable[[StepWalk, str], list[Fact] | None]
FindAxes = Callable[[Sequence[Fact]], Sequence[int] | None]
_FindDims = Callable[[list[Fact]], Mapping[int | None, Dims | None]]
_LINEAR_ALONG = ("Cumsum", "ReverseV2")


def make_example_rule(*slots: int, shaped_as_first: int | None = None, shape_slot: int | None = None) -> Rule:
    """The rule of ops with examples along the first axis of some inputs, and of all results.

    Args:
        slots: the indices of these inputs.
        shaped_as_first: the index of a result with the first input's shape.
        shape_slot: the index of the input that is the shape of the results.
    """
    rule = make_example_axes_rule(dict.fromkeys(slots, 0), (0,), lambda facts: {shaped_as_first: facts[0].dims})

    if shape_slot is None:
        return rule
    slot = shape_slot

    def rule_of_shape(step: StepWalk, node: str) -> list[Fact] | None:
        results = rule(step, node)
        if results is not None and results[0].part is not None and step.inputs(node)[slot].is_same:
            step.localize_axis(node, slot, 0, results[0].part)
        return results

    return rule_of_shape


def make_example_axes_rule(
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
    of_examples = make_example_rule(*slots)

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        return None if step.view.flag(node, "include_batch_in_index") else of_examples(step, node)

    return rule


def dims_over_time(facts: list[Fact]) -> dict[int | None, Dims | None]:
    """BlockLSTM: all steps of a cell, [time, batch, state] each, of inputs [time, batch, width] and states."""
    inputs, state = facts[1].dims, facts[2].dims
    return {} if inputs is None or state is None else dict.fromkeys(range(7), (inputs[0], *state))


def reverse_sequences(step: StepWalk, node: str) -> list[Fact] | None:
    """ReverseSequence, for examples of individual lengths."""
    axis = step.view.nodes[node].attr["batch_dim"].i
    return make_example_axes_rule({0: axis, 1: 0}, (axis,), lambda facts: {0: facts[0].dims})(step, node)


def make_axis_rule(find_axes: FindAxes, drops_axes: bool = False, keeps_shape: bool = False) -> Rule:
    """The rule of ops that act along some axes of the first input and treat the others independently.

    Args:
        find_axes: returns these axes from the inputs' facts; None where they are unknown.
        drops_axes: whether the result lacks them.
        keeps_shape: whether the result has the shape of the first input.
    """

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        facts = step.inputs(node)
        fact, axes = facts[0], find_axes(facts)
        dims = fact.dims if keeps_shape else None
        if dims is not None and fact.value is None and all(one.is_same for one in facts):
            return step.all_outputs(node, REPLICATED, dims)
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
        if drops_axes and fact.dims is not None:
            dims = tuple(length for place, length in enumerate(fact.dims) if place not in over)
        return step.all_outputs(node, Sharded(axis, fact.part), dims)

    return rule


def find_last_axis(facts: Sequence[Fact]) -> Sequence[int]:
    """The last axis, as for softmax."""
    return (-1,)


def find_matrix_axes(facts: Sequence[Fact]) -> Sequence[int]:
    """The last two axes, which are matrices."""
    return (-2, -1)


def find_volume_axes(facts: Sequence[Fact]) -> Sequence[int]:
    """The last three axes, as for transforms of volumes."""
    return (-3, -2, -1)


def find_diagonal_axes(facts: Sequence[Fact]) -> Sequence[int]:
    """The last axis of an input to matrices, or of several diagonals the last two."""
    return (-1,) if len(facts) == 1 or facts[1].rank == 0 else (-2, -1)


def read_axes_from(slot: int) -> FindAxes:
    """The axes given by an input."""
    return lambda facts: facts[slot].numbers()


def make_pair_rule(result_like: int, inner: int = 2) -> Rule:
    """The rule of ops on matrices, the last two axes, and on what the second input has for each of them.

    Args:
        result_like: which of the two has the shape of the result.
        inner: the number of last axes on which the op acts: 1 for vectors.
    """

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        facts = step.inputs(node)
        part, axis = next(((f.part, f.axis) for f in facts[:2] if f.part is not None), (None, None))
        rank = facts[0].rank
        if part is None or axis is None or rank is None or axis >= rank - inner:
            return None
        if any(is_partial(f) or (f.part is not None and f.axis != axis) for f in facts):
            return None
        if any(align(step, node, slot, facts[slot], axis, part).part != part for slot in (0, 1)):
            return None
        for slot in range(2, len(facts)):
            step.require_layout(node, slot, REPLICATED)
        return step.all_outputs(node, Sharded(axis, part), facts[result_like].dims)

    return rule


def solve(step: StepWalk, node: str) -> list[Fact] | None:
    """MatrixSolve and similar: right sides, the columns of matrices, for matrices of their own or for one."""
    matrices, right = step.inputs(node)[:2]
    if matrices.rank is None or matrices.rank != right.rank:
        return None
    if matrices.is_same and (right.is_sum or right.axis == matrices.rank - 1):
        return step.all_outputs(node, right.layout, right.dims)
    return make_pair_rule(1)(step, node)
