"""Proves along which axis a tensor of the batch is joined: the one process has the workers' one after the other.

What is fed or comes from a pipeline is joined along its first axis. Rules carry the axis on; an op without a rule ends
the proof. `MIXED` says that the first axis has all workers' rows, in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from parallax.analysis.op_lists import FORWARD_ELEMENTWISE, WHOLE_OR_ROWS
from parallax.analysis.states import State
from parallax.graph_view import GraphView, Shape, split_tensor

MIXED = -1
"""The first axis has the rows of all workers, not one worker's after the other's."""

_SOURCES = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "IteratorGetNext", "IteratorGetNextSync")
_SOURCES_OF_MANY = ("QueueDequeueMany", "QueueDequeueManyV2", "QueueDequeueUpTo", "QueueDequeueUpToV2")
_EQUAL = ("same", "handle", "rows", "fed")
"""Kinds of states whose tensors are no worker's own part of a batch."""
_RANDOM = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "StatelessRandomUniformV2")
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin", "EuclideanNorm")


class BatchAxes:
    """Answers along which axis tensors are joined, and remembers it.

    Args:
        view: the graph.
        states: how workers hold its tensors, for all of them.
        assumed: tensors that are taken to be joined, and their axis: to try a hypothesis.
    """

    def __init__(self, view: GraphView, states: Mapping[str, State], assumed: Mapping[str, int] | None = None) -> None:
        self.view = view
        self.states = states
        self._assumed = dict(assumed or {})
        self._order = {node: i for i, node in enumerate(view.topological_order())}
        self._seen: set[str] = set()
        self._drawn: set[str] = set()
        self._axes: dict[str, int] = dict(self._assumed)

    def of(self, tensor: str) -> int | None:
        """The axis along which a tensor is joined; None where none is proven."""
        node = split_tensor(tensor)[0]
        if node not in self._seen:
            waiting = self.view.ancestors([node]) - self._seen
            for name in sorted(waiting, key=self._order.__getitem__):
                self._visit(name)
            self._seen |= waiting
        return self._axes.get(tensor)

    def is_equal(self, tensor: str) -> bool:
        """Whether all workers have this tensor alike, and it is not assumed to be joined."""
        return self.of(tensor) is None and self.states[tensor].kind in _EQUAL

    def shape(self, tensor: str) -> Shape:
        """The static shape."""
        return self.view.shape(tensor)

    def _visit(self, node: str) -> None:
        op = self.view.op(node)
        outputs = [t for t in self.view.outputs(node) if t not in self._assumed]
        if op in _SOURCES or op in _SOURCES_OF_MANY:
            self._axes.update({t: 0 for t in self.sources_of(node) if t in outputs})
            return
        inputs = self.view.inputs(node)
        if not any(t in self._axes for t in inputs) and op not in ("ParallelDynamicStitch", "DynamicStitch"):
            self._draw(node, op, inputs, outputs)
            return
        rule = _RULES.get(op, _elementwise if op in FORWARD_ELEMENTWISE else None)
        if rule is None or (op == "Select" and self.shape(inputs[0]) != self.shape(inputs[1])):
            return  # a condition of lower rank takes whole rows
        axis = rule(self, node, inputs)
        if axis is not None:
            self._axes.update(dict.fromkeys(outputs, axis))

    def sources_of(self, node: str) -> list[str]:
        """What a node feeds or reads of a batch: tensors that the workers have different ones of."""
        if self.view.op(node) not in (*_SOURCES, *_SOURCES_OF_MANY):
            return []
        tensors = [t for t in self.view.outputs(node) if t in self.states]
        return [t for t in tensors if self.states[t].kind not in _EQUAL and self.shape(t) != ()]

    def _draw(self, node: str, op: str, inputs: tuple[str, ...], outputs: list[str]) -> None:
        """Random numbers of a shape that all workers have alike fit whatever they meet, element by element."""
        drawn = op in _RANDOM or (op in FORWARD_ELEMENTWISE and any(t in self._drawn for t in inputs))
        if drawn and all(self._alike(t) for t in inputs):
            self._drawn.update(outputs)

    def known(self, tensor: str) -> int | None:
        """The axis as found so far, for rules."""
        return self._axes.get(tensor)

    def others_are_equal(self, inputs: tuple[str, ...], *but: int) -> bool:
        """Whether all inputs are equal on all workers, but those of these numbers."""
        return all(self._alike(t) for i, t in enumerate(inputs) if i not in but)

    def _alike(self, tensor: str) -> bool:
        return tensor not in self._axes and (tensor in self._drawn or self.states[tensor].kind in _EQUAL)

    def constant(self, tensor: str) -> Any | None:
        """The value of a tensor, if a Const gives it."""
        return self.view.constant(tensor)


_Rule = Callable[[BatchAxes, str, tuple[str, ...]], "int | None"]


def _elementwise(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """Operands meet from the right; all that are joined must be so along one axis, which no other operand has."""
    out = axes.shape(f"{node}:0")
    joined = {t: a for t in inputs if (a := axes.known(t)) is not None}
    if len(set(inputs)) == 1:
        return joined[inputs[0]]
    if out is None:
        return None
    from_right = set()
    for tensor, axis in joined.items():
        shape = axes.shape(tensor)
        if shape is None or axis == MIXED:
            return None
        from_right.add(len(shape) - axis)
    if len(from_right) != 1:
        return None
    (place,) = from_right
    for tensor in inputs:
        if tensor not in joined and not axes._alike(tensor):
            return None
    return len(out) - place


def _first_of(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """Rows stay rows where all else is equal on all workers."""
    transposed = axes.view.nodes[node].attr["transpose_a"].b
    return 0 if axes.known(inputs[0]) == 0 and not transposed and axes.others_are_equal(inputs, 0) else None


def _batch_product(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    ranks = [len(axes.shape(t) or ()) for t in inputs]
    if any(axes.known(t) not in (0, None) for t in inputs) or axes.known(inputs[0]) is None or ranks[0] < 3:
        return None
    return 0 if axes.known(inputs[1]) == 0 and ranks[1] == ranks[0] or axes._alike(inputs[1]) else None


def _reshape(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """Row-major order: rows of whole length may be folded or unfolded; whatever is made flat has all elements."""
    axis, out = axes.known(inputs[0]), axes.shape(f"{node}:0")
    if axis is None or out is None or not out:
        return None
    if axis in (0, MIXED) and None not in out[1:]:
        return axis if axis == 0 else _folds_rows(axes.shape(inputs[0]), out)
    return MIXED if len(out) == 1 else None


def _folds_rows(before: Shape, after: Shape) -> int | None:
    """Rows in another order may be flattened, not put together anew."""
    if before is None or after is None or None in before[1:]:
        return None
    whole = math.prod(d or 0 for d in before[1:]) % max(math.prod(d or 0 for d in after[1:]), 1) == 0
    return MIXED if whole else None


def _transpose(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    axis, order = axes.known(inputs[0]), axes.constant(inputs[1])
    if axis is None or axis == MIXED or order is None:
        return None
    return [int(i) for i in order.reshape(-1)].index(axis)


def _expand_dims(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    axis, place, out = axes.known(inputs[0]), axes.constant(inputs[1]), axes.shape(f"{node}:0")
    if axis is None or axis == MIXED or place is None or out is None:
        return None
    return axis + (int(place.reshape(-1)[0]) % len(out) <= axis)


def _squeeze(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    axis, shape = axes.known(inputs[0]), axes.shape(inputs[0])
    squeezed = [int(d) for d in axes.view.nodes[node].attr["squeeze_dims"].list.i]
    if axis is None or axis == MIXED or shape is None or not squeezed:
        return None
    gone = {d % len(shape) for d in squeezed}
    return None if axis in gone else axis - sum(d < axis for d in gone)


def _concat(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """Along another axis the rows stay; along the joined one all rows must be of the batch."""
    pieces, axis, shape = inputs[:-1], axes.constant(inputs[-1]), axes.shape(inputs[0])
    found = {axes.known(t) for t in pieces if axes.known(t) is not None}
    if axis is None or shape is None or len(found) != 1:
        return None
    (joined,) = found
    if joined == MIXED or not all(axes.known(t) is not None or axes._alike(t) for t in pieces):
        return None
    if int(axis) % len(shape) != joined:
        return joined
    return MIXED if joined == 0 and all(axes.known(t) == 0 for t in pieces) else None


def _pack(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    found, out = {axes.known(t) for t in inputs}, axes.shape(f"{node}:0")
    if len(found) != 1 or found & {None, MIXED} or out is None:
        return None
    (axis,) = found
    place = int(axes.view.nodes[node].attr["axis"].i) % len(out)
    return None if axis is None else axis + (place <= axis)


def _unpack(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    axis, shape = axes.known(inputs[0]), axes.shape(inputs[0])
    if axis is None or axis == MIXED or shape is None:
        return None
    place = int(axes.view.nodes[node].attr["axis"].i) % len(shape)
    return None if place == axis else axis - (place < axis)


def _split(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    value = inputs[1] if axes.view.op(node) == "Split" else inputs[0]
    place = axes.constant(inputs[0] if axes.view.op(node) == "Split" else inputs[2])
    axis, shape = axes.known(value), axes.shape(value)
    if axis is None or axis == MIXED or shape is None or place is None:
        return None
    return None if int(place) % len(shape) == axis else axis


def _strided_slice(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """Cut along other axes, and new ones put in; the joined one is taken whole."""
    axis, begin, shape = axes.known(inputs[0]), axes.constant(inputs[1]), axes.shape(inputs[0])
    strides, attr = axes.constant(inputs[3]), axes.view.nodes[node].attr
    if axis is None or axis == MIXED or begin is None or strides is None or shape is None:
        return None
    if not axes.others_are_equal(inputs, 0):
        return None
    masks = {name: attr[f"{name}_mask"].i for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    taken = [place for place in range(begin.size) if not (masks["new_axis"] | masks["ellipsis"]) & (1 << place)]
    read, out = 0, 0  # axes of the input and of the result, so far
    for place in range(begin.size):
        bit = 1 << place
        if masks["ellipsis"] & bit:
            whole = len(shape) - len(taken)
            if read <= axis < read + whole:
                return out + axis - read
            read, out = read + whole, out + whole
        elif masks["new_axis"] & bit:
            out += 1
        elif read == axis:
            is_whole = masks["begin"] & bit and masks["end"] & bit and int(strides.reshape(-1)[place]) == 1
            return out if is_whole and not masks["shrink_axis"] & bit else None
        else:
            read, out = read + 1, out + (not masks["shrink_axis"] & bit)
    return out + axis - read


def _slice(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    axis, begin, size = axes.known(inputs[0]), axes.constant(inputs[1]), axes.constant(inputs[2])
    if axis is None or axis == MIXED or begin is None or size is None:
        return None
    return axis if int(begin.reshape(-1)[axis]) == 0 and int(size.reshape(-1)[axis]) == -1 else None


def _gather(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """By ids of the batch from what is equal on all workers, or by equal ids along another axis than the joined one."""
    params, ids = inputs[0], inputs[1]
    place = axes.constant(inputs[2]) if len(inputs) > 2 else 0
    shape, ids_shape = axes.shape(params), axes.shape(ids)
    if axes.view.nodes[node].attr["batch_dims"].i or place is None or ids_shape is None:
        return None
    if len(inputs) > 2 and shape is None:
        return None
    at = int(place) % len(shape) if len(inputs) > 2 and shape else 0
    axis = axes.known(ids)
    if axis is not None and axes._alike(params):
        return axis if axis == MIXED and at == 0 and len(ids_shape) == 1 else None if axis == MIXED else at + axis
    axis = axes.known(params)
    if axis is None or axis == MIXED or not axes._alike(ids) or at == axis:
        return None
    return axis if axis < at else axis - 1 + len(ids_shape)


def _one_hot(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    axis, out = axes.known(inputs[0]), axes.shape(f"{node}:0")
    if axis is None or axis == MIXED or out is None or not axes.others_are_equal(inputs, 0):
        return None
    place = int(axes.view.nodes[node].attr["axis"].i) % len(out)
    return axis + (place <= axis)


def _reduction(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    axis, over, shape = axes.known(inputs[0]), axes.constant(inputs[1]), axes.shape(inputs[0])
    if axis is None or axis == MIXED or over is None or shape is None:
        return None
    gone = {int(a) % len(shape) for a in over.reshape(-1)}
    if axis in gone:
        return None
    return axis if axes.view.nodes[node].attr["keep_dims"].b else axis - sum(a < axis for a in gone)


def _over_last(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """What mixes the last axis only."""
    axis, shape = axes.known(inputs[0]), axes.shape(inputs[0])
    if axis is None or axis == MIXED or shape is None or axis == len(shape) - 1:
        return None
    return axis if axes.others_are_equal(inputs, 0) else None


def _cross_entropy(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    joined = all(axes.known(t) == 0 or axes._alike(t) for t in inputs)
    return 0 if joined and axes.known(inputs[0]) == 0 else None


def _stitch(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """Rows looked up part by part and put back where their ids were, as embedding_lookup does with several parts."""
    view, count = axes.view, len(inputs) // 2
    places = {split_tensor(t)[0] for t in inputs[:count]}
    parts = {split_tensor(view.inputs(split_tensor(t)[0])[1])[0] for t in inputs[count:] if _is_gather(view, t)}
    if len(places) != 1 or len(parts) != 1 or not all(_is_gather(view, t) for t in inputs[count:]):
        return None
    (places_by,), (ids_by,) = places, parts
    if view.op(places_by) != "DynamicPartition" or view.op(ids_by) != "DynamicPartition":
        return None
    ids, numbers = view.inputs(ids_by)[0], split_tensor(view.inputs(places_by)[0])[0]
    same_parts = view.inputs(ids_by)[1] == view.inputs(places_by)[1]
    if not same_parts or view.op(numbers) != "Range" or axes.constant(view.inputs(numbers)[0]) != 0:
        return None
    size = split_tensor(view.inputs(numbers)[1])[0]
    whole = view.inputs(size)[0] if view.op(size) == "Size" else ids
    return axes.known(whole) if axes.known(whole) in (0, MIXED) and len(axes.shape(whole) or ()) == 1 else None


def _is_gather(view: GraphView, tensor: str) -> bool:
    return view.op(split_tensor(tensor)[0]) in ("GatherV2", "Gather", "ResourceGather")


def _by_numbers(name: str, whole: int) -> _Rule:
    """Ops that do something along some axes, by a constant: `whole` there leaves an axis alone."""

    def rule(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
        axis, numbers = axes.known(inputs[0]), axes.constant(inputs[1])
        if axis is None or axis == MIXED or numbers is None:
            return None
        if name == "axes":
            shape = axes.shape(inputs[0])
            return axis if shape and axis not in {int(n) % len(shape) for n in numbers.reshape(-1)} else None
        mine = numbers[axis]
        return axis if bool((mine == whole).all() if hasattr(mine, "all") else mine == whole) else None

    return rule


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(WHOLE_OR_ROWS, _first_of),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batch_product),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "ConcatV2": _concat,
    "Pack": _pack,
    "Unpack": _unpack,
    "Split": _split,
    "SplitV": _split,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    **dict.fromkeys(("GatherV2", "Gather", "ResourceGather"), _gather),
    "OneHot": _one_hot,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "L2Normalize"), _over_last),
    **dict.fromkeys(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), _cross_entropy),
    **dict.fromkeys(("ParallelDynamicStitch", "DynamicStitch"), _stitch),
    "Tile": _by_numbers("multiples", 1),
    "Pad": _by_numbers("paddings", 0),
    "PadV2": _by_numbers("paddings", 0),
    "ReverseV2": _by_numbers("axes", 0),
    **dict.fromkeys(("Cumsum", "Cumprod"), _by_numbers("axes", 0)),
}
