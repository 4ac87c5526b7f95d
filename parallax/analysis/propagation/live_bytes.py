"""Estimates which bytes a training step holds at once: tensors from the op that makes them to the last that takes them.

Sizes are of static shapes, and states say whose they are: what grows with the batch, rows of tables, which are at their
owners alone, gradients that an exchange keeps twice, and all else. Simplified: ops run one at a time in the graph's
order; what kernels need for themselves, and what loops keep for the backward pass, is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from parallax.analysis.propagation.op_lists import ELEMENTWISE
from parallax.analysis.propagation.states import (
    LOCAL,
    Extent,
    Fed,
    Handle,
    Rows,
    Same,
    TouchedIndices,
    TouchedRows,
)
from parallax.analysis.propagation.walk import Walk
from parallax.graph.view import EXAMPLES, split_tensor

_SOURCES = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "IteratorGetNext", "IteratorGetNextSync")
_SAME_BUFFER = frozenset(
    """
    Identity RefIdentity Reshape Squeeze ExpandDims StopGradient PreventGradient Snapshot Switch RefSwitch Merge
    RefMerge Enter RefEnter Exit RefExit NextIteration RefNextIteration EnsureShape Bitcast
    """.split()
)
"""The result is the first input's memory under another shape or name."""
_LOOPS = ("While", "StatelessWhile", "LoopCond")
_FIXED, _BATCH, _GRADIENTS = "fixed", "batch", "gradients"


@dataclass(frozen=True, slots=True, eq=False)
class LiveBytes:
    """What a step holds while each of its ops runs; all arrays are `[ops]`, in bytes.

    Attributes:
        fixed: whatever the batch.
        of_batch: of the batch as built; they grow with the examples.
        gradients: of dense gradients, as `gradient_bytes` says of each.
        of_rows: table op -> of all its rows; an owner has its share.
        examples: of a worker's batch; 0 where the graph does not say it.
        largest: the largest tensor of the batch, and its bytes; empty where there is none.
        notes: what is not counted.
    """

    fixed: NDArray[np.float64]
    of_batch: NDArray[np.float64]
    gradients: NDArray[np.float64]
    of_rows: Mapping[str, NDArray[np.float64]]
    examples: int
    largest: tuple[str, float] = ("", 0.0)
    notes: tuple[str, ...] = ()


def live_bytes(
    walk: Walk, gradient_bytes: Mapping[str, float], touched: Mapping[str, float], examples: int = 0
) -> LiveBytes:
    """What the tensors of a training step take.

    Args:
        walk: the last walk over the graph.
        gradient_bytes: variable op -> what its dense gradient and the buffers of its exchange take.
        touched: variable op -> rows of it that a worker touches in a step.
        examples: of a worker's batch, for graphs that leave it open.
    """
    sizes = _Sizes(walk, gradient_bytes, touched, examples)
    order = [node for node in walk.view.topological_order() if node in walk.known.training]
    buffers = {tensor: tensor for node in order for tensor in walk.view.outputs(node)}
    for node in order:
        inputs = walk.view.inputs(node)
        if walk.view.op(node) in _SAME_BUFFER and inputs:
            for tensor in walk.view.outputs(node):
                buffers[tensor] = buffers.get(inputs[0], inputs[0])
    last: dict[str, int] = {}
    for place, node in enumerate(order):
        for tensor in (*walk.view.inputs(node), *walk.view.outputs(node)):
            last[buffers.get(tensor, tensor)] = place
    dying: dict[int, list[str]] = {}
    for buffer, place in last.items():
        dying.setdefault(place, []).append(buffer)
    held: dict[str, float] = {}
    rows_seen: list[dict[str, float]] = []
    for place, node in enumerate(order):
        for tensor in walk.view.outputs(node):
            if buffers[tensor] == tensor and not _takes_over(walk, sizes, buffers, last, place, tensor):
                kind, size = sizes.of(tensor)
                held[kind] = held.get(kind, 0.0) + size
        rows_seen.append(dict(held))
        for buffer in dying.get(place, ()):
            if buffer in buffers and not sizes.is_taken_over(buffer):
                kind, size = sizes.of(buffer)
                held[kind] = held.get(kind, 0.0) - size
    tables = sorted({kind for kind in held if kind not in (_FIXED, _BATCH, _GRADIENTS)})
    series = {k: np.array([seen.get(k, 0.0) for seen in rows_seen]) for k in (_FIXED, _BATCH, _GRADIENTS, *tables)}
    return LiveBytes(
        series[_FIXED],
        series[_BATCH],
        series[_GRADIENTS],
        {table: series[table] for table in tables},
        sizes.examples,
        sizes.largest(),
        (*sizes.notes, *_loops(walk, order)),
    )


class _Sizes:
    """The kind and bytes of each tensor's buffer."""

    def __init__(
        self, walk: Walk, gradient_bytes: Mapping[str, float], touched: Mapping[str, float], examples: int
    ) -> None:
        self.walk = walk
        self.notes: list[str] = []
        self._gradient_bytes, self._touched = gradient_bytes, touched
        self._found: dict[str, tuple[str, float]] = {}
        self._elements: dict[str, float] = {}
        self._passed: set[str] = set()
        self._of_source = {t: s.part for t, found in walk.known.dense_sources.items() for s in found}
        self._weights = {v.part.shape for op, v in walk.known.captured.variables.items() if op in walk.known.shared}
        self.examples = self._batch() or examples
        if not self.examples:
            self.notes.append("activations are of one example: the graph leaves the batch open, and --batch says it")

    def of(self, tensor: str) -> tuple[str, float]:
        """What a tensor is counted as, and its bytes."""
        if tensor not in self._found:
            self._found[tensor] = self._measure(tensor)
        return self._found[tensor]

    def pass_on(self, buffer: str) -> None:
        """Says that a buffer's memory has become another's."""
        self._passed.add(buffer)

    def is_taken_over(self, buffer: str) -> bool:
        """Whether a buffer's memory has become another's."""
        return buffer in self._passed

    def largest(self) -> tuple[str, float]:
        """The largest tensor of the batch."""
        of_batch = {tensor: size for tensor, (kind, size) in self._found.items() if kind == _BATCH}
        name = max(sorted(of_batch), key=lambda tensor: of_batch[tensor], default="")
        return name, of_batch.get(name, 0.0)

    def _measure(self, tensor: str) -> tuple[str, float]:
        node, _ = split_tensor(tensor)
        state, shape = self.walk.states.get(tensor, LOCAL), self.walk.view.shape(tensor)
        if tensor in self._of_source:
            return _GRADIENTS, self._gradient_bytes.get(self._of_source[tensor], 0.0)
        if isinstance(state, Handle | Extent) or self.walk.view.op(node) in ("Const", "ReadVariableOp"):
            return _FIXED, 0.0  # constants are in the graph, and variables are counted as such
        size = self._bytes_of_element(tensor) * self.elements(tensor)
        if isinstance(state, Rows):
            return state.table, size
        if shape is not None and None not in shape and (isinstance(state, Same | Fed) or shape in self._weights):
            return _FIXED, size
        return _BATCH, size

    def elements(self, tensor: str) -> float:
        """How many elements a tensor has; an open dimension has as many as what it is made of."""
        if tensor not in self._elements:
            self._elements[tensor] = 1.0  # what comes around in a loop
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
        if view.op(node) in _SAME_BUFFER and inputs:
            return self.elements(inputs[0]) / max(known, 1)
        leads = [self._lead(t) for t in inputs if not isinstance(self.walk.states.get(t, LOCAL), Handle | Extent)]
        return max(leads, default=1.0)

    def _lead(self, tensor: str) -> float:
        """The length of a tensor's first dimension."""
        shape = self.walk.view.shape(tensor)
        if not shape:
            return 1.0
        if isinstance(self.walk.states.get(tensor, LOCAL), Rows):
            return 1.0  # a gather takes as many rows as there are ids
        return self.elements(tensor) / max(math.prod(d for d in shape[1:] if d is not None), 1)

    def _bytes_of_element(self, tensor: str) -> int:
        found = tf.dtypes.as_dtype(self.walk.view.dtype(tensor))
        return 0 if found in (tf.resource, tf.variant, tf.string) else int(found.size)

    def _batch(self) -> int:
        """The first dimension of what a worker is fed, or reads, for a step; 0 where the graph leaves it open."""
        view = self.walk.view
        for node in view.topological_order():
            if view.op(node) not in _SOURCES or node not in self.walk.known.training:
                continue
            if EXAMPLES in view.nodes[node].attr:
                return int(view.nodes[node].attr[EXAMPLES].i)
            for tensor in view.outputs(node):
                shape = view.shape(tensor)
                if shape and shape[0] and not isinstance(self.walk.states.get(tensor, LOCAL), Same | Fed):
                    return int(shape[0])
        return 0


def _takes_over(
    walk: Walk, sizes: _Sizes, buffers: Mapping[str, str], last: Mapping[str, int], place: int, tensor: str
) -> bool:
    """Whether an elementwise op writes its result over an input that nobody else takes."""
    node, number = split_tensor(tensor)
    if walk.view.op(node) not in ELEMENTWISE or number:
        return False
    kind, size = sizes.of(tensor)
    for taken in walk.view.inputs(node):
        buffer = buffers.get(taken, "")
        if buffer and last[buffer] == place and size and sizes.of(buffer) == (kind, size):
            if not sizes.is_taken_over(buffer):
                sizes.pass_on(buffer)
                return True
    return False


def _loops(walk: Walk, order: list[str]) -> tuple[str, ...]:
    loops = sum(walk.view.op(node) in _LOOPS for node in order)
    return (f"what {loops} loops keep for the backward pass is not counted",) if loops else ()
