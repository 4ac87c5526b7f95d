"""Finds means over the batch that a loss is a curved function of, as the root of a mean squared error is.

A mean of such losses over the workers is not the loss of the joined batch. So every worker takes the workers' mean
before the curve: what follows is then equal on all of them, autodiff's part of it too, and the gradients' mean is the
one process's. A mean of data alone may also go back into the batch, as where data are normalised. What else goes back
into it (statistics of activations) is each worker's own, and is told.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import cached_property

from parallax.analysis.propagation.axis_loops import gives_the_same
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.states import SAME
from parallax.analysis.propagation.walk import Walk
from parallax.graph.control_flow import MERGES
from parallax.graph.view import Shape
from parallax.plans.rewrites import AllReduce

_STRAIGHT = (
    *("Identity", "Reshape", "Squeeze", "ExpandDims", "Cast", "CheckNumerics", "Snapshot", "PreventGradient", "Neg"),
    *("Add", "AddV2", "AddN", "Sub"),
)
"""A sum of such results over the workers is the result of the sum."""
_SUMS = ("Sum", "Mean", "Pack")
"""Of scalars alone: then they are sums too."""
_STATISTICS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_EQUAL = ("same", "fed", "handle")


def visit(walk: Walk, node: str) -> None:
    """Has the mean of all workers taken."""
    tensor, found = f"{node}:0", walk.assumed.denominators
    if tensor in found.curved:
        rows = next((one.rows for one in found.selected if one.node == node), "")
        kind = "rows_mean" if rows else "mean"
        walk.all_reduces.append(AllReduce(tensor, tuple(walk.view.consumers(tensor)), kind, rows))
        walk.states[tensor] = SAME


class Curves:
    """What a mean is judged by.

    Args:
        walk: finished.
        made: the nodes that autodiff made.
        axes: along which workers have equally many rows.
        others: the nodes that give means of other kinds: over chosen elements, and of sums that are divided.
    """

    def __init__(self, walk: Walk, made: Set[str], axes: BatchAxes, others: Set[str]) -> None:
        self._walk = walk
        self._made = frozenset(made)
        self._axes = axes
        self._others = others

    def find_curved(self, before: Set[str], sums: Set[str], has_gradient: Callable[[str], bool]) -> frozenset[str]:
        """The means over the batch of which the workers' mean is taken; those found `before` stay.

        Args:
            before: what the walk was made with.
            sums: what losses are divided by, which is put together otherwise.
            has_gradient: whether a node's values have gradients by trained variables.
        """
        walk, found = self._walk, set(before)
        for node in self._means():
            tensor = f"{node}:0"
            if tensor in found:
                continue
            if has_gradient(node):
                shape = walk.view.shape(tensor)
                is_taken = shape is not None and None not in shape and self._met(tensor) == "curve"
            else:  # of data: whatever training makes of it, the one process makes it of the whole mean
                is_taken = node in walk.known.training and tensor not in sums
            if is_taken and walk.agrees(walk.known.branches[node]):
                found.add(tensor)
        return frozenset(found)

    def find_statistics(self) -> tuple[str, ...]:
        """Nodes that give means over a worker's own batch, which go back into each of its examples."""
        view, means = self._walk.view, set(self._means())
        found = []
        for node in view.topological_order():
            if view.op(node) in _STATISTICS and view.flag(node, "is_training") and self._is_forward(node):
                if self._axes.of(view.inputs(node)[0]) is not None and self._is_differentiated(node):
                    found.append(node)
            elif node in means and self._met(f"{node}:0") == "rows":
                found.append(node)
        return tuple(found)

    def _means(self) -> list[str]:
        """The nodes that give means over a worker's own batch, in the order of the graph."""
        view, states = self._walk.view, self._walk.states
        return [
            node
            for node in view.topological_order()
            if (view.op(node) == "Mean" or node in self._others) and self._is_forward(node)
            if states[f"{node}:0"].kind in ("batch", "local") and self._is_of_batch(node)
        ]

    @cached_property
    def _apart(self) -> set[str]:
        """The tensors that are made of means over the batch, and of what all workers have, alone."""
        view, means, found = self._walk.view, set(self._means()), set[str]()
        for node in view.topological_order():
            own = [t for t in view.inputs(node) if not self._is_equal(t)]
            is_made = bool(own) and all(t in found for t in own) and gives_the_same(view.op(node))
            if node in means or (is_made and self._is_forward(node) and view.op(node) not in MERGES):
                found.update(view.outputs(node))
        return found

    def _is_small(self, tensor: str) -> bool:
        """Whether a tensor has nothing of single examples: it is one number, or made of means alone."""
        return _is_one(self._walk.view.shape(tensor)) or tensor in self._apart

    def _is_forward(self, node: str) -> bool:
        return node not in self._made and node not in self._walk.known.initial

    def _is_of_batch(self, node: str) -> bool:
        """Whether a node takes the mean along the batch."""
        if node in self._others:
            return True
        return self._axes.of(self._walk.view.inputs(node)[0]) is not None and self._axes.of(f"{node}:0") is None

    def _met(self, tensor: str) -> str:
        """What a mean meets that autodiff went back through: `curve`, `rows` (single examples), or nothing."""
        view, found, seen = self._walk.view, set[str](), set[str]()
        waiting = [tensor]
        while waiting:
            one = waiting.pop()
            for edge in view.consumers(one):
                node = edge.node
                if node in seen or node in self._made or not view.outputs(node):
                    continue
                if view.op(node) == "IdentityN":  # also what a call that was inlined is fetched by
                    waiting.append(f"{node}:{edge.slot}")
                    continue
                seen.add(node)
                out = f"{node}:0"
                if self._is_small(one) and self._is_small(out) and self._is_straight(node):
                    waiting.append(out)
                elif self._is_differentiated(node):
                    found.add("curve" if self._is_small(out) and self._stays_small(node) else "rows")
        return "rows" if "rows" in found else next(iter(found), "")

    def _is_differentiated(self, node: str) -> bool:
        """Whether autodiff went back through a node that is no straight one: it then takes what went in or came out."""
        view = self._walk.view
        tensors = [*view.inputs(node), *view.outputs(node)]
        return any(e.node in self._made for t in tensors if not self._is_equal(t) for e in view.takers(t))

    def _is_straight(self, node: str) -> bool:
        view, op = self._walk.view, self._walk.view.op(node)
        inputs = view.inputs(node)
        if op in _SUMS:
            return self._is_small(inputs[0]) or (op == "Pack" and self._is_equal(inputs[0]))
        if op in ("Mul", "MulNoNan"):
            return sum(not self._is_equal(t) for t in inputs) < 2
        if op in ("RealDiv", "Div", "DivNoNan"):
            return self._is_equal(inputs[1])
        return op in _STRAIGHT

    def _is_equal(self, tensor: str) -> bool:
        return self._walk.states[tensor].kind in _EQUAL

    def _stays_small(self, node: str) -> bool:
        """Whether all that autodiff went back through from the loss to a node has nothing of single examples."""
        view, waiting, seen = self._walk.view, [node], set[str]()
        while waiting:
            for tensor in view.outputs(waiting.pop()):
                for edge in view.consumers(tensor):
                    if edge.node in seen or edge.node in self._made or not view.outputs(edge.node):
                        continue
                    seen.add(edge.node)
                    if view.op(edge.node) == "IdentityN" or self._is_small(f"{edge.node}:0"):
                        waiting.append(edge.node)
                    elif self._is_differentiated(edge.node):
                        return False
        return True


def _is_one(shape: Shape) -> bool:
    return shape is not None and all(length == 1 for length in shape)
