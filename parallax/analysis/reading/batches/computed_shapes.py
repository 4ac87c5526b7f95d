"""Opens the batch length in shapes of which the graph computes other lengths, as of `[batch, longest]`.

Such a shape is packed from numbers, or concatenated from vectors; that of a Reshape may be a constant with a -1. A
number in it is the batch's if a Reshape of the batch has equally many elements before it, also as a factor of a
computed number of elements (`batch * longest`), or if the result's axis is (axis_groups.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from math import prod
from typing import NamedTuple

import numpy as np

from parallax.analysis.reading.batches.batch_lengths import add_length, add_shape
from parallax.analysis.reading.batches.batch_numbers import IntegerClassifier
from parallax.analysis.reading.batches.changes import Changes
from parallax.analysis.reading.batches.open_lengths import (
    JOINS,
    find_open_axis,
    find_selected_entries,
    find_stated_lengths,
)
from parallax.base.types import GraphDef
from parallax.graph.ops import ELEMENTWISE
from parallax.graph.view import GraphView, node_of


class _Entry(NamedTuple):
    """A number in a shape: the node and the input that state it, and the place in that input.

    Attributes:
        number: None if it is computed.
        of: the Shape op and the axis of its tensor of which it is the length, if that is known.
    """

    node: str
    slot: int
    place: int
    number: int | None
    of: tuple[str, int] | None = None


class ComputedShapes:
    """The shapes of one graph of which it computes some lengths.

    Args:
        view: the graph for the fixed batch.
        forward: the nodes outside autodiff and outside initial values.
        length: of the batch.
        numbers: the classification of integers.
        changes: to which this adds.
    """

    def __init__(
        self, view: GraphView, forward: Set[str], length: int, numbers: IntegerClassifier, changes: Changes
    ) -> None:
        self._view, self._forward, self._length = view, forward, length
        self._numbers, self._changes = numbers, changes
        self._flattened: set[str] = set()

    def open_reshape(self, inferred: GraphView, opened: GraphDef, node: str) -> None:
        """Opens the one length in the shape of a Reshape of the batch that must be the batch's."""
        tensor, shape = self._view.inputs(node)
        axis = self._find_batch_axis(inferred, node)
        entries = self._find_entries(shape) or self._list_constant(node, 1)
        before = (self._view.shape(tensor) or ())[:axis]
        aligned = [place for place in range(len(entries)) if axis is not None and _is_as_many(entries[:place], before)]
        places = [place for place in aligned if self._is_multiple(entries[place])]
        for place in aligned:
            if entries[place].number is None and entries[place].node == node_of(shape):
                self._open_product(opened, entries[place])
        if any(entries[place].number == -1 or self._is_open(inferred, entries[place]) for place in aligned):
            self._keep(entries)  # its known lengths are widths
            self._flattened.update({node} if aligned[0] == 0 else ())
        elif len(places) == 1 and entries[places[0]].number == self._length:
            self._open(opened, [entries[places[0]]])
            self._keep(entries)
        else:
            self._open_certain(opened, node, entries)

    def open_certain(self, opened: GraphDef, node: str, shape: str) -> None:
        """Opens the lengths in the shape of a node's result that must be the batch's, unless others may be."""
        self._open_certain(opened, node, self._find_entries(shape))

    def open_axes(self, opened: GraphDef, shape: str, axes: Iterable[int]) -> None:
        """Opens the lengths of axes along which a tensor of a shape is combined with the batch."""
        entries = self._find_entries(shape)
        known = [entries[axis] for axis in axes if len(entries) > axis and entries[axis].number not in (None, 1)]
        self._changes.are_classified &= all(map(self._is_multiple, known))
        if all(map(self._is_multiple, known)):
            self._open(opened, known)

    def open_end(self, opened: GraphDef, node: str, shape: str, axis: int) -> None:
        """Makes a slice end at the end of the batch, if it did so and other axes end where the graph computes."""
        entries = self._find_entries(shape)
        takers = {edge.node for edge in self._view.consumers(shape)} & self._forward
        if len(entries) > axis and entries[axis].number == self._length and takers == {node}:
            self._open(opened, [entries[axis]])

    def _open_product(self, opened: GraphDef, entry: _Entry) -> None:
        """Opens the batch length in a product with a number that the graph computes (`batch * longest`)."""
        node = node_of(self._view.inputs(entry.node)[entry.slot])
        tensors = (
            self._view.inputs(node) if self._view.op(node) == "Mul" and self._view.shape(f"{node}:0") == () else []
        )
        for slot, number in enumerate(map(self._view.constant, tensors)):
            if number is not None and number == self._length:
                self._open(opened, [_Entry(node, slot, 0, self._length)])

    def _open_certain(self, opened: GraphDef, node: str, entries: Sequence[_Entry]) -> None:
        lengths = find_stated_lengths(self._view, node, [entry.number or 0 for entry in entries])
        axes = self._numbers.find_axes_of(f"{node}:0", lengths) or []
        self._open(opened, [entries[axis] for axis in axes])

    def _find_entries(self, shape: str) -> Sequence[_Entry]:
        """The entries of a shape, up to the first of which the place is unknown; none where all are known."""
        maker = node_of(shape)
        if self._view.op(maker) not in JOINS or self._view.constant(shape) is not None:
            return ()
        is_pack, entries = self._view.op(maker) == "Pack", list[_Entry]()
        parts = self._view.inputs(maker)
        for slot, tensor in enumerate(parts if is_pack else parts[:-1]):
            dims = self._view.shape(tensor)
            if dims is None or None in dims or len(dims) != (0 if is_pack else 1):
                break
            places = range(prod(n or 0 for n in dims))
            lengths = self._find_lengths(tensor)
            entries += self._list_constant(maker, slot) or [
                _Entry(maker, slot, place, None, lengths[place] if len(lengths) == len(places) else None)
                for place in places
            ]
        return entries if any(entry.number is None for entry in entries) else ()

    def _find_lengths(self, vector: str) -> list[tuple[str, int]]:
        """(the Shape op, the axis) of each entry of a vector of lengths that is a part of a shape; else none."""
        node = node_of(self._view.source(vector))
        op, inputs = self._view.op(node), self._view.inputs(node)
        if op == "Shape":
            return [(node, axis) for axis in range(len(self._view.shape(inputs[0]) or ()))]
        if op not in ("StridedSlice", "GatherV2") or self._view.op(node_of(inputs[0])) != "Shape":
            return []
        picked = self._view.constant(inputs[1]) if op == "GatherV2" else find_selected_entries(self._view, node)
        return [] if picked is None else [(node_of(inputs[0]), int(axis)) for axis in np.reshape(picked, [-1])]

    def _list_constant(self, node: str, slot: int) -> list[_Entry]:
        """The entries of a shape that an input states; none if it is computed."""
        value = self._view.constant(self._view.inputs(node)[slot])
        numbers = () if value is None else np.reshape(value, [-1])
        return [_Entry(node, slot, place, int(n)) for place, n in enumerate(numbers)]

    def _open(self, opened: GraphDef, entries: Sequence[_Entry]) -> None:
        """Computes entries of a shape from the batch length."""
        for node, slot in dict.fromkeys((entry.node, entry.slot) for entry in entries):
            tensor, key = self._view.inputs(node)[slot], f"{node}@{slot}"
            value = self._view.constant(tensor)
            if value is None or key in self._changes.names or not (batch := self._changes.find_batch(node)):
                continue
            self._changes.names.add(key)
            factors = {e.place: (e.number or 0) // self._length for e in entries if (e.node, e.slot) == (node, slot)}
            if value.ndim:
                made = add_shape(opened, batch, f"{node}/{slot}", value, factors, tensor)
            else:
                made = add_length(opened, batch, f"{node}/{slot}", self._view.dtype(tensor), tensor, factors[0])
            next(one for one in opened.node if one.name == node).input[slot] = made

    def _keep(self, entries: Sequence[_Entry]) -> None:
        """Takes the entries of a shape that have not been opened for widths."""
        self._changes.names.update(f"{entry.node}@{entry.slot}" for entry in entries)

    def _find_begun(self, inferred: GraphView, node: str) -> int | None:
        """The first axis of what a node reads that is open instead of fixed."""
        fixed, now = self._view.shape(self._view.inputs(node)[0]) or (), inferred.shape(inferred.inputs(node)[0]) or ()
        pairs = enumerate(zip(fixed, now, strict=True) if len(fixed) == len(now) else ())
        return next((axis for axis, (before, n) in pairs if before is not None and n is None), None)

    def _find_batch_axis(self, inferred: GraphView, node: str) -> int | None:
        """The axis of what a node reads that is the batch's, or begins with it; one that is computed may do."""
        axis, tensor = self._find_begun(inferred, node), self._view.inputs(node)[0]
        is_other = any(n and n % self._length == 0 for n in self._view.shape(tensor) or ())
        if axis is None and (not is_other or self._is_flat(tensor)):
            axis = find_open_axis(self._view, inferred, inferred.inputs(node)[0])
        return axis

    def _is_flat(self, tensor: str) -> bool:
        """Whether the first axis of a tensor begins with the batch, and all others are widths."""
        waiting, seen = [tensor], {tensor}
        for one in waiting:
            node = node_of(one)
            op, inputs, rank = self._view.op(node), self._view.inputs(node), len(self._view.shape(one) or ())
            if node in self._flattened:
                return True
            is_product = op in ("BiasAdd", "MatMul") and not self._view.flag(node, "transpose_a")
            found = inputs[:1] if is_product else inputs if op in ELEMENTWISE else ()
            more = {other for other in found if len(self._view.shape(other) or ()) == rank} - seen
            waiting += sorted(more)
            seen |= more
        return False

    def _is_open(self, inferred: GraphView, entry: _Entry) -> bool:
        """Whether a computed entry is the length of the batch."""
        return entry.of is not None and self._find_begun(inferred, entry.of[0]) == entry.of[1]

    def _is_multiple(self, entry: _Entry) -> bool:
        return entry.number is not None and entry.number > 0 and entry.number % self._length == 0


def _is_as_many(entries: Sequence[_Entry], dims: Sequence[int | None]) -> bool:
    """Whether equally many elements lie before a place in a shape and before an axis."""
    numbers = [entry.number for entry in entries]
    if None in numbers or -1 in numbers or None in dims:
        return False
    return prod(n or 0 for n in numbers) == prod(n or 0 for n in dims)
