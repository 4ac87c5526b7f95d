"""Gives updates outside losses the length of an open batch, where they read that of the fixed one.

Such updates are learning rates by the batch size, divisions of summed gradients, counters of examples and positions in
a queue. They read a length as a constant that TensorFlow made of a tensor's shape, or as a number of the script. A
number that a training run adds to a variable, or by which it multiplies a counter of steps, is taken to be the batch
length where it equals that.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from parallax.analysis.reading.batches.batch_lengths import add_length, add_shape, measure_again
from parallax.analysis.reading.batches.length_sources import LengthSources
from parallax.analysis.reading.batches.open_lengths import find_open_axis
from parallax.analysis.reading.construction.measured_tensors import MeasuredTensor
from parallax.base.types import GraphDef
from parallax.graph.control_flow import branches_of
from parallax.graph.ops import state_op, takes_functions
from parallax.graph.view import VARIABLES, Edge, GraphView, node_of

_ASSIGNS = ("Assign", "AssignVariableOp")
_COUNTS = ("AssignAdd", "AssignAddVariableOp", "AssignSub", "AssignSubVariableOp")
_COPIES = ("Identity", "Cast")
_ADDS = ("Add", "AddV2", "Sub")
_ARITHMETIC = (*_ADDS, *_COPIES, "Mul", "RealDiv", "Div", "FloorDiv")
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
        targets: dense gradient -> the tensor of which it is the gradient, and whose shape it has.
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
        targets: Mapping[str, str],
    ) -> None:
        self._targets = targets
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
            edges, may_count = _find_lengths(view, node, length)
            origins = [node_of(_find_number_source(view, tensor)[0]) for tensor in view.inputs(node)]
            may_count = may_count and self._measured.keys().isdisjoint(origins)
            batch = self._inputs.find(node) if edges and not self._is_in_loop(node) else ""
            for edge in edges if batch else ():
                tensor, name = view.inputs(edge.node)[edge.slot], f"{node}/{edge.node}"
                by_name[edge.node].input[edge.slot] = add_length(opened, batch, name, view.dtype(tensor), tensor)
            in_function = takes_functions(view.op(node)) and _counts(view, node, length)
            left = node if not left and (may_count or in_function or (edges and not batch)) else left
        return left

    def open_shapes(self, inferred: GraphView, opened: GraphDef, length: int) -> str:
        """Computes the constants that TensorFlow made of the shapes of batches again.

        Returns the first constant that may be the batch length, of a tensor whose shape is not yet known; else empty.

        Args:
            inferred: the graph with an open batch, without some nodes.
            opened: the graph with an open batch, which is modified.
            length: of the fixed batch.
        """
        view, by_name, left = self._view, {node.name: node for node in opened.node}, ""
        of_gradients = view.reach(self._autodiff, view.nodes.keys())
        for constant, one in self._measured.items():
            if constant not in self._apart or not self._is_read(constant):
                continue
            if node_of(one.tensor) in of_gradients:
                is_known = length not in (view.shape(one.tensor) or ()) or not self._is_of_batch(inferred, one.tensor)
                left = left or ("" if is_known else constant)
                continue
            now = one._replace(tensor=self._names.get(one.tensor, one.tensor))
            made = self._measure_again(inferred, opened, constant, now, length)
            for edge in view.consumers(f"{constant}:0") if made else ():
                if edge.node in self._apart:
                    by_name[edge.node].input[edge.slot] = made
        return left

    def _is_of_batch(self, inferred: GraphView, tensor: str) -> bool:
        """Whether a tensor that updates compute of gradients may have the batch's axis: whether one of these has it."""
        waiting = [tensor]
        for one in waiting:
            known = self._targets.get(one, one)
            if known in self._names:
                return True
            if node_of(known) in inferred.nodes:
                if find_open_axis(self._view, inferred, known) is not None:
                    return True
            elif node_of(one) in self._autodiff:
                return True
            else:
                waiting += [other for other in self._view.inputs(node_of(one)) if other not in waiting]
        return False

    def _is_read(self, constant: str) -> bool:
        """Whether updates read a constant."""
        readers = self._view.reach([constant], self._forward)
        is_written = any(state_op(self._view.op(one), len(self._view.inputs(one))) for one in readers)
        return (is_written or constant in self._inputs.of_batches) and not self._is_in_loop(constant)

    def _measure_again(
        self, inferred: GraphView, opened: GraphDef, constant: str, now: MeasuredTensor, length: int
    ) -> str:
        """The shape or size of a tensor in the opened graph; empty if it is not of the batch.

        Where runs with the constant do not read that tensor's batch, its length is that of one that they read.
        """
        if node_of(now.tensor) not in inferred.nodes:  # no batch is read for it
            return ""
        axis, value = find_open_axis(self._view, inferred, now.tensor), self._view.constant(f"{constant}:0")
        if axis is None or value is None:
            return ""
        of_other_runs = constant not in self._inputs.of_batches
        if of_other_runs or self._inputs.are_read(self._measured[constant].tensor, constant):
            return measure_again(opened, now, inferred.dtype(now.tensor), constant, value)
        batch, tensor = self._inputs.find(constant), f"{constant}:0"
        entry = int(value[axis] if now.what == "shape" else value) if now.what else 0
        if not batch or not entry or entry % length:
            return ""
        if now.what == "size":
            return add_length(opened, batch, constant, self._view.dtype(tensor), tensor, entry // length)
        return add_shape(opened, batch, constant, value, {axis: entry // length}, tensor)

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
    return any(any(_find_lengths(body, one, length)) for body in bodies for one in body.nodes)


def _find_lengths(view: GraphView, node: str, length: int) -> tuple[list[Edge], bool]:
    """(the inputs that are the batch length in what a node adds to a variable, whether it may add a multiple of it).

    Or in what it multiplies a counter of steps by, as a schedule by examples does.
    """
    op, inputs = view.op(node), view.inputs(node)
    slots: tuple[int, ...]
    if op == "Mul":
        slots = tuple(slot for slot in (0, 1) if _is_counter(view, inputs[1 - slot]))
        return [edge for slot in slots for edge in _find_leaves(view, Edge(node, slot), length) or ()], False
    slots = (1,) if op in _COUNTS else ()
    if op in _ADDS:
        is_count = view.dtype(f"{node}:0") in _INTEGERS
        is_count = is_count or any(view.op(edge.node) in _ASSIGNS for edge in view.consumers(f"{node}:0"))
        slots = (1,) if op == "Sub" else (0, 1)
        slots = tuple(slot for slot in slots if is_count and _is_variable(view, inputs[1 - slot]))
    edges = [edge for slot in slots for edge in _find_leaves(view, Edge(node, slot), length) or ()]
    numbers = [_find_number(view, inputs[slot]) for slot in slots]
    return edges, any(number is not None and number > length and number % length == 0 for number in numbers)


def _find_leaves(view: GraphView, edge: Edge, length: int) -> list[Edge] | None:
    """The inputs that are the batch length in a computation on constants alone; None if it reads anything else."""
    tensor = view.inputs(edge.node)[edge.slot]
    number = _find_number(view, tensor)
    if number is not None:
        return [edge] if number == length else []
    node = node_of(tensor)
    if view.op(node) not in _ARITHMETIC:
        return None
    leaves = [_find_leaves(view, Edge(node, slot), length) for slot in range(len(view.inputs(node)))]
    return None if None in leaves else [one for some in leaves for one in some or ()]


def _find_number(view: GraphView, tensor: str) -> float | None:
    """A constant scalar, or the first entry of a constant shape."""
    stated, is_entry = _find_number_source(view, tensor)
    value = view.constant(stated)
    if value is None or value.ndim != is_entry or value.dtype.kind not in "iuf":
        return None
    return float(value.flat[0])


def _find_number_source(view: GraphView, tensor: str) -> tuple[str, bool]:
    """(the tensor that states a number, whether the number is the first entry of that tensor)."""
    tensor = _find_origin(view, tensor)
    node = node_of(tensor)
    begin = view.constant(view.inputs(node)[1]) if view.op(node) == "StridedSlice" else None
    is_entry = begin is not None and begin.tolist() == [0] and view.flag(node, "shrink_axis_mask")
    return (view.inputs(node)[0] if is_entry else tensor), is_entry


def _find_origin(view: GraphView, tensor: str) -> str:
    """The tensor of which another one is a copy."""
    while view.op(node_of(tensor)) in _COPIES:
        tensor = view.inputs(node_of(tensor))[0]
    return tensor


def _is_counter(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is the value of a variable of integers, also as a float."""
    return _is_variable(view, tensor) and view.dtype(_find_origin(view, tensor)) % 100 in _INTEGERS  # 103: a reference


def _is_variable(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is a variable, or its value."""
    node = node_of(tensor)
    while view.op(node) in (*_COPIES, "ReadVariableOp", "Switch", "RefSwitch"):
        node = node_of(view.inputs(node)[0])
    return view.op(node) in VARIABLES or (view.op(node) == "Placeholder" and view.dtype(f"{node}:0") == _RESOURCE)
