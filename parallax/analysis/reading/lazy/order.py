"""Determines the execution order of given nodes, and which of them one run may execute together."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from parallax.graph.batches import is_of_script
from parallax.graph.view import GraphView


class Order:
    """The order of some nodes by data and control inputs.

    Args:
        view: the graph.
        nodes: the nodes of interest.
    """

    def __init__(self, view: GraphView, nodes: Iterable[str]) -> None:
        self._bits = {node: 1 << number for number, node in enumerate(dict.fromkeys(nodes))}
        self._before: dict[str, int] = {}
        used: set[str] = set()
        is_script = is_of_script(view)  # which may fetch any NoOp; a front end does so where nothing waits for it
        for node in view.topological_order():
            found = self._bits.get(node, 0)
            for needed in view.nodes_before(node):
                found |= self._before.get(needed, 0)  # not visited yet: a loop's back edge
                used.add(needed)
            self._before[node] = found
        self._ends = {
            node: before
            for node, before in self._before.items()
            if before and (node not in used or (is_script and view.op(node) == "NoOp"))
        }

    @cached_property
    def _ends_by_set(self) -> dict[int, list[str]]:
        """A bit set -> a script's NoOps, and the nodes without consumers, that depend on its members."""
        ends_by_set: dict[int, list[str]] = {}
        for end, before in self._ends.items():
            ends_by_set.setdefault(before, []).append(end)
        return ends_by_set

    @cached_property
    def _sets_by_member(self) -> dict[str, list[int]]:
        """A node -> the bit sets of ends of which it is a member."""
        nodes, sets_by_member = list(self._bits), dict[str, list[int]]()
        for before in self._ends_by_set:
            for number, bit in enumerate(reversed(f"{before:b}")):
                if bit == "1":
                    sets_by_member.setdefault(nodes[number], []).append(before)
        return sets_by_member

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

    def ends_after(self, nodes: Iterable[str]) -> list[str]:
        """A script's NoOps, and the nodes without consumers, that are or depend on any of some nodes; sorted."""
        sets = dict.fromkeys(before for node in nodes for before in self._sets_by_member.get(node, ()))
        return sorted(end for before in sets for end in self._ends_by_set[before])

    def have_common_dependent(self, one: str, other: int) -> bool:
        """Whether a node depends on one of the nodes and on any of a bit set."""
        return any(before & other for before in self._sets_by_member.get(one, ()))
