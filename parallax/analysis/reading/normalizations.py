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
from parallax.graph.own_batch import is_normalized_apart, mark_statistics, own_mean

_FORWARD, _BACKWARD = (tuple(f"FusedBatchNorm{how}{kind}" for kind in ("", "V2", "V3")) for how in ("", "Grad"))
_AXES = (0, 1, 2)


def with_plain_normalizations(graph_def: GraphDef) -> GraphDef:
    """The graph with batch normalizations expanded; the graph itself where it has none.

    Args:
        graph_def: without calls; tensors are normalized with channels last, others are left unchanged.
    """
    if not any(map(_is_fused, graph_def.node)):
        return graph_def
    out = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if _is_fused(node):
            _expand(out, node)
        else:
            out.node.append(node)
    return out


def _is_fused(node: NodeDef) -> bool:
    return node.op in (*_FORWARD, *_BACKWARD) and node.attr["data_format"].s in (b"", b"NHWC")


def _expand(out: GraphDef, node: NodeDef) -> None:
    """Appends the ops of a normalization, or of its gradient, and the IdentityN that takes over its name."""
    data = [name for name in node.input if not name.startswith("^")]
    given = tf.as_dtype(node.attr["T"].type)
    kept = tf.as_dtype(node.attr["U"].type) if "U" in node.attr else given
    build, images = (_forward, 1) if node.op in _FORWARD else (_backward, 2)
    with tf.Graph().as_default() as graph:
        taken = [
            tf.compat.v1.placeholder(given, [None] * 4) if place < images else tf.compat.v1.placeholder(kept, [None])
            for place in range(len(data))
        ]
        results = build(node, taken, kept)
        count = 6 if node.op == "FusedBatchNormV3" else 5
        results += [tf.zeros([], kept) for _ in range(count - len(results))]
    inputs = {one.op.name: name for one, name in zip(taken, data, strict=True)}

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


def _forward(node: NodeDef, taken: Sequence[Tensor], kept: DType) -> list[Tensor]:
    """The normalized tensor, mean and variance for moving averages, and mean and variance."""
    x, scale, offset, mean, variance = taken
    wide = tf.cast(x, kept)
    if not node.attr["is_training"].b:
        normalized = _normalize(wide, mean, variance, node) * scale + offset
        return [tf.cast(normalized, x.dtype), mean, variance, mean, variance]
    if is_normalized_apart(node):
        by_example = own_mean(wide, _AXES)
        spread = own_mean(tf.math.squared_difference(wide, by_example), _AXES)
        found_mean, found_variance = (tf.reduce_mean(one, _AXES) for one in (by_example, spread))
        normalized = _normalize(wide, by_example, spread, node) * scale + offset
    else:
        with mark_statistics():
            found_mean = tf.reduce_mean(wide, _AXES)
            found_variance = tf.reduce_mean(tf.math.squared_difference(wide, found_mean), _AXES)
        normalized = _normalize(wide, found_mean, found_variance, node) * scale + offset
    count = tf.cast(tf.size(x) // tf.shape(x)[3], kept)
    shown = [found_mean, found_variance * (count / tf.maximum(count - 1, 1))]
    share = node.attr["exponential_avg_factor"].f if "exponential_avg_factor" in node.attr else 1.0
    if share != 1.0:
        shown = [old * (1 - share) + new * share for old, new in zip((mean, variance), shown, strict=True)]
    return [tf.cast(normalized, x.dtype), *shown, found_mean, found_variance]


def _backward(node: NodeDef, taken: Sequence[Tensor], kept: DType) -> list[Tensor]:
    """The gradients with respect to the normalized tensor, its scale and its offset."""
    gradient, x, scale, mean, variance = taken[:5]
    wide = tf.cast(gradient, kept)
    mean_of = tf.reduce_mean
    if is_normalized_apart(node) and node.attr["is_training"].b:
        mean_of, mean = own_mean, own_mean(tf.cast(x, kept), _AXES)
        variance = own_mean(tf.math.squared_difference(tf.cast(x, kept), mean), _AXES)
    normalized = _normalize(tf.cast(x, kept), mean, variance, node)
    found = wide
    if node.attr["is_training"].b:
        found = wide - mean_of(wide, _AXES) - normalized * mean_of(wide * normalized, _AXES)
    found = found * (scale * tf.math.rsqrt(variance + node.attr["epsilon"].f))
    return [tf.cast(found, x.dtype), tf.reduce_sum(wide * normalized, _AXES), tf.reduce_sum(wide, _AXES)]


def _normalize(x: Tensor, mean: Tensor, variance: Tensor, node: NodeDef) -> Tensor:
    return (x - mean) * tf.math.rsqrt(variance + node.attr["epsilon"].f)
