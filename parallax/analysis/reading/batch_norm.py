"""Expands batch normalizations into means and products, so that their statistics can cover the global batch.

A FusedBatchNorm computes mean and variance of the per-worker batch in one kernel. The IdentityN that replaces it, and
the one that replaces its gradient, return the same results from ops that have rules. The values that it stores for the
gradient are mean and variance; the gradient is computed from these alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from parallax.base.types import DType, GraphDef, NodeDef, Tensor
from parallax.graph.local_statistics import (
    FUSED_NORMALIZATIONS,
    average_locally,
    is_normalized_locally,
    mark_statistics,
)

_FORWARD = frozenset(name for name in FUSED_NORMALIZATIONS if "Grad" not in name)
_ENTERS = ("Enter", "RefEnter")
_FORMATS = ("NHWC", "NCHW", "NDHWC", "NCDHW")


def with_plain_normalizations(graph_def: GraphDef) -> tuple[GraphDef, dict[str, tuple[str, ...]]]:
    """The graph with batch normalizations expanded, and the new nodes by the name of each.

    It is the graph itself where it has none.

    Args:
        graph_def: without calls.
    """
    if not any(map(_is_fused, graph_def.node)):
        return graph_def, {}
    expanded: dict[str, tuple[str, ...]] = {}
    out = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    has_loops = any(node.op in _ENTERS for node in graph_def.node)
    for node in graph_def.node:
        if _is_fused(node):
            begin = len(out.node)
            _expand(out, node, has_loops)
            expanded[node.name] = tuple(one.name for one in out.node[begin:-1])  # the last takes over the name
        else:
            out.node.append(node)
    return out, expanded


def _is_fused(node: NodeDef) -> bool:
    return node.op in FUSED_NORMALIZATIONS and _format(node) in _FORMATS


def _format(node: NodeDef) -> str:
    return bytes(node.attr["data_format"].s).decode() or "NHWC"


def _axes(node: NodeDef) -> tuple[int, ...]:
    """The axes of which the statistics are: all but that of the channels."""
    return tuple(axis for axis, letter in enumerate(_format(node)) if letter != "C")


def _expand(out: GraphDef, node: NodeDef, has_loops: bool) -> None:
    """Appends the ops of a normalization, or of its gradient, and the IdentityN that takes over its name.

    Constants of a loop's body must wait for a tensor of it.
    """
    data = [name for name in node.input if not name.startswith("^")]
    input_type = tf.as_dtype(node.attr["T"].type)
    statistics_type = tf.as_dtype(node.attr["U"].type) if "U" in node.attr else input_type
    build, images = (_forward, 1) if node.op in _FORWARD else (_backward, 2)
    with tf.Graph().as_default() as graph:
        input_tensors = [
            tf.compat.v1.placeholder(input_type, [None] * len(_format(node)))
            if place < images
            else tf.compat.v1.placeholder(statistics_type, [None])
            for place in range(len(data))
        ]
        results = build(node, input_tensors, statistics_type)
        count = 6 if node.op == "FusedBatchNormV3" else 5
        results += [tf.zeros([], statistics_type) for _ in range(count - len(results))]
    inputs = {one.op.name: name for one, name in zip(input_tensors, data, strict=True)}

    def outer(name: str) -> str:
        source, _, number = name.lstrip("^").partition(":")
        if source in inputs:
            return str(inputs[source])
        return f"{node.name}/{source}:{number}" if number else f"{node.name}/{source}"

    for one in graph.as_graph_def().node:
        if one.name not in inputs:
            copy = out.node.add()
            copy.CopyFrom(one)
            copy.name, copy.device = f"{node.name}/{one.name}", node.device
            del copy.input[:]
            copy.input.extend(outer(name) for name in one.input)
            if has_loops and not one.input:
                copy.input.append(f"^{data[0].split(':')[0]}")
    end = out.node.add(name=node.name, op="IdentityN", device=node.device)
    end.input.extend([outer(one.name.removesuffix(":0")) for one in results])
    end.input.extend(name for name in node.input if name.startswith("^"))
    end.attr["T"].list.type.extend(one.dtype.as_datatype_enum for one in results)


def _forward(node: NodeDef, inputs: Sequence[Tensor], statistics_type: DType) -> list[Tensor]:
    """The normalized tensor, mean and variance for moving averages, and mean and variance."""
    x, scale, offset, mean, variance = inputs
    wide, axes = tf.cast(x, statistics_type), _axes(node)
    scale, offset = (_by_channel(one, node) for one in (scale, offset))
    if not node.attr["is_training"].b:
        normalized = _normalize(wide, _by_channel(mean, node), _by_channel(variance, node), node) * scale + offset
        return [tf.cast(normalized, x.dtype), mean, variance, mean, variance]
    if is_normalized_locally(node):
        by_example = average_locally(wide, axes)
        spread = average_locally(tf.math.squared_difference(wide, by_example), axes)
        found_mean, found_variance = (tf.reduce_mean(one, axes) for one in (by_example, spread))
        normalized = _normalize(wide, by_example, spread, node) * scale + offset
    else:
        with mark_statistics():
            found_mean = tf.reduce_mean(wide, axes)
            centre = _by_channel(found_mean, node)
            found_variance = tf.reduce_mean(tf.math.squared_difference(wide, centre), axes)
        normalized = _normalize(wide, centre, _by_channel(found_variance, node), node) * scale + offset
    count = tf.cast(tf.size(x) // tf.shape(x)[_format(node).index("C")], statistics_type)
    shown = [found_mean, found_variance * (count / tf.maximum(count - 1, 1))]
    share = node.attr["exponential_avg_factor"].f if "exponential_avg_factor" in node.attr else 1.0
    if share != 1.0:
        shown = [old * (1 - share) + new * share for old, new in zip((mean, variance), shown, strict=True)]
    return [tf.cast(normalized, x.dtype), *shown, found_mean, found_variance]


def _backward(node: NodeDef, inputs: Sequence[Tensor], statistics_type: DType) -> list[Tensor]:
    """The gradients with respect to the normalized tensor, its scale and its offset."""
    gradient, x, scale, mean, variance = inputs[:5]
    wide, axes = tf.cast(gradient, statistics_type), _axes(node)
    scale, mean, variance = (_by_channel(one, node) for one in (scale, mean, variance))

    def mean_of(one: Tensor) -> Tensor:
        return _by_channel(tf.reduce_mean(one, axes), node)

    if is_normalized_locally(node) and node.attr["is_training"].b:
        mean_of = functools.partial(average_locally, axes=axes)
        mean = mean_of(tf.cast(x, statistics_type))
        variance = mean_of(tf.math.squared_difference(tf.cast(x, statistics_type), mean))
    normalized = _normalize(tf.cast(x, statistics_type), mean, variance, node)
    input_gradient = wide
    if node.attr["is_training"].b:
        input_gradient = wide - mean_of(wide) - normalized * mean_of(wide * normalized)
    input_gradient = input_gradient * (scale * tf.math.rsqrt(variance + node.attr["epsilon"].f))
    return [tf.cast(input_gradient, x.dtype), tf.reduce_sum(wide * normalized, axes), tf.reduce_sum(wide, axes)]


def _by_channel(one: Tensor, node: NodeDef) -> Tensor:
    """A value of each channel, in a shape that broadcasts along the other axes."""
    behind = len(_format(node)) - 1 - _format(node).index("C")
    return tf.reshape(one, [-1, *[1] * behind]) if behind else one


def _normalize(x: Tensor, mean: Tensor, variance: Tensor, node: NodeDef) -> Tensor:
    return (x - mean) * tf.math.rsqrt(variance + node.attr["epsilon"].f)
