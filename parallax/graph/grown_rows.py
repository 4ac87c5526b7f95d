"""Gradient rows to which each iteration of a TensorFlow 1 loop adds more, as autodiff makes of a lookup in a loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parallax.graph.control_flow import MERGES
from parallax.graph.view import NEXT_ITERATIONS, GraphView, node_of

_EXITS, _SWITCHES = ("Exit", "RefExit"), ("Switch", "RefSwitch")


def find_grown_rows(view: GraphView, pairs: Iterable[tuple[str, str]]) -> Mapping[str, tuple[str, str]]:
    """Finds the rows and row numbers that each iteration appends.

    Args:
        view: the graph.
        pairs: rows and their numbers, as in a gradient.

    Returns:
        The loop variables of the rows and of their numbers -> (rows, numbers) that an iteration appends to them. Both
        may be accumulated by an inner loop, which has its own entry.
    """
    grown: dict[str, tuple[str, str]] = {}
    waiting = list(pairs)
    while waiting:
        added = [_find_added(view, tensor) for tensor in waiting.pop()]
        if added[0] is not None and added[1] is not None:
            pair = added[0][1], added[1][1]
            grown |= {added[0][0]: pair, added[1][0]: pair}
            waiting.append(pair)
    return grown


def _find_added(view: GraphView, tensor: str) -> tuple[str, str] | None:
    """A loop variable, and the tensor that each iteration appends to it; None where `tensor` is no such last value."""
    end = _node(view, tensor)
    switch = _node(view, view.inputs(end)[0]) if view.op(end) in _EXITS else end
    head = _node(view, view.inputs(switch)[0]) if view.op(switch) in _SWITCHES else switch
    turns = [node for node in map(_only_node, view.inputs(head)) if view.op(node) in NEXT_ITERATIONS]
    if view.op(head) not in MERGES or len(turns) != 1:
        return None
    merge = _node(view, view.inputs(turns[0])[0])
    inputs = view.inputs(merge)
    is_behind = view.op(merge) == "ConcatV2" and len(inputs) == 3 and view.source(inputs[0]) == f"{switch}:1"
    return (f"{head}:0", inputs[1]) if is_behind and not view.constant(inputs[2]) else None


def _node(view: GraphView, tensor: str) -> str:
    return _only_node(view.source(tensor))


def _only_node(tensor: str) -> str:
    return node_of(tensor)
