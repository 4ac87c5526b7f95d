"""Finds the inputs from which a constant may take the batch length: those that every run with the constant reads.

A run of a generator's update need not feed the discriminator's images. A constant of that update, if its length came
from the images, would make the run wait for them, or take an element from their queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from parallax.analysis.reading.construction.measured_tensors import MeasuredTensor
from parallax.graph.ops import state_op
from parallax.graph.view import GraphView, node_of


def add_measured_ancestors(view: GraphView, nodes: set[str], measured: Mapping[str, MeasuredTensor]) -> set[str]:
    """Adds to nodes the tensors, with their ancestors, from which TensorFlow made constants among them.

    Args:
        view: the graph.
        nodes: with all their ancestors.
        measured: constant -> the tensor from which TensorFlow made it.
    """
    while more := {node_of(one.tensor) for constant, one in measured.items() if constant in nodes} - nodes:
        nodes |= view.ancestors(more)
    return nodes


class LengthSources:
    """The batch sources of one graph, by the nodes whose runs all read them.

    Args:
        view: the graph for the fixed batch.
        opened: batch source -> the tensor that replaces it, with an open first dimension.
        autodiff: the nodes of autodiff, which are not fetched.
        measured: constant -> the tensor from which TensorFlow made it. A run with the constant depends on that tensor.

    Attributes:
        of_batches: the nodes on which a fetch or an update depends that reads a source. A loss of constants alone has
            no batch, whatever their length.
    """

    def __init__(
        self, view: GraphView, opened: Mapping[str, str], autodiff: Set[str], measured: Mapping[str, MeasuredTensor]
    ) -> None:
        self._opened = opened
        self._made: dict[str, list[str]] = {}
        for constant, one in measured.items():
            self._made.setdefault(node_of(one.tensor), []).append(constant)
        self._bits = {node: 1 << place for place, node in enumerate(dict.fromkeys(map(node_of, opened)))}
        order = view.topological_order()
        self._read = dict.fromkeys(order, 0)
        while self._spread_reads(view, order):  # once more for each level of loops
            pass
        may_be_fetched = {node for node in order if self._read[node] and node not in autodiff}
        self.of_batches = add_measured_ancestors(view, view.ancestors(may_be_fetched), measured)
        self._read_by_fetches = self._intersect(view, order, may_be_fetched)
        ends = may_be_fetched.difference(*(view.nodes_before(node) for node in order if node not in autodiff))
        self._read_by_ends = self._intersect(view, order, ends)
        updates = ends & _find_updates(view, order)
        self._read_by_updates = self._intersect(view, order, updates)
        self._of_updates = add_measured_ancestors(view, view.ancestors(updates), measured)

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

    def _intersect(self, view: GraphView, order: Sequence[str], ends: Set[str]) -> dict[str, int]:
        """For each node the sources that all of `ends` read which depend on it."""
        every = (1 << len(self._bits)) - 1
        common, has_fewer, of_shapes = dict.fromkeys(order, every), True, set().union(*self._made.values())
        while has_fewer:  # once more for each level of loops, and for tensors measured by constants
            has_fewer, seen = False, set[str]()
            for node in reversed(order):
                left = common[node] & self._read[node] if node in ends else common[node]
                for constant in self._made.get(node, ()):
                    left &= common[constant]
                has_fewer |= left != common[node]
                common[node] = left
                seen.add(node)
                for before in view.nodes_before(node) if left != every else ():
                    if common[before] & ~left:
                        common[before] &= left
                        has_fewer |= before in seen or before in of_shapes
        return common

    def find(self, node: str) -> str:
        """A source, with an open first dimension, that all runs with a node read; empty if there is none.

        Where possible one that any fetch reads which depends on the node and on a source, else any one on which no
        other depends, else any update.
        """
        common = self._read_by_fetches[node] or self._find_common(node)
        return next((new for old, new in self._opened.items() if self._bits[node_of(old)] & common), "")

    def are_read(self, tensor: str, node: str) -> bool:
        """Whether all updates that depend on a node read the sources of a tensor."""
        return node in self.of_batches and not self._read.get(node_of(tensor), 0) & ~self._find_common(node)

    def _find_common(self, node: str) -> int:
        """The sources that are read by all that depends on a node and on which nothing depends, or by all updates."""
        return self._read_by_ends[node] or (self._read_by_updates[node] if node in self._of_updates else 0)


def _find_updates(view: GraphView, order: Sequence[str]) -> set[str]:
    """The nodes that write a variable, and those that read their results or wait for them."""
    updates: set[str] = set()
    for node in order:
        is_write = state_op(view.op(node), len(view.inputs(node))) is not None
        if is_write or not updates.isdisjoint(view.nodes_before(node)):
            updates.add(node)
    return updates
