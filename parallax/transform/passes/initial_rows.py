"""Computes one owner's rows of a full value without the full value, where its ops allow.

The slice to an owner's rows is propagated up through the ops that produce the value. An elementwise op runs on the rows
of its operands; a fill creates fewer rows; a random op draws these rows from the same position of its stream
(random_rows.py). Each op returns bit for bit the rows of the full value, so ops whose last bit may depend on a value's
position in a vector (exp, tanh) are excluded. A value without a rule is computed in full and then sliced.

Slots are handled in the same way, and so are partitions on servers: the ops that produce their rows are placed on their
server, and worker 0 stores none of these rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops, tensor_util

from parallax.base.types import Array, Operation, Tensor
from parallax.graph.ownership import Ownership
from parallax.graph.view import Edge, node_of
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.editor import Editor, SlicedValue
from parallax.transform.building.random_rows import (
    NORMAL,
    TRUNCATED_NORMAL,
    TYPES,
    UNIFORM,
    UNIFORM_INT,
    DrawnTensor,
    random_rows,
)
from parallax.transform.passes.random_seeds import seeds_of
from parallax.transform.passes.server_partitions import slice_holder_rows

_ELEMENTWISE = frozenset("Abs Add AddV2 Cast Identity Maximum Minimum Mul Neg RealDiv Square StopGradient Sub".split())
_STATEFUL = {
    "RandomUniform": UNIFORM,
    "RandomStandardNormal": NORMAL,
    "TruncatedNormal": TRUNCATED_NORMAL,
    "RandomUniformInt": UNIFORM_INT,
}
_STATELESS = {
    "StatelessRandomUniformV2": UNIFORM,
    "StatelessRandomNormalV2": NORMAL,
    "StatelessTruncatedNormalV2": TRUNCATED_NORMAL,
}
_LARGE_BYTES = 2**20
"""Arrays of this size or more are left out of a worker's graph, if it only needs rows of them."""
_PHILOX = (1, 3)
"""Numbers of the algorithms that are Philox on a CPU: Philox itself, and TensorFlow's default."""


class LocalRows:
    """Computes rows of full values while a graph is edited.

    A value that two tables of equal ownership read is computed once, as in the user's graph.

    Attributes:
        editor: the editor.
        initial_random: random ops of initial values, equal on all workers.
        gathered_edges: edges to which local rows are gathered; that is done later, on the user's own nodes.
        rows_by_request: (tensor, rows, ownership, holder, device) -> the rows.
    """

    def __init__(self, editor: Editor, rewrites: Rewrites) -> None:
        self.editor = editor
        self.initial_random = frozenset(rewrites.equal_random_ops)
        self.gathered_edges = frozenset(edge for gather in rewrites.gathers for edge in gather.edges)
        self.rows_by_request: dict[tuple[str, int, Ownership, int, str], Tensor] = {}

    def at(self, edge: Edge, variable: str, rows: int, ownership: Ownership, holder: int, device: str = "") -> Tensor:
        """The rows of one owner of an edge's input, in the order of its local rows.

        Args:
            edge: reads a value of `rows` rows.
            variable: whose rows they are, for the record of values computed in full (Editor.cut_whole).
            rows: of the full value.
            ownership: the map from rows to owners.
            holder: the owner whose rows are computed.
            device: where they are computed; values computed in full stay on this worker.
        """
        return _Cut(self, variable, rows, ownership, holder, device).at(edge)


class _Cut:
    """The rows of one owner."""

    def __init__(
        self, local_rows: LocalRows, variable: str, rows: int, ownership: Ownership, holder: int, device: str
    ) -> None:
        self.local_rows, self.editor, self.view = local_rows, local_rows.editor, local_rows.editor.view
        self.variable, self.rows, self.ownership, self.holder, self.device = variable, rows, ownership, holder, device
        self.count = ownership.count(holder, rows)
        self.rules: dict[str, Callable[[str, tuple[int, ...]], Tensor]] = {
            **dict.fromkeys(_ELEMENTWISE, self._elementwise),
            **dict.fromkeys(_STATEFUL, self._stateful),
            **dict.fromkeys(_STATELESS, self._stateless),
            "BroadcastTo": self._broadcast,
            "Const": self._constant,
            "Fill": self._fill,
            "OnesLike": self._ones,
            "Reshape": self._reshape,
            "ZerosLike": self._zeros,
        }

    def at(self, edge: Edge) -> Tensor:
        """The rows of an edge's input."""
        if edge in self.editor.redirected:
            return self._cut(self.editor.at(edge))
        tensor = self.view.inputs(edge.node)[edge.slot]
        key = (tensor, self.rows, self.ownership, self.holder, self.device)
        if key not in self.local_rows.rows_by_request:
            made = self._compute(tensor)
            if made is None:
                self._note(tensor)
                made = self._cut(self.editor.tensor(tensor))
            self.local_rows.rows_by_request[key] = made
        return self.local_rows.rows_by_request[key]

    def _compute(self, tensor: str) -> Tensor | None:
        """The rows, by the rule of the producing op; None where there is none."""
        node, shape = node_of(tensor), self._shape(tensor)
        rule = self.rules.get(self.view.op(node))
        edges = [Edge(node, slot) for slot in range(len(self.view.inputs(node)))]
        if (
            rule is None
            or shape is None
            or not self._has_rows(shape)
            or not self.local_rows.gathered_edges.isdisjoint(edges)
        ):
            return None
        with tf.device(self._place(node)), tf.control_dependencies(self._waits(node)):
            return rule(node, shape)

    def _place(self, node: str) -> str:
        """The device of a node's rows."""
        return self.device or str(self.view.nodes[node].device)

    def _waits(self, node: str) -> list[Operation]:
        """The control inputs of a node, as operations."""
        return [self.editor.operation(name) for name in self.view.controls(node)]

    def _cut(self, whole: Tensor) -> Tensor:
        with tf.device(None), tf.control_dependencies(None):
            return slice_holder_rows(whole, self.ownership, self.holder)

    def _note(self, tensor: str) -> None:
        """Records that a value is computed in full."""
        node, shape = node_of(tensor), self._shape(tensor)
        size = math.prod(shape) * tf.dtypes.as_dtype(self.view.dtype(tensor)).size if shape is not None else 0
        sliced = SlicedValue(self.variable, node, self.view.op(node), size)
        if sliced not in self.editor.sliced_values:
            self.editor.sliced_values.append(sliced)

    def _shape(self, tensor: str) -> tuple[int, ...] | None:
        """The static shape, if it is fully known."""
        shape = self.view.shape(tensor)
        return None if shape is None or None in shape else tuple(d for d in shape if d is not None)

    def _has_rows(self, shape: tuple[int, ...]) -> bool:
        return bool(shape) and shape[0] == self.rows

    def _local(self, shape: tuple[int, ...]) -> list[int]:
        return [self.count, *shape[1:]]

    def _elementwise(self, node: str, shape: tuple[int, ...]) -> Tensor | None:
        """The op itself on the rows of operands that have all rows; others are scalars, or one row for all."""
        edges = [Edge(node, slot) for slot in range(len(self.view.inputs(node)))]
        shapes = [self._shape(self.view.inputs(node)[edge.slot]) for edge in edges]
        if None in shapes:
            return None
        inputs = [
            self.at(edge) if len(of) == len(shape) and self._has_rows(of) else self.editor.at(edge)
            for edge, of in zip(edges, shapes, strict=True)
            if of is not None
        ]
        definition = type(self.view.nodes[node])()
        definition.CopyFrom(self.view.nodes[node])
        definition.name = self.editor.scratch.unique_name(node)  # in the current name scope
        definition.device = self._place(node)
        del definition.input[:]
        for attribute in ("_class", "_output_shapes"):
            definition.attr.pop(attribute, None)
        made = ops.Operation.from_node_def(
            definition, self.editor.scratch, inputs=inputs, control_inputs=self._waits(node)
        )
        return made.outputs[0]

    def _stateful(self, node: str, shape: tuple[int, ...]) -> Tensor | None:
        dtype = tf.dtypes.as_dtype(self.view.dtype(f"{node}:0"))
        if node not in self.local_rows.initial_random or dtype.name not in TYPES:
            return None
        draw = DrawnTensor(_STATEFUL[self.view.op(node)], dtype, shape)
        bounds = [self.editor.at(Edge(node, slot)) for slot in range(1, len(self.view.inputs(node)))]
        seeds = seeds_of(self.view.nodes[node], node, True, self.editor.worker)
        return random_rows(draw, self.ownership, self.holder, seeds=seeds, bounds=bounds)

    def _stateless(self, node: str, shape: tuple[int, ...]) -> Tensor | None:
        dtype = tf.dtypes.as_dtype(self.view.dtype(f"{node}:0"))
        algorithm = self.view.inputs(node)[3]
        known = self.view.constant(algorithm)
        is_philox = known in _PHILOX if known is not None else self._op_of(algorithm) == "StatelessRandomGetAlg"
        if not is_philox or dtype.name not in TYPES:
            return None
        stream = [self.editor.at(Edge(node, slot)) for slot in (1, 2)]
        draw = DrawnTensor(_STATELESS[self.view.op(node)], dtype, shape)
        return random_rows(draw, self.ownership, self.holder, stream=stream)

    def _op_of(self, tensor: str) -> str:
        return self.view.op(node_of(tensor))

    def _fill(self, node: str, shape: tuple[int, ...]) -> Tensor:
        value = self.view.constant(self.view.inputs(node)[1])
        if value is not None and value.tobytes().strip(b"\0") == b"":
            return self._zeros(node, shape)
        return self._fill_rows(shape, self.editor.at(Edge(node, 1)))

    def _fill_rows(self, shape: tuple[int, ...], value: Tensor) -> Tensor:
        """Rows of one value.

        TensorFlow would compute a Fill of constants before the first run, keep the result in memory for the lifetime of
        the session, and share it among variables, each of which copies it before its first update. A stateful op, which
        is not folded, adds zeros to the lengths to prevent this. Rows of zeros are such an op themselves (`_zeros`).
        """
        local = self._local(shape)
        zeros = tf.raw_ops.Empty(shape=[len(local)], dtype=tf.int64, init=True)
        made = tf.fill(tf.constant(local, tf.int64) + zeros, value)
        made.set_shape(local)
        return made

    def _zeros(self, node: str, shape: tuple[int, ...]) -> Tensor:
        return tf.raw_ops.Empty(shape=self._local(shape), dtype=self.view.dtype(f"{node}:0"), init=True)

    def _ones(self, node: str, shape: tuple[int, ...]) -> Tensor:
        return self._fill_rows(shape, tf.ones([], self.view.dtype(f"{node}:0")))

    def _constant(self, node: str, shape: tuple[int, ...]) -> Tensor | None:
        """The rows of a constant that repeats one value, or of an array of the script."""
        value = self.view.nodes[node].attr["value"].tensor
        lengths = [len(getattr(value, field.name)) for field, _ in value.ListFields() if field.name.endswith("_val")]
        if value.tensor_content or lengths != [1]:
            return self._of_array(node, tensor_util.MakeNdarray(value))
        one = type(value)()
        one.CopyFrom(value)
        del one.tensor_shape.dim[:]
        return self._fill_rows(shape, tf.constant(tensor_util.MakeNdarray(one)))

    def _of_array(self, node: str, whole: Array) -> Tensor:
        """The rows of an array, which the worker's graph drops if it is large and has no other consumer.

        Every worker's script creates the full array, so no array is sent.
        """
        slots = np.asarray(self.ownership.slots_of(self.holder), np.int64)
        local = np.arange(self.count if len(slots) else 0)
        rows = whole[local // max(1, len(slots)) * self.ownership.slots + slots[local % max(1, len(slots))]]
        consumers = self.view.consumers(f"{node}:0")
        if whole.nbytes >= _LARGE_BYTES and len(consumers) == 1 and not self.device:
            self.editor.become_constant(node, whole[:0])
            self.editor.sharded_tensors.append(f"{node}:0")
        return tf.constant(rows)

    def _broadcast(self, node: str, shape: tuple[int, ...]) -> Tensor | None:
        of = self._shape(self.view.inputs(node)[0])
        if of is None:
            return None
        has_rows = len(of) == len(shape) and self._has_rows(of)
        operand = self.at(Edge(node, 0)) if has_rows else self.editor.at(Edge(node, 0))
        return tf.broadcast_to(operand, self._local(shape))

    def _reshape(self, node: str, shape: tuple[int, ...]) -> Tensor | None:
        """A reshape within the rows."""
        of = self._shape(self.view.inputs(node)[0])
        if of is None or not self._has_rows(of) or math.prod(of[1:]) != math.prod(shape[1:]):
            return None
        return tf.reshape(self.at(Edge(node, 0)), self._local(shape))
