"""Resizes the constants of a graph for a fixed batch, and the ops that create tensors of a given shape, along axes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

import numpy as np

from parallax.analysis.reading.batches.batch_lengths import add_rows, add_shape
from parallax.analysis.reading.batches.changes import Changes
from parallax.analysis.reading.batches.computed_shapes import ComputedShapes
from parallax.analysis.reading.batches.constant_patterns import Entry, find_entry, find_pattern
from parallax.analysis.reading.batches.open_lengths import (
    JOINS,
    SHAPE_SLOT,
    find_shape_slots,
    find_vector,
    is_broadcast_of,
    iterate_inputs,
)
from parallax.base.types import GraphDef, NodeDef
from parallax.graph.contractions import CONTRACTIONS
from parallax.graph.view import GraphView, node_of


class TensorResizer:
    """Resizes the tensors of one graph.

    Args:
        view: the graph for the fixed batch.
        forward: the nodes outside autodiff and outside initial values.
        length: of the batch.
        measured: constants that are computed again from other tensors.
        computed: the shapes of which the graph computes some lengths.
        changes: to which this adds.
    """

    def __init__(
        self,
        view: GraphView,
        forward: Set[str],
        length: int,
        measured: Set[str],
        computed: ComputedShapes,
        changes: Changes,
    ) -> None:
        self._view, self._forward, self._length = view, forward, length
        self._measured, self._computed, self._changes = measured, computed, changes
        self._axes: defaultdict[str, set[int]] = defaultdict(set)

    def resize_inputs(self, inferred: GraphView, opened: GraphDef, node: NodeDef) -> None:
        """Resizes a node's inputs that are combined with the batch along axes, and have the fixed length there."""
        for slot, axes in self._find_conflicts(inferred, node).items():
            self.resize_input(opened, node, slot, axes)

    def _find_conflicts(self, inferred: GraphView, node: NodeDef) -> Mapping[int, Sequence[int]]:
        """By input, the axes of the fixed length along which it is combined with the batch."""
        taken = list(iterate_inputs(self._view, inferred, node))
        made = self._view.shape(f"{node.name}:0")
        begun = [(fixed, axes) for _, fixed, axes in taken if axes]
        if not begun or made is None or node.op in CONTRACTIONS:
            return {}
        fixed, axes = max(begun, key=lambda one: (len(one[0]), len(one[1])))
        is_broadcast = node.op in JOINS or is_broadcast_of(made, [one for _, one, _ in taken])
        is_shape, found = find_shape_slots(node.op), defaultdict[int, list[int]](list)
        for slot, other, open_axes in taken:
            for axis in axes if is_shape[slot : slot + 1] != (True,) else ():
                place = len(other) - len(fixed) + axis if is_broadcast else axis
                if place not in open_axes and 0 <= place < len(other) and other[place] == fixed[axis] != 1:
                    found[slot].append(place)
        return found

    def resize_input(self, opened: GraphDef, node: NodeDef, slot: int, axes: Sequence[int]) -> None:
        """Resizes a node's constant input to the batch's length along axes."""
        tensor, by_name = self._view.inputs(node.name)[slot], {one.name: one for one in opened.node}
        maker = node_of(tensor)
        while self._view.op(maker) in ("Identity", "Cast") and maker in self._forward:
            maker = node_of(self._view.inputs(maker)[0])
        shape_slot, key = SHAPE_SLOT.get(self._view.op(maker)), f"{node.name}@{slot}"
        if self._view.op(maker) == "Const" and maker not in self._measured:
            value, all_axes = self._view.constant(tensor), self._axes[key] | set(axes)
            pattern = find_pattern(value, sorted(all_axes), self._length) if value is not None else None
            self._changes.are_classified &= pattern is not None
            is_done = key in self._changes.names and all_axes == self._axes[key]
            if pattern is not None and not is_done and (batch := self._changes.find_batch(node.name)):
                self._changes.names |= {key, f"{key} along {sorted(all_axes)}"}
                self._axes[key] = all_axes
                node.input[slot] = add_rows(opened, batch, f"{node.name}/{slot}", pattern, tensor)
        elif shape_slot is not None:
            self.resize_maker(opened, by_name[maker], shape_slot, axes)

    def resize_maker(self, opened: GraphDef, maker: NodeDef, slot: int, axes: Sequence[int]) -> None:
        """Makes the producer of a tensor of a given shape use the batch's length along axes."""
        if maker.name in self._changes.names and set(axes) <= self._axes[maker.name]:
            return
        tensor = self._view.inputs(maker.name)[slot]
        shape = find_vector(self._view, tensor)
        all_axes = [
            axis
            for axis in sorted(self._axes[maker.name] | set(axes))
            if shape is not None and not (maker.op == "Tile" and shape[axis] == 1)
        ]
        if shape is None:
            self._computed.open_axes(opened, tensor, axes)
        if shape is None or not all_axes:
            return  # its constant inputs are opened or left separately
        if any(shape[axis] <= 0 or shape[axis] % self._length for axis in all_axes) or self._is_share(maker):
            self._changes.are_classified = False
            return
        if batch := self._changes.find_batch(maker.name):
            self._changes.names |= {maker.name, f"{maker.name} along {all_axes}"}
            self._axes[maker.name] = set(all_axes)
            factors = {axis: int(shape[axis]) // self._length for axis in all_axes}
            maker.input[slot] = add_shape(opened, batch, maker.name, shape, factors, tensor)

    def _is_share(self, maker: NodeDef) -> bool:
        """Whether a number with which a node fills a tensor may be computed from the batch length."""
        value = self._view.constant(self._view.inputs(maker.name)[1]) if maker.op == "Fill" else None
        entry = find_entry(value, self._length) if value is not None else Entry(np.array(0))
        return entry is None or entry.per_length != 0
