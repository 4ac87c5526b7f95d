"""Profiles written down by hand, and drawn at random, for tests of plans by seconds; no TensorFlow."""

from __future__ import annotations

import random
from dataclasses import replace

from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import OPERATIONS, AlphaBeta, ClusterProfile, HostProfile, ModelProfile, TableProfile
from parallax.graph.spec import GraphSpec, Slot, VariableSpec
from parallax.plans.plan import Layout
from tests.analysis.specs import dense, sparse, spec

LINES = {
    "allreduce": AlphaBeta(4e-4, 2e-4, 1e-9, 0.05, 20),
    "alltoall": AlphaBeta(3e-4, 1e-4, 1e-9, 0.05, 20),
    "allgather": AlphaBeta(4e-4, 2e-4, 2e-9, 0.05, 20),
    "pull": AlphaBeta(9e-4, 1e-4, 3e-9, 0.05, 20),
    "push": AlphaBeta(9e-4, 1e-4, 3e-9, 0.05, 20),
}
COLLECTIVES = ("allreduce", "alltoall", "allgather")
MB = 1_000_000


def host(number: int, out: float = 25 * MB, into: float | None = None, memory: int = 8 << 30) -> HostProfile:
    return HostProfile(f"host{number}", 2, memory, out, out if into is None else into)


def cluster(*hosts: HostProfile, operations: tuple[str, ...] = OPERATIONS, **more: float) -> ClusterProfile:
    lines = {operation: LINES[operation] for operation in operations}
    return ClusterProfile(1, hosts, lines, lines, **more)


def equal_hosts(number: int, rate: float = 25 * MB, operations: tuple[str, ...] = COLLECTIVES) -> ClusterProfile:
    return cluster(*(host(n, rate) for n in range(number)), operations=operations)


def table(name: str, touched: float, joined: float | None = None, busiest: float = 1.0) -> TableProfile:
    """Of two workers together `joined` rows; without it none is shared."""
    return TableProfile(name, 2 * touched, touched, ((1, touched), (2, joined or 2 * touched)), busiest)


def model(*tables: TableProfile, of: GraphSpec | None = None, **more: float) -> ModelProfile:
    graph = (of or spec()).model_key
    return ModelProfile(1, graph, "", 20, "sample batches", tables, **more)


def scaled(profile: ClusterProfile, factor: float) -> ClusterProfile:
    """With all links that many times as fast."""
    hosts = (
        replace(h, out_bytes_per_s=h.out_bytes_per_s * factor, in_bytes_per_s=h.in_bytes_per_s * factor)
        for h in profile.hosts
    )
    return replace(profile, hosts=tuple(hosts))


def drawn(seed: int, servers: bool) -> tuple[GraphSpec, Layout, PlanInputs]:
    """A small model on a few hosts, all of it at random: sizes, rows, lines, links, memory, workers of hosts."""
    draw = random.Random(seed)
    number = draw.choice([1, 2, 2, 3, 4])
    workers = tuple(draw.choice([1, 1, 2]) for _ in range(number)) if number > 1 else (draw.randint(1, 4),)
    unequal = number > 1 and draw.random() < 0.4
    slow = draw.randrange(number)
    rate = 10 ** draw.uniform(6.5, 9.5)
    lines = {
        operation: AlphaBeta(
            *(10 ** draw.uniform(low, high) for low, high in ((-5, -3), (-6, -4), (-10, -8.5))),
            residual=0.05,
            samples=9,
            overlap=draw.choice([0.0, 1.0, draw.random()]),
        )
        for operation in (OPERATIONS if servers else COLLECTIVES)
    }
    hosts = (
        host(n, rate * (0.3 if unequal and n == slow else 1.0), rate, draw.choice([8 << 30, 40 * MB]))
        for n in range(number)
    )
    variables = [_drawn_variable(draw, n) for n in range(draw.randint(1, 2 if servers else 4))]
    found = spec(*variables)
    tables = [
        table(v.name, max(1.0, v.touched_rows_bound * draw.uniform(0.2, 1)), busiest=draw.uniform(1, 2))
        for v in variables
        if v.has_slices and draw.random() < 0.5
    ]
    layout = Layout(workers, tuple(range(min(number, 2))) if servers else ())
    more = {"compute_s": 0.01, "overlap_s": draw.choice([None, 0.004])}
    return found, layout, PlanInputs(ClusterProfile(1, tuple(hosts), lines, lines), model(*tables, **more))


def _drawn_variable(draw: random.Random, number: int) -> VariableSpec:
    rows, width = round(10 ** draw.uniform(1, 5.3)), draw.choice([4, 16, 64])
    slots = tuple(Slot(f"v{number}/s{k}", (), width, 4) for k in range(draw.randint(0, 2)))
    if draw.random() < 0.3:
        return replace(dense(f"v{number}", (rows % 2000 + 1, width)), slots=slots)
    return replace(sparse(f"v{number}", (rows, width), round(rows ** draw.uniform(0.3, 1))), slots=slots)
