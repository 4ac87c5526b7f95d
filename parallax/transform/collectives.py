"""Horovod's collectives as graph ops: the only place that builds them.

Horovod declares its ops stateless, so TensorFlow may fold one whose inputs are constant, or merge two with equal
inputs. Inputs therefore pass through `open_end`, which is never folded. The node's name is the name on the wire: all
workers build the same nodes in the same order, else they wait for each other for ever.
"""

from __future__ import annotations

from typing import Any


def open_end(tensor: Any, shape: list[int | None] | None = None) -> Any:
    """The tensor behind a node that is not folded and that may be fed with another first dimension.

    Args:
        tensor: any tensor.
        shape: static shape of the result; default that of the tensor with an open first dimension.
    """
    import tensorflow as tf

    if shape is None and tensor.shape.rank:
        shape = [None, *tensor.shape.as_list()[1:]]
    return tf.compat.v1.placeholder_with_default(tensor, shape if shape is not None else tensor.shape)


def all_to_all(tensor: Any, splits: Any, process_set: Any = None) -> tuple[Any, Any]:
    """Sends `splits[k]` rows of `tensor` `[n, ...]` to worker k of all, or of Horovod's `process_set`.

    Horovod remembers what all workers have agreed on by name and shape, and agrees anew, in four more rounds of small
    messages, whenever a worker comes with another shape. So the tensor is given with rows at its end that go nowhere,
    up to a power of two, and its shape seldom changes.

    Returns:
        The rows received `[m, ...]`, by sender, and how many came from each worker (int32).
    """
    from horovod.tensorflow import mpi_ops

    among = {} if process_set is None else {"process_set": process_set}
    received, received_splits = mpi_ops.alltoall(_rounded_up(tensor), splits=splits, name="all_to_all", **among)
    received.set_shape([None, *tensor.shape.as_list()[1:]])
    return received, received_splits


def _rounded_up(tensor: Any) -> Any:
    """The rows `[n, ...]` with zeros after them, in all as many as the first power of two from n on."""
    import tensorflow as tf

    rows = tf.shape(tensor)[0]
    powers = tf.constant([2**k for k in range(31)], tf.int32)
    more = powers[tf.searchsorted(powers, rows[None])[0]] - rows
    return tf.pad(tensor, [[0, more], *([0, 0] for _ in tensor.shape.as_list()[1:])])


def all_gather(tensor: Any) -> Any:
    """The rows of all workers `[sum of n, ...]`, by worker."""
    from horovod.tensorflow import mpi_ops

    gathered = mpi_ops.allgather(tensor, name="all_gather")
    gathered.set_shape([None, *tensor.shape.as_list()[1:]])
    return gathered


def all_reduce(tensor: Any, kind: str = "sum", scale: float = 1.0) -> Any:
    """The elementwise sum (times `scale`), minimum or maximum over the workers; of the same shape on all.

    bfloat16 travels as float32 and booleans as int32, which Horovod's MPI reductions know.
    """
    import tensorflow as tf
    from horovod.tensorflow import mpi_ops

    op = {"sum": mpi_ops.Sum, "min": mpi_ops.Min, "max": mpi_ops.Max}[kind]
    wire = {tf.bfloat16: tf.float32, tf.bool: tf.int32}.get(tensor.dtype, tensor.dtype)
    reduced = mpi_ops._allreduce(tf.cast(tensor, wire), op=op, prescale_factor=scale, name="all_reduce")
    reduced.set_shape(tensor.shape)
    return tf.cast(reduced, tensor.dtype)


def broadcast(tensor: Any) -> Any:
    """Worker 0's value on all workers; the shape must be the same on all."""
    from horovod.tensorflow import mpi_ops

    return mpi_ops.broadcast(tensor, 0, name="broadcast")
