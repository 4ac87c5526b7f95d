"""Expands batch normalizations into means and products, so that their statistics can cover the global batch.

A FusedBatchNorm computes mean and variance of the per-worker batch in one kernel. The IdentityN that replaces it, and
the one that replaces its gradient, return the same results from ops that have rules. The values that it stores for the
gradient are mean and variance; the gradient is computed from these alone.
"""

from __future__ import annotations

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
_AXES = (0, 1, 2)


def with_plain_normalizations(graph_def: GraphDef) -> tuple[GraphDef, dict[str, tuple[str, ...]]]:
    """The graph with batch normalizations expanded, and the new nodes by the name of each.

    It is the graph itself where it has none.

    Args:
        graph_def: without calls; tensors are normalized with channels last, others are left unchanged.
    """
    if not any(map(_is_fused, graph_def.node)):
        return graph_def, {}
    expanded: dict[str, tuple[str, ...]] = {}
    out = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if _is_fused(node):
            begin = len(out.node)
            _expand(out, node)
            expanded[node.name] = tuple(one.name for one in out.node[begin:-1])  # the last takes over the name
        else:
            out.node.append(node)
    return out, expanded


def _is_fused(node: NodeDef) -> bool:
    return node.op in FUSED_NORMALIZATIONS and node.attr["data_format"].s in (b"", b"NHWC")


def _expand(out: GraphDef, node: NodeDef) -> None:
    """Appends the ops of a normalization, or of its gradient, and the IdentityN that takes over its name."""
    data = [name for name in node.input if not name.startswith("^")]
    input_type = tf.as_dtype(node.attr["T"].type)
    statistics_type = tf.as_dtype(node.attr["U"].type) if "U" in node.attr else input_type
    build, images = (_forward, 1) if node.op in _FORWARD else (_backward, 2)
    with tf.Graph().as_default() as graph:
        input_tensors = [
            tf.compat.v1.placeholder(input_type, [None] * 4)
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
    end = out.node.add(name=node.name, op="IdentityN", device=node.device)
    end.input.extend([outer(one.name.removesuffix(":0")) for one in results])
    end.input.extend(name for name in node.input if name.startswith("^"))
    end.attr["T"].list.type.extend(one.dtype.as_datatype_enum for one in results)


def _forward(node: NodeDef, inputs: Sequence[Tensor], statistics_type: DType) -> list[Tensor]:
    """The normalized tensor, mean and variance for moving averages, and mean and variance."""
    x, scale, offset, mean, variance = inputs
    wide = tf.cast(x, statistics_type)
    if not node.attr["is_training"].b:
        normalized = _normalize(wide, mean, variance, node) * scale + offset
        return [tf.cast(normalized, x.dtype), mean, variance, mean, variance]
    if is_normalized_locally(node):
        by_example = average_locally(wide, _AXES)
        spread = average_locally(tf.math.squared_difference(wide, by_example), _AXES)
        found_mean, found_variance = (tf.reduce_mean(one, _AXES) for one in (by_example, spread))
        normalized = _normalize(wide, by_example, spread, node) * scale + offset
    else:
        with mark_statistics():
            found_mean = tf.reduce_mean(wide, _AXES)
            found_variance = tf.reduce_mean(tf.math.squared_difference(wide, found_mean), _AXES)
        normalized = _normalize(wide, found_mean, found_variance, node) * scale + offset
    count = tf.cast(tf.size(x) // tf.shape(x)[3], statistics_type)
    shown = [found_mean, found_variance * (count / tf.maximum(count - 1, 1))]
    share = node.attr["exponential_avg_factor"].f if "exponential_avg_factor" in node.attr else 1.0
    if share != 1.0:
        shown = [old * (1 - share) + new * share for old, new in zip((mean, variance), shown, strict=True)]
    return [tf.cast(normalized, x.dtype), *shown, found_mean, found_variance]


def _backward(node: NodeDef, inputs: Sequence[Tensor], statistics_type: DType) -> list[Tensor]:
    """The gradients with respect to the normalized tensor, its scale and its offset."""
    gradient, x, scale, mean, variance = inputs[:5]
    wide = tf.cast(gradient, statistics_type)
    mean_of = tf.reduce_mean
    if is_normalized_locally(node) and node.attr["is_training"].b:
        mean_of, mean = average_locally, average_locally(tf.cast(x, statistics_type), _AXES)
        variance = average_locally(tf.math.squared_difference(tf.cast(x, statistics_type), mean), _AXES)
    normalized = _normalize(tf.cast(x, statistics_type), mean, variance, node)
    input_gradient = wide
    if node.attr["is_training"].b:
        input_gradient = wide - mean_of(wide, _AXES) - normalized * mean_of(wide * normalized, _AXES)
    input_gradient = input_gradient * (scale * tf.math.rsqrt(variance + node.attr["epsilon"].f))
    return [tf.cast(input_gradient, x.dtype), tf.reduce_sum(wide * normalized, _AXES), tf.reduce_sum(wide, _AXES)]


def _normalize(x: Tensor, mean: Tensor, variance: Tensor, node: NodeDef) -> Tensor:
    return (x - mean) * tf.math.rsqrt(variance + node.attr["epsilon"].f)
