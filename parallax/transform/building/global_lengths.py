"""Computes values of the global batch from lengths: ops on per-worker lengths are duplicated on global ones."""

from __future__ import annotations

import tensorflow as tf

from parallax.base.types import Tensor
from parallax.graph.lengths import Length, split_symbol
from parallax.graph.view import Edge, node_of, split_tensor
from parallax.plans.layouts import Concatenated, LayoutRewrites, Sharded, ShardedAxis
from parallax.transform.building.editor import Editor

_MEASURES = ("Shape", "ShapeN", "Size")


class GlobalLengths:
    """The tensors of a step that are computed from lengths, as one process has them.

    Args:
        editor: the graph editor.
        layouts: the layout changes.
    """

    def __init__(self, editor: Editor, layouts: LayoutRewrites) -> None:
        self._editor = editor
        self._layouts = layouts
        self._lengths = frozenset(layouts.lengths)
        self._ranges = {one.shape: one for one in reversed(layouts.ranges)}
        self._global: dict[str, Tensor] = dict(editor.fed_lengths)

    def find_value(self, tensor: str) -> Tensor:
        """The global value of a tensor computed from lengths: its ops are duplicated on global lengths."""
        if not self._is_of_lengths(tensor):
            return self._editor.tensor(tensor)
        if tensor not in self._global and tensor in self._layouts.known_lengths:
            self._global[tensor] = self._tell(tensor, self._layouts.known_lengths[tensor])
        if tensor not in self._global:
            node, number = split_tensor(tensor)
            parsed = self._ranges.get(tensor)
            if parsed is not None:
                self._global[tensor] = self._measure_sparse(tensor, parsed.part)
            elif self._editor.view.op(node) in _MEASURES:
                self._global[tensor] = self._measure(node, number)
            else:
                for place, output in enumerate(self._compute(node)):
                    self._global[f"{node}:{place}"] = output
        return self._global[tensor]

    def _is_of_lengths(self, tensor: str) -> bool:
        """Whether a tensor has another value on lengths of the global batch.

        So have the axes of a gradient's sum: an axis of one example looks like one along which it was broadcast.
        """
        view, maker = self._editor.view, node_of(tensor)
        if tensor in self._lengths or view.op(maker) != "BroadcastGradientArgs":
            return tensor in self._lengths
        return not self._lengths.isdisjoint(view.inputs(maker))

    def _tell(self, tensor: str, value: Length | tuple[Length, ...]) -> Tensor:
        """A scalar, or a vector, of lengths in the program of one process."""
        told = [self._count(one) for one in (value if isinstance(value, tuple) else (value,))]
        dtype = tf.as_dtype(self._editor.view.dtype(tensor))
        return tf.cast(tf.stack(told) if isinstance(value, tuple) else told[0], dtype)

    def _count(self, length: Length) -> Tensor:
        """A length in the program of one process, a scalar of type int64."""
        found = tf.constant(0, tf.int64)
        for symbols, factor in length.terms:
            product = tf.constant(factor, tf.int64)
            for symbol in symbols:
                tensor, axis = split_symbol(symbol)
                if axis is None:
                    product = product * self._editor.batch_weights[symbol].rows
                else:
                    product = product * tf.shape(self._editor.tensor(tensor), out_type=tf.int64)[axis]
            found = found + product
        return found

    def _measure_sparse(self, tensor: str, part: ShardedAxis) -> Tensor:
        """The shape `[examples, longest]` of a sparse tensor of the global batch."""
        own = self._editor.tensor(tensor)
        longest = self._editor.reducer.all_reduce(self._editor.batch_weights[part.batch].zero_uncounted(own[1:]), "max")
        return tf.concat([tf.cast(self._length(own[0], part), own.dtype)[None], longest], 0)

    def _measure(self, node: str, number: int) -> Tensor:
        """The shape, or the size, of the tensor of one process."""
        view = self._editor.view
        source, dtype = view.inputs(node)[number], tf.as_dtype(view.dtype(f"{node}:{number}"))
        is_of_lengths = source in self._lengths  # the lengths of the global batch determine it
        tensor = self.find_value(source) if is_of_lengths else self._editor.tensor(source)
        shape = tf.shape(tensor, out_type=tf.int64)
        layout = self._layouts.sharded.get(source)
        if source in self._layouts.concatenated:
            shape = tf.concat([[self._total(shape[0], self._layouts.concatenated[source])], shape[1:]], 0)
        if source in self._layouts.ends:
            shape = self._editor.batch_weights[self._layouts.ends[source].rows].rows[None] + 1
        if layout is not None:
            shape = tf.concat(
                [shape[: layout.axis], [self._length(shape[layout.axis], layout.part)], shape[layout.axis + 1 :]], 0
            )
        return tf.cast(tf.reduce_prod(shape) if view.op(node) == "Size" else shape, dtype)

    def _total(self, own: Tensor, layout: Concatenated) -> Tensor:
        """The length of the first axis of a concatenated tensor in the program of one process."""
        parts = [piece.part for _, piece in layout.pieces if isinstance(piece, Sharded)]
        others = sum(length.number or 0 for length, piece in layout.pieces if not isinstance(piece, Sharded))
        if len(parts) == 1:
            return self._length(own - others, parts[0]) + others
        return others + sum(self._length(own, part) for part in parts)

    def _length(self, own: Tensor, part: ShardedAxis) -> Tensor:
        """The length of a sharded axis in the program of one process."""
        factor = part.factor.number
        if factor is not None:
            return self._editor.batch_weights[part.batch].rows * (factor * part.blocks)
        return self._editor.reducer.all_reduce(self._editor.batch_weights[part.batch].zero_uncounted(own))

    def _compute(self, node: str) -> list[Tensor]:
        """The op of a node, on values of the global batch."""
        view = self._editor.view
        definition = view.nodes[node]
        inputs = [
            self.find_value(tensor) if self._is_of_lengths(tensor) else self._take_input(Edge(node, slot))
            for slot, tensor in enumerate(view.inputs(node))
        ]
        types = [tf.as_dtype(view.dtype(output)) for output in view.outputs(node)]
        attributes = {name: value for name, value in definition.attr.items() if not name.startswith("_")}
        op = self._editor.scratch.create_op(
            definition.op, inputs, types, name=definition.op, attrs=attributes, op_def=None
        )
        return list(op.outputs)

    def _take_input(self, edge: Edge) -> Tensor:
        """The input of an edge; for a constant a copy, from which TensorFlow infers shapes."""
        value = self._editor.view.constant(self._editor.view.inputs(edge.node)[edge.slot])
        return self._editor.at(edge) if value is None else tf.constant(value)
