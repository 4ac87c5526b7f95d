"""Finds means over the batch that a loss is a curved function of, as the root of a mean squared error is.

A mean of such losses over the workers is not the loss of the joined batch. So every worker takes the workers' mean
before the curve: what follows is then equal on all of them, autodiff's part of it too, and the gradients' mean is the
one process's. A mean of data alone may also go back into the batch, as where data are normalised. What else goes back
into it (statistics of activations) is each worker's own, and is told.
"""

from __future__ import annotations

from collections.abc import Set

from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.states import SAME
from parallax.analysis.propagation.walk import Walk
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


def find_curved(walk: Walk, made: Set[str], axes: BatchAxes, before: Set[str], sums: Set[str]) -> frozenset[str]:
    """The means over the batch of which the workers' mean is taken; those found `before` stay.

    Args:
        walk: finished.
        made: the nodes that autodiff made.
        axes: along which workers have equally many rows.
        before: what the walk was made with.
        sums: what losses are divided by, which is put together otherwise.
    """
    view, look = walk.view, _Curves(walk, made, axes)
    found = set(before)
    for node in view.topological_order():
        tensor = f"{node}:0"
        if view.op(node) != "Mean" or node in made or node in walk.known.initial or tensor in found:
            continue
        if walk.states[tensor].kind not in ("batch", "local") or not look.is_of_batch(node):
            continue
        if view.ancestors([node]) & walk.known.shared:
            is_taken = _is_one(view.shape(tensor)) and look.met(tensor) == "curve"
        else:  # of data: whatever training makes of it, the one process makes it of the whole mean
            is_taken = node in walk.known.training and tensor not in sums
        if is_taken and walk.agrees(walk.known.branches[node]):
            found.add(tensor)
    return frozenset(found)


def find_statistics(walk: Walk, made: Set[str], axes: BatchAxes) -> tuple[str, ...]:
    """Nodes that give means over a worker's own batch, which go back into each of its examples."""
    view, look, found = walk.view, _Curves(walk, made, axes), []
    for node in view.topological_order():
        if node in made or node in walk.known.initial:
            continue
        op = view.op(node)
        if op in _STATISTICS and view.flag(node, "is_training"):
            if axes.of(view.inputs(node)[0]) is not None and look.is_differentiated(node):
                found.append(node)
        elif op == "Mean" and walk.states[f"{node}:0"].kind in ("batch", "local") and look.is_of_batch(node):
            if axes.of(f"{node}:0") is None and look.met(f"{node}:0") == "rows":
                found.append(node)
    return tuple(found)


def visit(walk: Walk, node: str) -> None:
    """Has the mean of all workers taken."""
    tensor = f"{node}:0"
    if tensor in walk.assumed.denominators.curved:
        walk.all_reduces.append(AllReduce(tensor, tuple(walk.view.consumers(tensor)), "mean"))
        walk.states[tensor] = SAME


class _Curves:
    """What a mean is judged by."""

    def __init__(self, walk: Walk, made: Set[str], axes: BatchAxes) -> None:
        self._walk = walk
        self._made = frozenset(made)
        self._axes = axes

    def is_of_batch(self, node: str) -> bool:
        """Whether a node takes the mean along the batch."""
        return self._axes.of(self._walk.view.inputs(node)[0]) is not None and self._axes.of(f"{node}:0") is None

    def met(self, tensor: str) -> str:
        """What a mean meets that autodiff went back through: `curve`, `rows` (more than one element), or nothing."""
        view, found, seen = self._walk.view, set[str](), set[str]()
        waiting = [tensor]
        while waiting:
            one = waiting.pop()
            for edge in view.consumers(one):
                node = edge.node
                if node in seen or node in self._made or not view.outputs(node):
                    continue
                seen.add(node)
                out = f"{node}:0"
                if _is_one(view.shape(one)) and _is_one(view.shape(out)) and self._is_straight(node):
                    waiting.append(out)
                elif self.is_differentiated(node):
                    found.add("curve" if _is_one(view.shape(out)) and self._stays_one(node) else "rows")
        return "rows" if "rows" in found else next(iter(found), "")

    def is_differentiated(self, node: str) -> bool:
        """Whether autodiff went back through a node that is no straight one: it then takes what went in or came out."""
        view = self._walk.view
        tensors = [*view.inputs(node), *view.outputs(node)]
        return any(e.node in self._made for t in tensors if not self._is_equal(t) for e in view.consumers(t))

    def _is_straight(self, node: str) -> bool:
        view, op = self._walk.view, self._walk.view.op(node)
        inputs = view.inputs(node)
        if op in _SUMS:
            return _is_one(view.shape(inputs[0]))
        if op in ("Mul", "MulNoNan"):
            return sum(not self._is_equal(t) for t in inputs) < 2
        if op in ("RealDiv", "Div", "DivNoNan"):
            return self._is_equal(inputs[1])
        return op in _STRAIGHT

    def _is_equal(self, tensor: str) -> bool:
        return self._walk.states[tensor].kind in _EQUAL

    def _stays_one(self, node: str) -> bool:
        """Whether all that autodiff went back through from the loss to a node has one element."""
        view, waiting, seen = self._walk.view, [node], set[str]()
        while waiting:
            for tensor in view.outputs(waiting.pop()):
                for edge in view.consumers(tensor):
                    if edge.node in seen or edge.node in self._made or not view.outputs(edge.node):
                        continue
                    seen.add(edge.node)
                    if _is_one(view.shape(f"{edge.node}:0")):
                        waiting.append(edge.node)
                    elif self.is_differentiated(edge.node):
                        return False
        return True


def _is_one(shape: Shape) -> bool:
    return shape is not None and all(length == 1 for length in shape)
