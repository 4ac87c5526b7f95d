"""Nodes that are added to a graph together with their shapes, so that no shape inference is needed."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from parallax.analysis.reading.lazy.handles import input_name
from parallax.analysis.reading.lazy.row_terms import Gates, Powers
from parallax.base.types import Array, DType, GraphDef, NodeDef
from parallax.graph.view import GraphView, Shape

_SHAPES = "_output_shapes"


def record_shapes(node: NodeDef, *shapes: Shape) -> None:
    """Records the shapes of a node's outputs."""
    node.attr[_SHAPES].Clear()
    for shape in shapes:
        known = node.attr[_SHAPES].list.shape.add(unknown_rank=shape is None)
        for length in shape or ():
            known.dim.add(size=-1 if length is None else length)


class AddedNodes:
    """Adds nodes to a copy of a graph, under a separate scope.

    Args:
        out: the copy.
        view: of the original graph.
        scope: prefix of the names; a number is appended where it is in use.
    """

    def __init__(self, out: GraphDef, view: GraphView, scope: str) -> None:
        self._out, self._view = out, view
        names, count, self._scope = {node.name for node in out.node}, 0, scope
        while any(name.startswith(f"{self._scope}/") for name in names):
            count += 1
            self._scope = f"{scope}_{count}"
        self._made: dict[str, tuple[Shape, int]] = {}
        self._passed: dict[tuple[str, Gates], str] = {}

    def unique(self, indices: str) -> tuple[str, str]:
        """(the distinct numbers `[u]`, the position of each of `indices` among them `[n]`)."""
        node = self._node("Unique", [indices], [(None,), (None,)], [self._type(indices), tf.int32.as_datatype_enum])
        node.attr["T"].type = self._type(indices)
        node.attr["out_idx"].type = tf.int32.as_datatype_enum
        return f"{node.name}:0", f"{node.name}:1"

    def product(self, powers: Powers) -> str:
        """A product of tensors of one shape."""
        product = ""
        for tensor, power in powers:
            for _ in range(power // 2):
                square = self.compute("Square", tensor)
                product = self.compute("Mul", product, square) if product else square
            if power % 2:
                product = self.compute("Mul", product, tensor) if product else tensor
        return product

    def compute(self, op: str, *inputs: str) -> str:
        """An elementwise op on tensors, of which the first has the shape of the result."""
        node = self._node(op, list(inputs), [self._shape(inputs[0])], [self._type(inputs[0])])
        node.attr["T"].type = self._type(inputs[0])
        return f"{node.name}:0"

    def reshape(self, tensor: str, shape: tuple[int, ...]) -> str:
        """A tensor in another shape; -1 for the remaining length."""
        shape_constant = self._constant(np.asarray(shape, np.int32))
        known = tuple(None if length < 0 else length for length in shape)
        node = self._node("Reshape", [tensor, shape_constant], [known], [self._type(tensor)])
        node.attr["T"].type, node.attr["Tshape"].type = self._type(tensor), tf.int32.as_datatype_enum
        return f"{node.name}:0"

    def concatenate(self, tensors: list[str], width: int) -> str:
        """Concatenates tensors `[n, width]` along columns."""
        axis = self._constant(np.asarray(1, np.int32))
        node = self._node("ConcatV2", [*tensors, axis], [(None, width * len(tensors))], [self._type(tensors[0])])
        node.attr["N"].i = len(tensors)
        node.attr["T"].type, node.attr["Tidx"].type = self._type(tensors[0]), tf.int32.as_datatype_enum
        return f"{node.name}:0"

    def split(self, tensor: str, count: int, width: int) -> list[str]:
        """Splits a tensor into its tensors `[n, width]`."""
        axis = self._constant(np.asarray(1, np.int32))
        node = self._node("Split", [axis, tensor], [(None, width)] * count, [self._type(tensor)] * count)
        node.attr["num_split"].i = count
        node.attr["T"].type = self._type(tensor)
        return [f"{node.name}:{number}" for number in range(count)]

    def sum_of_rows(self, rows: str, places: str, distinct: str, shape: Shape) -> str:
        """Sums rows `[n, ...]` of equal positions; the result has as many rows as `distinct`."""
        int32 = tf.int32.as_datatype_enum
        lengths = self._node("Shape", [distinct], [(1,)], [int32])
        lengths.attr["T"].type, lengths.attr["out_type"].type = self._type(distinct), int32
        ends = [self._constant(np.asarray([number], np.int32)) for number in (0, 1, 1)]
        count = self._node("StridedSlice", [f"{lengths.name}:0", *ends], [()], [int32])
        count.attr["T"].type, count.attr["Index"].type = int32, int32
        for mask in ("begin", "end", "ellipsis", "new_axis", "shrink_axis"):
            count.attr[f"{mask}_mask"].i = int(mask == "shrink_axis")
        node = self._node("UnsortedSegmentSum", [rows, places, f"{count.name}:0"], [shape], [self._type(rows)])
        node.attr["T"].type = self._type(rows)
        node.attr["Tindices"].type = node.attr["Tnumsegments"].type = int32
        return f"{node.name}:0"

    def count(self, number: int, dtype: int) -> str:
        """A number as a scalar of a type."""
        return self._constant(np.asarray(number, tf.as_dtype(dtype).as_numpy_dtype))

    def gather(self, gather: str, rows: str) -> str:
        """A GatherV2 like a given one, on other rows."""
        whole, _, axis = self._view.inputs(gather)
        shape = self._view.shape(whole) or ()
        node = self._node("GatherV2", [whole, rows, axis], [(None, *shape[1:])], [self._type(whole)])
        node.attr["batch_dims"].i = 0
        for name in ("Tparams", "Taxis"):
            node.attr[name].CopyFrom(self._view.nodes[gather].attr[name])
        node.attr["Tindices"].type = self._type(rows)
        return f"{node.name}:0"

    def pass_through_gates(self, tensor: str, gates: Gates) -> str:
        """Passes a tensor into branches of conditionals."""
        if not gates:
            return tensor
        if (tensor, gates) not in self._passed:
            outside, (predicate, branch) = self.pass_through_gates(tensor, gates[:-1]), gates[-1]
            shape, dtype = self._shape(outside), self._type(outside)
            node = self._node("Switch", [outside, predicate], [shape, shape], [dtype, dtype])
            node.attr["T"].type = dtype
            self._passed[tensor, gates] = f"{node.name}:{branch}"
        return self._passed[tensor, gates]

    def _constant(self, value: Array) -> str:
        dtype = int(tf.as_dtype(value.dtype).as_datatype_enum)
        node = self._node("Const", [], [value.shape], [dtype])
        node.attr["dtype"].type = dtype
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        return f"{node.name}:0"

    def _node(self, op: str, inputs: list[str], shapes: list[Shape], types: list[int]) -> NodeDef:
        """A node and its outputs."""
        name = f"{self._scope}/{op}_{len(self._made)}"
        node = self._out.node.add(name=name, op=op, input=map(input_name, inputs))
        for number, (shape, dtype) in enumerate(zip(shapes, types, strict=True)):
            self._made[f"{name}:{number}"] = shape, dtype
        record_shapes(node, *shapes)
        return node

    def _shape(self, tensor: str) -> Shape:
        return self._made[tensor][0] if tensor in self._made else self._view.shape(tensor)

    def _type(self, tensor: str) -> DType:
        return self._made[tensor][1] if tensor in self._made else self._view.dtype(tensor)
