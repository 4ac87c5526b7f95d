"""Gives updates outside losses the length of an open batch, where they read that of the fixed one.

Such updates are learning rates by the batch size, divisions of summed gradients, counters of examples and positions in
a queue. They read a length as a constant that TensorFlow made of a tensor's shape, or as a number of the script. A
number that a training run adds to a variable is taken to be the batch length where it equals that.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from parallax.analysis.reading.batches.batch_lengths import add_length, add_measured
from parallax.analysis.reading.batches.length_sources import LengthSources
from parallax.analysis.reading.batches.open_lengths import find_open_axis
from parallax.analysis.reading.construction.measured_tensors import MeasuredTensor
from parallax.base.types import GraphDef
from parallax.graph.control_flow import branches_of
from parallax.graph.ops import state_op, takes_functions
from parallax.graph.view import VARIABLES, GraphView, node_of

_ASSIGNS = ("Assign", "AssignVariableOp")
_COUNTS = ("AssignAdd", "AssignAddVariableOp", "AssignSub", "AssignSubVariableOp")
_COPIES = ("Identity", "Cast")
_ADDS = ("Add", "AddV2", "Sub")
_INTEGERS, _RESOURCE = (3, 9), 20  # types.proto: int32, int64; resource, the argument of a function


class UpdateLengths:
    """The lengths that updates of one graph read outside losses.

    Args:
        view: the graph for the fixed batch.
        measured: constant -> the tensor from which TensorFlow made it.
        names: source of the fixed batch -> that of the open one.
        forward: the nodes outside autodiff and outside initial values.
        apart: those of them on which no loss depends, and no value that is computed from a batch.
        autodiff: the nodes of autodiff.
        inputs: the batch sources.
    """

    def __init__(
        self,
        view: GraphView,
        measured: Mapping[str, MeasuredTensor],
        names: Mapping[str, str],
        forward: Set[str],
        apart: Set[str],
        autodiff: Set[str],
        inputs: LengthSources,
    ) -> None:
        self._view, self._measured, self._names, self._forward, self._apart = view, measured, names, forward, apart
        self._autodiff, self._inputs, self._branches = autodiff, inputs, branches_of(view)

    def open_counters(self, opened: GraphDef, length: int) -> str:
        """Makes counters of runs that read a batch add its length.

        Returns the first node that counts in a loop or a function, where the length is not available; else empty.

        Args:
            opened: the graph with an open batch, which is modified.
            length: of the fixed batch.
        """
        view, by_name, left = self._view, {node.name: node for node in opened.node}, ""
        for node in (one for one in view.nodes if one in self._forward and one in self._inputs.of_batches):
            slot = _find_length_slot(view, node, length)
            batch = self._inputs.find(node) if slot is not None and not self._is_in_loop(node) else ""
            if slot is not None and batch:
                tensor = view.inputs(node)[slot]
                by_name[node].input[slot] = add_length(opened, batch, node, view.dtype(tensor), tensor)
            elif slot is not None or (takes_functions(view.op(node)) and _counts(view, node, length)):
                left = left or node
        return left

    def open_shapes(self, inferred: GraphView, opened: GraphDef) -> None:
        """Computes the constants that TensorFlow made of the shapes of batches again.

        Args:
            inferred: the graph with an open batch, without some nodes.
            opened: the graph with an open batch, which is modified.
        """
        view, by_name = self._view, {node.name: node for node in opened.node}
        of_gradients = view.reach(self._autodiff, view.nodes.keys())
        for constant, one in self._measured.items():
            if constant not in self._apart or node_of(one.tensor) in of_gradients or not self._is_read(constant):
                continue
            value, now = view.constant(f"{constant}:0"), one._replace(tensor=self._names.get(one.tensor, one.tensor))
            if value is not None and find_open_axis(view, inferred, now.tensor) is not None:
                made = add_measured(opened, now, inferred.dtype(now.tensor), constant, value)
                for edge in view.consumers(f"{constant}:0"):
                    if edge.node in self._apart:
                        by_name[edge.node].input[edge.slot] = made

    def _is_read(self, constant: str) -> bool:
        """Whether updates read a constant, in runs that read its tensor's batch or in runs that read none."""
        if self._is_in_loop(constant):
            return False
        if constant in self._inputs.of_batches:
            return self._inputs.are_read(self._measured[constant].tensor, constant)
        readers = self._view.reach([constant], self._forward)
        return any(state_op(self._view.op(one), len(self._view.inputs(one))) for one in readers)

    def _is_in_loop(self, node: str) -> bool:
        return any(branch.is_loop for branch in self._branches[node])


def _counts(view: GraphView, node: str, length: int) -> bool:
    """Whether a function that a node runs counts examples."""
    library = {one.signature.name: one for one in view.graph_def.library.function}
    waiting, names = [view.nodes[node]], set[str]()
    while waiting:
        called = [f.name for one in waiting.pop().attr.values() for f in (one.func, *one.list.func)]
        for name in called:
            if name in library and name not in names:
                names.add(name)
                waiting += library[name].node_def
    bodies = [GraphView(function_def_to_graph_def(library[name])[0]) for name in sorted(names)]
    return any(_find_length_slot(body, one, length) is not None for body in bodies for one in body.nodes)


def _find_length_slot(view: GraphView, node: str, length: int) -> int | None:
    """The input of a node that is the batch length and that is added to a variable, or subtracted from it."""
    op, inputs = view.op(node), view.inputs(node)
    if op in _COUNTS:
        return 1 if _find_number(view, inputs[1]) == length else None
    is_integer = op in _ADDS and view.dtype(f"{node}:0") in _INTEGERS
    is_count = is_integer or (op in _ADDS and any(view.op(e.node) in _ASSIGNS for e in view.consumers(f"{node}:0")))
    slots = (1,) if op == "Sub" else (0, 1)
    for slot in slots if is_count else ():
        if _find_number(view, inputs[slot]) == length and _is_variable(view, inputs[1 - slot]):
            return slot
    return None


def _find_number(view: GraphView, tensor: str) -> float | None:
    """A constant scalar, or the first entry of a constant shape."""
    while view.op(node_of(tensor)) in _COPIES:
        tensor = view.inputs(node_of(tensor))[0]
    node = node_of(tensor)
    begin = view.constant(view.inputs(node)[1]) if view.op(node) == "StridedSlice" else None
    is_entry = begin is not None and begin.tolist() == [0] and view.flag(node, "shrink_axis_mask")
    value = view.constant(view.inputs(node)[0] if is_entry else tensor)
    if value is None or value.ndim != is_entry or value.dtype.kind not in "iuf":
        return None
    return float(value.flat[0])


def _is_variable(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is a variable, or its value."""
    node = node_of(tensor)
    while view.op(node) in (*_COPIES, "ReadVariableOp", "Switch", "RefSwitch"):
        node = node_of(view.inputs(node)[0])
    return view.op(node) in VARIABLES or (view.op(node) == "Placeholder" and view.dtype(f"{node}:0") == _RESOURCE)
