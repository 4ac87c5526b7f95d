"""The balance point of dense layers: the number of workers from which their gradients cost more than their compute.

After Das et al. 2016 (arXiv 1602.06709), who compare for each layer of a data-parallel network the time to compute it
with the time to send its gradients, which can be hidden as long as it is the smaller. Here the second is that of our
all-reduce, by the measured line. For W workers and a layer of w bytes on links of r bytes a second,

    T(W) = base_s + per_peer_s (W - 1) + 2 (W-1)/W w (1/r + byte_s)

grows without bound in W where an additional member costs anything, and tends to base_s + 2 w (1/r + byte_s) where none
does. With p = per_peer_s, v = 2 w (1/r + byte_s) and c the seconds of the layer's compute, T(W) = c is

    p W^2 + q W - v = 0,  q = base_s - p + v - c

whose positive root is the balance point, rounded up.

Simplified: c is the layer's share of the worker's measured compute by its number of elements, as in layers that
multiply each example by a matrix; a convolution uses its elements many times, so its balance point is higher. Tables
are assumed to compute nothing. A layer is charged a whole round, although all layers share one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallax.cluster.profiles import AlphaBeta, ClusterProfile, ModelProfile
from parallax.graph.spec import GraphSpec, VariableSpec
from parallax.plans.what_if import Balance

ALL_LAYERS = "all dense layers"


def balances_of(
    spec: GraphSpec, cluster: ClusterProfile, model: ModelProfile | None, workers: int
) -> tuple[Balance, ...]:
    """The balance points of all layers together, and of each, the largest first.

    Args:
        spec: the graph.
        cluster: the slowest link of its hosts is used.
        model: whose compute is divided among layers; None if unknown.
        workers: the largest number of workers to examine.
    """
    layers = [v for v in spec.variables if v.gradients and not v.has_slices and v.value_bytes]
    line = cluster.across.get("allreduce")
    if line is None or model is None or model.compute_s is None or not layers:
        return ()
    rate = min(min(host.out_bytes_per_s, host.in_bytes_per_s) for host in cluster.hosts)
    total = sum(_elements(v) for v in layers)
    balances = [
        _balance(v.name, v.value_bytes, _wire_bytes([v]), model.compute_s * _elements(v) / total, line, rate, workers)
        for v in sorted(layers, key=lambda v: (-v.value_bytes, v.name))
    ]
    value_bytes = sum(v.value_bytes for v in layers)
    return (_balance(ALL_LAYERS, value_bytes, _wire_bytes(layers), model.compute_s, line, rate, workers), *balances)


def balance_point(line: AlphaBeta, wire_bytes: float, rate_bytes_per_s: float, compute_s: float) -> int | None:
    """The smallest number of workers, from 2, whose all-reduce takes as long as the compute; None when none does."""
    p, v = line.per_peer_s, 2 * wire_bytes * (1 / rate_bytes_per_s + line.byte_s)
    q = line.base_s - p + v - compute_s
    root_s = math.sqrt(q * q + 4 * p * v)
    if q > 0:  # the same root, without cancellation
        root = 2 * v / (q + root_s)
    elif p > 0:
        root = (root_s - q) / (2 * p)
    else:
        return None
    return max(2, math.ceil(root - 1e-9))


def _balance(
    name: str, value_bytes: int, wire_bytes: float, compute_s: float, line: AlphaBeta, rate: float, workers: int
) -> Balance:
    exchange_s = line.seconds(workers, 2 * (workers - 1) / workers * wire_bytes, rate)
    return Balance(name, value_bytes, compute_s, exchange_s, balance_point(line, wire_bytes, rate, compute_s))


def _elements(variable: VariableSpec) -> int:
    return math.prod(variable.shape)


def _wire_bytes(layers: Sequence[VariableSpec]) -> float:
    """bfloat16 travels as float32."""
    return float(sum((2 if v.dtype == "bfloat16" else 1) * v.value_bytes for v in layers))
