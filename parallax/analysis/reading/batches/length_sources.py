"""Finds the inputs from which a constant may take the batch length: those that every run with the constant reads.

A run of a generator's update need not feed the discriminator's images. A constant of that update, if its length came
from the images, would make the run wait for them, or take an element from their queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from parallax.graph.view import GraphView, node_of


class LengthSources:
    """The batch sources of one graph, by the nodes whose runs all read them.

    Args:
        view: the graph for the fixed batch.
        opened: batch source -> the tensor that replaces it, with an open first dimension.
        autodiff: the nodes of autodiff, which are not fetched.
    """

    def __init__(self, view: GraphView, opened: Mapping[str, str], autodiff: Set[str]) -> None:
        self._opened = opened
        self._bits = {node: 1 << place for place, node in enumerate(dict.fromkeys(map(node_of, opened)))}
        order, every = view.topological_order(), (1 << len(self._bits)) - 1
        self._read, self._common = dict.fromkeys(order, 0), dict.fromkeys(order, every)
        while self._spread_reads(view, order):  # once more for each level of loops
            pass
        ends = {
            node for node in order if self._read[node] and node not in autodiff and set(view.users(node)) <= autodiff
        }
        while self._spread_ends(view, order[::-1], ends):
            pass

    def _spread_reads(self, view: GraphView, order: Sequence[str]) -> bool:
        """Adds to each node the sources that its inputs read; returns whether there were more."""
        has_more = False
        for node in order:
            read = self._bits.get(node, 0)
            for before in view.nodes_before(node):
                read |= self._read[before]
            has_more |= read != self._read[node]
            self._read[node] = read
        return has_more

    def _spread_ends(self, view: GraphView, order: Sequence[str], ends: Set[str]) -> bool:
        """Leaves each node the sources that all ends behind it read; returns whether there were fewer."""
        has_fewer = False
        for node in order:
            common = self._read[node] if node in ends else self._common[node]
            for user in view.users(node):
                common &= self._common[user]
            has_fewer |= common != self._common[node]
            self._common[node] = common
        return has_fewer

    def find(self, node: str) -> str:
        """The first source, with an open first dimension, that all runs with a node read; empty if there is none."""
        common = self._common[node]
        return next((new for old, new in self._opened.items() if self._bits[node_of(old)] & common), "")

    def are_read(self, tensor: str, node: str) -> bool:
        """Whether all runs with a node read the sources of a tensor."""
        return not self._read.get(node_of(tensor), 0) & ~self._common[node]
