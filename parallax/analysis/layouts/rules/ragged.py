"""Layout rules of ops that read the row splits of a ragged batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import tensorflow as tf

from parallax.analysis.layouts.rules.facts import REPLICATED, Fact
from parallax.analysis.layouts.rules.indexed_ops import find_numbers
from parallax.analysis.layouts.rules.reductions import reduce_axes
from parallax.analysis.layouts.rules.slicing import slice_strided
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.base.errors import GraphError
from parallax.graph.lengths import Length
from parallax.graph.view import GraphView, node_of
from parallax.plans.layouts import OffsetRange, RowEnds, Sharded, ShardedAxis

TAKE_ENDS = ("Cast", "Identity", "RaggedTensorToTensor", "Shape", "StridedSlice")
"""Ops whose rules read per-worker row splits; all others read them replicated."""
_BY_ENDS, _BY_NUMBERS = b"ROW_SPLITS", [b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"]


def check_fed_ends(view: GraphView, sources: Iterable[str]) -> None:
    """Refuses a script's graph that feeds row splits: each worker's are offsets into its own elements.

    Args:
        view: the graph.
        sources: the nodes that produce batches.
    """
    for node in sources:
        tensor = f"{node}:0"
        shape, dtype = view.shape(tensor), tf.as_dtype(view.dtype(tensor))
        cuts = [one.node for one in view.consumers(tensor) if view.op(one.node) == "StridedSlice"]
        begins = {_find_first(view, view.inputs(cut)[1]) for cut in cuts}
        ends = {_find_first(view, view.inputs(cut)[2]) for cut in cuts}
        if dtype.is_integer and shape is not None and len(shape) == 1 and 1 in begins and -1 in ends:
            raise GraphError(
                f"{node!r} may be fed with row splits, since the graph uses the differences of its entries, and row "
                "splits of the global batch cannot be fed in per-worker parts. Feed dense ids, or use ragged tensors "
                "with Keras or parallax.function."
            )


def _find_first(view: GraphView, tensor: str) -> int | None:
    value = view.constant(tensor)
    return int(value[0]) if value is not None and value.shape == (1,) else None


def slice_ends(step: StepWalk, node: str) -> list[Fact] | None:
    """Row begins, or ends, have an entry for each row; any other slice of row splits is replicated."""
    facts = step.inputs(node)
    layout = facts[0].layout
    if not isinstance(layout, RowEnds):
        return slice_strided(step, node)
    begin, end, stride = (fact.numbers() for fact in facts[1:])
    masks = [step.view.nodes[node].attr[f"{name}_mask"].i for name in ("begin", "end")]
    others = [step.view.nodes[node].attr[f"{name}_mask"].i for name in ("ellipsis", "new_axis", "shrink_axis")]
    is_first = masks[0] or begin == [0]
    is_of_rows = (is_first and not masks[1] and end == [-1]) or (begin == [1] and masks == [0, 1])
    if stride != [1] or any(others) or not is_of_rows:
        step.require_layout(node, 0, REPLICATED)
        return slice_strided(step, node)
    step.ranges.append(OffsetRange(node, ShardedAxis(layout.elements)))
    return step.all_outputs(node, Sharded(0, ShardedAxis(layout.rows)))


def find_longest(step: StepWalk, node: str) -> list[Fact] | None:
    """Max: of row lengths it is the length to which rows are padded."""
    facts = reduce_axes(step, node)
    ends = _find_ends_of_lengths(step, step.view.inputs(node)[0])
    if facts is None or ends is None or facts[0].rank != 0:
        return facts
    return [replace(facts[0], value=_name_longest(ends))]


def _name_longest(ends: RowEnds) -> Length:
    return Length.of(f"longest of {ends.elements}")


def _find_ends_of_lengths(step: StepWalk, tensor: str) -> RowEnds | None:
    """For row lengths, the row splits: they are computed as an end less a begin."""
    view, node = step.view, node_of(step.view.source(tensor))
    while view.op(node) == "Cast":
        node = node_of(view.source(view.inputs(node)[0]))
    cuts = [node_of(view.source(one)) for one in view.inputs(node)] if view.op(node) == "Sub" else []
    if [view.op(one) for one in cuts] != ["StridedSlice", "StridedSlice"]:
        return None
    layouts = [step.facts[view.inputs(one)[0]].layout for one in cuts]
    begins = [step.facts[view.inputs(one)[1]].numbers() for one in cuts]
    layout = layouts[0]
    is_length = layout == layouts[1] and begins == [[1], [0]] and step.facts[f"{node}:0"].axis == 0
    return layout if is_length and isinstance(layout, RowEnds) else None


def fill_up(step: StepWalk, node: str) -> list[Fact] | None:
    """RaggedTensorToTensor: rows have the length of the longest of the global batch, or that of a shape."""
    shape, values, default, *partitions = step.inputs(node)
    kinds = list(step.view.nodes[node].attr["row_partition_types"].list.s)
    if kinds == _BY_NUMBERS and not any(isinstance(one.layout, RowEnds) for one in partitions):
        return _fill_up_by_numbers(step, node)
    ends = partitions[0].layout
    is_by_ends = kinds == [_BY_ENDS] and isinstance(ends, RowEnds)
    if not isinstance(ends, RowEnds) or not is_by_ends or values.axis != 0 or values.part != ShardedAxis(ends.elements):
        step.replicate_layouts(node, RowEnds)
        return None
    lengths = shape.values()
    if lengths is None or None in lengths or not (default.is_same or default.is_lengths):
        step.replicate_layouts(node, RowEnds)
        return None
    rows = Length.of(ends.rows)
    if len(lengths) > 1 and lengths[0] not in (Length.of(-1), rows):
        step.replicate_layouts(node, RowEnds)
        return None
    requested_length = lengths[1] if len(lengths) > 1 else Length.of(-1)
    if requested_length == Length.of(-1):
        step.padded.append(node)
    if lengths[0] == rows:
        step.localize(node, 0, 0, lengths)
    step.require_layout(node, 2, REPLICATED)
    longest = _name_longest(ends) if requested_length is None or requested_length == Length.of(-1) else requested_length
    inner = (values.dims or ())[1:]
    return step.all_outputs(node, Sharded(0, ShardedAxis(ends.rows)), (rows, longest, *inner))


def _fill_up_by_numbers(step: StepWalk, node: str) -> list[Fact] | None:
    """The same where each value has the index of its example."""
    shape, values, default, rows, numbers = step.inputs(node)
    lengths, example = shape.values(), step.part_of(rows.value if isinstance(rows.value, Length) else None)
    if example is None or values.axis != 0 or values.part is None or numbers.part != values.part:
        return None
    counted = find_numbers(step, step.view.inputs(node)[4], example)
    if counted is None or not lengths or None in lengths[1:2] or lengths[0] not in (Length.of(-1), example.length):
        return None
    if not (default.is_same or default.is_lengths):
        return None
    length = lengths[1] if len(lengths) > 1 and lengths[1] is not None else Length.of(-1)
    if length == Length.of(-1):
        step.padded.append(node)
        length = Length.of(f"longest of {node}")
    step.require_layout(node, 4, counted)
    step.keep_local(node, [3])
    if lengths[0] == example.length:
        step.localize(node, 0, 0, lengths)
    step.require_layout(node, 2, REPLICATED)
    inner = (values.dims or ())[1:]
    return step.all_outputs(node, Sharded(0, example), (example.length, length, *inner))
