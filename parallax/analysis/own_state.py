"""Finds variables that every worker writes from its own batch while training reads them, as a baseline of rewards.

Workers then train with values that differ, and that one process, which writes them from all batches, would not have.
The plan says so. What is written beside training only, as the counts of a metric, changes no result.
"""

from __future__ import annotations

from parallax.analysis.update_ops import state_op
from parallax.analysis.walk import Walk
from parallax.graph_view import split_tensor

_SHOWN = 3


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of such variables of a finished walk, in one sentence."""
    read = sorted(_read_by_training(walk) & walk.own)
    if not read:
        return ()
    names = [walk.captured.variables[v].logical_name for v in read]
    listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return (
        f"training can read {listed}, which each worker writes from its own batch: one process would write it from "
        "those of all workers",
    )


def _read_by_training(walk: Walk) -> set[str]:
    """What values that are written to shared variables are computed of; what they only come after is not among it."""
    view = walk.view
    waiting = []
    for node in view.nodes:
        state = state_op(view.op(node), len(view.inputs(node)))
        if state is None or node in walk.initial:
            continue
        if any(_writes_shared(walk, node, slot) for slot in state.state):
            waiting.append(node)
    found = set(waiting)
    while waiting:
        needed = {split_tensor(t)[0] for t in view.inputs(waiting.pop())} - found
        found |= needed
        waiting += needed
    return found


def _writes_shared(walk: Walk, node: str, slot: int) -> bool:
    handle = walk.state_at(node, slot)
    return handle.kind == "handle" and handle.key[0] in walk.shared
