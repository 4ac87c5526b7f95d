"""Collectives as graph ops: the only module that builds them. The exchange of rows is in all_to_all.py.

All-reduces, which every step has, are an op of the project's own (parallax/native/all_reduce.cc): their messages are
fixed when the graph is built, so no negotiation takes place in a step. All-gathers and broadcasts are Horovod's.

Horovod declares its ops stateless, so TensorFlow may fold one whose inputs are constant, or merge two with equal
inputs. Inputs therefore pass through `open_end`, which is never folded. The node's name is the name on the wire: all
workers must build the same nodes in the same order, else they deadlock.

Horovod's thread sleeps while it is idle; an op before each of these collectives wakes it (parallax/native).
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
    """The tensor behind an identity that is never folded and that may be fed with another first dimension.

    Args:
        tensor: any tensor.
        shape: static shape of the result; by default that of the tensor with an open first dimension.
    """
    if shape is None and tensor.shape.rank:
        shape = [None, *tensor.shape.as_list()[1:]]
    return tf.compat.v1.placeholder_with_default(tensor, shape if shape is not None else tensor.shape)


def all_gather(tensor: Tensor) -> Tensor:
    """The rows of all workers `[sum of n, ...]`, by worker.

    Types that Horovod does not support travel as the integers of their bits, complex numbers as pairs.
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

    bfloat16 travels as float32, booleans as int32, and complex numbers as pairs, which MPI can sum. The op stores its
    factor as float32, which is too coarse for float64. Where the shape is unknown before the run, the workers compare
    their sizes first, unless `is_alike` declares them equal. Small ones are fused (passes/fused_all_reduces.py).
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

    A fed tensor may have a default, which TensorFlow treats as a constant in runs that do not feed it. It would then
    run the broadcast while it optimizes the graph, on one worker without the others where that worker alone optimizes.
    A stateful op in between, which prints nothing, prevents the folding.
    """
    from horovod.tensorflow import mpi_ops

    tensor = tf.raw_ops.Print(input=tensor, data=[], first_n=0, name="unfolded")
    with _announce(tensor):
        return mpi_ops.broadcast(tensor, 0, name="broadcast")


def _announce(tensor: Tensor) -> Any:
    """A collective built in this context runs after Horovod's thread was notified that `tensor` is coming."""
    with tf.control_dependencies([tensor]):
        return tf.control_dependencies([native_ops().parallax_announce(name="announce")])
