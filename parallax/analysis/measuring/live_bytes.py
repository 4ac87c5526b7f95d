"""Estimates the bytes that a training step holds at once, each tensor from its producer to its last consumer.

Sizes come from static shapes, and states classify them: bytes that grow with the batch, rows of tables, which only
their owners store, gradients that an exchange holds twice, and all others. Two facts about TensorFlow are modelled: it
copies the value of a resource variable that is updated row-wise whenever the whole variable is read or assigned, and
its allocator never returns freed memory. Simplified: the workspace of other kernels, and what loops store for the
backward pass, are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from parallax.analysis.propagation.states import (
    LOCAL,
    Extent,
    FedScalars,
    Handle,
    Rows,
    Same,
    TouchedIndices,
    TouchedRows,
)
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.capture import variable_of_tensor
from parallax.graph.step_memory import SAME_BUFFER, BufferSizes, StepMemory
from parallax.graph.view import EXAMPLES, split_tensor
from parallax.plans.memory import BATCH, FIXED, GRADIENTS, LiveBytes

_SOURCES = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "IteratorGetNext", "IteratorGetNextSync")
_BY_ROW = ("ResourceScatter", "ResourceGather", "ResourceSparseApply")
_WHOLE = ("AssignVariableOp", "AssignSubVariableOp", "AssignAddVariableOp")
_LOOPS = ("While", "StatelessWhile", "LoopCond")


def live_bytes(
    walk: Walk,
    gradient_bytes: Mapping[str, float],
    touched: Mapping[str, float],
    threads: int,
    examples: int = 0,
) -> LiveBytes:
    """The memory of the tensors of a training step.

    Args:
        walk: the last traversal of the graph.
        gradient_bytes: variable op -> bytes of its dense gradient and of the buffers of its exchange.
        touched: variable op -> the number of its rows that a worker touches in a step.
        threads: the threads that run ops in parallel: TensorFlow has one for each core.
        examples: of a per-worker batch, for graphs that leave it open.
    """
    sizes = _Sizes(walk, gradient_bytes, touched, examples)
    order = [node for node in walk.view.topological_order() if node in walk.facts.training]
    step = StepMemory(walk.view, sizes, order)
    step.run(threads)
    kinds = sorted({kind for seen in step.seen for kind in seen} - {FIXED, BATCH, GRADIENTS})
    series = {k: np.array([seen.get(k, 0.0) for seen in step.seen]) for k in (FIXED, BATCH, GRADIENTS, *kinds)}
    return LiveBytes(
        series[FIXED],
        series[BATCH],
        series[GRADIENTS],
        {table: series[table] for table in kinds},
        sizes.examples,
        sizes.largest_of(),
        sizes.largest(),
        (*sizes.notes, *_loops(walk, order)),
    )


class _Sizes(BufferSizes):
    """The sizes of a training step's buffers, by shapes and states."""

    def __init__(
        self, walk: Walk, gradient_bytes: Mapping[str, float], touched: Mapping[str, float], examples: int
    ) -> None:
        super().__init__()
        self.walk = walk
        self.notes: list[str] = []
        self._gradient_bytes, self._touched = gradient_bytes, touched
        self._found: dict[str, tuple[str, float]] = {}
        self._elements: dict[str, float] = {}
        self._of_source = {t: s.part for t, found in walk.facts.dense_sources.items() for s in found}
        self._weights = {v.part.shape for op, v in walk.facts.captured.variables.items() if op in walk.facts.shared}
        view = walk.view
        by_row = [n for n in view.nodes if view.op(n).startswith(_BY_ROW) and n in walk.facts.training]
        self._by_row = {self._read_from(node) for node in by_row}
        self.examples = self._batch() or examples
        if not self.examples:
            self.notes.append(
                "activations are those of one example, as the graph leaves the batch length open: pass --examples N"
            )

    def of(self, tensor: str) -> tuple[str, float]:
        """The kind and bytes of a tensor."""
        if tensor not in self._found:
            self._found[tensor] = self._measure(tensor)
        return self._found[tensor]

    def gradients_are_in(self, buffer_of: Mapping[str, str]) -> None:
        """Records the buffers of gradients, where autodiff delivers them under another name."""
        self._of_source.update({buffer_of[t]: part for t, part in list(self._of_source.items()) if t in buffer_of})

    def largest(self) -> tuple[str, float]:
        """The largest tensor of the batch."""
        of_batch = {tensor: size for tensor, (kind, size) in self._found.items() if kind == BATCH}
        name = max(sorted(of_batch), key=lambda tensor: of_batch[tensor], default="")
        return name, of_batch.get(name, 0.0)

    def largest_of(self) -> dict[str, float]:
        """The bytes of the largest buffer of each kind."""
        largest_by_kind: dict[str, float] = {}
        for kind, size in self._found.values():
            largest_by_kind[kind] = max(size, largest_by_kind.get(kind, 0.0))
        return largest_by_kind

    def _measure(self, tensor: str) -> tuple[str, float]:
        node, _ = split_tensor(tensor)
        state, shape = self.walk.states.get(tensor, LOCAL), self.walk.view.shape(tensor)
        if tensor in self._of_source:
            return GRADIENTS, self._gradient_bytes.get(self._of_source[tensor], 0.0)
        if isinstance(state, Handle | Extent) or self.walk.view.op(node) == "Const" or self._is_variable(node):
            return FIXED, 0.0  # constants are in the graph, and variables are counted separately
        size = self._bytes_of_element(tensor) * self.elements(tensor)
        if isinstance(state, Rows):
            return state.table, size
        if shape is not None and None not in shape and (isinstance(state, Same | FedScalars) or shape in self._weights):
            return FIXED, size
        return BATCH, size

    def _is_variable(self, node: str) -> bool:
        """Whether an op returns a variable's own memory; for a variable that is updated row-wise it returns a copy."""
        view = self.walk.view
        return view.op(node) == "ReadVariableOp" and self._read_from(node) not in self._by_row

    def _read_from(self, node: str) -> str:
        return variable_of_tensor(self.walk.view, self.walk.facts.captured.variables, self.walk.view.inputs(node)[0])

    def copies(self, node: str) -> list[tuple[str, float]]:
        """The temporary memory of an op: where a variable is updated row-wise, a fully assigned value is copied."""
        view = self.walk.view
        if view.op(node) not in _WHOLE or self._read_from(node) not in self._by_row:
            return []
        return [self.of(view.inputs(node)[1])]

    def elements(self, tensor: str) -> float:
        """The number of a tensor's elements; an open dimension has the length of the tensor's inputs."""
        if tensor not in self._elements:
            self._elements[tensor] = 1.0  # a loop's back edge
            shape = self.walk.view.shape(tensor)
            known = math.prod(d for d in shape or () if d is not None)
            is_open = shape is None or None in shape
            self._elements[tensor] = known * self._open_part(tensor, known) if is_open else float(known)
        return self._elements[tensor]

    def _open_part(self, tensor: str, known: int) -> float:
        """The product of a tensor's open dimensions."""
        node, _ = split_tensor(tensor)
        view, state = self.walk.view, self.walk.states.get(tensor, LOCAL)
        if isinstance(state, TouchedRows | TouchedIndices):
            return self._touched.get(state.table, 1.0)
        if view.op(node) in _SOURCES:
            return float(self.examples or 1)
        inputs = view.inputs(node)
        if view.op(node) in SAME_BUFFER and inputs:
            return self.elements(inputs[0]) / max(known, 1)
        leads = [self._lead(t) for t in inputs if not isinstance(self.walk.states.get(t, LOCAL), Handle | Extent)]
        return max(leads, default=1.0)

    def _lead(self, tensor: str) -> float:
        """The length of a tensor's first dimension."""
        shape = self.walk.view.shape(tensor)
        if not shape:
            return 1.0
        if isinstance(self.walk.states.get(tensor, LOCAL), Rows):
            return 1.0  # a gather returns one row for each id
        return self.elements(tensor) / max(math.prod(d for d in shape[1:] if d is not None), 1)

    def _bytes_of_element(self, tensor: str) -> int:
        dtype = tf.dtypes.as_dtype(self.walk.view.dtype(tensor))
        return 0 if dtype in (tf.resource, tf.variant, tf.string) else int(dtype.size)

    def _batch(self) -> int:
        """The first dimension of the tensors that a worker feeds, or reads, for a step; 0 where it is open."""
        view = self.walk.view
        for node in view.topological_order():
            if view.op(node) not in _SOURCES or node not in self.walk.facts.training:
                continue
            if EXAMPLES in view.nodes[node].attr:
                return int(view.nodes[node].attr[EXAMPLES].i)
            for tensor in view.outputs(node):
                shape = view.shape(tensor)
                if shape and shape[0] and not isinstance(self.walk.states.get(tensor, LOCAL), Same | FedScalars):
                    return int(shape[0])
        return 0


def _loops(walk: Walk, order: list[str]) -> tuple[str, ...]:
    loops = sum(walk.view.op(node) in _LOOPS for node in order)
    return (f"excludes the tensors that {loops} loops store for their backward passes",) if loops else ()
