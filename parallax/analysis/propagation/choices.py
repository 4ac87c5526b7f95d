"""Finds what a step asks of its whole batch: whether all examples, or any, are so; whether a number of it is large.

Nothing is trained through a truth value, so workers can put together what it is computed of wherever it stands: a loss
that is another one where a batch has negative labels, or a branch that is taken where any example is large, is then the
one process's.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from parallax.analysis.propagation.axis_meets import is_real, reduces_batch
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.losses import additions, results, trained_losses
from parallax.analysis.propagation.walk import Walk
from parallax.graph.batches import batch_by_node
from parallax.graph.view import split_tensor

_KINDS = {"All": "min", "Any": "max"}
_COMPARES = frozenset({"Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual"})


def find_choices(walk: Walk) -> dict[str, str]:
    """Of a walk to the end, what asks of all examples or any, and how workers' answers are put together."""
    found = _asked(walk, _KINDS)
    axes = BatchAxes(walk.view, walk.states) if found else None
    return {node: _KINDS[walk.view.op(node)] for node in found if axes is not None and reduces_batch(axes, node)}


def comparisons(walk: Walk) -> list[str]:
    """Of a walk to the end, what compares numbers that may be of the whole batch."""
    return _asked(walk, _COMPARES)


def differentiated(walk: Walk) -> Set[str]:
    """The nodes through which what is trained depends on a loss, as far as types tell."""
    view, found = walk.view, set[str]()
    waiting = [split_tensor(loss)[0] for loss in trained_losses(walk)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [split_tensor(t)[0] for t in view.inputs(node) if is_real(view, t)]
    return found


def _asked(walk: Walk, ops: Collection[str]) -> list[str]:
    """The nodes of some types that losses and results need, where all workers run them once and give as much."""
    view, branches = walk.view, walk.known.branches
    found = [node for node in batch_by_node(view) if view.op(node) in ops and _is_run(walk, node)]
    if not found:
        return []
    predicates = [one.predicate for a in additions(view) for one in branches[a.edge.node] if not one.is_loop]
    needed = view.computed_of(split_tensor(t)[0] for t in (*trained_losses(walk), *results(view), *predicates))
    return [node for node in found if node in needed]


def _is_run(walk: Walk, node: str) -> bool:
    branches, shape = walk.known.branches[node], walk.view.shape(f"{node}:0")
    is_once = not any(one.is_loop for one in branches) and walk.agrees(branches)
    return is_once and shape is not None and None not in shape
