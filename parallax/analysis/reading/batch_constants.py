"""Tells which constants of a graph for a fixed batch lie along the batch, by what they meet, and makes them as long.

A tensor whose rows are alike along an axis (zeros, ones, a fill) lies along the batch where it meets a tensor whose
batch is open, axis by axis; where no variable has an axis of the batch's length, whatever it meets. So it is with a
multiple of that length that some open axis had, and no other axis beside one. A number in the shape of a Reshape is the
batch's where as many elements lie before it. A constant that divides a sum over the batch,
and is the batch's length, is taken for that length: a trained loss is a mean of its examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from math import prod
from typing import Any

import numpy as np

from parallax.analysis.reading.batch_lengths import Dims, add_constant, add_length, add_rows, add_shape
from parallax.analysis.reading.open_batches import SOURCES
from parallax.analysis.reading.open_lengths import OpenLengths, find_open_lengths, fixed_shape
from parallax.graph.view import GraphView, split_tensor
from parallax.types import Array, GraphDef, NodeDef

_CONTRACTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")
_SHAPE_SLOT = {
    "Fill": 0,
    "RandomUniform": 0,
    "RandomStandardNormal": 0,
    "TruncatedNormal": 0,
    "BroadcastTo": 1,
    "Tile": 1,
}
_DIVIDES, _MULTIPLIES = ("RealDiv", "Div", "DivNoNan"), ("Mul",)
_MEASURED = re.compile(r"(^|/)(Shape|Size|shape|size|shape_as_tensor)(_\d+)?$")
"""What TensorFlow calls a constant that it makes of the shape of a tensor, where that is known."""
_READS = ("ReadVariableOp", "VariableV2", "Variable")
_CUTS = {"Slice": (1, 2), "StridedSlice": (1, 2)}
_JOINS = ("ConcatV2", "Pack")
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask")


class BatchConstants:
    """The constants of one graph.

    Args:
        view: the graph for the fixed batch.
        forward: the nodes that are not autodiff's, and not of initial values.
        losses: those of them that are differentiated.
        length: of the batch.
        batch: the tensor of open length that a batch is.

    Attributes:
        are_told: whether all constants that meet the batch were told apart.
    """

    def __init__(self, view: GraphView, forward: Set[str], losses: Set[str], length: int, batch: str) -> None:
        self._losses = losses
        self._view, self._forward, self._length, self._batch = view, forward, length, batch
        self._changed: set[str] = set()
        widths = [
            (view.shape(tensor) or ())[view.op(node) not in _READS :]
            for node in forward
            if view.op(node) in (*_READS, *SOURCES)
            for tensor in view.outputs(node)
        ]
        self._is_batch_alone = not any(length in dims for dims in widths)
        self._widths = {n for dims in widths for n in dims if n is not None}
        self._lengths = OpenLengths(frozenset(), frozenset())
        self.are_told = True

    def change(self, seen: GraphView, opened: GraphDef) -> bool:
        """Changes what can be told of a graph.

        Args:
            seen: the graph with an open batch, with its shapes as they are now.
            opened: the same, which is changed.

        Returns:
            Whether there was anything.
        """
        self._lengths = find_open_lengths(self._view, seen, self._forward)
        by_name = {node.name: node for node in opened.node}
        count = len(self._changed)
        for node in self._view.nodes:
            if node in self._forward and node not in self._changed:
                self._change(seen, opened, by_name[node])
                self._open_any(opened, by_name[node])
        return len(self._changed) > count

    def _find_factor(self, n: int) -> int:
        """How many times the batch's length a length is that can but be the batch's; else 0."""
        if n == self._length:
            return int(self._is_batch_alone)
        is_told = n in self._lengths.of_batch and not self._is_other(n)
        return n // self._length if n % self._length == 0 and is_told else 0

    def _may_be_length(self, n: int) -> bool:
        """Whether a length may be a multiple of the batch's: none that only axes have that are none of the batch."""
        return n > 0 and n % self._length == 0 and (n in self._lengths.of_batch or not self._is_other(n))

    def _is_other(self, n: int) -> bool:
        return n in self._widths or n in self._lengths.others

    def has_left(self, seen: GraphView, gradients: Set[str]) -> bool:
        """Whether constants are left that may be of the batch, by their lengths or values; of gradients, by lengths.

        Args:
            seen: the graph with an open batch, after all changes.
            gradients: the nodes that autodiff delivers.
        """
        reached = self._reach(seen, {node for node in seen.nodes if node not in self._view.nodes})
        for node in self._reach(seen, gradients) & self._forward:
            if any(map(self._is_made_for_batch, self._view.inputs(node))):
                return True
        of_losses = seen.ancestors(self._losses) & self._forward
        for node in (node for node in seen.nodes if node in of_losses or node in reached):
            if any(dim.size > 0 and dim.size % self._length == 0 for dim in _find_declared_dims(seen.nodes[node])):
                return True
            is_cut = seen.op(node) in _CUTS and self._open_axis(seen, seen.inputs(node)[0]) is not None
            for slot, tensor in () if is_cut else enumerate(seen.inputs(node)):
                maker = split_tensor(tensor)[0]
                is_own = seen.op(maker) == "Const" and maker in self._forward
                is_own = is_own and f"{node}@{slot}" not in self._changed
                value = seen.constant(tensor) if is_own else None
                is_number = value is not None and value.ndim == 0 and seen.op(node) == "Cast"
                if self._may_be_of_batch(value) or (is_number and self._is_multiple(float(value or 0))):
                    return True
        return False

    def _is_made_for_batch(self, tensor: str) -> bool:
        """Whether a tensor is made of constants, with an axis, or an entry, that may be as long as the batch."""
        if self._view.op(split_tensor(tensor)[0]) in _SHAPE_SLOT:
            return any(n and n % self._length == 0 for n in self._view.shape(tensor) or ())
        value = self._view.constant(tensor)
        return value is not None and value.ndim > 0 and self._may_be_of_batch(value)

    def _reach(self, seen: GraphView, begin: Set[str]) -> set[str]:
        """Some nodes, and all that is computed of them outside of autodiff."""
        reached = set(begin)
        for node in seen.topological_order():
            if node in self._forward and any(split_tensor(t)[0] in reached for t in seen.inputs(node)):
                reached.add(node)
        return reached

    def _may_be_of_batch(self, value: Array | None) -> bool:
        if value is None or value.dtype.kind not in "iuf":
            return False
        if any(map(self._may_be_length, value.shape)):
            return True
        if value.dtype.kind == "f":
            return value.ndim == 0 and self._is_multiple(float(value))
        return any(self._may_be_length(int(n)) for n in value.flat) or bool(value.ndim == 0 and value == self._length)

    def _is_multiple(self, number: float) -> bool:
        """Whether a number, or one by it, is a multiple of the batch's length: a sum may be divided by it."""
        found = [round(one) for one in (number, 1 / number) if np.isclose(one, np.round(one))] if number > 0 else []
        return any(n > 0 and n % self._length == 0 for n in found)

    def _change(self, seen: GraphView, opened: GraphDef, node: NodeDef) -> None:
        if node.op == "Reshape":
            self._open_reshape(seen, opened, node)
        elif node.op == "EnsureShape":
            self._open_shape(seen, node)
        elif node.op in _CUTS:
            self._open_cut(seen, opened, node)
        elif node.op in (*_DIVIDES, *_MULTIPLIES) and (factor := self._find_divisor(seen, node)):
            self._changed.add(node.name)
            dtype, is_reciprocal = seen.dtype(f"{node.name}:0"), node.op in _MULTIPLIES
            node.input[1] = add_length(opened, self._batch, node.name, dtype, factor, is_reciprocal)
        for slot, axis in self._meets(seen, node):
            self._open(opened, node, slot, axis)

    def _open_axis(self, seen: GraphView, tensor: str) -> int | None:
        """The axis of a tensor that is open and has a known length in the graph for the fixed batch."""
        before = self._view.shape(tensor) if split_tensor(tensor)[0] in self._view.nodes else seen.shape(tensor)
        now = seen.shape(tensor)
        if now is None or before is None or len(now) != len(before):
            return None
        return next((axis for axis, n in enumerate(now) if n is None), None)

    def _iterate_inputs(self, seen: GraphView, node: NodeDef) -> Iterator[tuple[int, Dims, int | None]]:
        """Of each input: its place, its shape for the fixed batch, and its open axis."""
        now = seen.inputs(node.name)
        for slot, tensor in enumerate(self._view.inputs(node.name)):
            fixed = fixed_shape(self._view, tensor)
            if fixed is not None:
                yield slot, fixed, self._open_axis(seen, now[slot])

    def _open_reshape(self, seen: GraphView, opened: GraphDef, node: NodeDef) -> None:
        fixed, made = (
            fixed_shape(self._view, self._view.inputs(node.name)[0]),
            fixed_shape(self._view, f"{node.name}:0"),
        )
        axis = self._open_axis(seen, seen.inputs(node.name)[0])
        asked = seen.constant(seen.inputs(node.name)[1])
        if fixed is None or made is None or axis is None or asked is None:
            return
        before = prod(fixed[:axis])
        places = [p for p, n in enumerate(made) if n % self._length == 0 and prod(made[:p]) == before]
        places = places or [p for p, n in enumerate(made) if n % self._length == 0]
        if len(places) != 1:
            self.are_told = False
            return
        if int(asked[places[0]]) != -1:
            self._changed.add(node.name)
            wanted = [-1 if p == places[0] else n for p, n in enumerate(made)]
            node.input[1] = add_constant(opened, node.name, np.asarray(wanted, asked.dtype))

    def _open_shape(self, seen: GraphView, node: NodeDef) -> None:
        axis = self._open_axis(seen, seen.inputs(node.name)[0])
        for place, dim in enumerate(node.attr["shape"].shape.dim):
            if dim.size > 0 and (place == axis or (self._is_batch_alone and dim.size == self._length)):
                self._changed.add(node.name)
                dim.size = -1

    def _open_cut(self, seen: GraphView, opened: GraphDef, node: NodeDef) -> None:
        """Has a slice begin or end where the batch ends, if it did so."""
        axis, fixed = (
            self._open_axis(seen, seen.inputs(node.name)[0]),
            fixed_shape(self._view, self._view.inputs(node.name)[0]),
        )
        length = fixed[axis] if fixed is not None and axis is not None else 0
        for slot in _CUTS[node.op] if length and length % self._length == 0 else ():
            asked = self._value(seen, seen.inputs(node.name)[slot])
            place = int(asked[axis]) if asked is not None and axis is not None and len(asked) > axis else 0
            if asked is not None and axis is not None and place in (length, self._length):
                self._changed.add(node.name)
                name = f"{node.name}/{slot}"
                node.input[slot] = add_shape(opened, self._batch, name, asked, axis, place // self._length)

    def _value(self, seen: GraphView, tensor: str) -> Array | None:
        """A constant, or what a Pack has of constants."""
        node = split_tensor(tensor)[0]
        if seen.op(node) != "Pack":
            return seen.constant(tensor)
        parts = [seen.constant(part) for part in seen.inputs(node)]
        known = [part for part in parts if part is not None]
        return np.stack(known) if len(known) == len(parts) else None

    def _find_divisor(self, seen: GraphView, node: NodeDef) -> int:
        """By how many times the batch's length a node divides what is computed of the batch, and has no axis of it."""
        sum_of, by = seen.inputs(node.name)
        value = seen.constant(by)
        if value is None or np.size(value) != 1 or node.op in _MULTIPLIES and np.issubdtype(value.dtype, np.integer):
            return 0
        number = float(np.reshape(value, []))
        asked = 1 / number if node.op in _MULTIPLIES and number else number
        length = round(asked) if np.isclose(asked, np.round(asked), rtol=1e-6) else 0
        factor = 1 if length == self._length else self._find_factor(length)
        is_sum = factor and self._open_axis(seen, sum_of) is None and self._batch_reaches(seen, sum_of)
        return factor if is_sum else 0

    def _batch_reaches(self, seen: GraphView, tensor: str) -> bool:
        return split_tensor(self._batch)[0].rsplit("_", 1)[0] in {
            node.rsplit("_", 1)[0] for node in seen.ancestors([split_tensor(tensor)[0]]) if node not in self._view.nodes
        }

    def _meets(self, seen: GraphView, node: NodeDef) -> Iterator[tuple[int, int]]:
        """(input, axis) of what meets the batch along that axis and is as long as the fixed one."""
        taken = list(self._iterate_inputs(seen, node))
        made = fixed_shape(self._view, f"{node.name}:0")
        begun = [(fixed, axis) for _, fixed, axis in taken if axis is not None]
        if not begun or made is None or node.op in _CONTRACTS:
            return
        (fixed, axis) = max(begun, key=lambda one: len(one[0]))
        from_right = len(fixed) - axis
        is_broadcast = node.op in _JOINS or _broadcast([one for _, one, _ in taken]) == made
        for slot, other, is_open in taken:
            place = len(other) - from_right if is_broadcast else axis
            if is_open is None and 0 <= place < len(other) and other[place] == fixed[axis] != 1:
                yield slot, place

    def _open(self, opened: GraphDef, node: NodeDef, slot: int, axis: int) -> None:
        """Has a node take a constant as long as the batch along an axis."""
        maker = split_tensor(self._view.inputs(node.name)[slot])[0]
        while self._view.op(maker) in ("Identity", "Cast") and maker in self._forward:
            maker = split_tensor(self._view.inputs(maker)[0])[0]
        shape_slot = _SHAPE_SLOT.get(self._view.op(maker))
        by_name = {one.name: one for one in opened.node}
        if self._view.op(maker) == "Const":
            value = self._view.constant(f"{maker}:0")
            if value is None or value.shape[axis] % self._length or not _is_alike(value, axis):
                self.are_told = False
                return
            self._changed.add(f"{node.name}@{slot}")
            name = f"{node.name}/{slot}"
            row, factor = np.take(value, [0], axis), value.shape[axis] // self._length
            node.input[slot] = add_rows(opened, self._batch, name, row, axis, value.shape, factor)
        elif shape_slot is not None:
            self._open_maker(opened, by_name[maker], shape_slot, axis)

    def _open_maker(self, opened: GraphDef, maker: NodeDef, slot: int, axis: int) -> None:
        """Has what makes a tensor of a shape make it as long as the batch along an axis."""
        if maker.name in self._changed:
            return
        asked = self._view.constant(self._view.inputs(maker.name)[slot])
        if asked is None or asked[axis] <= 0 or asked[axis] % self._length:
            self.are_told = False
            return
        self._changed.add(maker.name)
        factor = int(asked[axis]) // self._length
        maker.input[slot] = add_shape(opened, self._batch, maker.name, asked, axis, factor)

    def _open_any(self, opened: GraphDef, maker: NodeDef) -> None:
        """Opens what makes a tensor that can but be of the batch: no variable has an axis of its length."""
        if maker.name in self._changed:
            return
        if maker.op in _SHAPE_SLOT:
            asked = self._view.constant(self._view.inputs(maker.name)[_SHAPE_SLOT[maker.op]])
            axis = self._find_axis(asked) if asked is not None and asked.ndim == 1 else None
            if axis is not None:
                self._open_maker(opened, maker, _SHAPE_SLOT[maker.op], axis)
        elif maker.op == "Range":
            limit = self._view.constant(self._view.inputs(maker.name)[1])
            factor = self._find_factor(int(limit)) if limit is not None and limit.dtype.kind == "i" else 0
            if factor:
                self._changed.add(maker.name)
                dtype = self._view.dtype(f"{maker.name}:0")
                maker.input[1] = add_length(opened, self._batch, maker.name, dtype, factor)
        elif maker.op == "Const":
            value = self._view.constant(f"{maker.name}:0")
            if value is not None and value.dtype.kind == "i" and _MEASURED.search(maker.name):
                self._open_shape_constant(opened, maker, value)
                return
            axis = self._find_axis(np.asarray(value.shape)) if value is not None else None
            if value is None or axis is None:
                return
            if not _is_alike(value, axis):
                self.are_told = False
                return
            self._changed.add(maker.name)
            row, factor = np.take(value, [0], axis), value.shape[axis] // self._length
            rows = add_rows(opened, self._batch, maker.name, row, axis, tuple(value.shape), factor)
            self._replace(opened, maker.name, rows)

    def _open_shape_constant(self, opened: GraphDef, maker: NodeDef, value: Array) -> None:
        """Has what TensorFlow has measured of a tensor of known shape, and made a constant, have the batch's length."""
        axis = self._find_axis(np.reshape(value, [-1])) if value.ndim < 2 else None
        if axis is None:
            return
        self._changed.add(maker.name)
        factor = int(np.reshape(value, [-1])[axis]) // self._length
        if value.ndim == 0:
            made = add_length(opened, self._batch, maker.name, self._view.dtype(f"{maker.name}:0"), factor)
        else:
            made = add_shape(opened, self._batch, maker.name, value, axis, factor)
        self._replace(opened, maker.name, made, axis)

    def _find_axis(self, lengths: Array) -> int | None:
        """The one entry of a shape that is the batch's, where all others are known not to be."""
        found = [axis for axis, n in enumerate(lengths) if self._find_factor(int(n))]
        others = [n for axis, n in enumerate(lengths) if axis not in found and self._may_be_length(int(n))]
        return found[0] if len(found) == 1 and not others else None

    def _find_picked(self, node: str) -> list[int]:
        """The entries of a vector that a slice takes."""
        vector, *bounds = self._view.inputs(node)
        values = [self._view.constant(tensor) for tensor in bounds]
        length = (self._view.shape(vector) or (0,))[0] or 0
        known = [int(value[0]) for value in values if value is not None and np.shape(value) == (1,)]
        if len(known) < len(values) or any(self._view.flag(node, mask) for mask in _MASKS):
            return list(range(length))
        places = list(range(length))
        return [places[known[0]]] if self._view.flag(node, "shrink_axis_mask") else places[slice(*known)]

    def _replace(self, opened: GraphDef, constant: str, made: str, axis: int = 0) -> None:
        """Has the forward pass take something else for a constant; of a Reshape's shape there is a rule of its own."""
        for node in opened.node:
            for slot, taken in enumerate(node.input if node.name in self._forward else ()):
                if taken in (constant, f"{constant}:0") and (node.op, slot) != ("Reshape", 1):
                    if node.op == "StridedSlice" and slot == 0 and axis not in self._find_picked(node.name):
                        self._changed.add(f"{node.name}@{slot}")
                        continue
                    node.input[slot] = made


def _find_declared_dims(node: NodeDef) -> Sequence[Any]:
    """The lengths of axes that a node promises of its input."""
    return list(node.attr["shape"].shape.dim) if node.op == "EnsureShape" else []


def _broadcast(shapes: list[Dims]) -> Dims | None:
    try:
        return tuple(int(n) for n in np.broadcast_shapes(*shapes))
    except ValueError:
        return None


def _is_alike(value: Array, axis: int) -> bool:
    return bool(np.all(value == np.take(value, [0], axis)))
