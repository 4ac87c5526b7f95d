"""Layout rules of scatters with several indices: into rows of examples, along a window axis, or as a partial sum."""

from __future__ import annotations

from parallax.analysis.layouts.rules.elementwise import align
from parallax.analysis.layouts.rules.facts import REPLICATED, SUM, Fact
from parallax.analysis.layouts.rules.indexed_ops import count_components, find_first_numbers, find_numbers
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.plans.layouts import Sharded, ShardedAxis


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
    numbers = None if example is None else find_first_numbers(step, node, 0, example)
    if numbers is None and example is not None and count_components(places) == 1:
        numbers = find_numbers(step, step.view.inputs(node)[0], example)
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
    part = places.part
    if part is None or places.axis != 0 or part != ShardedAxis(part.batch) or (rows.axis, rows.part) != (0, part):
        return None
    is_of_example = (tensor.axis, tensor.part) == (0, part) or (tensor.is_same and tensor.dims is not None)
    numbers = find_first_numbers(step, node, 1, part) if is_of_example else None
    if numbers is None or tensor.dims is None or tensor.dims[0] != part.length:
        return None
    step.require_layout(node, 1, numbers)
    align(step, node, 0, tensor, 0, part)
    return step.all_outputs(node, Sharded(0, part), tensor.dims)


def _find_window(places: Fact, rows: Fact) -> int | None:
    """The result axis of the axis along which rows are sharded, if the indices do not select from it."""
    depth = count_components(places)
    if not places.is_same or depth is None or places.rank is None or rows.axis is None:
        return None
    behind = rows.axis - (places.rank - 1)
    return depth + behind if behind >= 0 else None
