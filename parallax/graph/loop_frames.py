"""Loops of the old style as units of a graph: entries, heads of variables, and what each turn carries out."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parallax.errors import GraphError
from parallax.graph.control_flow import MERGES, branches_of, is_loop_merge
from parallax.graph.view import GraphView, split_tensor

_ENTERS = ("Enter", "RefEnter")


@dataclass(frozen=True, slots=True)
class LoopFrame:
    """A loop of the old style.

    Attributes:
        name: TensorFlow's of the frame.
        enters: the ops by which tensors come in.
        heads: the Merges of the loop's variables, each of what comes in and of what the last turn gives.
        units: what each turn carries out, in topological order; a loop inside is one of them.
        nodes: all of its nodes, those of loops inside too.
    """

    name: str
    enters: tuple[str, ...]
    heads: tuple[str, ...]
    units: tuple[Unit, ...]
    nodes: frozenset[str]


Unit = str | LoopFrame
"""A node, or a loop."""


def units_of(view: GraphView, order: Sequence[str]) -> tuple[Unit, ...]:
    """The nodes with every loop as one unit, in topological order.

    Args:
        view: the graph.
        order: the nodes, in topological order.
    """
    found = branches_of(view)
    loops = {node: tuple(branch.predicate for branch in found[node] if branch.is_loop) for node in order}
    return _group(view, order, loops, 0)


def _group(view: GraphView, order: Sequence[str], loops: Mapping[str, tuple[str, ...]], depth: int) -> tuple[Unit, ...]:
    """The nodes of one loop, or of none, with the loops inside as units."""
    inside: dict[str, list[str]] = {}
    for node in order:
        if len(loops[node]) > depth:
            inside.setdefault(loops[node][depth], []).append(node)
    if not inside:
        return tuple(order)
    key_of = {node: name for name, nodes in inside.items() for node in nodes}
    members = {node: [node] for node in order if node not in key_of} | inside
    place = {node: number for number, node in enumerate(order)}
    users: dict[str, set[str]] = {key: set() for key in members}
    missing: dict[str, int] = {}
    for key, nodes in members.items():
        needed = {key_of.get(one, one) for node in nodes for one in _find_needed(view, node) if one in place} - {key}
        missing[key] = len(needed)
        for one in needed:
            users[one].add(key)
    ready = [(place[members[key][0]], key) for key, count in missing.items() if not count]
    heapq.heapify(ready)
    units: list[Unit] = []
    while ready:
        key = heapq.heappop(ready)[1]
        units.append(_frame(view, key, members[key], loops, depth) if key in inside else key)
        for user in users[key]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (place[members[user][0]], user))
    if len(units) < len(members):
        raise GraphError(f"The loop {next(key for key in inside if missing[key])!r} takes what is computed of its own.")
    return tuple(units)


def _frame(
    view: GraphView, name: str, nodes: Sequence[str], loops: Mapping[str, tuple[str, ...]], depth: int
) -> LoopFrame:
    own = [node for node in nodes if len(loops[node]) == depth + 1]
    enters = tuple(node for node in own if view.op(node) in _ENTERS)
    heads = tuple(node for node in own if view.op(node) in MERGES and is_loop_merge(view, node))
    begun = {*enters, *heads}
    units = _group(view, [node for node in nodes if node not in begun], loops, depth + 1)
    return LoopFrame(name, enters, heads, units, frozenset(nodes))


def _find_needed(view: GraphView, node: str) -> list[str]:
    return [*(split_tensor(tensor)[0] for tensor in view.inputs(node)), *view.controls(node)]
