"""Perturbs the result of each arithmetic op of a graph by a rounding, as another order of terms would.

Zeros, whole numbers, values that are only moved, and values inside functions stay exact.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import tensorflow as tf

_ROUNDS = frozenset(
    """
    Add AddV2 AddN Sub Mul MulNoNan RealDiv DivNoNan SquaredDifference Square Sqrt Rsqrt Reciprocal Exp Log
    Log1p Pow Tanh Sigmoid Softplus Erf Cos Sin SqrtGrad RsqrtGrad ReciprocalGrad TanhGrad SigmoidGrad
    SoftplusGrad Elu Selu MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum SparseTensorDenseMatMul
    BiasAddGrad Sum Mean Prod Cumsum L2Loss Softmax LogSoftmax SegmentSum SegmentMean UnsortedSegmentSum
    SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN SoftmaxCrossEntropyWithLogits
    SparseSoftmaxCrossEntropyWithLogits
    """.split()
)


def with_roundings(graph_def: Any, draw: int) -> Any:
    """Returns the graph with arithmetic results perturbed by up to one rounding.

    Args:
        graph_def: the graph.
        draw: number of the draw; equal numbers draw equal roundings.
    """
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        for op in graph.get_operations():
            for result in op.outputs if op.type in _ROUNDS else ():
                if result.dtype in (tf.float32, tf.float64):
                    takers = [
                        (t, slot) for t in result.consumers() for slot, one in enumerate(t.inputs) if one is result
                    ]
                    with tf.control_dependencies([op]):  # constants must be in the frame of a loop, too
                        moved = _move(result, [zlib.crc32(result.name.encode()) >> 1, draw])
                    for taker, slot in takers:
                        taker._update_input(slot, moved)
    return graph.as_graph_def()


def _move(result: tf.Tensor, seed: list[int]) -> tf.Tensor:
    step = float(np.finfo(result.dtype.as_numpy_dtype).eps)
    by = tf.random.stateless_uniform(tf.shape(result), seed, -step, step, result.dtype)
    return tf.where(tf.equal(result, tf.floor(result)), result, result * (1.0 + by))
