"""Groups the axes of a graph's tensors that grow together: with the batch, or not at all, as widths.

Where a layer is as wide as the batch is long, or a loop has as many iterations, a length does not tell which it is; the
ops that read it do (axis_pairs.py). Where two axes of one group are each made of several by a Reshape, of equal
lengths, so are the parts; those of a width are widths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from parallax.analysis.reading.batches.axis_pairs import AXES, COUNT, Axis, AxisPairs, Known, Parts, find_store
from parallax.analysis.reading.batches.open_lengths import LISTS, SHAPE_SLOT, Dims
from parallax.analysis.reading.construction.measured_tensors import MeasuredTensor
from parallax.analysis.reading.lowering.function_bodies import CONDITIONALS, list_branches
from parallax.analysis.reading.lowering.functional_control_flow import LOOPS
from parallax.analysis.reading.lowering.infer_shapes import infer_shapes
from parallax.analysis.reading.lowering.inline import find_handles, graph_of_function
from parallax.graph.control_flow import branches_of
from parallax.graph.view import GraphView, node_of, tensor_name

_INDEXED = ("TensorArrayReadV3", "TensorArrayWriteV3", "TensorListGetItem", "TensorListSetItem")
"""Ops that read or write the tensor whose number is their second input."""
_PUSHES = ("TensorListPushBack",)
_COMPARES = ("Less", "LessEqual", "Greater", "GreaterEqual", "NotEqual")
_INVARIANT = ("Enter", "RefEnter", "Const")


class AxisGroups:
    """The groups of the axes whose lengths are multiples of a fixed batch's.

    A tensor of a function has the prefix of its name.

    Args:
        view: the graph for the fixed batch.
        nodes: the nodes outside autodiff.
        sources: the batches; their first axis is the batch's, and the others are widths.
        length: of the batch.
        measured: constant -> the tensor from which TensorFlow made it.
    """

    def __init__(
        self,
        view: GraphView,
        nodes: Set[str],
        sources: Iterable[str],
        length: int,
        measured: Mapping[str, MeasuredTensor],
    ) -> None:
        self._length = length
        self._above: dict[Axis, Axis] = {}
        self._parts: dict[Axis, dict[Dims, Parts]] = {}
        self._are_batch: dict[Axis, set[bool]] = {}
        self._known: Known = {}
        for tensor in sources:
            for axis in range(len(view.shape(tensor) or ())):
                self._are_batch.setdefault((tensor, axis), set()).add(axis == 0)
        self._add(view, nodes, "", _NO_LOOP)
        for constant, one in measured.items():
            for tensor in _find_tensors_of_shape(view, f"{constant}:0") if one.what else [f"{constant}:0"]:
                for axis, n in enumerate(view.shape(tensor) or ()):
                    if n and n % length == 0 and one.what != "size":
                        self._join((tensor, axis), (one.tensor, axis))
        while self._spread_widths():  # once more for each Reshape of what a Reshape makes
            pass

    def is_batch(self, tensor: str, axis: int) -> bool | None:
        """Whether an axis of a tensor, or of those in a list, is the batch's; None where that is unknown.

        The axis `COUNT` of a list has its tensors, and that of a loop, by its node or frame, its iterations.
        """
        root = self._root((tensor, axis))
        if found := self._are_batch.get(root):
            return next(iter(found)) if len(found) == 1 else None
        for dims, parts in self._parts.get(root, {}).items():
            found_parts = [n % self._length == 0 and self.is_batch(*one) for n, one in zip(dims, parts, strict=True)]
            if None not in found_parts and found_parts.count(True) < 2:
                return True in found_parts
        return None

    def _add(self, view: GraphView, nodes: Set[str], prefix: str, loop: _Loop) -> None:
        pairs = AxisPairs(view, self._length, self._known)
        for node in view.topological_order():
            if node not in nodes:
                continue
            for axis in pairs.find_widths(node):
                self._are_batch.setdefault(self._root(_in_function(prefix, axis)), set()).add(False)
            for one, other in pairs.find_equal(node):
                self._join(_in_function(prefix, one), _in_function(prefix, other))
            for whole, dims, parts in pairs.find_parts(node):
                self._join_parts(_in_function(prefix, whole), dims, [_in_function(prefix, part) for part in parts])
            if view.op(node) in (*_INDEXED, *_PUSHES) and (counted := loop.find(view, node, prefix)):
                self._join((counted, COUNT), _in_function(prefix, (find_store(view, node), COUNT)))
            if view.op(node) in (*LOOPS, *CONDITIONALS):
                self._add_functions(view, node, prefix)

    def _add_functions(self, view: GraphView, node: str, prefix: str) -> None:
        """Adds the functions that a loop or a conditional runs, whose arguments and results are those of the node."""
        is_loop = view.op(node) in LOOPS
        attributes = view.nodes[node].attr
        functions = [attributes[name].func for name in ("body", "cond")] if is_loop else list_branches(view.nodes[node])
        inputs, library = view.inputs(node)[0 if is_loop else 1 :], view.graph_def.library
        by_name = {one.signature.name: one for one in library.function}
        for name in (one.name for one in functions):
            part, flat_names = graph_of_function(by_name[name], view.graph_def, find_handles(view, inputs))
            body, signature = GraphView(infer_shapes(part)), by_name[name].signature
            arguments = [f"{one.name}:0" for one in signature.input_arg]
            results = [tensor_name(flat_names[by_name[name].ret[one.name]]) for one in signature.output_arg]
            invariant = {one for one, result in zip(arguments, results, strict=False) if one == body.source(result)}
            loop = _Loop(f"{prefix}{node}", invariant) if is_loop else _NO_LOOP
            self._add(body, body.nodes.keys(), f"{prefix}{name}/", loop)
            ends = results if len(results) == len(view.outputs(node)) else []  # of the body or a branch
            for outer, inner in (*zip(inputs, arguments, strict=True), *zip(view.outputs(node), ends, strict=False)):
                for axis in AXES:
                    self._join(_in_function(prefix, (outer, axis)), (f"{prefix}{name}/{inner}", axis))

    def _join(self, one: Axis, other: Axis) -> None:
        root, above = self._root(one), self._root(other)
        if root != above:
            self._above[root] = above
            self._are_batch.setdefault(above, set()).update(self._are_batch.pop(root, ()))
            for dims, parts in self._parts.pop(root, {}).items():
                self._join_parts(above, dims, parts)

    def _join_parts(self, whole: Axis, dims: Dims, parts: Parts) -> None:
        """Joins the axes that are the parts of one axis, where another tensor has parts of equal lengths."""
        known = self._parts.setdefault(self._root(whole), {}).setdefault(dims, parts)
        for one, other in zip(known, parts, strict=True):
            self._join(one, other)

    def _spread_widths(self) -> bool:
        """Makes the parts of widths widths; returns whether there were more."""
        wholes = [whole for whole in self._parts if self.is_batch(*whole) is False]
        parts = {self._root(part) for whole in wholes for found in self._parts[whole].values() for part in found}
        more = [part for part in parts if not self._are_batch.get(part)]
        self._are_batch.update((part, {False}) for part in more)
        return bool(more)

    def _root(self, axis: Axis) -> Axis:
        while (above := self._above.get(axis)) is not None:
            self._above[axis] = self._above.get(above, above)  # path halving
            axis = above
        return axis


@dataclass(frozen=True, slots=True)
class _Loop:
    """The loop of which a function is the body, or none.

    Attributes:
        name: with the prefix of its function; empty if there is none.
        invariant: the arguments that no iteration changes.
    """

    name: str
    invariant: Set[str]

    def find(self, view: GraphView, node: str, prefix: str) -> str:
        """The loop each of whose iterations reads or writes another tensor by a node; empty if there is none."""
        index = view.source(view.inputs(node)[1]) if view.op(node) in _INDEXED else ""
        frames = [one.predicate for one in branches_of(view)[node] if one.is_loop]
        if index and (view.op(node_of(index)) in _INVARIANT or index in self.invariant):
            return ""
        return f"{prefix}{frames[-1]}" if frames else self.name


_NO_LOOP = _Loop("", frozenset())


def _in_function(prefix: str, axis: Axis) -> Axis:
    return f"{prefix}{axis[0]}", axis[1]


def _find_tensors_of_shape(view: GraphView, shape: str) -> list[str]:
    """The tensors that are made of a shape."""
    slots = {**SHAPE_SLOT, "Reshape": 1, "Tile": None}
    return [f"{edge.node}:0" for edge in view.consumers(shape) if slots.get(view.op(edge.node)) == edge.slot]


def find_counted_axis(view: GraphView, node: str) -> Axis | None:
    """The axis of which an integer input of a node is the length; None where the number may mean something else."""
    op, results = view.op(node), view.outputs(node)
    if op in LOOPS:
        return node, COUNT
    if op in ("Enter", "RefEnter"):
        readers = {view.op(edge.node) for edge in view.consumers(results[0])}
        return (view.nodes[node].attr["frame_name"].s.decode(), COUNT) if readers & set(_COMPARES) else None
    if op in ("TensorArrayV3", *LISTS):
        return find_store(view, node), COUNT
    if op in ("TopK", "TopKV2", "OneHot"):
        rank, last = len(view.shape(results[0]) or ()), view.nodes[node].attr["axis"].i if op == "OneHot" else -1
        return (results[0], last % rank) if rank else None
    return (results[0], 0) if op == "Range" or op.startswith("UnsortedSegment") else None
