"""Determines the execution order of given nodes, and which of them one run may execute together."""

from __future__ import annotations

from collections.abc import Iterable

from parallax.analysis.reading.lazy.handles import node_of
from parallax.graph.view import GraphView


class Order:
    """The order of some nodes by data and control inputs.

    Attributes:
        ends: the NoOps, and the nodes without consumers, with any of the given nodes before them.

    Args:
        view: the graph.
        nodes: the nodes of interest.
    """

    def __init__(self, view: GraphView, nodes: Iterable[str]) -> None:
        self._bits = {node: 1 << number for number, node in enumerate(dict.fromkeys(nodes))}
        self._before: dict[str, int] = {}
        used: set[str] = set()
        for node in view.topological_order():
            found = self._bits.get(node, 0)
            for needed in (*map(node_of, view.inputs(node)), *view.controls(node)):
                found |= self._before.get(needed, 0)  # not visited yet: a loop's back edge
                used.add(needed)
            self._before[node] = found
        ends = (
            node for node, before in self._before.items() if before and (node not in used or view.op(node) == "NoOp")
        )
        self.ends = tuple(sorted(ends))
        self._together = {self._before[node] for node in self.ends} - {0}

    def bits(self, nodes: Iterable[str]) -> int:
        """Some of the nodes as a bit set, for `has`."""
        bits_of_nodes = 0
        for node in nodes:
            bits_of_nodes |= self._bits[node]
        return bits_of_nodes

    def has(self, node: str, bits: int) -> int:
        """The members of a bit set that any node is or depends on."""
        return self._before.get(node, 0) & bits

    def is_before(self, one: str, other: str) -> bool:
        """Whether a node depends on one of the nodes."""
        return one != other and bool(self.has(other, self._bits[one]))

    def have_common_dependent(self, one: int, other: int) -> bool:
        """Whether a node depends on any of one set and on any of another."""
        return any(found & one and found & other for found in self._together)
