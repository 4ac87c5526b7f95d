"""Finds variables that every worker writes from its own batch while training reads them, as a baseline of rewards.

Workers then train with values that differ, and that one process, which writes them from all batches, would not have.
The plan says so. What is written beside training only, as the counts of a metric, changes no result.
"""

from __future__ import annotations

from parallax.analysis.propagation.states import SAME, Handle
from parallax.analysis.propagation.walk import Walk
from parallax.graph.ops import state_op
from parallax.graph.view import split_tensor

_SHOWN = 3
_SOURCES = ("Placeholder", "IteratorGetNext", "QueueDequeue", "ReaderRead")


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of such variables of a finished walk, in one sentence."""
    read = sorted(_read_by_training(walk) & walk.assumed.own)
    if not read:
        return ()
    names = [walk.known.captured.variables[v].logical_name for v in read]
    listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return (
        f"training can read {listed}, which each worker writes from its own batch: one process would write it from "
        "those of all workers",
    )


def may_keep_rows(walk: Walk, variable: str) -> bool:
    """Whether a variable can have an entry for each row of a worker's batch, as the state between two batches has.

    A scalar cannot, nor can a vector that is no fixed batch's length.
    """
    shape, view = walk.known.captured.variables[variable].part.shape, walk.view
    if shape is None or len(shape) > 1:
        return True
    sources = [view.shape(t) for node in view.nodes if _is_source(walk, node) for t in view.outputs(node)]
    return bool(shape) and any(source is not None and shape[0] in source[:1] for source in sources)


def depends_on_batch(walk: Walk, tensor: str) -> bool:
    """Whether a value is computed of what is fed or comes from a pipeline; else it is drawn, or counted."""
    if walk.states[tensor] == SAME:
        return False
    return any(_is_source(walk, node) for node in walk.view.ancestors([split_tensor(tensor)[0]]))


def _is_source(walk: Walk, node: str) -> bool:
    return walk.view.op(node).startswith(_SOURCES) and walk.view.shape(f"{node}:0") != ()


def _read_by_training(walk: Walk) -> set[str]:
    """What values that are written to shared variables are computed of; what they only come after is not among it."""
    view = walk.view
    waiting = []
    for node in view.nodes:
        state = state_op(view.op(node), len(view.inputs(node)))
        if state is None or node in walk.known.initial:
            continue
        if any(_writes_shared(walk, node, slot) for slot in state.state):
            waiting.append(node)
    return view.computed_of(waiting)


def _writes_shared(walk: Walk, node: str, slot: int) -> bool:
    handle = walk.state_at(node, slot)
    return isinstance(handle, Handle) and handle.variable in walk.known.shared
