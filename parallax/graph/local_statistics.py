"""Sums and means over a worker's per-worker batch, which are not reduced over workers; marks of batch-norm statistics.

The sum over the per-worker batch is given to each of its examples. So it is sharded as the batch is, values computed
from it need no communication, and its gradient is again such a sum. Marks are attributes of nodes, which survive calls,
inlining and import of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from parallax.base.types import Graph, NodeDef, Tensor

_OWN, _STATISTICS, _NORMALIZES_OWN = "_parallax_own", "_parallax_statistics", "_parallax_normalizes_own"


FUSED_NORMALIZATIONS = frozenset(f"FusedBatchNorm{way}{kind}" for way in ("", "Grad") for kind in ("", "V2", "V3"))


def sum_locally(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The per-worker sum over some axes, including that of the examples, in the shape of `x`."""
    return _reduce_locally(tf.reduce_sum, x, tuple(axes))


def average_locally(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The per-worker mean over some axes, including that of the examples, in the shape of `x`."""
    return _reduce_locally(tf.reduce_mean, x, tuple(axes))


def _reduce_locally(reduce: Callable[..., Tensor], x: Tensor, axes: tuple[int, ...]) -> Tensor:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce_own(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        with _mark(_OWN):
            reduced = tf.broadcast_to(reduce(x, axes, keepdims=True), tf.raw_ops.Shape(input=x))
        reduced.set_shape(x.shape)
        return reduced, lambda gradient: _reduce_locally(reduce, gradient, axes)

    return reduce_own(x)


def is_local_reduction(node: NodeDef) -> bool:
    """Whether a node computes a sum or mean over the per-worker batch."""
    return _OWN in node.attr


@contextmanager
def mark_statistics() -> Iterator[None]:
    """A context in which ops compute the statistics by which a batch is normalized."""
    with _mark(_STATISTICS):
        yield


def is_statistic(node: NodeDef) -> bool:
    """Whether a node computes a statistic by which a batch is normalized."""
    return _STATISTICS in node.attr


@contextmanager
def normalizing_locally() -> Iterator[None]:
    """A context in which fused normalizations use per-worker statistics; other ops are not affected."""
    with _mark(_NORMALIZES_OWN):
        yield


def mark_normalizations(graph: Graph, is_local: bool) -> None:
    """Marks whether the fused normalizations of a graph, and their gradients, use per-worker statistics."""
    for op in graph.get_operations():
        if op.type not in FUSED_NORMALIZATIONS:
            continue
        if is_local:
            op._set_attr(_NORMALIZES_OWN, attr_value_pb2.AttrValue(b=True))
        elif _NORMALIZES_OWN in op.node_def.attr:  # of an earlier call
            op._clear_attr(_NORMALIZES_OWN)


def is_normalized_locally(node: NodeDef) -> bool:
    """Whether a fused normalization uses statistics of the per-worker batch."""
    return _NORMALIZES_OWN in node.attr


@contextmanager
def _mark(name: str) -> Iterator[None]:
    if tf.executing_eagerly():
        yield
        return
    with tf.compat.v1.get_default_graph()._attr_scope({name: attr_value_pb2.AttrValue(b=True)}):
        yield
