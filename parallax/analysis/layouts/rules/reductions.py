"""Layout rules of ops that reduce along axes, by segment, or by value."""

from __future__ import annotations

from parallax.analysis.layouts.rules.elementwise import INTEGERS, align
from parallax.analysis.layouts.rules.facts import COUNTED, LENGTHS, REPLICATED, SUM, Dims, Fact
from parallax.analysis.layouts.rules.plain import is_plain
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.analysis.layouts.rules.values import compute_value, summed_axes
from parallax.graph.lengths import ONE, Length
from parallax.graph.view import node_of, split_tensor
from parallax.plans.layouts import Partial, ScaledMean, Sharded, ShardedAxis

_KINDS = {"Sum": "sum", "Mean": "sum", "Max": "max", "Min": "min", "All": "min", "Any": "max"}


def reduce_axes(step: StepWalk, node: str) -> list[Fact] | None:
    """Over a sharded axis a partial result; over others the axis is preserved."""
    op, (fact, axes) = step.view.op(node), step.inputs(node)
    _read_axes_of_one_process(step, node, fact)
    if fact.is_same or fact.is_lengths:
        axes = axes if fact.is_lengths and axes.is_lengths else step.require_layout(node, 1, REPLICATED)
        layout = REPLICATED if fact.is_same and axes.is_same else LENGTHS
        picked = axes.numbers()
        value = compute_value(step.view, node, (fact, axes))
        return step.all_outputs(node, layout, without_axes(step, node, fact, picked), value)
    step.require_layout(node, 1, REPLICATED)
    picked = axes.numbers()
    if fact.is_sum and (op == "Sum" or (op == "Mean" and not _is_rounded(step, node))):
        return step.all_outputs(node, fact.layout, without_axes(step, node, fact, picked))
    if is_partial(fact):
        fact = step.require_layout(node, 0, REPLICATED)
        return step.all_outputs(node, REPLICATED, without_axes(step, node, fact, picked))
    if fact.part is None or fact.axis is None or fact.rank is None:
        return None
    if picked is None:
        return _sum_broadcast(step, node, fact, fact.axis, fact.part) if op == "Sum" else None
    over = {axis % fact.rank for axis in picked} if fact.rank else set[int]()
    dims = without_axes(step, node, fact, picked)
    if fact.axis not in over:
        axis = fact.axis if step.view.flag(node, "keep_dims") else fact.axis - sum(a < fact.axis for a in over)
        return step.all_outputs(node, Sharded(axis, fact.part), dims)
    if op not in _KINDS or (op == "Mean" and _is_rounded(step, node)):
        return None
    if op == "Mean":
        step.means.append(ScaledMean(node, fact.part.batch, dealt=None if fact.part.is_even else fact.part))
        return step.all_outputs(node, COUNTED, dims)
    return step.all_outputs(node, Partial(_KINDS[op]), dims)


def _read_axes_of_one_process(step: StepWalk, node: str, fact: Fact) -> None:
    """Sums a gradient that has all examples over no axis of which a worker has one row alone."""
    maker = node_of(step.view.inputs(node)[1])
    if step.view.op(maker) != "BroadcastGradientArgs" or not is_plain(step.inputs(maker)):
        return
    shapes = [shape.values() or [] for shape in step.inputs(maker)]
    rank = max(map(len, shapes))
    places = ((place + rank - len(shape), length) for shape in shapes for place, length in enumerate(shape))
    local = {place for place, length in places if length is not None and step.has_batch(length)}
    if fact.is_same or is_partial(fact) or (fact.part is not None and local - {fact.axis}):
        step.replicate(maker)


def _is_rounded(step: StepWalk, node: str) -> bool:
    """Whether a mean is one of integers, which is rounded: workers' parts of it do not add up to it."""
    return step.view.dtype(f"{node}:0") in INTEGERS


def _sum_broadcast(step: StepWalk, node: str, fact: Fact, axis: int, part: ShardedAxis) -> list[Fact] | None:
    """A gradient's sum over the axes along which its tensor was broadcast, where some of them are unknown."""
    maker, slot = split_tensor(step.view.inputs(node)[1])
    if step.view.op(maker) != "BroadcastGradientArgs":
        return None
    one, other = step.inputs(maker)
    both = summed_axes(one, other, step.batch_of)
    if both is None or fact.dims is None or len(both[0]) > len(fact.dims):
        return None
    are_summed = [*both[slot], *[False] * (len(fact.dims) - len(both[0]))]  # matrices are not broadcast
    is_kept = step.view.flag(node, "keep_dims")
    if None in (are_summed[axis : axis + 1] if is_kept else are_summed[: axis + 1]):
        return None
    if are_summed[axis]:
        return step.all_outputs(node, SUM)
    if not is_kept:
        return step.all_outputs(node, Sharded(axis - sum(map(bool, are_summed[:axis])), part))
    dims = [
        ONE if is_over else length if is_over is not None else Length.of(f"{step.prefix}{node}:0[{place}]")
        for place, (is_over, length) in enumerate(zip(are_summed, fact.dims, strict=True))
    ]
    return step.all_outputs(node, Sharded(axis, part), tuple(dims))


def without_axes(step: StepWalk, node: str, fact: Fact, axes: list[int] | None) -> Dims | None:
    """The remaining lengths."""
    if fact.dims is None or axes is None:
        return None
    over = {axis % len(fact.dims) for axis in axes} if fact.dims else set[int]()
    if step.view.flag(node, "keep_dims"):
        return tuple(ONE if axis in over else length for axis, length in enumerate(fact.dims))
    return tuple(length for axis, length in enumerate(fact.dims) if axis not in over)


def sum_of_squares(step: StepWalk, node: str) -> list[Fact] | None:
    """L2Loss: a partial sum of a sharded input."""
    fact = step.inputs(node)[0]
    return step.all_outputs(node, SUM, ()) if fact.part is not None else None


def bias_gradient(step: StepWalk, node: str) -> list[Fact] | None:
    """A sum over all axes but that of the channels."""
    fact = step.inputs(node)[0]
    if fact.is_sum:
        return step.all_outputs(node, fact.layout)
    channels = 1 if step.view.nodes[node].attr["data_format"].s == b"NCHW" else (fact.rank or 0) - 1
    return step.all_outputs(node, SUM) if fact.part is not None and fact.axis != channels else None


def add_by_segment(step: StepWalk, node: str) -> list[Fact] | None:
    """UnsortedSegmentSum and similar: a partial sum, where rows and their segments are sharded alike.

    An axis after those of the segments stays sharded.
    """
    kind = {"UnsortedSegmentSum": "sum", "UnsortedSegmentMax": "max", "UnsortedSegmentMin": "min"}[step.view.op(node)]
    data, segments, count = step.inputs(node)
    if is_plain((data, segments, count)):
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
