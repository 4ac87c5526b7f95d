"""Finds the ops that a step may run: those that update trained variables and that no other update depends on."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from parallax.analysis.reading.capture import CapturedGraph
from parallax.analysis.reading.gradients import gradient_updates, written_variable
from parallax.graph.ops import state_op
from parallax.graph.spec import GradientSource
from parallax.graph.view import GraphView, node_of


class TrainOp(NamedTuple):
    """An op that trains.

    Attributes:
        name: of the op.
        variables: the trained variables that it updates, sorted by name.
    """

    name: str
    variables: tuple[str, ...]


def train_ops(captured: CapturedGraph, sources: tuple[GradientSource, ...]) -> tuple[TrainOp, ...]:
    """The ops that train, those with the most variables first.

    Updates come in groups (NoOp), and in sequence, like a moving average after the update that it averages; running the
    last one runs them all. A loss that waits for the update is no update.

    Args:
        captured: the graph.
        sources: where autodiff delivers its gradients.
    """
    view = captured.view
    updates = gradient_updates(captured, sources)
    trained = {source.part for source in sources}
    candidates = []
    for node in find_ops_after(view, updates):
        written = {written_variable(captured, n) for n in view.ancestors([node]) & updates} & trained
        candidates.append(TrainOp(node, tuple(sorted(written))))
    return tuple(sorted((op for op in candidates if op.variables), key=lambda op: (-len(op.variables), op.name)))


def find_ops_after(view: GraphView, updates: Set[str]) -> list[str]:
    """The ops that run updates and that no other such op waits for, in the order of the graph."""
    after = _find_descendants(view, updates)
    return find_last_ops(view, [n for n in view.nodes if n in after and _acts(view, n)])


def find_last_ops(view: GraphView, ops: list[str]) -> list[str]:
    """The ops on which none of the others depends."""
    before = view.ancestors({n for op in ops for n in _needs(view, op)})
    return [op for op in ops if op not in before]


def _acts(view: GraphView, node: str) -> bool:
    return view.op(node) == "NoOp" or state_op(view.op(node), len(view.inputs(node))) is not None


def _needs(view: GraphView, node: str) -> set[str]:
    return {node_of(t) for t in view.inputs(node)} | set(view.controls(node))


def _find_descendants(view: GraphView, nodes: Set[str]) -> set[str]:
    """Some nodes and all their descendants, by data or control inputs."""
    descendants, waiting = set(nodes), sorted(nodes)
    while waiting:
        for user in view.users(waiting.pop()):
            if user not in descendants:
                descendants.add(user)
                waiting.append(user)
    return descendants
