"""Finds the constants of a graph for a fixed batch that lie along the batch, and resizes them to its length.

A tensor whose rows follow from their numbers (zeros, a fill, a range, an identity matrix) lies along the batch if an op
combines it with a tensor whose batch axis is open, axis by axis (axis_groups.py). An element in the shape of a Reshape
is the batch's if equally many elements lie before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from types import MappingProxyType

import numpy as np

from parallax.analysis.reading.batches.axis_groups import find_counted_axis
from parallax.analysis.reading.batches.axis_numbers import AxisNumbers
from parallax.analysis.reading.batches.axis_pairs import COUNT, find_store
from parallax.analysis.reading.batches.batch_divisors import BatchDivisors
from parallax.analysis.reading.batches.batch_lengths import (
    add_constant,
    add_form,
    add_length,
    add_rows,
    add_shape,
    measure_again,
)
from parallax.analysis.reading.batches.batch_numbers import IntegerClassifier
from parallax.analysis.reading.batches.changes import Changes
from parallax.analysis.reading.batches.computed_shapes import ComputedShapes
from parallax.analysis.reading.batches.constant_patterns import find_constant_axes, find_pattern
from parallax.analysis.reading.batches.open_lengths import (
    EXAMPLES_SLOT,
    LISTS,
    SHAPE_SLOT,
    find_open_axis,
    find_open_lengths,
    find_reshaped_axes,
    find_selected_entries,
    find_shape_value,
    find_stated_lengths,
    find_vector,
    fixed_shape,
    is_open_length,
)
from parallax.analysis.reading.batches.tensor_resizer import TensorResizer
from parallax.analysis.reading.batches.unclassified_constants import (
    ARRAYS,
    CUTS,
    DIVIDES,
    LENGTH_SLOT,
    MULTIPLIES,
    SHIFTS,
    UnclassifiedConstants,
    is_outside_batch,
)
from parallax.analysis.reading.construction.measured_tensors import MeasuredTensor
from parallax.base.types import GraphDef, NodeDef
from parallax.graph.control_flow import branches_at, branches_of
from parallax.graph.view import GraphView, node_of

_COMPARES = ("Equal", "NotEqual")


class BatchConstants:
    """The constants of one graph.

    Args:
        view: the graph for the fixed batch.
        forward: the nodes outside autodiff and outside initial values.
        losses: those of them that are differentiated.
        divisors: the constants that divide sums over the batch.
        length: of the batch.
        find_batch: node -> the tensor of which an axis is the batch, or which is its length; empty where the body of a
            function has none, or not all runs with the node read the same input.
        numbers: the classification of integers.
        measured: constant -> the tensor from which TensorFlow made it.

    Attributes:
        changes: what was changed, and what could not be.
        resizer: of the tensors that are combined with the batch.
    """

    def __init__(
        self,
        view: GraphView,
        forward: Set[str],
        losses: Set[str],
        divisors: BatchDivisors,
        length: int,
        find_batch: Callable[[str], str],
        numbers: IntegerClassifier,
        measured: Mapping[str, MeasuredTensor] = MappingProxyType({}),
    ) -> None:
        self._measured, self._divisors = dict(measured), divisors
        self._view, self._forward, self._losses, self._length = view, forward, losses, length
        self._numbers = numbers
        self.changes = Changes(view, find_batch)
        shapes = {constant for constant, one in measured.items() if one.what == "shape"}
        self._axis_numbers = AxisNumbers(view, forward, shapes).find_all()
        self._computed = ComputedShapes(view, forward, length, numbers, self.changes)
        self.resizer = TensorResizer(view, forward, length, measured.keys(), self._computed, self.changes)

    def change(self, inferred: GraphView, opened: GraphDef) -> bool:
        """Changes the constants of a graph that can be classified.

        Args:
            inferred: the graph with an open batch, with its current shapes.
            opened: the same graph, which is modified.

        Returns:
            Whether there were any.
        """
        self._numbers.lengths = find_open_lengths(self._view, inferred, self._forward)
        self.changes.opened = opened
        by_name = {node.name: node for node in opened.node}
        count = len(self.changes.names)
        for node in self._view.nodes:
            if node in self._forward and node not in self.changes.names:
                if node in self._measured:
                    self._open_measured(inferred, opened, node)
                    continue
                self._open_number(opened, by_name[node])
                self._change(inferred, opened, by_name[node])
                self._open_any(opened, by_name[node])
        return len(self.changes.names) > count

    def open_divisors(self, inferred: GraphView, opened: GraphDef) -> bool:
        """Changes numbers of the length in sums over the batch, which are known once all axes are open; as `change`."""
        by_name = {node.name: node for node in opened.node}
        count = len(self.changes.names)
        for node in self._view.nodes:
            if node in self._forward and node not in self.changes.names:
                self._open_divisor(inferred, opened, by_name[node])
        return len(self.changes.names) > count

    def find_unclassified(self, inferred: GraphView) -> str:
        """The first node with a constant that may depend on the batch, by its length or value, after all changes."""
        measured = {constant for constant, one in self._measured.items() if inferred.shape(one.tensor) is not None}
        left = UnclassifiedConstants(
            self._view,
            self._forward,
            self._numbers,
            self.changes.names,
            measured | self._axis_numbers | self.changes.names,
        )
        return left.find_of_losses(inferred, self._losses, self._divisors.find_degrees(inferred))

    def _change(self, inferred: GraphView, opened: GraphDef, node: NodeDef) -> None:
        if node.op == "Reshape":
            self._open_reshape(inferred, opened, node)
        elif node.op in EXAMPLES_SLOT:
            if find_open_axis(self._view, inferred, inferred.inputs(node.name)[EXAMPLES_SLOT[node.op]]) == 0:
                self.resizer.resize_maker(opened, node, 0, [0])
        elif node.op == "Squeeze":
            self._state_axes(node)
        elif node.op == "EnsureShape":
            self._open_shape(inferred, node)
        elif node.op in ARRAYS:
            self._open_elements(node)
        elif node.op in _COMPARES:
            self._open_comparison(inferred, node)
        elif node.op in CUTS:
            self._open_cut(inferred, opened, node)
        elif node.op == "SplitV":
            self._open_sizes(inferred, opened, node)
        elif node.op in LISTS:
            self.open_list(opened, node)
        elif node.op == "LogicalAnd":
            self._open_turns(inferred, opened, node)
        self.resizer.resize_inputs(inferred, opened, node)

    def _open_reshape(self, inferred: GraphView, opened: GraphDef, node: NodeDef) -> None:
        made = fixed_shape(self._view, f"{node.name}:0")
        shape = inferred.constant(inferred.inputs(node.name)[1])
        if made is None:
            self._computed.open_reshape(inferred, opened, node.name)
        decide = self._numbers.find_axes_of, self._numbers.is_batch
        found = find_reshaped_axes(self._view, inferred, node.name, self._length, *decide)
        if made is None or shape is None or found is None:
            return
        places, is_aligned = found
        if len(places) != 1:
            self.changes.are_classified &= not places and -1 in shape
        elif int(shape[places[0]]) != -1:
            self.changes.names.add(node.name)
            new_shape = [-1 if p == places[0] else n for p, n in enumerate(made)]
            node.input[1] = add_constant(opened, node.name, np.asarray(new_shape, shape.dtype), node.input[1])
        elif is_aligned:
            self.changes.names.add(f"{node.name}@1")  # its other lengths are widths

    def _open_shape(self, inferred: GraphView, node: NodeDef) -> None:
        axis = find_open_axis(self._view, inferred, inferred.inputs(node.name)[0])
        for place, dim in enumerate(node.attr["shape"].shape.dim):
            if dim.size > 0 and (place == axis or self._numbers.find_factor_of_axis(f"{node.name}:0", place, dim.size)):
                self.changes.names.add(node.name)
                dim.size = -1

    def _state_axes(self, node: NodeDef) -> None:
        """States the axes that a Squeeze removes, where it removes all of length one."""
        axes = [axis for axis, n in enumerate(fixed_shape(self._view, self._view.inputs(node.name)[0]) or ()) if n == 1]
        if axes and not node.attr["squeeze_dims"].list.i:
            self.changes.names.add(node.name)
            node.attr["squeeze_dims"].list.i.extend(axes)

    def _open_elements(self, node: NodeDef) -> None:
        """Removes the batch length from the element shape that an array of tensors, or a full read of it, declares."""
        dims = node.attr["element_shape"].shape.dim
        for axis in self._numbers.find_axes_of(find_store(self._view, node.name), [dim.size for dim in dims]) or ():
            self.changes.names.add(node.name)
            dims[axis].size = -1

    def open_list(self, opened: GraphDef, node: NodeDef) -> bool:
        """Removes the batch length from the element shape declared by a tensor list or its reader; returns success."""
        count, slot = len(self.changes.names), LISTS[node.op]
        self._open_number(opened, node)
        store = find_store(self._view, node.name)
        if "num_elements" in node.attr:
            if self._numbers.find_factor_of_axis(store, COUNT, node.attr["num_elements"].i):
                self.changes.names.add(node.name)
                node.attr["num_elements"].i = -1
        dims = self._view.constant(self._view.inputs(node.name)[slot])
        if dims is None or dims.ndim != 1 or f"{node.name}@{slot}" in self.changes.names:
            return len(self.changes.names) > count
        places = self._numbers.find_axes_of(store, dims.tolist()) or []
        if node.op == "EmptyTensorList":  # elements have their own shapes: a weaker declaration does no harm
            places = [place for place, n in enumerate(dims) if n > 0 and n % self._length == 0]
        if places:
            self.changes.names.add(f"{node.name}@{slot}")
            new_dims = [-1 if place in places else n for place, n in enumerate(dims)]
            node.input[slot] = add_constant(opened, node.name, np.asarray(new_dims, dims.dtype), node.input[slot])
        return len(self.changes.names) > count

    def _open_comparison(self, inferred: GraphView, node: NodeDef) -> None:
        """Replaces a constant that is compared with the batch length, and equals it, with that length."""
        one, other = (find_shape_value(self._view, tensor) for tensor in self._view.inputs(node.name))
        is_equal = one is not None and other is not None and np.array_equal(one, other)
        is_made = [is_open_length(self._view, inferred, tensor) for tensor in inferred.inputs(node.name)]
        if is_equal and any(is_made) and self.changes.is_outside(node.name):
            self.changes.names.add(node.name)
            made = node.input[is_made.index(True)]
            node.input[0], node.input[1] = made, made

    def _open_turns(self, inferred: GraphView, opened: GraphDef, node: NodeDef) -> None:
        """Makes a loop with at most one iteration for each example, and an equal count, count the examples."""
        by_name = {one.name: one for one in opened.node}
        pair = [by_name[node_of(tensor)] for tensor in inferred.inputs(node.name)]
        if any(one.op != "Less" for one in pair):
            return
        for counted, limit in (pair, pair[::-1]):
            number, most = self._view.constant(self._view.inputs(counted.name)[1]), inferred.inputs(limit.name)[1]
            is_open = most == self.changes.find_source(counted.name) or f"{node_of(most)}@0" in self.changes.names
            is_alike = inferred.dtype(most) == self._view.dtype(self._view.inputs(counted.name)[1])
            if number is not None and is_open and is_alike and int(number) == self._length:
                self.changes.names.add(counted.name)
                counted.input[1] = limit.input[1]

    def _open_cut(self, inferred: GraphView, opened: GraphDef, node: NodeDef) -> None:
        """Makes a slice begin or end at the end of the batch, if it did so."""
        axis = find_open_axis(self._view, inferred, inferred.inputs(node.name)[0])
        fixed = self._view.shape(self._view.inputs(node.name)[0])
        length = (fixed[axis] or 0) if fixed is not None and axis is not None else 0
        for slot in CUTS[node.op] if length and length % self._length == 0 else ():
            bounds = find_vector(inferred, inferred.inputs(node.name)[slot])
            if bounds is None and axis is not None and length == self._length:
                self._computed.open_end(opened, node.name, self._view.inputs(node.name)[slot], axis)
            place = int(bounds[axis]) if bounds is not None and axis is not None and len(bounds) > axis else 0
            if bounds is None or axis is None or not place or place % self._length or abs(place) > length:
                continue
            if batch := self.changes.find_batch(node.name):
                self.changes.names.add(node.name)
                name, tensor = f"{node.name}/{slot}", self._view.inputs(node.name)[slot]
                node.input[slot] = add_shape(opened, batch, name, bounds, {axis: place // self._length}, tensor)

    def _open_sizes(self, inferred: GraphView, opened: GraphDef, node: NodeDef) -> None:
        """Makes the pieces of an axis along the batch multiples of its length, if they were so."""
        tensor, sizes, place = self._view.inputs(node.name)
        axis, along, numbers = (
            find_open_axis(self._view, inferred, tensor),
            self._view.constant(place),
            find_vector(self._view, sizes),
        )
        rank = len(self._view.shape(tensor) or ())
        if axis is None or along is None or numbers is None or int(along) % rank != axis:
            return
        factors = {entry: int(n) // self._length for entry, n in enumerate(numbers) if n != -1}
        if all(n == -1 or (n > 0 and n % self._length == 0) for n in numbers) and (
            batch := self.changes.find_batch(node.name)
        ):
            self.changes.names.add(node.name)
            node.input[1] = add_shape(opened, batch, node.name, numbers, factors, sizes)

    def _open_divisor(self, inferred: GraphView, opened: GraphDef, node: NodeDef) -> None:
        found = self._divisors.find_form(inferred, node.name) if node.op in (*DIVIDES, *MULTIPLIES, *SHIFTS) else None
        if found is not None and (batch := self.changes.find_batch(node.name)):
            slot, form = found
            self.changes.names.add(node.name)
            dtype, tensor = inferred.dtype(f"{node.name}:0"), self._view.inputs(node.name)[slot]
            node.input[slot] = add_form(opened, batch, node.name, dtype, tensor, form, node.op in MULTIPLIES)

    def _open_number(self, opened: GraphDef, node: NodeDef) -> None:
        """Replaces an integer input that must be the batch length with that length."""
        slot = LENGTH_SLOT.get(node.op)
        if slot is None or f"{node.name}@{slot}" in self.changes.names:
            return
        tensor = self._view.inputs(node.name)[slot]
        number = self._view.constant(tensor)
        if number is None or number.ndim > 0 or node_of(tensor) in self._axis_numbers:
            return
        if number.dtype.kind != "i" and not (node.op == "Range" and float(number).is_integer()):
            return
        axis = find_counted_axis(self._view, node.name)
        factor = self._numbers.find_factor_of_axis(*axis, int(number)) if axis is not None else 0
        if factor and (batch := self.changes.find_batch(node.name, at=node_of(tensor))):
            self.changes.names.add(f"{node.name}@{slot}")
            dtype = self._view.dtype(tensor)
            node.input[slot] = add_length(opened, batch, f"{node.name}/{slot}", dtype, tensor, factor)

    def _open_measured(self, inferred: GraphView, opened: GraphDef, constant: str) -> None:
        """Computes a constant again from its tensor where the tensor's shape is open or unknown."""
        measured, value = self._measured[constant], self._view.constant(f"{constant}:0")
        if node_of(measured.tensor) not in inferred.nodes:
            return  # added in this pass
        axis, now = find_open_axis(self._view, inferred, measured.tensor), inferred.shape(measured.tensor)
        if now is None:
            axes = self._numbers.find_axes_of(measured.tensor, fixed_shape(self._view, measured.tensor) or ()) or []
            axis = axes[0] if len(axes) == 1 else None
        find_factor, lengths = self._numbers.find_factor_of_axis, enumerate(now or ())
        later = {n for place, n in lengths if n and find_factor(measured.tensor, place, n)}  # of axes that open later
        if value is None or axis is None or (measured.what == "shape" and later and int(value[axis]) not in later):
            return
        within, is_source = branches_of(self._view).get(constant, ()), node_of(measured.tensor) not in self._view.nodes
        outer = () if is_source else branches_at(self._view, measured.tensor)
        if within[: len(outer)] != outer or any(one.is_loop for one in within[len(outer) :]):
            self.changes.are_classified = False
            return
        self.changes.names.add(constant)
        dtype, is_in_loop = inferred.dtype(measured.tensor), any(one.is_loop for one in within)
        self._replace(opened, constant, measure_again(opened, measured, dtype, constant, value, is_in_loop), axis)

    def _open_any(self, opened: GraphDef, maker: NodeDef) -> None:
        """Opens the producer of a tensor that must depend on the batch: no variable has an axis of its length."""
        if maker.name in self.changes.names or maker.name in self._axis_numbers:
            return
        if maker.op in SHAPE_SLOT:
            shape = find_vector(self._view, self._view.inputs(maker.name)[SHAPE_SLOT[maker.op]])
            numbers = shape.tolist() if shape is not None and shape.ndim == 1 else []
            lengths = find_stated_lengths(self._view, maker.name, numbers)
            axes = self._numbers.find_axes_of(f"{maker.name}:0", lengths) or []
            self.resizer.resize_maker(opened, maker, SHAPE_SLOT[maker.op], axes)
            self._computed.open_certain(opened, maker.name, self._view.inputs(maker.name)[SHAPE_SLOT[maker.op]])
        elif maker.op == "Const":
            value = self._view.constant(f"{maker.name}:0")
            axes = (
                find_constant_axes(value, f"{maker.name}:0", self._length, self._numbers) if value is not None else []
            )
            if value is None or not axes or is_outside_batch(self._view, maker.name, self._forward):
                return
            pattern = find_pattern(value, axes, self._length)
            self.changes.are_classified &= pattern is not None
            is_read = bool(self.changes.find_source(maker.name))
            batch = self.changes.find_batch(maker.name) if pattern is not None and is_read else ""
            if pattern is None or not (batch or (not is_read and self.changes.is_outside(maker.name))):
                return
            self.changes.names.add(maker.name)
            if not batch:  # each reader takes it from an input of its own
                by_name = {one.name: one for one in opened.node}
                for edge in self._view.consumers(f"{maker.name}:0"):
                    if edge.node in self._forward:
                        self.resizer.resize_input(opened, by_name[edge.node], edge.slot, axes)
                return
            made, tensor = add_rows(opened, batch, maker.name, pattern, f"{maker.name}:0"), f"{maker.name}:0"
            self._replace(opened, maker.name, made)
            for constant, one in self._measured.items():
                self._measured[constant] = one._replace(tensor=f"{made}:0") if one.tensor == tensor else one

    def _replace(self, opened: GraphDef, constant: str, made: str, axis: int = 0) -> None:
        """Replaces a constant in the forward pass; the shape of a Reshape has a separate rule."""
        for node in opened.node:
            for slot, input_name in enumerate(node.input if node.name in self._forward else ()):
                if input_name in (constant, f"{constant}:0") and (node.op, slot) != ("Reshape", 1):
                    if (
                        node.op == "StridedSlice"
                        and slot == 0
                        and axis not in find_selected_entries(self._view, node.name)
                    ):
                        self.changes.names.add(f"{node.name}@{slot}")
                        continue
                    node.input[slot] = made
