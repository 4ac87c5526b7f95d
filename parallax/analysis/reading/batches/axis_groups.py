"""Groups the axes of a graph's tensors that grow together: with the batch, or not at all, as widths.

Where a layer is as wide as the batch is long, a length does not tell which it is; the ops that read it do. Two axes of
an op are of one group if TensorFlow's shape inference accepts that both are longer, and not one alone, or if the axis
of the result is longer then: so no op needs a rule, but for those of loops, arrays of tensors, and reshapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from parallax.analysis.reading.batches.find_open_batches import DEFAULTS
from parallax.analysis.reading.batches.open_lengths import Shape, find_shape_slots, find_vector
from parallax.analysis.reading.lowering.function_bodies import CONDITIONALS, list_branches
from parallax.analysis.reading.lowering.functional_control_flow import LOOPS
from parallax.analysis.reading.lowering.infer_shapes import infer_shapes
from parallax.analysis.reading.lowering.inline import find_handles, graph_of_function
from parallax.base.types import GraphDef
from parallax.graph.control_flow import MERGES, SWITCHES
from parallax.graph.ops import takes_functions
from parallax.graph.tensor_stores import store_of
from parallax.graph.view import NEXT_ITERATIONS, VARIABLES, GraphView, tensor_name

Axis = tuple[str, int]
"""(a tensor, or the array or list that holds it; the number of the axis)."""
Place = tuple[int, int]
"""(number among a node's inputs and results, axis)."""
Known = dict[tuple[bytes, ...], list[tuple[Place, Place]]]
"""What identifies nodes of equal inputs -> their pairs of equal axes."""
_VARIANT, _RESOURCE = 21, 20  # types.proto
_MOST_AXES = 8
_NODE = "node"
_READS = ("ReadVariableOp",)
_COPIES = ("Enter", "RefEnter", "Exit", "RefExit", "Identity", "EnsureShape", *DEFAULTS)
_PASSES = (*MERGES, *SWITCHES, *NEXT_ITERATIONS, *LOOPS, *_COPIES)
_STORES = {
    "TensorArrayWriteV3": (2, 0),
    "TensorArrayScatterV3": (2, 1),
    "TensorListFromTensor": (0, 1),
    "TensorListPushBack": (1, 0),
    "TensorListSetItem": (2, 0),
}
"""For ops that store tensors: (the input that is stored, by how many axes it exceeds them)."""
_TAKES = {
    **dict.fromkeys(("TensorArrayReadV3", "TensorListGetItem"), (0, 0)),
    **dict.fromkeys(("TensorArrayGatherV3", "TensorListStack", "TensorListGather"), (0, 1)),
    "TensorListPopBack": (1, 0),
}
"""For ops that read stored tensors: (the result, by how many axes it exceeds them)."""
_CHANGES_LIST = ("TensorListPopBack", "TensorListPushBack", "TensorListSetItem")
_OTHER = 7
"""Ratio of a longer axis to the fixed one, a whole number: equal parts of it are longer likewise."""


class AxisGroups:
    """The groups of the axes whose lengths are multiples of a fixed batch's.

    A tensor of a function has the prefix of its name.

    Args:
        view: the graph for the fixed batch.
        nodes: the nodes outside autodiff.
        sources: the batches; their first axis is the batch's, and the others are widths.
        length: of the batch.
    """

    def __init__(self, view: GraphView, nodes: Set[str], sources: Iterable[str], length: int) -> None:
        self._length = length
        self._above: dict[Axis, Axis] = {}
        self._are_batch: dict[Axis, set[bool]] = {}
        self._known: Known = {}
        for tensor in sources:
            for axis in range(len(view.shape(tensor) or ())):
                self._are_batch.setdefault((tensor, axis), set()).add(axis == 0)
        self._add(view, nodes, "")

    def is_batch(self, tensor: str, axis: int) -> bool | None:
        """Whether an axis of a tensor, or of those in a list, is the batch's; None where that is unknown."""
        found = self._are_batch.get(self._root((tensor, axis)), set())
        return next(iter(found)) if len(found) == 1 else None

    def _add(self, view: GraphView, nodes: Set[str], prefix: str) -> None:
        pairs = _AxisPairs(view, self._length, self._known)
        for node in view.topological_order():
            if node not in nodes:
                continue
            for axis in pairs.find_widths(node):
                self._are_batch.setdefault(self._root(_in_function(prefix, axis)), set()).add(False)
            for one, other in pairs.find_equal(node):
                self._join(_in_function(prefix, one), _in_function(prefix, other))
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
            self._add(body, body.nodes.keys(), f"{prefix}{name}/")
            arguments = [f"{one.name}:0" for one in signature.input_arg]
            results = [tensor_name(flat_names[by_name[name].ret[one.name]]) for one in signature.output_arg]
            ends = results if len(results) == len(view.outputs(node)) else []  # of the body or a branch
            for outer, inner in (*zip(inputs, arguments, strict=True), *zip(view.outputs(node), ends, strict=False)):
                for axis in range(_MOST_AXES):
                    self._join(_in_function(prefix, (outer, axis)), (f"{prefix}{name}/{inner}", axis))

    def _join(self, one: Axis, other: Axis) -> None:
        root, above = self._root(one), self._root(other)
        if root != above:
            self._above[root] = above
            self._are_batch.setdefault(above, set()).update(self._are_batch.pop(root, ()))

    def _root(self, axis: Axis) -> Axis:
        while (above := self._above.get(axis)) is not None:
            self._above[axis] = self._above.get(above, above)  # path halving
            axis = above
        return axis


def _in_function(prefix: str, axis: Axis) -> Axis:
    return f"{prefix}{axis[0]}", axis[1]


class _AxisPairs:
    """The pairs of axes of one graph's nodes that grow together.

    Args:
        view: the graph.
        length: of the batch.
        known: the pairs of nodes that were tried, to which this adds.
    """

    def __init__(self, view: GraphView, length: int, known: Known) -> None:
        self._view, self._length, self._known = view, length, known

    def find_widths(self, node: str) -> list[Axis]:
        """The axes of variables, of which a handle has none."""
        if self._view.op(node) == "VarHandleOp":
            return [(node, axis) for axis, _ in enumerate(self._view.nodes[node].attr["shape"].shape.dim)]
        is_variable = self._view.op(node) in (*VARIABLES, *_READS)
        return [axis for tensor in self._view.outputs(node) for axis in self._find_axes(tensor)] if is_variable else []

    def find_equal(self, node: str) -> Iterator[tuple[Axis, Axis]]:
        """The pairs of axes of a node's inputs and results that are of one group."""
        view, op = self._view, self._view.op(node)
        inputs, outputs = view.inputs(node), view.outputs(node)
        if op in _PASSES:
            for number, tensor in enumerate(inputs):
                for other in outputs[:1] if op in MERGES else outputs if op in SWITCHES else outputs[number:][:1]:
                    yield from self._match_axes(tensor, other)
        elif op in _STORES or op in _TAKES:
            slot, more = {**_STORES, **_TAKES}[op]
            tensor, store = (inputs if op in _STORES else outputs)[slot], find_store(view, node)
            yield from ((one, (store, one[1] - more)) for one in self._find_axes(tensor) if one[1] >= more)
            if op in _CHANGES_LIST:
                yield from (((inputs[0], axis), (outputs[0], axis)) for axis in range(_MOST_AXES))
        elif op == "Reshape":
            yield from self._match_axes_of_reshape(inputs[0], outputs[0])
        elif inputs and outputs and not takes_functions(op) and any(map(self._find_axes, (*inputs, *outputs))):
            tensors = [store_of(view, t) if view.dtype(t) == _RESOURCE else t for t in (*inputs, *outputs)]
            for place, equal in self._try_lengths(node):
                yield (tensors[place[0]], place[1]), (tensors[equal[0]], equal[1])

    def _find_axes(self, tensor: str) -> list[Axis]:
        """The axes of a tensor that may be the batch's."""
        return [(tensor, axis) for axis, n in enumerate(self._view.shape(tensor) or ()) if n and n % self._length == 0]

    def _match_axes(self, one: str, other: str) -> Iterator[tuple[Axis, Axis]]:
        before, after = self._view.shape(one), self._view.shape(other)
        if self._view.dtype(one) == _VARIANT:
            yield from (((one, axis), (other, axis)) for axis in range(_MOST_AXES))
        elif before is not None and after is not None and len(before) == len(after):
            yield from ((axis, (other, axis[1])) for axis in self._find_axes(one))

    def _match_axes_of_reshape(self, one: str, other: str) -> Iterator[tuple[Axis, Axis]]:
        """The equally long axes of a reshape before which equally many elements lie."""
        before, after = self._view.shape(one) or (), self._view.shape(other) or ()
        if None not in (*before, *after):
            places = {
                size: axis for axis, size in enumerate(accumulate((n or 0 for n in after), mul)) if after[axis] != 1
            }
            for axis, size in enumerate(accumulate((n or 0 for n in before), mul)):
                place = places.get(size, 0)
                if size in places and before[axis] == after[place]:
                    yield (one, axis), (other, place)

    def _try_lengths(self, node: str) -> list[tuple[Place, Place]]:
        """The pairs of axes of a node that have one length, by TensorFlow's shape inference."""
        trial = _Trial.of(self._view, node)
        if trial.key not in self._known:
            self._known[trial.key] = list(trial.find_pairs(self._length)) if trial.graph_def is not None else []
        return self._known[trial.key]


def find_store(view: GraphView, node: str) -> str:
    """The array that a node makes, writes or reads, by its name; a list of tensors is the tensor that it is in."""
    before = view.inputs(node)
    if not view.op(node).startswith("TensorArray"):
        return before[0] if view.op(node) in (*_TAKES, *_CHANGES_LIST) else f"{node}:0"
    return node if view.op(node) == "TensorArrayV3" else store_of(view, before[0])


@dataclass(frozen=True, slots=True)
class _Trial:
    """A node whose inputs are placeholders, of which shape inference is asked for other lengths.

    Attributes:
        key: equal for nodes with the same pairs.
        graph_def: the node, and placeholders, constants or variables as its inputs; None where an input is another
            resource.
        shapes: of its inputs that are placeholders, by input number; of the others empty.
    """

    key: tuple[bytes, ...]
    graph_def: GraphDef | None
    shapes: Sequence[Shape]

    @classmethod
    def of(cls, view: GraphView, node: str) -> _Trial:
        """A node of a graph."""
        inputs, part, shapes = view.inputs(node), type(view.graph_def)(versions=view.graph_def.versions), list[Shape]()
        are_shapes, is_whole = find_shape_slots(view.op(node)), True
        for slot, tensor in enumerate(inputs):
            shape, made, is_shape = view.shape(tensor), part.node.add(), are_shapes[slot : slot + 1] == (True,)
            value = find_vector(view, tensor) if is_shape else view.constant(tensor)
            if view.dtype(tensor) == _RESOURCE:
                variable = view.nodes[store_of(view, tensor)]
                made.op, is_whole = variable.op, is_whole and variable.op in VARIABLES
                for name in ("dtype", "shape") if variable.op in VARIABLES else ():
                    made.attr[name].CopyFrom(variable.attr[name])
                shape = tuple(dim.size for dim in made.attr["shape"].shape.dim)
            elif value is not None and (value.ndim == 0 or is_shape):
                made.op, made.attr["dtype"].type = "Const", view.dtype(tensor)
                made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, view.dtype(tensor)))
                shape = ()
            else:
                made.op, made.attr["dtype"].type = "Placeholder", view.dtype(tensor)
                made.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
            made.name = f"input_{slot}"
            shapes.append(shape or ())
        copy = part.node.add()
        copy.CopyFrom(view.nodes[node])
        copy.name, copy.device = _NODE, ""
        copy.input[:] = [f"input_{slot}" for slot in range(len(inputs))]
        for one in part.node:
            for name in [name for name in one.attr if name.startswith("_")]:  # colocations, and shapes known before
                del one.attr[name]
        key = tuple(one.SerializeToString(deterministic=True) for one in part.node)
        return cls(key, part if is_whole else None, shapes)

    def find_pairs(self, length: int) -> Iterator[tuple[Place, Place]]:
        """The pairs of axes, as (number among inputs and results, axis), whose lengths are multiples of a length."""
        axes = ((slot, axis, n) for slot, shape in enumerate(self.shapes) for axis, n in enumerate(shape))
        places, fixed = [(slot, axis) for slot, axis, n in axes if n and n % length == 0], self._infer(())
        for place in places if fixed is not None else ():
            others = [one for one in places if one != place]
            alike = [one for one in others if one[1] == place[1]]
            trials = [[place], *([place, one] for one in others), [place, *alike]]
            changed, made = next(((one, found) for one in trials if (found := self._infer(one))), ((), ()))
            yield from ((place, one) for one in changed[1:])
            for number, (before, after) in enumerate(zip(fixed or (), made, strict=False)):
                pairs = enumerate(zip(before or (), after or (), strict=False))
                begun = [axis for axis, (n, now) in pairs if n and n % length == 0 and now == n * _OTHER]
                yield from ((place, (len(self.shapes) + number, axis)) for axis in begun)

    def _infer(self, changed: Sequence[Place]) -> list[Shape | None] | None:
        """The shapes of the results where some axes are longer; None where TensorFlow refuses that."""
        part = graph_pb2.GraphDef()
        part.CopyFrom(self.graph_def)
        for slot, axis in changed:
            part.node[slot].attr["shape"].shape.dim[axis].size *= _OTHER
        try:
            view = GraphView(infer_shapes(part))
        except (ValueError, tf.errors.InvalidArgumentError):
            return None
        return [view.shape(tensor) for tensor in view.outputs(_NODE)]
