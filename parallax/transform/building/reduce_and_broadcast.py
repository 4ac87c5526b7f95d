"""Combines per-worker values: by collectives, through queues on servers, or not at all.

Through servers (run option PS), worker 0 receives the other workers' values, combines them in rank order, and sends the
result back, or a token after a write: each value has a queue of length 1 for each receiver. As with collectives, all
workers must run the same exchanges, else they deadlock; their nodes are under `parallax/meet/NUMBER`, with equal
numbers on all workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from parallax.base.types import DType, Operation, Tensor, TensorShape
from parallax.transform.building import collectives
from parallax.transform.building.wire import GRADIENTS, Wire

QUEUE_EXCHANGES = "parallax/meet"


class Reducer(Protocol):
    """Reductions and broadcasts of per-worker values."""

    def all_reduce(self, tensor: Tensor, kind: str = "sum", scale: float = 1.0) -> Tensor:
        """The elementwise sum (times `scale`), minimum or maximum over the workers; of the same shape on all."""

    def add_gradients(self, tensor: Tensor, scale: float = 1.0) -> Tensor:
        """Like `all_reduce`, for gradients, which may travel in half precision."""

    def all_gather(self, rows: Tensor) -> Tensor:
        """The rows `[n, ...]` of all workers, by worker."""

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Worker 0's value on all workers; the shape must be the same on all."""

    def can_be_copied(self, dtype: DType) -> bool:
        """Whether the ops built for a tensor of a type depend on the arguments alone (copies.py)."""


class CollectiveReducer:
    """Reductions by collectives."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def all_reduce(self, tensor: Tensor, kind: str = "sum", scale: float = 1.0) -> Tensor:
        """See `Reducer.all_reduce`."""
        return collectives.all_reduce(tensor, kind, scale)

    def add_gradients(self, tensor: Tensor, scale: float = 1.0) -> Tensor:
        """See `Reducer.add_gradients`; scaled before rounding, so that fewer sums overflow."""
        if not self._wire.halves_sums_of(tensor.dtype):
            return self.all_reduce(tensor, "sum", scale)
        scaled = tensor if scale == 1.0 else tensor * tf.constant(scale, tensor.dtype)
        return tf.cast(self.all_reduce(self._wire.out(scaled, GRADIENTS)), tensor.dtype)

    def all_gather(self, rows: Tensor) -> Tensor:
        """See `Reducer.all_gather`."""
        return collectives.all_gather(collectives.open_end(rows))

    def broadcast(self, tensor: Tensor) -> Tensor:
        """See `Reducer.broadcast`."""
        return collectives.broadcast(collectives.open_end(tensor))

    def can_be_copied(self, dtype: DType) -> bool:
        """See `Reducer.can_be_copied`: the rounding error is measured in a separate variable."""
        return not self._wire.halves_sums_of(dtype)


class NoReducer:
    """No reduction: an asynchronous worker, or a single one, computes by itself what one process would."""

    def all_reduce(self, tensor: Tensor, kind: str = "sum", scale: float = 1.0) -> Tensor:
        """The tensor itself."""
        return tf.identity(tensor)

    def add_gradients(self, tensor: Tensor, scale: float = 1.0) -> Tensor:
        """The tensor itself."""
        return self.all_reduce(tensor)

    def all_gather(self, rows: Tensor) -> Tensor:
        """The rows themselves."""
        return tf.identity(rows)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tf.identity(tensor)

    def can_be_copied(self, dtype: DType) -> bool:
        """See `Reducer.can_be_copied`: true for every type."""
        return True


class QueueReducer:
    """Reductions through queues on servers; builds their ops for one worker.

    Args:
        rank: of the worker.
        size: number of workers.
        servers: number of servers, among which the queues alternate.
    """

    def __init__(self, rank: int, size: int, servers: int) -> None:
        self._rank = rank
        self._size = size
        self._servers = servers
        self._count = 0

    def all_reduce(self, tensor: Tensor, kind: str = "sum", scale: float = 1.0) -> Tensor:
        """See `Reducer.all_reduce`."""
        known = tf.cast(tensor, tf.int32) if tensor.dtype == tf.bool else tensor
        reduce = {"sum": tf.add_n, "min": _fold(tf.minimum), "max": _fold(tf.maximum)}[kind]

        def put_together(values: list[Tensor]) -> Tensor:
            whole = reduce(values)
            return whole if scale == 1.0 else whole * tf.constant(scale, whole.dtype)

        return tf.cast(self._combine_on_worker_0(known, put_together), tensor.dtype)

    def all_gather(self, rows: Tensor) -> Tensor:
        """See `Reducer.all_gather`."""
        opened = collectives.open_end(rows)  # the number of rows differs among workers
        return self._combine_on_worker_0(opened, lambda values: tf.concat(values, 0) if len(values) > 1 else values[0])

    def _combine_on_worker_0(self, tensor: Tensor, combine: Callable[[list[Tensor]], Tensor]) -> Tensor:
        """Combines the tensors of all workers on worker 0, and returns the result on each of them."""
        queues = self._queues(tensor.dtype, tensor.shape)
        if self._rank > 0:
            with tf.control_dependencies([_enqueue(queues[self._rank], tensor)]):
                return self.deliver(None, tensor.dtype, tensor.shape)
        with tf.control_dependencies([tensor]):  # workers send nothing in a branch that is not taken
            others = [_dequeue(queue, tensor) for queue in queues[1:]]
        whole = combine([tensor, *others])
        return self.deliver(whole, tensor.dtype, tensor.shape)

    def add_gradients(self, tensor: Tensor, scale: float = 1.0) -> Tensor:
        """See `Reducer.add_gradients`; never in half precision."""
        return self.all_reduce(tensor, "sum", scale)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """See `Reducer.broadcast`; the others still compute their own values, as with collectives."""
        with tf.control_dependencies([tensor]):
            return self.deliver(tensor if self._rank == 0 else None, tensor.dtype, tensor.shape)

    def can_be_copied(self, dtype: DType) -> bool:
        """See `Reducer.can_be_copied`: never, as queues are numbered."""
        return False

    def deliver(self, value: Tensor, dtype: DType, shape: TensorShape) -> Tensor:
        """A value of worker 0 (None elsewhere), on all workers."""
        queues = self._queues(dtype, shape)
        if self._rank > 0:
            return _dequeue(queues[self._rank], tf.TensorSpec(shape, dtype))
        with tf.control_dependencies([_enqueue(queue, value) for queue in queues[1:]]):
            return tf.identity(value)

    def token(self, after: list[Operation]) -> list[Operation]:
        """The ops after which `after`, which worker 0 alone runs, is known to have run."""
        queues = self._queues(tf.bool, [])
        if self._rank > 0:
            return [_dequeue(queues[self._rank], tf.TensorSpec([], tf.bool)).op]
        with tf.control_dependencies(after), tf.device(queues[0].device):
            done = tf.constant(True)
        return [_enqueue(queue, done) for queue in queues[1:]] or list(after)

    def _queues(self, dtype: DType, shape: TensorShape) -> list[Tensor]:
        """A queue for each worker, on one server. Where the shape depends on the batch, it accepts any."""
        known = tf.TensorShape(shape)
        shapes = [known] if known.is_fully_defined() else []
        label = f"{QUEUE_EXCHANGES}/{self._count}"
        device = device_of(self._count % self._servers)
        self._count += 1
        queues = []
        for rank in range(self._size):
            with tf.device(device), tf.control_dependencies(None), tf.name_scope(f"{label}/"):
                queues.append(
                    tf.raw_ops.FIFOQueueV2(
                        component_types=[dtype], shapes=shapes, capacity=1, shared_name=f"{label}/{rank}", name="queue"
                    )
                )
        return queues


def _enqueue(queue: Tensor, value: Tensor) -> Operation:
    with tf.device(queue.device), tf.name_scope(f"{_label(queue)}/"):
        return tf.raw_ops.QueueEnqueueV2(handle=queue, components=[value], name="give")


def _dequeue(queue: Tensor, like: Tensor) -> Tensor:
    with tf.device(queue.device), tf.name_scope(f"{_label(queue)}/"):
        (value,) = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[like.dtype], name="take")
    value.set_shape(like.shape)
    return value


def _label(queue: Tensor) -> str:
    return str(queue.op.name).rpartition("/")[0]


def _fold(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[list[Tensor]], Tensor]:
    """Combines a list of values pairwise."""

    def fold(values: list[Tensor]) -> Tensor:
        total = values[0]
        for value in values[1:]:
            total = function(total, value)
        return total

    return fold


def device_of(server: int) -> str:
    """TensorFlow's name of a server."""
    return f"/job:ps/task:{server}"
