"""Finds ragged rows that are filled up to the longest of a worker's batch; one process fills up to that of all."""

from __future__ import annotations

from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.losses import results, trained_losses
from parallax.analysis.propagation.sparse_batches import PADS
from parallax.analysis.propagation.uneven import batch_by_node
from parallax.analysis.propagation.walk import Walk
from parallax.graph.view import split_tensor
from parallax.plans.losses import PaddedRows

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
    open_ended = [n for n in found if n in needed & steps.keys() and _is_open(axes, n) and axes.of(f"{n}:0") == 0]
    return tuple(PaddedRows(node) for node in open_ended if walk.agrees(walk.known.branches[node]))


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of rows that it is not known of how they are filled up."""
    view, told = walk.view, {one.node for one in find_padded(walk)}
    axes = BatchAxes(view, walk.states)
    losses = view.computed_of(split_tensor(t)[0] for t in (*trained_losses(walk), *results(view)))
    left = [n for n in view.nodes if view.op(n) == PADS and n in losses - told and _is_fixed(axes, n) is not True]
    left = [n for n in left if walk.states[f"{n}:0"].kind not in ("same", "fed")]
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
