"""The shortest step of a twin: a bound by the accelerator's layers and Parallax's exchanges, in graph order.

The graph is one worker's, by Parallax's plan. A layer occupies the accelerator for its seconds. An exchange occupies
the link for its bytes over the rate: an all-reduce sends 2 (H-1)/H of its tensors (Patarasuk and Yuan 2009), an
all-to-all the rows for other hosts, counted in some batches. All else takes no time. The lower bound over all schedules
is in parallax/analysis/timing/schedule.py.

Simplifications: rounds, headers and the cores' work are left out, and a link carries one exchange at a time. A model
without an accelerator has no bound, as the time of its ops depends on the load of the cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.bench.race.accelerators import twin_of

LAYER = "TwinLaunch"
STEPS = 2
"""Steps over which rows are averaged; they vary little from step to step."""


@dataclass(frozen=True, slots=True)
class Shortest:
    """Lower bounds of a step over all schedules, in seconds.

    Attributes:
        alone_s: for steps one after the other.
        overlapping_s: for steps that overlap.
    """

    alone_s: float
    overlapping_s: float


def shortest_of(
    name: str, sizes: Mapping[str, Any], hosts: int, workers: int, rate_bytes_per_s: float
) -> Shortest | None:
    """Returns the shortest step of a model; None if it is unknown.

    It is known for a twin with an accelerator and one worker on each of several hosts with limited links, if the bytes
    of all exchanges are known. Those on servers and by Horovod are not.
    """
    twin = twin_of(name, sizes)
    if twin is None or not twin.device_s or workers != 1 or hosts < 2 or not rate_bytes_per_s:
        return None
    import tensorflow as tf

    import parallax
    from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
    from parallax.plans.plan import Layout
    from parallax.transform.building.editor import Worker
    from parallax.transform.pipeline import transform

    graph = tf.Graph()
    with graph.as_default():
        built = twin.build()
        train = built.optimizer.minimize(built.loss)
    analysed, numbers = analyse(graph), tuple(range(hosts))
    plan = plan_for(analysed, Layout((1,) * hosts, numbers), parallax.Config(seed=1))
    if plan.servers:
        return None
    made = transform(analysed.captured.view, rewrites_of(analysed, plan), Worker(0, hosts, 1, hosts=numbers))
    batches = [[twin.batch(rank, step) for step in range(STEPS)] for rank in numbers]
    feeds = [
        [{built.feeds[feed].name: value for feed, value in batch.items()} for batch in of_rank] for of_rank in batches
    ]
    return shortest_step(made.graph_def, (train.name, built.loss.op.name), feeds, rate_bytes_per_s)


def shortest_step(
    graph_def: Any, fetches: Sequence[str], feeds: Sequence[Sequence[Mapping[str, Any]]], rate_bytes_per_s: float
) -> Shortest | None:
    """Returns the shortest step of a worker's graph; None if the bytes of an exchange are unknown.

    Args:
        graph_def: the graph.
        fetches: ops that a step runs.
        feeds: for each rank, the feeds of some steps, by tensor.
        rate_bytes_per_s: rate of the link.
    """
    from parallax.analysis.timing.schedule import bound_period_seconds, bound_step_seconds
    from parallax.graph.view import GraphView
    from parallax.runtime.trace.dependencies import DEVICE, LINK, ResourceTime, dependencies_of
    from parallax.runtime.worker.session.overlapping import is_exchange

    view = GraphView(graph_def)
    runs = view.ancestors(fetches, frozenset(feeds[0][0]))
    exchanges = sorted(node for node in runs if is_exchange(view.op(node)))
    bytes_by_exchange = _exchanged_bytes(view, exchanges, feeds)
    if bytes_by_exchange is None:
        return None
    taken = {node: ResourceTime(sent / rate_bytes_per_s, LINK) for node, sent in bytes_by_exchange.items()}
    for node in sorted(runs):
        if view.op(node) == LAYER:
            taken[node] = ResourceTime(float(view.nodes[node].attr["seconds"].f), DEVICE)
    step = dependencies_of(view, runs).step(taken)
    overlapping_s = bound_period_seconds(step)
    return Shortest(max(bound_step_seconds(step), overlapping_s), overlapping_s)


def _exchanged_bytes(
    view: Any, exchanges: Sequence[str], feeds: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, float] | None:
    """Returns exchange -> mean bytes that a host sends in a step, and receives; None if one is unknown."""
    import tensorflow as tf

    from parallax.transform.building.all_to_all import ALL_REDUCE, ALL_TO_ALL

    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(view.graph_def, name="")
    hosts, bytes_by_exchange, counts = len(feeds), {}, {}
    for node in exchanges:
        taken = graph.get_operation_by_name(node).inputs
        if view.op(node) == ALL_REDUCE:
            elements = view.nodes[node].attr["elements"].i
            if elements < 0:
                return None
            bytes_by_exchange[node] = 2 * (hosts - 1) / hosts * elements * taken[0].dtype.size
            continue
        known = [one for one in taken[1:] if not _needs_an_exchange(view, one.op.name, exchanges)]
        if view.op(node) != ALL_TO_ALL or not known or not taken[0].shape[1:].is_fully_defined():
            return None
        counts[node] = known[0]
        bytes_by_exchange[node] = float(math.prod(taken[0].shape[1:]) * taken[0].dtype.size)
    for node, rows in _rows_of_others(graph, counts, feeds).items():
        bytes_by_exchange[node] *= rows
    return bytes_by_exchange


def _needs_an_exchange(view: Any, node: str, exchanges: Sequence[str]) -> bool:
    return not view.ancestors([node]).isdisjoint(exchanges)


def _rows_of_others(
    graph: Any, counts: Mapping[str, Any], feeds: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, float]:
    """Returns exchange -> rows between a rank and the others in a step, averaged over ranks and steps."""
    import tensorflow as tf

    sums = dict.fromkeys(counts, 0.0)
    if not counts:
        return sums
    with tf.compat.v1.Session(graph=graph) as session:
        for rank, of_rank in enumerate(feeds):
            for fed in of_rank:
                for node, splits in session.run(dict(counts), fed).items():
                    sums[node] += float(splits.sum() - splits[rank])
    return {node: rows / sum(map(len, feeds)) for node, rows in sums.items()}
