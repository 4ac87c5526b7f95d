"""Layout rules of scatters with several indices: into rows of examples, along a window axis, or as a partial sum."""

from __future__ import annotations

from parallax.analysis.layouts.rules.elementwise import align
from parallax.analysis.layouts.rules.facts import REPLICATED, SUM, Fact
from parallax.analysis.layouts.rules.indexed_ops import count_components, find_first_numbers, find_numbers
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.plans.layouts import ExampleNumbers, Sharded, ShardedAxis


def scatter(step: StepWalk, node: str) -> list[Fact] | None:
    """ScatterNd: into rows of each worker's examples, along an axis that is not indexed, or a partial sum."""
    places, rows, shape = step.inputs(node)
    dims, part = shape.values(), places.part
    window = _find_window(places, rows)
    if window is not None and rows.part is not None and dims is not None:
        step.localize(node, 2, window, dims)
        return step.all_outputs(node, Sharded(window, rows.part), shape.complete_values())
    if places.axis != 0 or part is None:
        return None
    example = step.part_of(dims[0]) if dims and (rows.axis, rows.part) == (0, part) else None
    numbers = _find_rows(step, node, 0, example)
    if numbers is None or dims is None or example is None:
        step.require_layout(node, 2, REPLICATED)
        return None if align(step, node, 1, rows, 0, part).part is None else step.all_outputs(node, SUM)
    step.require_layout(node, 0, numbers)
    step.localize(node, 2, 0, dims)
    return step.all_outputs(node, Sharded(0, example), shape.complete_values())


def scatter_into(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorScatterUpdate and similar: into rows of each worker's examples, or along an axis that is not indexed."""
    tensor, places, rows = step.inputs(node)
    depth = count_components(places)
    if depth is None or places.rank is None:
        return None
    if places.is_same:
        axis, part = tensor.axis, tensor.part
        if part is None:
            axis, part = _find_window(places, rows), rows.part
        if axis is None or part is None or axis < depth:
            return None
        align(step, node, 0, tensor, axis, part)
        align(step, node, 2, rows, places.rank - 1 + axis - depth, part)
        return step.all_outputs(node, Sharded(axis, part), tensor.dims)
    is_along = places.part is not None and (0, places.part) == (rows.axis, rows.part) and places.axis == 0
    example = step.part_of(tensor.dims[0]) if is_along and tensor.dims else None
    numbers = _find_rows(step, node, 1, example)
    if numbers is None or example is None or not (tensor.is_same or (tensor.axis, tensor.part) == (0, example)):
        return None
    step.require_layout(node, 1, numbers)
    align(step, node, 0, tensor, 0, example)
    return step.all_outputs(node, Sharded(0, example), tensor.dims)


def _find_rows(step: StepWalk, node: str, slot: int, example: ShardedAxis | None) -> ExampleNumbers | None:
    """The layout of an input of indices, if each begins with the index of one of a worker's examples."""
    if example is None:
        return None
    tensor = step.view.inputs(node)[slot]
    is_alone = count_components(step.facts[tensor]) == 1
    numbers = find_first_numbers(step, node, slot, example)
    return find_numbers(step, tensor, example) if numbers is None and is_alone else numbers


def _find_window(places: Fact, rows: Fact) -> int | None:
    """The result axis of the axis along which rows are sharded, if the indices do not select from it."""
    depth = count_components(places)
    if not places.is_same or depth is None or places.rank is None or rows.axis is None:
        return None
    behind = rows.axis - (places.rank - 1)
    return depth + behind if behind >= 0 else None
