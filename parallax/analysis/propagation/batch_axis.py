"""Proves along which axis a tensor of the batch is joined: the one process has the workers' one after the other.

What is fed or comes from a pipeline is joined along its first axis. Rules carry the axis on; an op without a rule ends
the proof. `MIXED` says that the first axis has all workers' rows, in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parallax.analysis.propagation import (
    axis_blocks,
    axis_cuts,
    axis_einsum,
    axis_loops,
    axis_numbers,
    axis_rows,
    sparse_batches,
)
from parallax.analysis.propagation.axis_part import ALIKE, MIXED, AxisPart
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE, WHOLE_OR_ROWS
from parallax.analysis.propagation.states import State
from parallax.analysis.reading.bodies import Body, body_of
from parallax.graph.control_flow import SWITCHES, Branch, Branches, branches_of, is_loop_merge, predicate_of
from parallax.graph.view import GraphView, Shape, split_tensor
from parallax.types import Value

_SOURCES = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")
_SOURCES_OF_MANY = (
    *("IteratorGetNext", "IteratorGetNextSync", "QueueDequeue", "QueueDequeueV2"),
    *("QueueDequeueMany", "QueueDequeueManyV2", "QueueDequeueUpTo", "QueueDequeueUpToV2"),
)
_EQUAL = ("same", "handle", "rows", "fed")
"""Kinds of states whose tensors are no worker's own part of a batch."""
_RANDOM = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "StatelessRandomUniformV2")
_GATHERS = ("GatherV2", "Gather", "ResourceGather")
_SEGMENTS = ("SegmentSum", "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")
_SEGMENTS_OF_MANY = ("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin", "EuclideanNorm")
_OF_ONE = (
    *("StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket", "StringToNumber", "AsString"),
    *("StringLower", "StringUpper", "StringStrip", "StringLength", "StaticRegexReplace", "StaticRegexFullMatch"),
    "Bucketize",
)
"""Element by element, of one tensor."""
_UNASKED = ("ParallelDynamicStitch", "DynamicStitch", "Fill", *_GATHERS, *_SEGMENTS)
"""Ops whose inputs need not be joined for the result to be."""


class BatchAxes:
    """Answers along which axis tensors are joined, and remembers it.

    Args:
        view: the graph.
        states: how workers hold its tensors, for all of them.
        like: other answers about the same graph, whose index of it is used again.
    """

    def __init__(self, view: GraphView, states: Mapping[str, State], like: BatchAxes | None = None) -> None:
        self.view = view
        self.states = states
        self._order: dict[str, int] = like._order if like else {n: i for i, n in enumerate(view.topological_order())}
        self._branches: dict[str, Branches] = like._branches if like else {}
        self._supposed: set[str] = set()
        self._seen: set[str] = set()
        self._drawn: set[str] = set()
        self._same: set[str] = set()
        self._parts: dict[str, AxisPart] = {}

    def trying(self, tensor: str, axis: int) -> BatchAxes:
        """The answers if one tensor that is alike were joined."""
        found = BatchAxes(self.view, self.states, self)
        found._suppose({tensor: AxisPart(axis)})
        return found

    def supposing(self, parts: Mapping[str, AxisPart | None]) -> BatchAxes:
        """The answers if some tensors, of which nothing is known yet, were so."""
        found = BatchAxes(self.view, self.states, self)
        for name in ("_supposed", "_seen", "_drawn", "_same"):
            getattr(found, name).update(getattr(self, name))
        found._parts.update(self._parts)
        found._suppose(parts)
        return found

    def _suppose(self, parts: Mapping[str, AxisPart | None]) -> None:
        for tensor, part in parts.items():
            self._give(tensor, part)
            self._supposed.add(tensor)

    def of(self, tensor: str) -> int | None:
        """The axis along which a tensor is joined; None where none is proven."""
        for node in sorted(self._unseen(split_tensor(tensor)[0]), key=self._order.__getitem__):
            if node not in self._seen:  # a loop asks for what comes into it
                self._seen.add(node)
                self._visit(node)
        return self.known(tensor)

    def _unseen(self, node: str) -> set[str]:
        """What a node needs and has not been looked at; not what comes around in a loop."""
        found = {node} - self._seen
        waiting = list(found)
        while waiting:
            for needed in self.view.needed(waiting.pop()):
                if needed not in found and needed not in self._seen:
                    found.add(needed)
                    waiting.append(needed)
        return found

    def part(self, tensor: str) -> AxisPart | None:
        """How a tensor is joined, or that it is alike; None where nothing is proven."""
        if self.of(tensor) is not None:
            return self._parts[tensor]
        return ALIKE if self.is_equal(tensor) else None

    def is_equal(self, tensor: str) -> bool:
        """Whether all workers have this tensor alike, and it is not assumed to be joined."""
        return self.of(tensor) is None and self._is_same(tensor)

    def is_held_alike(self, tensor: str) -> bool:
        """Whether all workers have this tensor alike, whatever is assumed."""
        return self.states[tensor].kind in _EQUAL

    def shape(self, tensor: str) -> Shape:
        """The static shape."""
        return self.view.shape(tensor)

    def body(self, name: str) -> Body:
        """The graph of a function."""
        return body_of(self.view, name)

    def within(self, body: Body, parts: Sequence[AxisPart | None]) -> list[AxisPart | None]:
        """What a function gives of arguments that are so."""
        inner = self.inside(body, parts)
        return [inner.part(tensor) for tensor in body.results]

    def inside(self, body: Body, parts: Sequence[AxisPart | None]) -> BatchAxes:
        """The answers about a function's own tensors, for arguments that are so."""
        inner = BatchAxes(body.view, axis_loops.states_within(body, parts))
        inner._suppose({t: part for t, part in zip(body.arguments, parts, strict=True) if part != ALIKE})
        return inner

    def left_at(self, merge: str, tensor: str) -> Sequence[Branch]:
        """The branches that a Merge leaves by one of its inputs."""
        if not self._branches:
            self._branches.update(branches_of(self.view))
        node = split_tensor(tensor)[0]
        left = self._branches[node][len(self._branches[merge]) :]
        return (*left, Branch(predicate_of(self.view, node), 0)) if self.view.op(node) in SWITCHES else left

    def _visit(self, node: str) -> None:
        op, inputs = self.view.op(node), self.view.inputs(node)
        if op in _SOURCES or op in _SOURCES_OF_MANY:
            for tensor in self.sources_of(node):
                self._give(tensor, AxisPart(0))
        elif op.endswith("Merge") and is_loop_merge(self.view, node):
            if f"{node}:0" not in self._supposed:
                self._suppose(axis_loops.old_loop(self, node))
        elif op in _RULES_OF_MANY:
            parts = _RULES_OF_MANY[op](self, node, inputs)
            for tensor, part in zip(self.view.outputs(node), parts, strict=True):
                self._give(tensor, part)
        elif any(t in self._parts for t in inputs):
            self._apply(node, op, inputs)
        else:
            self._compute_alike(node, op, inputs)
            if op in _UNASKED:
                self._apply(node, op, inputs)

    def _apply(self, node: str, op: str, inputs: tuple[str, ...]) -> None:
        rule = _RULES.get(op, _elementwise if op in FORWARD_ELEMENTWISE else None)
        if rule is None or (op == "Select" and self.shape(inputs[0]) != self.shape(inputs[1])):
            return  # a condition of lower rank takes whole rows
        found = rule(self, node, inputs)
        for tensor in self.view.outputs(node):
            self._give(tensor, AxisPart(found) if isinstance(found, int) else found)

    def _give(self, tensor: str, part: AxisPart | None) -> None:
        if tensor in self._supposed or part is None:
            return
        if part == ALIKE:
            self._same.add(tensor)
        else:
            self._parts[tensor] = part

    def sources_of(self, node: str) -> list[str]:
        """What a node feeds or reads of a batch: tensors that the workers have different ones of."""
        if self.view.op(node) not in (*_SOURCES, *_SOURCES_OF_MANY):
            return []
        tensors = [t for t in self.view.outputs(node) if t in self.states]
        own = [t for t in tensors if self.states[t].kind not in _EQUAL and self.shape(t) != ()]
        return [t for t in own if not sparse_batches.is_shape_of_sparse(self.view, t)]

    def _compute_alike(self, node: str, op: str, inputs: tuple[str, ...]) -> None:
        """What is computed of a loop's variables is alike if these are.

        Random numbers of a shape that all workers have alike fit whatever they meet, element by element.
        """
        if any(t in self._same for t in inputs) and all(self._is_same(t) for t in inputs):
            if axis_loops.gives_the_same(op):
                self._same.update(self.view.outputs(node))
        drawn = op in _RANDOM or (op in FORWARD_ELEMENTWISE and any(t in self._drawn for t in inputs))
        if drawn and all(self.fits(t) for t in inputs):
            self._drawn.update(self.view.outputs(node))

    def known(self, tensor: str) -> int | None:
        """The axis as found so far, for rules."""
        part = self._parts.get(tensor)
        return part.axis if part is not None else None

    def known_part(self, tensor: str) -> AxisPart | None:
        """How a tensor is joined as found so far, for rules."""
        return self._parts.get(tensor)

    def others_are_equal(self, inputs: tuple[str, ...], *but: int) -> bool:
        """Whether all inputs are equal on all workers, but those of these numbers."""
        return all(self.fits(t) for i, t in enumerate(inputs) if i not in but)

    def fits(self, tensor: str) -> bool:
        """Whether a tensor is alike, or random numbers of which one process draws as many for a larger batch."""
        return tensor in self._drawn or self._is_same(tensor)

    def _is_same(self, tensor: str) -> bool:
        if tensor in self._parts:
            return False
        return tensor in self._same or (tensor not in self._supposed and self.states[tensor].kind in _EQUAL)

    def constant(self, tensor: str) -> Value | None:
        """The value of a tensor, if constants give it: alone, or put together to the order of axes and the like."""
        return axis_numbers.value(self.view, tensor)


_Rule = Callable[[BatchAxes, str, tuple[str, ...]], "AxisPart | int | None"]


def _elementwise(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | int | None:
    """Operands meet from the right; all that are joined must be so along one axis, which no other operand has."""
    out = axes.shape(f"{node}:0")
    joined = {t: a for t in inputs if (a := axes.known(t)) is not None}
    if len(set(inputs)) == 1:
        return axes.known_part(inputs[0])
    if MIXED in joined.values():
        return axis_blocks.in_blocks(axes, node, inputs)
    if out is None:
        return None
    from_right = set()
    for tensor, axis in joined.items():
        shape = axes.shape(tensor)
        if shape is None:
            return None
        from_right.add(len(shape) - axis)
    if len(from_right) != 1:
        return None
    (place,) = from_right
    for tensor in inputs:
        if tensor not in joined and not axes.fits(tensor):
            return None
    return len(out) - place


def _first_of(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | None:
    """Rows stay rows where all else is equal on all workers."""
    transposed = axes.view.flag(node, "transpose_a")
    part = axes.known_part(inputs[0])
    is_first = part is not None and part.axis in (0, MIXED) and not transposed
    return part if is_first and axes.others_are_equal(inputs, 0) else None


def _batch_product(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    ranks = [len(axes.shape(t) or ()) for t in inputs]
    if any(axes.known(t) not in (0, None) for t in inputs) or axes.known(inputs[0]) is None or ranks[0] < 3:
        return None
    return 0 if axes.known(inputs[1]) == 0 and ranks[1] == ranks[0] or axes.fits(inputs[1]) else None


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


def _one_hot(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    axis, out = axes.known(inputs[0]), axes.shape(f"{node}:0")
    if axis is None or axis == MIXED or out is None or not axes.others_are_equal(inputs, 0):
        return None
    place = int(axes.view.nodes[node].attr["axis"].i) % len(out)
    return axis + (place <= axis)


def _difference(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | int | None:
    return 0 if sparse_batches.are_row_lengths(axes, node) else _elementwise(axes, node, inputs)


def _reduction(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    axis, over, shape = axes.known(inputs[0]), axes.constant(inputs[1]), axes.shape(inputs[0])
    if axis is None or axis == MIXED or over is None or shape is None:
        return None
    gone = {int(a) % len(shape) for a in over.reshape(-1)}
    if axis in gone:
        return None
    return axis if axes.view.flag(node, "keep_dims") else axis - sum(a < axis for a in gone)


def _over_last(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    """What mixes the last axis only."""
    axis, shape = axes.known(inputs[0]), axes.shape(inputs[0])
    if axis is None or axis == MIXED or shape is None or axis == len(shape) - 1:
        return None
    return axis if axes.others_are_equal(inputs, 0) else None


def _cross_entropy(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
    joined = all(axes.known(t) == 0 or axes.fits(t) for t in inputs)
    return 0 if joined and axes.known(inputs[0]) == 0 else None


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(WHOLE_OR_ROWS, _first_of),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batch_product),
    "Einsum": axis_einsum.einsum,
    "Reshape": axis_blocks.reshape,
    "Transpose": _transpose,
    "Fill": axis_blocks.fill,
    **axis_loops.RULES,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "ConcatV2": axis_blocks.concat,
    "Pack": _pack,
    "Unpack": _unpack,
    **dict.fromkeys(("Split", "SplitV"), axis_blocks.split),
    "StridedSlice": axis_cuts.strided_slice,
    "Slice": axis_cuts.cut,
    "Conv2DBackpropInput": axis_rows.turned_convolution,
    **dict.fromkeys(_GATHERS, axis_rows.gather),
    **dict.fromkeys(("GatherNd", "ResourceGatherNd"), axis_rows.gather_nd),
    **dict.fromkeys(_SEGMENTS_OF_MANY, axis_rows.segment_sum(2)),
    **dict.fromkeys((*_SEGMENTS, "SegmentMean", "SegmentMax", "SegmentMin"), axis_rows.segment_sum(None)),
    "OneHot": _one_hot,
    "DenseBincount": axis_rows.counted,
    "SparseToDense": sparse_batches.made_dense,
    "SparseTensorDenseMatMul": sparse_batches.product,
    sparse_batches.PADS: sparse_batches.padded,
    "Sub": _difference,
    **dict.fromkeys(_OF_ONE, _elementwise),
    **dict.fromkeys(("LookupTableFind", "LookupTableFindV2"), axis_rows.found_in_table),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("Softmax", "LogSoftmax", "L2Normalize", "FFT", "IFFT", "RFFT", "IRFFT"), _over_last),
    **dict.fromkeys(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), _cross_entropy),
    **dict.fromkeys(("ParallelDynamicStitch", "DynamicStitch"), axis_rows.stitch),
    "Tile": axis_numbers.tile,
    "Pad": axis_numbers.by_numbers("paddings", 0),
    "PadV2": axis_numbers.by_numbers("paddings", 0),
    "ReverseV2": axis_numbers.by_numbers("axes", 0),
    "Roll": axis_cuts.roll,
    **dict.fromkeys(("Cumsum", "Cumprod"), axis_numbers.by_numbers("axes", 0)),
}
_RULES_OF_MANY = {
    **axis_loops.RULES_OF_MANY,
    "TopKV2": axis_rows.top_k,
    "ParseExample": sparse_batches.parsed,
    "ParseExampleV2": sparse_batches.parsed,
    "SparseFillEmptyRows": sparse_batches.filled,
}
"""Op type -> what each output of an op is."""
