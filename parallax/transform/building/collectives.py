"""Collectives as graph ops: the only place that builds them. The exchange of rows is in all_to_all.py.

All-reduces, which every step has, are an op of the project's own (parallax/native/all_reduce.cc): what travels is known
when the graph is built, so nobody has to agree on it in a step. Gathering to all and broadcasts are Horovod's.

Horovod declares its ops stateless, so TensorFlow may fold one whose inputs are constant, or merge two with equal
inputs. Inputs therefore pass through `open_end`, which is never folded. The node's name is the name on the wire: all
workers build the same nodes in the same order, else they wait for each other for ever.

Before each of those an op wakes Horovod's thread, which sleeps while there is nothing to do (parallax/native).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from parallax.base.types import Tensor
from parallax.cluster.team_names import WORKERS
from parallax.transform.building.all_to_all import native_ops

_WIRE_BITS = {
    tf.bfloat16: tf.int16,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.float32,  # real and imaginary parts, along a last axis
    tf.complex128: tf.float64,
}


def open_end(tensor: Tensor, shape: list[int | None] | None = None) -> Tensor:
    """The tensor behind a node that is not folded and that may be fed with another first dimension.

    Args:
        tensor: any tensor.
        shape: static shape of the result; default that of the tensor with an open first dimension.
    """
    if shape is None and tensor.shape.rank:
        shape = [None, *tensor.shape.as_list()[1:]]
    return tf.compat.v1.placeholder_with_default(tensor, shape if shape is not None else tensor.shape)


def all_gather(tensor: Tensor) -> Tensor:
    """The rows of all workers `[sum of n, ...]`, by worker.

    What Horovod does not know travels as the integers of its bits, complex numbers as pairs.
    """
    from horovod.tensorflow import mpi_ops

    wire = _WIRE_BITS.get(tensor.dtype)
    if wire is not None:
        return tf.bitcast(all_gather(tf.bitcast(tensor, wire)), tensor.dtype)
    with _announce(tensor):
        gathered = mpi_ops.allgather(tensor, name="all_gather")
    gathered.set_shape([None, *tensor.shape.as_list()[1:]])
    return gathered


def all_reduce(
    tensor: Tensor, kind: str = "sum", scale: float = 1.0, is_alike: bool = False, among: str = WORKERS
) -> Tensor:
    """The elementwise sum (of each part times `scale`), minimum or maximum over a team; of the same shape on all.

    bfloat16 travels as float32, booleans as int32, and complex numbers as pairs, which MPI can add up. The op keeps its
    factor as float32, which is too coarse for float64. Where the shape is not known before the run, the workers compare
    their sizes first, unless these `is_alike` says to be equal. Small ones travel together (passes/joined_messages.py).
    """
    if tensor.dtype.is_complex:
        pairs = all_reduce(tf.bitcast(tensor, _WIRE_BITS[tensor.dtype]), kind, scale, is_alike, among)
        return tf.bitcast(pairs, tensor.dtype)
    if tensor.dtype == tf.float64 and scale != 1.0:
        return all_reduce(tensor * scale, kind, 1.0, is_alike, among)
    wire = {tf.bfloat16: tf.float32, tf.bool: tf.int32}.get(tensor.dtype, tensor.dtype)
    elements = tensor.shape.num_elements()
    elements = (-2 if is_alike else -1) if elements is None else elements
    (reduced,) = native_ops().parallax_all_reduce(
        parts=[tf.cast(tensor, wire)], kind=kind, scales=[scale], elements=elements, among=among, name="all_reduce"
    )
    reduced.set_shape(tensor.shape)
    return tf.cast(reduced, tensor.dtype)


def broadcast(tensor: Tensor) -> Tensor:
    """Worker 0's value on all workers; the shape must be the same on all.

    What is fed may have a default, which TensorFlow takes for a constant in runs that do not feed it: it would run the
    broadcast while it makes a run ready, on one worker without the others where that worker alone makes another. An op
    with state in between, which prints nothing, is not folded.
    """
    from horovod.tensorflow import mpi_ops

    tensor = tf.raw_ops.Print(input=tensor, data=[], first_n=0, name="unfolded")
    with _announce(tensor):
        return mpi_ops.broadcast(tensor, 0, name="broadcast")


def _announce(tensor: Tensor) -> Any:
    """A collective built in this context runs after Horovod's thread was told that `tensor` is coming."""
    with tf.control_dependencies([tensor]):
        return tf.control_dependencies([native_ops().parallax_announce(name="announce")])
