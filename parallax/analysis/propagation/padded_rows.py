"""Finds ragged rows that are filled up to the longest of a worker's batch; one process fills up to that of all."""

from __future__ import annotations

from collections.abc import Set

from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.losses import results, trained_losses
from parallax.analysis.propagation.sparse_batches import PADS
from parallax.analysis.propagation.walk import Walk
from parallax.graph.batches import batch_by_node
from parallax.graph.view import split_tensor
from parallax.plans.losses import PaddedRows

_OF_LENGTHS = ("Sub", "StridedSlice", "Cast", "Maximum", "Reshape", "ExpandDims", "Squeeze", "Pack")
_BY_ENDS, _BY_NUMBERS = ("ROW_SPLITS",), ("FIRST_DIM_SIZE", "VALUE_ROWIDS")


def find_padded(walk: Walk) -> tuple[PaddedRows, ...]:
    """Of a finished walk: what losses and results are made of, where all workers carry it out."""
    view = walk.view
    found = [node for node in view.nodes if view.op(node) == PADS]
    if not found:
        return ()
    axes = BatchAxes(view, walk.states)
    needed = view.computed_of(split_tensor(t)[0] for t in (*trained_losses(walk), *results(view)))
    steps = batch_by_node(view)  # which all workers carry out; what is of no step, one of them may run alone
    of_batch = [n for n in found if n in needed and _is_fixed(axes, n) is not True and not _is_alike(walk, n)]
    are_known = all(n in steps and _is_open(axes, n) and axes.of(f"{n}:0") == 0 for n in of_batch)
    if not are_known or not all(walk.agrees(walk.known.branches[node]) for node in of_batch):
        return ()  # some would be longer than the others
    return tuple(PaddedRows(node) for node in of_batch)


def find_longest(walk: Walk) -> list[str]:
    """What gives the longest of a worker's rows, where rows are filled up to that of all: other things are as long."""
    view, padded = walk.view, find_padded(walk)
    ends = {view.source(tensor) for one in padded for tensor in view.inputs(one.node)[3:]}
    found = [node for node in (view.nodes if padded else ()) if view.op(node) == "Max"]
    return [n for n in found if n not in walk.known.initial and _is_longest(walk, view.inputs(n)[0], ends)]


def _is_longest(walk: Walk, tensor: str, ends: Set[str]) -> bool:
    """Whether a tensor is made of where rows end, and of constants, alone."""
    view, waiting, seen, is_of_ends = walk.view, [tensor], set[str](), False
    while waiting:
        one = view.source(waiting.pop())
        if one in ends:
            is_of_ends = True
            continue
        node = split_tensor(one)[0]
        if node in seen or view.constant(one) is not None:
            continue
        seen.add(node)
        if view.op(node) not in _OF_LENGTHS or not walk.agrees(walk.known.branches[node]):
            return False
        waiting += view.inputs(node)
    return is_of_ends


def _is_alike(walk: Walk, node: str) -> bool:
    return walk.states[f"{node}:0"].kind in ("same", "fed")


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of rows that it is not known of how they are filled up."""
    view, told = walk.view, {one.node for one in find_padded(walk)}
    axes = BatchAxes(view, walk.states)
    losses = view.computed_of(split_tensor(t)[0] for t in (*trained_losses(walk), *results(view)))
    left = [n for n in view.nodes if view.op(n) == PADS and n in losses - told and _is_fixed(axes, n) is not True]
    left = [n for n in left if not _is_alike(walk, n)]
    if not left:
        return ()
    return (
        f"{PADS} {left[0]!r} fills rows up to the longest of each worker's batch, and one process up to the longest of "
        "all: mask what is filled up, or give to_tensor a shape",
    )


def _is_open(axes: BatchAxes, node: str) -> bool:
    """Whether rows of one kind of length are filled up to the longest."""
    kinds = tuple(kind.decode() for kind in axes.view.nodes[node].attr["row_partition_types"].list.s)
    return kinds in (_BY_ENDS, _BY_NUMBERS) and _is_fixed(axes, node) is False and axes.shape(f"{node}:0") is not None


def _is_fixed(axes: BatchAxes, node: str) -> bool | None:
    """Whether the length of all rows is given; None where that is not to be seen."""
    shape = axes.constant(axes.view.inputs(node)[0])
    if shape is None:
        return None
    return shape.size > 1 and all(length >= 0 for length in shape.reshape(-1)[1:])
