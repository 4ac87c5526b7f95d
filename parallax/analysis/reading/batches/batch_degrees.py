"""Finds how tensors of an opened graph grow with the batch: a sum over examples has degree 1, a mean degree 0.

A list or an array of tensors has the degree of its tensors, and a variable of a loop that of its iterations' results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

import tensorflow as tf

from parallax.analysis.reading.batches.find_open_batches import SOURCES
from parallax.analysis.reading.batches.open_lengths import (
    EXAMPLES_SLOT,
    LISTS,
    SHAPE_SLOT,
    find_open_axes,
    find_open_axis,
    reach,
)
from parallax.analysis.reading.construction.recorded_gradients import CapturedRecord
from parallax.analysis.reading.lowering.function_bodies import CONDITIONALS, list_branches
from parallax.analysis.reading.lowering.functional_control_flow import LOOPS
from parallax.base.types import NodeDef
from parallax.graph.contractions import CONTRACTIONS, find_letters
from parallax.graph.control_flow import SWITCHES
from parallax.graph.ops import READS_OF_SHAPES
from parallax.graph.view import NEXT_ITERATIONS, GraphView, node_of

AS_FIRST = """
    Abs BatchToSpaceND BroadcastTo Cast DiagPart DynamicPartition EnsureShape Enter Exit ExpandDims Fill Gather GatherNd
    GatherV2 Identity MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2
    MatrixDiagV3 MirrorPad Neg NextIteration Pad PlaceholderWithDefault PreventGradient RefEnter Relu Reshape Reverse
    ReverseSequence ReverseV2 Roll Slice Snapshot SpaceToBatchND Squeeze StopGradient StridedSlice Switch Tile Transpose
    """.split()
"""Ops whose results grow as the first input does that is no shape; the others are indices."""
AS_MOST = """
    Add AddN AddV2 BiasAdd ConcatV2 DynamicStitch Maximum Merge Minimum Pack ParallelDynamicStitch Select SelectV2 Sub
    """.split()
MEANS = ("All", "Any", "ArgMax", "ArgMin", "Max", "Mean", "Min")
PRODUCTS = (*CONTRACTIONS, "Mul", "MulNoNan")
QUOTIENTS = ("Div", "DivNoNan", "RealDiv")
_SCALED = (*AS_FIRST, *AS_MOST, *QUOTIENTS, "IdentityN", "Max", "Mean", "Min", "Mul", "Sum")
"""Ops whose result is multiplied by a factor of their inputs."""
POWERS = {"Inv": -1.0, "L2Loss": 2.0, "Reciprocal": -1.0, "Rsqrt": -0.5, "Sqrt": 0.5, "Square": 2.0}
_LOGARITHMS = ("Log", "Log1p")
_OF_LOGARITHM = 2.0**-20
"""The degree of a logarithm of the batch length, which grows more slowly than any power: it adds up exactly."""
_STATISTICS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_OF_LISTS = """
    TensorArrayConcatV3 TensorArrayGatherV3 TensorArrayReadV3 TensorArrayWriteV3 TensorListConcatV2 TensorListGather
    TensorListGetItem TensorListPopBack TensorListPushBack TensorListSetItem TensorListStack
    """.split()
_PARTS = {"TensorArrayScatterV3": 2, "TensorArraySplitV3": 1, "TensorListFromTensor": 0, "Unpack": 0}
"""For ops that make a list of the parts of a tensor, its input number."""
_MOST_PASSES = 20

Degrees = Sequence[float | None]
FindResults = Callable[[str, Degrees], Degrees]
"""(name of a function, degrees of its arguments) -> degrees of its results; none where the function is unknown."""


class DeliveredGradient(NamedTuple):
    """The origin of a gradient that autodiff delivered.

    Attributes:
        losses: the tensors that were differentiated.
        target: the differentiation target; empty where its rows were delivered, one tensor for each lookup.
    """

    losses: tuple[str, ...]
    target: str


def gradients_of(records: Sequence[CapturedRecord], names: Mapping[str, str]) -> dict[str, DeliveredGradient]:
    """The gradients that autodiff delivered.

    Args:
        records: the records of autodiff.
        names: source of batches -> the same with an open batch.
    """
    return {
        values: DeliveredGradient(record.of, names.get(target, target) if indices is None else "")
        for record in records
        for target, values, indices in record.gradients
    }


class BatchDegrees:
    """The degrees of one graph's tensors.

    A per-example function of a tensor has its degree, whatever its values are.

    Args:
        view: the graph for the fixed batch.
        inferred: the same graph with an open batch.
        forward: the nodes outside autodiff: of autodiff's tensors only the delivered ones are known.
        losses: nodes that are differentiated: autodiff sums their values over examples.
        delivered: tensor -> its origin in autodiff.
        divided: node that divides by a number of the batch length -> (the input that it divides, degree of the number).
        find_results: the degrees of functions' results.
        arguments: tensor -> degree, for the arguments of a function whose body the graph is.
    """

    def __init__(
        self,
        view: GraphView,
        inferred: GraphView,
        forward: Set[str],
        losses: Set[str],
        delivered: Mapping[str, DeliveredGradient],
        divided: Mapping[str, tuple[int, float]],
        find_results: FindResults = lambda name, arguments: (),
        arguments: Mapping[str, float | None] = MappingProxyType({}),
    ) -> None:
        self._view, self._inferred, self._forward, self._losses = view, inferred, forward, losses
        self._delivered, self._divided = delivered, divided
        self._find_results, self._arguments = find_results, arguments
        self._degrees: dict[str, float | None] = {}
        begin = {*(inferred.nodes.keys() - view.nodes.keys()), *inferred.nodes_of(SOURCES)}
        self._of_batch = reach(inferred, begin, inferred.nodes.keys())

    def find_degree(self, tensor: str) -> float | None:
        """The power of the batch length by which a tensor grows; None where that is unknown."""
        if not self._degrees:
            self._find_all(self._inferred.nodes.keys())
        return self._degrees[tensor]

    def derive_for(self, outside: Set[str]) -> BatchDegrees:
        """The degrees of nodes outside the graph with an open batch; none of them reads a tensor with its axis."""
        degrees = BatchDegrees(self._view, self._view, outside, self._losses, {}, self._divided)
        self._find_all(self._inferred.nodes.keys())
        degrees._degrees = {tensor: self._find_delivered(tensor) for tensor in self._delivered} | self._degrees
        degrees._find_all(outside)
        return degrees

    def _find_all(self, nodes: Set[str]) -> None:
        before, growing, passes = None, set[str](), 0
        while before != self._degrees:  # gradients may precede their loss, and iterations of a loop each other
            before, passes = dict(self._degrees), passes + 1
            for node in self._inferred.topological_order():
                if node in nodes:
                    outputs = self._inferred.outputs(node)
                    found = dict(zip(outputs, self._find_degrees_of(node), strict=True))
                    delivered = [tensor for tensor in outputs if tensor in self._delivered]
                    found |= {tensor: self._find_delivered(tensor) for tensor in delivered}
                    if passes > _MOST_PASSES:
                        growing |= {tensor for tensor, degree in found.items() if degree != before[tensor]}
                    self._degrees |= found | dict.fromkeys(growing & found.keys())

    def _find_delivered(self, tensor: str) -> float | None:
        """The degree of a gradient: its loss's, and one less for a per-example gradient."""
        losses, target = self._delivered[tensor]
        known = [self._degrees.get(loss) for loss in losses]
        degrees = [d + len(self._find_axes(loss)) for d, loss in zip(known, losses, strict=True) if d is not None]
        axes = self._find_axes(target) if target else ()
        return max(degrees) - len(axes) if len(degrees) == len(known) > 0 else None

    def is_of_batch(self, tensor: str) -> bool:
        """Whether a tensor is computed from a batch."""
        return node_of(tensor) in self._of_batch

    def is_mean(self, tensor: str, node: str) -> bool:
        """Whether the result of `node` on a tensor with the batch axis is averaged over it later.

        For a tensor without that axis: whether the tensor is a mean over the batch. A sum over one of two such axes is
        none.

        Args:
            tensor: of the graph with an open batch.
            node: reads it, and treats each example independently.
        """
        degree = self.find_degree(tensor)
        if degree != 0 and (degree is not None or not self.has_axis(tensor)):
            return False
        if not self.has_axis(tensor):
            return True
        waiting, reached = [f"{node}:0"], {f"{node}:0"}
        while waiting:
            one = waiting.pop()
            if node_of(one) in self._losses:
                return False
            for taker in self._iterate_readers(one):
                made = [t for t in self._inferred.outputs(taker) if self.has_axis(t)]
                if self._inferred.op(taker) in NEXT_ITERATIONS:  # it is divided again in each iteration
                    return False
                is_gone = not made and len(self._inferred.outputs(taker)) > 0
                if (is_gone and self._inferred.op(taker) not in MEANS) or self._count_sums(taker):
                    return False
                waiting += [t for t in made if t not in reached]
                reached.update(made)
        return True

    def is_term(self, node: str) -> bool:
        """Whether the result of a node is a term of the losses: they contain it multiplied, but no function of it."""
        waiting, reached, is_read = [node], {node}, False
        while waiting:
            one = waiting.pop()
            is_read |= one in self._losses
            readers = {reader for tensor in self._inferred.outputs(one) for reader in self._iterate_readers(tensor)}
            if any(self._inferred.op(reader) not in _SCALED for reader in readers):
                return False
            waiting += readers - reached
            reached |= readers
        return is_read

    def has_axis(self, tensor: str) -> bool:
        """Whether an axis of a tensor is the batch's."""
        return bool(self._find_axes(tensor))

    def _find_axes(self, tensor: str) -> Sequence[int]:
        """The axes of a tensor that are the batch's, but one of those whose lengths the fixed graph does not know."""
        axes = find_open_axes(self._view, self._inferred, tensor) if node_of(tensor) in self._of_batch else []
        before = self._view.shape(tensor) if node_of(tensor) in self._view.nodes else None
        fixed = [axis for axis in axes if before is not None and before[axis] is not None]
        return fixed or axes[:1]

    def _count_sums(self, node: str) -> int:
        """The number of axes of the batch over which a node sums, or may sum, the entries of its inputs."""
        op, inputs, outputs = self._inferred.op(node), self._inferred.inputs(node), self._inferred.outputs(node)
        if not inputs or not outputs or op in (*MEANS, *AS_FIRST, *AS_MOST, *_OF_LISTS, "Mul", "MulNoNan"):
            return 0
        axes = [self._find_axes(tensor) for tensor in inputs]
        if op in ("Cumsum", "Sum"):
            rank, numbers = len(self._inferred.shape(inputs[0]) or ()), self._inferred.constant(inputs[1])
            if numbers is not None:
                return len({int(n) % (rank or 1) for n in numbers.flat}.intersection(axes[0]))
        if op in CONTRACTIONS:
            shapes = [self._inferred.shape(tensor) for tensor in inputs]
            letters = find_letters(self._inferred, node, [len(dims) if dims is not None else None for dims in shapes])
            if letters is not None:
                *terms, result = letters
                summed = {term[axis] for term, places in zip(terms, axes, strict=True) for axis in places}
                return len(summed.difference(result))
        most = max(map(len, axes))
        return most if op not in _STATISTICS and not any(self._find_axes(tensor) for tensor in outputs) else 0

    def _iterate_readers(self, tensor: str) -> Iterator[str]:
        """The nodes outside autodiff that read entries of a tensor."""
        for node in (edge.node for edge in self._inferred.consumers(tensor)):
            if self._is_forward(node) and self._inferred.op(node) not in READS_OF_SHAPES:
                yield node

    def _is_forward(self, node: str) -> bool:
        return node in self._forward or node not in self._view.nodes

    def _find_degrees_of(self, node: str) -> Degrees:
        """The degrees of a node's results."""
        op, outputs = self._inferred.op(node), self._inferred.outputs(node)
        degrees = [self._degrees.get(tensor, 0.0) for tensor in self._inferred.inputs(node)]
        if op == "IdentityN" and self._is_forward(node):
            return degrees
        if op in LOOPS and self._is_forward(node):
            return self._find_degrees_of_loop(self._inferred.nodes[node], degrees)
        if op in CONDITIONALS and self._is_forward(node):
            branches = list_branches(self._inferred.nodes[node])
            results = [self._find_results(one.name, degrees[1:]) or [None] * len(outputs) for one in branches]
            return list(map(_find_most, zip(*results, strict=True)))
        return [self._find_degree_of(node)] * len(outputs) if outputs else []

    def _find_degrees_of_loop(self, node: NodeDef, begun: Degrees) -> Degrees:
        """The degrees of a loop's variables; unknown if they grow, or if a number of the batch ends the loop."""
        degrees, before = list(begun), None
        for _ in range(_MOST_PASSES):
            if before == degrees:
                break
            before, results = degrees, self._find_results(node.attr["body"].func.name, degrees)
            pairs = zip(degrees, results or [None] * len(degrees), strict=True)
            degrees = list(map(_find_most, pairs))
        ends = self._find_results(node.attr["cond"].func.name, degrees)
        return degrees if before == degrees and any(end == 0 for end in ends) else [None] * len(degrees)

    def _find_degree_of(self, node: str) -> float | None:
        seen, op = self._inferred, self._inferred.op(node)
        shape_slot = 0 if op in EXAMPLES_SLOT else {**SHAPE_SLOT, **LISTS}.get(op)
        inputs = [tensor for slot, tensor in enumerate(seen.inputs(node)) if slot != shape_slot]
        if not inputs or not self._is_forward(node):
            return None if inputs else self._arguments.get(f"{node}:0", 0.0)
        if any(seen.shape(t) is None and self._view.shape(t) for t in inputs if node_of(t) in self._view.nodes):
            return None  # it may have the batch axis
        known = [self._degrees.get(tensor, 0.0) for tensor in inputs]  # an iteration of a loop is not known before it
        axes, sums = [self.has_axis(tensor) for tensor in inputs], self._count_sums(node)
        if op in MEANS:
            return known[0]
        if op in SWITCHES and node_of(inputs[1]) in seen.nodes_of(["LoopCond"]) and known[1] != 0:
            return None  # a number of the batch ends the loop
        if op in AS_FIRST:
            return self._find_length(node) if known[0] is None else known[0]
        if op in ("Size", "Shape"):
            return float(axes[0]) if op == "Size" else None
        if node in self._divided:
            slot, of_divisor = self._divided[node]
            degree = known[slot]
            return None if degree is None else degree - of_divisor
        if self._is_real(f"{node}:0"):  # integers are indices
            known = [degree for degree, tensor in zip(known, inputs, strict=True) if not self._is_integer(tensor)]
        degrees = [degree for degree in known if degree is not None]
        if len(degrees) < len(known):
            return None
        if not degrees:
            return float(sums)  # a count of indices
        if op in _PARTS:
            is_example = find_open_axis(self._view, seen, seen.inputs(node)[_PARTS[op]]) == 0
            return None if is_example else max(degrees)
        if op in (*AS_MOST, *_OF_LISTS):
            return max(degrees[1:] if op.startswith("Select") else degrees)
        if op in PRODUCTS:
            return sum(degrees) + sums
        if op in QUOTIENTS:
            return degrees[0] - degrees[1]
        if op in POWERS:
            return degrees[0] * POWERS[op] + sums
        if op in _LOGARITHMS:
            return _OF_LOGARITHM if degrees[0] else 0.0
        if op == "SquaredDifference":
            return 2.0 * max(degrees)
        if op == "Pow" and (power := seen.constant(inputs[1])) is not None and power.ndim == 0:
            return degrees[0] * float(power)
        if op in ("Sum", "Cumsum") or sums:
            return degrees[0] + sums
        if self._is_softmax_of_batch(node):
            return degrees[0] - 1.0
        return None if any(degrees) else 0.0

    def _is_real(self, tensor: str) -> bool:
        return bool(tf.as_dtype(self._inferred.dtype(tensor)).is_floating)

    def _is_integer(self, tensor: str) -> bool:
        return bool(tf.as_dtype(self._inferred.dtype(tensor)).is_integer)

    def _is_softmax_of_batch(self, node: str) -> bool:
        """Whether a node computes shares of the examples, which add up to one."""
        rows = self._inferred.inputs(node)[0]
        last = len(self._inferred.shape(rows) or ()) - 1
        return self._inferred.op(node) == "Softmax" and last in self._find_axes(rows)

    def _find_length(self, node: str) -> float | None:
        """The degree of an element of a shape, which a slice selects."""
        seen = self._inferred
        shape, *bounds = seen.inputs(node)
        of = node_of(seen.source(shape))
        begin = seen.constant(bounds[0]) if seen.op(node) == "StridedSlice" and seen.op(of) == "Shape" else None
        if begin is None or len(begin) != 1 or not seen.flag(node, "shrink_axis_mask"):
            return None
        axis = find_open_axis(self._view, seen, seen.inputs(of)[0])
        return float(axis == int(begin[0])) if axis is not None else None


def _find_most(degrees: Degrees) -> float | None:
    """The largest degree; None if one is unknown."""
    known = [degree for degree in degrees if degree is not None]
    return max(known) if len(known) == len(degrees) else None
