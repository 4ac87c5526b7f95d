"""Decides what the one process has of rows whose ids are equal on all workers: each once, or once for each example.

Where batches are of open size, ids that do not depend on the batch are the same however large it is: the one process
has their rows once (positions, equal samples). In a graph for a fixed batch the same ids may also stand for every
example (a token put in front of each, positions tiled over the batch): the graph for the joined batch has more of them.
Which of the two shows where their rows meet tensors of the batch. Rows that lie along the batch cannot be there once,
as they would not fit a larger batch; rows that are broadcast over it fit any.
"""

from __future__ import annotations

from collections.abc import Set

from parallax.analysis.propagation.axis_part import MIXED
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.distinct_ids import root
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.graph.view import GraphView, split_tensor

SHARED, JOINED = "shared", "joined"
_PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


def kind_of_equal_ids(axes: BatchAxes, ids: str, forward: Set[str]) -> str:
    """`shared`, `joined`, or the name of the op at which it cannot be told.

    Args:
        axes: along which axes tensors are joined.
        ids: the tensor, equal on all workers.
        forward: the nodes of the forward pass.
    """
    batches = fixed_batches(axes)
    if not batches:
        return SHARED
    ids = _before_parts(axes.view, ids)
    if split_tensor(ids)[0] not in forward:  # put together by autodiff, as those of a conditional's branches
        return split_tensor(ids)[0]
    meetings = _meetings(axes, ids, forward)
    misfit = [edge for edge in meetings if not _fits_any_batch(axes, *edge)]
    if not misfit:
        return SHARED
    shape = axes.shape(ids)
    apart = shape is not None and None not in shape
    for axis, length in enumerate(shape or ()):
        if not length or not any(length % batch == 0 for batch in batches):
            continue  # no batch can make it longer
        tried = axes.trying(ids, axis)
        if all(_lies_along_batch(tried, *edge) for edge in meetings):
            return JOINED
        apart = apart and all(_is_apart(axes, tried, *edge) for edge in misfit)
    return SHARED if apart else misfit[0][0]


def _before_parts(view: GraphView, ids: str) -> str:
    """The ids before they were dealt out to the parts of a table and numbered within each."""
    tensor = root(view, ids)
    if view.op(split_tensor(tensor)[0]) != "DynamicPartition":
        return ids
    tensor = root(view, view.inputs(split_tensor(tensor)[0])[0])
    while view.op(split_tensor(tensor)[0]) in FORWARD_ELEMENTWISE:
        wide = [t for t in view.inputs(split_tensor(tensor)[0]) if view.shape(t) != ()]
        if not wide:
            break
        tensor = root(view, wide[-1])
    return tensor


def fixed_batches(axes: BatchAxes) -> set[int]:
    """The sizes of batches that are fixed in the graph."""
    found = set()
    for node in axes.view.nodes:
        for tensor in axes.sources_of(node):
            shape = axes.shape(tensor)
            if shape and shape[0] is not None and shape[0] > 1:
                found.add(shape[0])
    return found


def _meetings(axes: BatchAxes, ids: str, forward: Set[str]) -> list[tuple[str, str]]:
    """(op, tensor) wherever the ids, or what is computed of their rows alone, meet what differs between workers."""
    view, found, waiting = axes.view, [], [ids]
    seen = set(waiting)
    while waiting:
        tensor = waiting.pop(0)
        for edge in view.consumers(tensor):
            if edge.node not in forward:
                continue
            if any(not axes.is_equal(t) for t in view.inputs(edge.node)):
                found.append((edge.node, tensor))
                continue
            for output in view.outputs(edge.node):
                if output not in seen:
                    seen.add(output)
                    waiting.append(output)
    return list(dict.fromkeys(found))


def _fits_any_batch(axes: BatchAxes, node: str, tensor: str) -> bool:
    """Whether an operand would also meet a larger batch: its length along the batch is 1, or it has no such axis."""
    places, shape = _along_batch(axes, node, tensor), axes.shape(tensor)
    return places is not None and shape is not None and all(shape[place] == 1 for place in places)


def _is_apart(axes: BatchAxes, tried: BatchAxes, node: str, tensor: str) -> bool:
    """Whether the operand's length along the batch is not that of the ids: something else made it so long."""
    places, axis = _along_batch(axes, node, tensor), tried.of(tensor)
    return places is not None and axis is not None and axis >= 0 and axis not in places


def _along_batch(axes: BatchAxes, node: str, tensor: str) -> list[int] | None:
    """The axes of an operand that lie along the batch where it meets it; None where that cannot be told."""
    view, op = axes.view, axes.view.op(node)
    shape = axes.shape(tensor)
    others = [t for t in view.inputs(node) if not axes.is_equal(t)]
    if shape is None or any(axes.of(t) is None or axes.of(t) == MIXED for t in others):
        return None
    if op == "MatMul":
        return [] if view.inputs(node)[0] != tensor and not view.flag(node, "transpose_a") else None
    if op in _PRODUCTS:
        return [0] if len(shape) > 2 else []
    if op == "ConcatV2":
        along = view.constant(view.inputs(node)[-1])
        found = [axes.of(t) or 0 for t in others]
        return found if along is not None and int(along) % len(shape) not in found else None
    if op not in FORWARD_ELEMENTWISE:
        return None
    places = [len(shape) - len(axes.shape(t) or ()) + (axes.of(t) or 0) for t in others]
    return [place for place in places if place >= 0]


def _lies_along_batch(axes: BatchAxes, node: str, tensor: str) -> bool:
    """Whether an operand that is joined itself meets the batch along one axis."""
    return axes.of(tensor) is not None and any(axes.of(t) is not None for t in axes.view.outputs(node))
