"""Finds the constants of an opened graph that still have the length of its fixed batch, as their size or in a value."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from parallax.analysis.reading.batches.axis_groups import find_counted_axis
from parallax.analysis.reading.batches.axis_pairs import find_store
from parallax.analysis.reading.batches.batch_degrees import BatchDegrees
from parallax.analysis.reading.batches.batch_numbers import IntegerClassifier
from parallax.analysis.reading.batches.find_open_batches import SOURCES
from parallax.analysis.reading.batches.open_lengths import (
    LISTS,
    SHAPE_SLOT,
    find_open_axis,
    find_selected_entries,
    find_shape_slots,
    reach,
)
from parallax.base.types import Array, NodeDef
from parallax.graph.ops import ELEMENTWISE
from parallax.graph.view import VARIABLES, GraphView, node_of

LENGTH_SLOT = {
    **dict.fromkeys((f"UnsortedSegment{how}" for how in ("Sum", "Max", "Min", "Prod")), 2),
    **dict.fromkeys(
        ("Range", "OneHot", "While", "StatelessWhile", "TensorListReserve", "EmptyTensorList", "TopK", "TopKV2"), 1
    ),
    **dict.fromkeys(("Enter", "RefEnter", "Cast", "TensorArrayV3"), 0),
}
"""For ops that count, or create an axis or a number of a length, the input with the length; for a loop, its maximum
iterations.
"""
DIVIDES, MULTIPLIES = ("RealDiv", "Div", "DivNoNan"), ("Mul",)
_CLIPS, SHIFTS = ("Maximum", "Minimum"), ("Add", "AddV2", "Sub")
CUTS = {"Slice": (1, 2), "StridedSlice": (1, 2)}
_COMPARES = ("Greater", "GreaterEqual", "Less", "LessEqual")
_MOVES_AXES = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
ARRAYS = ("TensorArrayV3", "TensorArrayGatherV3")
_TAKES = ("Gather", "GatherV2", "TopK", "TopKV2")
_TAKES_PARTS = ("GatherNd", *(f"TensorScatter{how}" for how in ("Update", "Add", "Sub", "Max", "Min")))
"""Ops whose indices have a position along each of the first axes."""
_INDICES = {
    **dict.fromkeys(("TensorListGetItem", "TensorListSetItem", "TensorArrayReadV3", "TensorArrayWriteV3"), 1),
    **dict.fromkeys(("Enter", "RefEnter", "OneHot", "Range"), 0),
}
"""For ops, the input that is a position along an axis, or the first value of a counter."""
_COPIES = ("Identity", "StopGradient", "Cast")
_REARRANGES = (*_COPIES, "ExpandDims", "Squeeze", "Reshape", "Transpose")
_WEIGHTS = {
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative", "Dilation2D", "BiasAdd"), (1,)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"), (1,)),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), (1, 2, 3, 4)),
}
"""For ops, the inputs that have an axis for each channel, and none of the batch."""
_WRITES_WHOLE = ("Assign", "AssignVariableOp")
_DECLARED = {"EnsureShape": ("shape",), **dict.fromkeys(ARRAYS, ("element_shape",))}
_VARIANT = 21  # types.proto
_DECLARED["TensorArrayConcatV3"] = ("element_shape_except0",)
"""For ops, the attributes with lengths that they declare for a tensor."""


def is_outside_batch(view: GraphView, constant: str, nodes: Set[str]) -> bool:
    """Whether some nodes read a constant only where it has no axis of the batch."""
    takers = [edge for edge in view.consumers(f"{constant}:0") if edge.node in nodes]
    return all(
        find_shape_slots(view.op(edge.node))[edge.slot : edge.slot + 1] == (True,)
        or has_only_widths(view, edge.node, edge.slot)
        for edge in takers
    )


def has_only_widths(view: GraphView, node: str, slot: int) -> bool:
    """Whether a node's input has no axis of the batch: it has weights, or rows that fed ids select."""
    op = view.op(node)
    if op not in ("Gather", "GatherV2") or slot:
        return slot in _WEIGHTS.get(op, ())
    ids = node_of(view.inputs(node)[1])
    while view.op(ids) in _REARRANGES:
        ids = node_of(view.inputs(ids)[0])
    return view.op(ids) in SOURCES


class UnclassifiedConstants:
    """The constants of a graph for a fixed batch that no rule has classified.

    Args:
        view: the graph for the fixed batch.
        forward: the nodes outside autodiff and outside initial values.
        numbers: the classification of its integers.
        changed: changes: nodes, or `node@slot` for one of their inputs.
        classified: constants of known meaning.
    """

    def __init__(
        self,
        view: GraphView,
        forward: Set[str],
        numbers: IntegerClassifier,
        changed: Set[str],
        classified: Set[str] = frozenset(),
    ) -> None:
        self._view, self._forward, self._numbers, self._changed = view, forward, numbers, changed
        self._classified = classified
        self._computed: dict[GraphView, set[str]] = {}

    def are_of_gradients(self, gradients: Set[str]) -> bool:
        """Whether values computed from gradients depend on any with an axis of the fixed length."""
        reached = self._reach(self._view, gradients) & self._forward
        return any(self._is_made_for_batch(tensor) for node in reached for tensor in self._view.inputs(node))

    def find_of_losses(self, inferred: GraphView, losses: Set[str], degrees: BatchDegrees) -> str:
        """The first node with one that may be of the batch, on which losses or values of batches depend; or empty.

        What a queue or an iterator is asked for, such as a number of examples, stays that of each worker.
        """
        reached = self._reach(inferred, {node for node in inferred.nodes if node not in self._view.nodes})
        sources = inferred.nodes_of(SOURCES)
        given = frozenset(tensor for node in sources for tensor in inferred.outputs(node))
        reached |= inferred.ancestors(losses, given) & self._forward
        reached = {node for node in reached.difference(sources) if not self._is_unread_list(inferred, node)}
        unclassified = (node for node in self._view.nodes if node in reached)
        return next((node for node in unclassified if self._is_unclassified(inferred, node, degrees)), "")

    def _is_unread_list(self, inferred: GraphView, node: str) -> bool:
        """Whether a node creates lists of tensors that nothing reads, as `tf.scan` does: no run can fetch them."""
        outputs = inferred.outputs(node)
        are_lists = len(outputs) > 0 and all(inferred.dtype(tensor) == _VARIANT for tensor in outputs)
        return are_lists and not any(inferred.consumers(tensor) for tensor in outputs)

    def _is_unclassified(self, inferred: GraphView, node: str, degrees: BatchDegrees) -> bool:
        for axis, dim in enumerate(find_declared_dims(inferred.nodes[node])):
            is_multiple = dim.size > 0 and self._numbers.is_multiple(float(dim.size))
            if is_multiple and self._numbers.is_batch(self._find_tensor_of_declaration(node), axis) is not False:
                return True
        if self._has_place(inferred, node) or self._is_written_whole(inferred, node):
            return True
        is_classified = self._is_classified_slice(inferred, node) or inferred.op(node) == "Assert"
        for slot, tensor in () if is_classified else enumerate(inferred.inputs(node)):
            counted = find_counted_axis(self._view, node) if LENGTH_SLOT.get(inferred.op(node)) == slot else None
            if counted is not None and self._numbers.is_batch(*counted) is False:
                continue
            maker = node_of(tensor)
            is_own = inferred.op(maker) == "Const" and maker in self._forward and f"{node}@{slot}" not in self._changed
            is_own = is_own and maker not in self._classified
            value = inferred.constant(tensor) if is_own else self._read_cast(inferred, tensor)
            is_number = value is not None and value.ndim == 0 and inferred.op(node) == "Cast"
            is_shape = find_shape_slots(inferred.op(node))[slot : slot + 1] == (True,)
            is_array = not is_shape and not has_only_widths(self._view, node, slot)
            is_array = is_array and not self._lies_along_widths(inferred, node, slot)
            shaped = "" if is_array else self._find_tensor_of_shape(node, slot)
            is_entry = value is not None and value.ndim == 1 and (inferred.op(node), slot) == ("StridedSlice", 0)
            listed = value[find_selected_entries(self._view, node)] if value is not None and is_entry else value
            is_long = is_array and value is not None and self._numbers.may_have_batch(tensor, value.shape)
            is_list = listed is not None and (listed.ndim < 2 or not is_array)
            if is_long or (is_list and self._numbers.lists_length(listed, shaped)):
                return True
            if value is not None and value.ndim == 0 and self._is_bound(degrees, inferred, node, slot, value):
                return True
            if value is not None and value.ndim == 0 and value.dtype.kind == "f":
                if value > 0 and self._is_length(degrees, inferred, node, slot, float(value)):
                    return True
                if self._is_derived(degrees, inferred, node, slot, float(value)):
                    return True
            if is_number and self._numbers.is_multiple(float(value or 0)):
                return True
        return False

    def _is_bound(self, degrees: BatchDegrees, inferred: GraphView, node: str, slot: int, value: Array) -> bool:
        """Whether a number that may be a part of the batch length is compared with a sum or a count over the batch."""
        number = float(value) if inferred.op(node) in _COMPARES else 0.0
        if not number.is_integer() or not self._numbers.is_part(int(number)):
            return False
        degree = degrees.find_degree(inferred.inputs(node)[1 - slot])
        return degree is not None and degree >= 1

    def _find_tensor_of_shape(self, node: str, slot: int) -> str:
        """The tensor, or the list, of whose axes an input of a node has lengths; empty where that is unknown."""
        op = self._view.op(node)
        if LISTS.get(op) == slot:
            return find_store(self._view, node)
        is_cut = op in CUTS and not any(self._view.flag(node, mask) for mask in _MOVES_AXES)
        is_shape = (op, slot) == ("Reshape", 1) or (SHAPE_SLOT.get(op) == slot and op != "Tile")
        return f"{node}:0" if is_shape or (is_cut and slot in CUTS[op]) else ""

    def _find_tensor_of_declaration(self, node: str) -> str:
        """The tensor, or the array, of which a node declares the shape; empty where that is unknown."""
        op = self._view.op(node)
        return f"{node}:0" if op == "EnsureShape" else find_store(self._view, node) if op in ARRAYS else ""

    def _read_cast(self, inferred: GraphView, tensor: str) -> Array | None:
        """The float to which an integer is cast, `tf.cast(n - 1, tf.float32)`; None if a tensor is something else."""
        cast = node_of(tensor)
        if inferred.op(cast) != "Cast" or cast not in self._forward or f"{cast}@0" in self._changed:
            return None
        is_integer = self._find_integer(inferred, inferred.inputs(cast)[0]) > 0
        return inferred.constant(tensor) if is_integer else None

    def _lies_along_widths(self, inferred: GraphView, node: str, slot: int) -> bool:
        """Whether an elementwise op combines an input, along axes of the fixed length, with axes that stay fixed.

        The other input is computed from examples or variables: an axis of the batch would be open.
        """
        inputs = inferred.inputs(node)
        dims = inferred.shape(inputs[slot]) if inferred.op(node) in ELEMENTWISE else None
        return dims is not None and any(
            self._has_widths(inferred, tensor, dims) for place, tensor in enumerate(inputs) if place != slot
        )

    def _has_widths(self, inferred: GraphView, tensor: str, dims: Sequence[int | None]) -> bool:
        """Whether a computed tensor has fixed axes where an input that is broadcast with it has the fixed length."""
        if inferred not in self._computed:
            begin = {node for node in inferred.nodes if node not in self._view.nodes or inferred.op(node) in VARIABLES}
            self._computed = {inferred: self._reach(inferred, begin)}
        now = inferred.shape(tensor)
        if now is None or len(now) < len(dims) or node_of(tensor) not in self._computed[inferred]:
            return False
        pairs = zip(dims, now[len(now) - len(dims) :], strict=True)
        return all(n == other for n, other in pairs if n is None or self._numbers.may_be_length(n))

    def _is_classified_slice(self, inferred: GraphView, node: str) -> bool:
        """Whether a node slices along a batch axis whose fixed length determined the positions."""
        if inferred.op(node) not in CUTS:
            return False
        return self._find_batch_axis(inferred, inferred.inputs(node)[0]) is not None

    def _is_written_whole(self, inferred: GraphView, node: str) -> bool:
        """Whether a node writes examples to a variable, whose size is fixed: it was computed from their number."""
        value = inferred.inputs(node)[1] if inferred.op(node) in _WRITES_WHOLE else ""
        while value and inferred.op(node_of(value)) in _COPIES:
            value = inferred.inputs(node_of(value))[0]
        is_open = bool(value) and find_open_axis(self._view, inferred, value) is not None
        return is_open and inferred.op(node_of(value)) not in (*CUTS, *_TAKES)

    def _has_place(self, inferred: GraphView, node: str) -> bool:
        """Whether a node takes examples by a number that may be computed from the batch length, as their last one."""
        op, inputs = inferred.op(node), inferred.inputs(node)
        axis = self._find_batch_axis(inferred, inputs[0]) if inputs else None
        if op in CUTS and axis is not None:
            bounds = [found for slot in CUTS[op] if (found := inferred.constant(inputs[slot])) is not None]
            return any(self._numbers.is_place(int(found[axis])) for found in bounds if len(found) > axis)
        if op in (*_TAKES, *_TAKES_PARTS):
            places = self._find_integers(inferred, inputs[1])
            if op in _TAKES_PARTS and axis is not None and places.ndim:
                places = places[..., axis : axis + 1]
            is_along = axis is not None and (op in _TAKES_PARTS or axis == self._find_axis(inferred, node))
            return is_along and self._numbers.is_place(int(places.max(initial=0)))
        if op == "Roll":
            shifts, axes = (np.ravel(self._find_integers(inferred, tensor)) for tensor in inputs[1:])
            rank = len(inferred.shape(inputs[0]) or (0,))
            pairs = zip(shifts.tolist(), axes.tolist(), strict=False)
            return any(axis == along % rank and self._numbers.is_place(abs(shift)) for shift, along in pairs)
        if op == "MatrixBandPart":
            is_along = axis is not None and axis >= len(inferred.shape(inputs[0]) or ()) - 2
            return is_along and any(self._numbers.is_place(self._find_integer(inferred, one)) for one in inputs[1:])
        if op in ("Unpack", "SplitV"):
            return axis is not None and axis == self._find_axis(inferred, node) and node not in self._changed
        if op in SHIFTS:
            numbers = [self._find_integer(inferred, tensor) for tensor in inputs]
            counts = [self._counts_examples(inferred, tensor) for tensor in inputs]
            return any(self._numbers.is_last(one) and other for one, other in zip(numbers, counts[::-1], strict=True))
        if op in ("While", "StatelessWhile"):
            return any(self._numbers.is_last(self._find_integer(inferred, tensor)) for tensor in inputs[2:])
        if op not in _INDICES:
            return False
        number = self._find_integer(inferred, inputs[_INDICES[op]])
        if op in ("OneHot", "Range"):
            made = self._view.shape(f"{node}:0") or ()
            return self._numbers.is_last(number) and any(n and self._numbers.may_be_length(n) for n in made)
        return self._numbers.is_last(number)

    def _counts_examples(self, inferred: GraphView, tensor: str) -> bool:
        """Whether a tensor has the numbers of a batch's examples."""
        while inferred.op(node_of(tensor)) in (*_COPIES, "ExpandDims", "Reshape", "StridedSlice"):
            tensor = inferred.inputs(node_of(tensor))[0]
        return inferred.op(node_of(tensor)) == "Range" and find_open_axis(self._view, inferred, tensor) is not None

    def _find_batch_axis(self, inferred: GraphView, tensor: str) -> int | None:
        """The open axis of a tensor, unless the fixed graph has it too, as that of distinct ids."""
        axis = find_open_axis(self._view, inferred, tensor)
        fixed = self._view.shape(tensor) if node_of(tensor) in self._view.nodes else None
        return axis if axis is None or fixed is None or fixed[axis] is not None else None

    def _find_axis(self, inferred: GraphView, node: str) -> int:
        """The axis along which a node takes, or parts, what it reads first; the first one where that is unknown."""
        op, inputs = inferred.op(node), inferred.inputs(node)
        if op in ("TopK", "TopKV2"):
            axis = -1
        elif op == "Unpack":
            axis = inferred.nodes[node].attr["axis"].i
        else:
            known = inferred.constant(inputs[2]) if len(inputs) > 2 else None
            axis = int(known) if known is not None else 0
        return axis % len(inferred.shape(inputs[0]) or (0,))

    def _find_integer(self, inferred: GraphView, tensor: str) -> int:
        """A constant that is an integer; else 0."""
        value = self._find_integers(inferred, tensor)
        return int(value) if value.ndim == 0 else 0

    def _find_integers(self, inferred: GraphView, tensor: str) -> Array:
        """A constant of integers that may have any meaning; else 0."""
        is_own = node_of(tensor) in self._forward and node_of(tensor) not in self._classified
        value = inferred.constant(tensor) if is_own else None
        return value if value is not None and value.dtype.kind in "iu" else np.array(0)

    def _is_derived(self, degrees: BatchDegrees, inferred: GraphView, node: str, slot: int, number: float) -> bool:
        """Whether a number that changes a sum or a mean over the batch may be computed from the batch length."""
        op, others = inferred.op(node), [tensor for place, tensor in enumerate(inferred.inputs(node)) if place != slot]
        if len(others) == 1 and not degrees.is_of_batch(others[0]):
            is_penalty = op in DIVIDES and slot == 1 and inferred.shape(others[0]) == ()
            return is_penalty and self._numbers.is_length_or_twice(number)
        if len(others) != 1:
            return False
        if degrees.has_axis(others[0]) and degrees.find_degree(others[0]) == 0:
            if op in SHIFTS:
                return self._numbers.is_reciprocal(abs(number))  # as of a matrix that subtracts means
            is_term = op in (*MULTIPLIES, *DIVIDES) and self._is_summed(degrees, inferred, node)
            return is_term and (self._numbers.is_divisor(number) if op in DIVIDES else self._numbers.is_factor(number))
        if op in SHIFTS:
            return self._numbers.is_logarithm(number)
        if op not in (*MULTIPLIES, *DIVIDES):
            return False
        if degrees.find_degree(others[0]) == 0:
            return number != 0 and self._numbers.is_correction(1 / number if op in DIVIDES else number)
        return self._numbers.is_divisor(number) if op in DIVIDES else self._numbers.is_factor(number)

    def _is_summed(self, degrees: BatchDegrees, inferred: GraphView, node: str) -> bool:
        """Whether nothing but sums over the batch reads a node's result."""
        takers = [edge.node for edge in inferred.consumers(f"{node}:0") if edge.node in self._forward]
        sums = [one for one in takers if inferred.op(one) == "Sum" and not degrees.has_axis(f"{one}:0")]
        return 0 < len(sums) == len(takers)

    def _is_length(self, degrees: BatchDegrees, inferred: GraphView, node: str, slot: int, number: float) -> bool:
        """Whether a number that a node reads may be a batch length, or its reciprocal.

        A divisor of a mean over the batch, or of a value that is averaged over it later, is not, unless the value has
        nothing of inputs or variables, as `tf.ones([n, n]) / n` is a matrix of shares, or is a term of the loss.
        """
        op, others = inferred.op(node), [tensor for place, tensor in enumerate(inferred.inputs(node)) if place != slot]
        is_length = self._numbers.is_size(number)
        is_factor = op in MULTIPLIES and not is_length and self._numbers.is_size(1 / number)
        if is_factor or (is_length and op in DIVIDES and slot == 1):
            is_mean = any(degrees.is_mean(tensor, node) for tensor in others)
            divisor = float(np.round(1 / number if is_factor else number, 3))
            if not is_mean or (self._numbers.is_long_divisor(divisor, is_factor) and degrees.is_term(node)):
                return True
            return self._numbers.is_length(divisor) and all(self._is_of_constants(inferred, one) for one in others)
        if op in MULTIPLIES:
            return is_length  # a mean times the length is a sum
        are_means = all(degrees.find_degree(tensor) == 0 for tensor in others)
        is_place = op not in _CLIPS and any(map(degrees.has_axis, others))  # the index of one example among that many
        are_numbers = all(inferred.constant(tensor) is not None for tensor in others)
        return is_length and (is_place or are_numbers or not are_means)

    def _is_of_constants(self, inferred: GraphView, tensor: str) -> bool:
        """Whether a tensor is computed from no entry of an input or a variable, but perhaps from lengths."""
        seen, waiting = set[str](), [node_of(tensor)]
        while waiting:
            node = waiting.pop()
            if inferred.op(node) in (*SOURCES, *VARIABLES):
                return False
            before = [node_of(one) for one in inferred.inputs(node)] if inferred.op(node) != "Shape" else []
            waiting += [one for one in before if one not in seen]
            seen.update(before)
        return True

    def _is_made_for_batch(self, tensor: str) -> bool:
        """Whether a tensor is computed from constants, and an axis or entry of it may be the batch length."""
        if self._view.op(node_of(tensor)) in SHAPE_SLOT:
            return any(n and self._numbers.is_multiple(float(n)) for n in self._view.shape(tensor) or ())
        value = self._view.constant(tensor) if self._view.shape(tensor) != () else None
        return value is not None and value.ndim > 0 and self._numbers.may_be_of_batch(tensor, value)

    def _reach(self, inferred: GraphView, begin: Set[str]) -> set[str]:
        """Some nodes, and all nodes outside autodiff that are computed from them."""
        return reach(inferred, begin, self._forward)


def find_declared_dims(node: NodeDef) -> Sequence[Any]:
    """The lengths of axes that a node declares for tensors."""
    return [dim for name in _DECLARED.get(node.op, ()) for dim in node.attr[name].shape.dim]
