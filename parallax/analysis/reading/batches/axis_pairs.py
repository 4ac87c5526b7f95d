"""Finds the pairs of axes of an op's inputs and results that grow together.

Two axes do if TensorFlow's shape inference accepts that both are longer, and not one alone, or if the axis of the
result is longer then: so no op needs a rule, but for those of loops, arrays of tensors, and reshapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from math import prod
from operator import mul

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from parallax.analysis.reading.batches.find_open_batches import DEFAULTS
from parallax.analysis.reading.batches.open_lengths import Dims, Shape, find_shape_slots, find_vector
from parallax.analysis.reading.lowering.functional_control_flow import LOOPS
from parallax.analysis.reading.lowering.infer_shapes import infer_shapes
from parallax.base.types import GraphDef
from parallax.graph.control_flow import MERGES, SWITCHES
from parallax.graph.ops import takes_functions
from parallax.graph.tensor_stores import store_of
from parallax.graph.view import NEXT_ITERATIONS, VARIABLES, GraphView, node_of

Axis = tuple[str, int]
"""(a tensor, or the array or list that holds it; the number of the axis)."""
Place = tuple[int, int]
"""(number among a node's inputs and results, axis)."""
Parts = Sequence[Axis]
"""The axes that a Reshape makes one."""
Known = dict[tuple[bytes, ...], list[tuple[Place, Place]]]
"""What identifies nodes of equal inputs -> their pairs of equal axes."""
_VARIANT, _RESOURCE = 21, 20  # types.proto
AXES = range(-1, 8)
"""Of a list of tensors: the one along which it has them, and theirs."""
_NODE = "node"
_READS = ("ReadVariableOp",)
_COPIES = ("Enter", "RefEnter", "Exit", "RefExit", "Identity", "EnsureShape", *DEFAULTS)
_PASSES = (*MERGES, *SWITCHES, *NEXT_ITERATIONS, *LOOPS, *_COPIES)
COUNT = -1
"""The number of the axis along which an array or a list has its tensors, and a loop its iterations."""
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
_NUMBERED = ("TensorArrayScatterV3", "TensorArrayGatherV3", "TensorListGather")
"""Ops that read or write the tensors whose numbers are their second input."""
_COPIES_AXES = ("Tile", "TopK", "TopKV2")
"""Ops that keep the axes that they neither repeat nor cut."""
_SEGMENTS = tuple(f"Segment{how}" for how in ("Sum", "Mean", "Max", "Min", "Prod"))
_SELECTS = ("GatherV2", "GatherNd")
_REARRANGES = ("Identity", "Cast", "Squeeze", "Reshape")
_ENUMERATES = (*_REARRANGES, "BroadcastTo", "ExpandDims", "RandomShuffle", "Reverse", "ReverseV2", "Tile", "Transpose")
"""Ops whose results have all entries of their first input."""
_ROWS = ("Gather", "GatherV2", "ResourceGather")
_CHANGES_LIST = ("TensorListPopBack", "TensorListPushBack", "TensorListSetItem")
_OTHER = 7
"""Ratio of a longer axis to the fixed one, a whole number: equal parts of it are longer likewise."""
_MOST_PAIRS = 8
"""Other axes of a node that are tried one by one; more are of inputs that it treats alike, as what it concatenates."""


class AxisPairs:
    """The pairs of axes of one graph's nodes that grow together.

    Args:
        view: the graph.
        length: of the batch.
        known: the pairs of nodes that were tried, to which this adds.
    """

    def __init__(self, view: GraphView, length: int, known: Known) -> None:
        self._view, self._length, self._known = view, length, known
        self._constants: dict[bytes, Sequence[Axis]] = {}

    def find_widths(self, node: str) -> list[Axis]:
        """The axes of variables, of which a handle has none, and those along which a fixed number of tensors lies."""
        op = self._view.op(node)
        if op == "VarHandleOp":
            return [(node, axis) for axis, _ in enumerate(self._view.nodes[node].attr["shape"].shape.dim)]
        if op in ("Pack", "Unpack"):
            tensor, axis = (
                f"{node}:0" if op == "Pack" else self._view.inputs(node)[0],
                self._view.nodes[node].attr["axis"].i,
            )
            rank = len(self._view.shape(tensor) or ())
            return [(tensor, axis % rank)] if rank else []
        is_variable = op in (*VARIABLES, *_READS)
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
            yield from ((one, (store, one[1] - more)) for one in self._find_axes(tensor))
            if op in _CHANGES_LIST:
                yield from (((inputs[0], axis), (outputs[0], axis)) for axis in AXES)
            if op in _NUMBERED:
                yield (inputs[1], 0), (store, COUNT)
        elif op == "Const":
            yield from self._match_constant(node)
        elif op in _COPIES_AXES:
            for tensor in outputs:
                alike = zip(view.shape(inputs[0]) or (), view.shape(tensor) or (), strict=False)
                yield from (((inputs[0], axis), (tensor, axis)) for axis, (n, now) in enumerate(alike) if n == now)
        elif op == "Reshape":
            yield from ((one[0], other[0]) for one, other, _ in self._match_reshape(node) if len(one) == len(other))
        elif inputs and outputs and not takes_functions(op) and any(map(self._find_axes, (*inputs, *outputs))):
            tensors = [store_of(view, t) if view.dtype(t) == _RESOURCE else t for t in (*inputs, *outputs)]
            for place, equal in self._try_lengths(node):
                yield (tensors[place[0]], place[1]), (tensors[equal[0]], equal[1])
            if op in _SELECTS:
                yield from self._match_selection(node)
            if op in _SEGMENTS:
                yield (inputs[0], 0), (inputs[1], 0)
            yield from self._match_positions(node)
            for tensor in outputs if op == "SplitV" else ():
                yield from self._match_axes(inputs[0], tensor)

    def _find_axes(self, tensor: str) -> list[Axis]:
        """The axes of a tensor that may be the batch's."""
        return [(tensor, axis) for axis, n in enumerate(self._view.shape(tensor) or ()) if n and n % self._length == 0]

    def _match_axes(self, one: str, other: str) -> Iterator[tuple[Axis, Axis]]:
        before, after = self._view.shape(one), self._view.shape(other)
        if self._view.dtype(one) == _VARIANT:
            yield from (((one, axis), (other, axis)) for axis in AXES)
        elif before is not None and after is not None and len(before) == len(after):
            yield from ((axis, (other, axis[1])) for axis in self._find_axes(one))

    def find_parts(self, node: str) -> Iterator[tuple[Axis, Dims, Parts]]:
        """The axes that a Reshape makes of several, or parts into several: (the axis, their lengths, they)."""
        for one, other, dims in self._match_reshape(node) if self._view.op(node) == "Reshape" else ():
            if len(one) != len(other):
                yield min(one, other, key=len)[0], dims, max(one, other, key=len)

    def _match_reshape(self, node: str) -> Iterator[tuple[Parts, Parts, Dims]]:
        """(axes of a Reshape's input, those of its result, the lengths of the more of them), of one or of several."""
        tensors = self._view.inputs(node)[0], f"{node}:0"
        before, after = (list(takewhile(bool, self._view.shape(tensor) or ())) for tensor in tensors)
        ends = [list(accumulate((n or 1 for n in dims), mul)) for dims in (before, after)]
        starts = [0, 0]
        for size in sorted(set(ends[0]) & set(ends[1])):
            stops = [one.index(size) + 1 for one in ends]
            axes = [
                [(tensor, axis) for axis in range(start, stop) if dims[axis] != 1]
                for tensor, dims, start, stop in zip(tensors, (before, after), starts, stops, strict=True)
            ]
            starts = stops
            more = 0 if len(axes[0]) > len(axes[1]) else 1
            lengths = tuple((before, after)[more][axis] or 0 for _, axis in axes[more])
            if min(map(len, axes)) == 1 and prod(lengths) % self._length == 0:
                yield axes[0], axes[1], lengths

    def _match_constant(self, node: str) -> Iterator[tuple[Axis, Axis]]:
        """The axes of equal constants with several that may be the batch's, which a script converts at each use."""
        axes = self._find_axes(f"{node}:0")
        if len(axes) > 1:
            content = self._view.nodes[node].attr["value"].SerializeToString(deterministic=True)
            yield from zip(axes, self._constants.setdefault(content, axes), strict=True)

    def _match_selection(self, node: str) -> Iterator[tuple[Axis, Axis]]:
        """The axes of a mask, and of the tensor that a node takes from where the mask is set."""
        view, inputs = self._view, self._view.inputs(node)
        place = node_of(inputs[1])
        while view.op(place) in _REARRANGES:
            place = node_of(view.inputs(place)[0])
        if view.op(place) == "Where":
            mask, first = view.inputs(place)[0], view.constant(inputs[2]) if len(inputs) > 2 else None
            before = int(first) if first is not None else 0
            for axis in range(len(view.shape(mask) or ())):
                yield (mask, axis), (inputs[0], before + axis)

    def _match_positions(self, node: str) -> Iterator[tuple[Axis, Axis]]:
        """The axis of a range, and the axis of as many entries whose positions the range has."""
        view, op, inputs = self._view, self._view.op(node), self._view.inputs(node)
        has_positions = op in (*_ROWS, "OneHot") or op.startswith("UnsortedSegment")
        target = self._find_numbered_axis(node) if has_positions else None
        if target is None:
            return
        positions = node_of(inputs[0 if op == "OneHot" else 1])
        while view.op(positions) in (*_ENUMERATES, *_SELECTS):
            positions = node_of(view.inputs(positions)[0])
        if view.op(positions) == "Range" and view.shape(f"{positions}:0") == (target[1],):
            start, _, step = map(view.constant, view.inputs(positions))
            if start is not None and step is not None and (int(start), int(step)) == (0, 1):
                yield (f"{positions}:0", 0), target[0]

    def _find_numbered_axis(self, node: str) -> tuple[Axis, int | None] | None:
        """The axis of whose entries an input of a node has the positions, and its length."""
        view, op, inputs = self._view, self._view.op(node), self._view.inputs(node)
        if op == "ResourceGather":
            variable = store_of(view, inputs[0])
            is_known = view.op(node_of(variable)) == "VarHandleOp"
            dims = view.nodes[node_of(variable)].attr["shape"].shape.dim if is_known else ()
            return ((variable, 0), int(dims[0].size)) if dims else None
        tensor = inputs[0] if op in _ROWS else f"{node}:0"
        along = view.nodes[node].attr["axis"].i if op == "OneHot" else 0
        axis = view.constant(inputs[2]) if op == "GatherV2" else np.array(along)
        shape = view.shape(tensor)
        if axis is None or not shape:
            return None
        place = int(axis) % len(shape)
        return (tensor, place), shape[place]

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
            if view.op(node) == "Slice" and slot and value is not None:
                value = np.full_like(value, 0 if slot == 1 else -1)
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
        for mask in ("begin_mask", "end_mask") if copy.op == "StridedSlice" else ():
            copy.attr[mask].i = (1 << len(AXES)) - 1  # a part of an axis is longer with it
        copy.input[:] = [f"input_{slot}" for slot in range(len(inputs))]
        for one in part.node:
            for name in [name for name in one.attr if name.startswith("_")]:  # colocations, and shapes known before
                del one.attr[name]
        key = tuple(one.SerializeToString(deterministic=True) for one in part.node)
        return cls(key, part if is_whole else None, shapes)

    def find_pairs(self, length: int) -> Iterator[tuple[Place, Place]]:
        """The pairs of axes, as (number among inputs and results, axis), whose lengths are multiples of a length."""
        axes = ((slot, axis, n) for slot, shape in enumerate(self.shapes) for axis, n in enumerate(shape))
        places, fixed = [(slot, axis) for slot, axis, n in axes if n and n % length == 0], self._infer(()) or []
        alone = {place: self._infer([place]) for place in places if fixed}
        joined: set[Place] = set()
        begun = {place: self._find_longer(fixed, made, length) for place, made in alone.items() if made is not None}
        for place, results in begun.items():
            yield from ((place, one) for one in results)
        left = set(self._find_longer(fixed, self._multiply(fixed), length)).difference(*begun.values())
        for place, is_refused in ((place, made is None) for place, made in alone.items()):
            others = [one for one in places if one != place]
            trials = [[place, one] for one in others] if len(others) <= _MOST_PAIRS else []
            trials += [[place, *(one for one in others if one[1] == place[1])]]
            if place in joined or not (is_refused or (left and not begun[place])):
                continue
            for changed in trials:
                results = self._find_longer(fixed, made, length) if (made := self._infer(changed)) else []
                results = results if is_refused else [one for one in results if one in left]
                if made is not None and (is_refused or results):
                    joined.update(changed[1:])
                    yield from ((place, one) for one in (*changed[1:], *results))
                    break

    def _multiply(self, shapes: Sequence[Shape | None]) -> list[Shape | None]:
        return [tuple(n and n * _OTHER for n in shape) if shape else shape for shape in shapes]

    def _find_longer(self, fixed: Sequence[Shape | None], made: Sequence[Shape | None], length: int) -> list[Place]:
        """The axes of the results that are multiples of a length, and are longer in the one list of shapes."""
        return [
            (len(self.shapes) + number, axis)
            for number, (before, after) in enumerate(zip(fixed, made, strict=False))
            for axis, (n, now) in enumerate(zip(before or (), after or (), strict=False))
            if n and n % length == 0 and now == n * _OTHER
        ]

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
