"""How long it takes from a graph to one worker's graph: capture, plan and transform, on one core.

    python -m ops.bench planning [--variables 1000] [--tables 100] [--workers 8] [--rounds 3]

The graph has that many variables (dense layers one after the other, and embedding tables looked up side by side), is
trained by Adam with clipping by the global norm, and so has three times as many with the slots. Nothing is run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

LIMIT_S = 10.0
"""What a graph of 1,000 variables may take, on one core."""


def add_command(commands: Any) -> None:
    """Adds `planning` to the benchmark's command line."""
    parser = commands.add_parser("planning", help="seconds for capture, plan and transform of a large graph")
    parser.add_argument("--variables", type=int, default=1000)
    parser.add_argument("--tables", type=int, default=100, help="how many of them are embedding tables")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Measures and prints a line a step, medians over the rounds."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from parallax.analysis import record

    record.install()
    graph = build(arguments.variables, arguments.tables)
    rounds = [measure(graph, arguments.workers) for _ in range(arguments.rounds)]
    ops = len(graph.get_operations())
    print(f"{arguments.variables} variables, {arguments.tables} of them tables, {ops} ops, one core")
    for step in rounds[0]:
        print(f"  {step:<10} {statistics.median(r[step] for r in rounds):6.2f} s")
    totals = [sum(r.values()) for r in rounds]
    spread = f"from {min(totals):.2f} to {max(totals):.2f}"
    print(f"  {'total':<10} {statistics.median(totals):6.2f} s ({spread}; wanted below {LIMIT_S:.0f} s)")


def build(variables: int, tables: int) -> Any:
    """A graph with so many variables, with its training op."""
    import tensorflow as tf

    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int64, [32, tables], name="ids")
        rows = [tf.nn.embedding_lookup(v1.get_variable(f"table_{i}", [1000, 16]), ids[:, i]) for i in range(tables)]
        h = tf.add_n(rows)
        for i in range(variables - tables):
            h = tf.tanh(tf.linalg.matmul(h, v1.get_variable(f"layer_{i}", [16, 16])))
        optimizer = v1.train.AdamOptimizer()
        gradients, trained = zip(*optimizer.compute_gradients(tf.reduce_mean(tf.square(h))), strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(clipped, trained, strict=True))
    return graph


def measure(graph: Any, workers: int) -> dict[str, float]:
    """Seconds of each step, once."""
    from parallax.analysis.capture import capture
    from parallax.analysis.classify import classify
    from parallax.analysis.planner import make_plan, part_routes
    from parallax.analysis.propagate import propagate
    from parallax.plan import one_host
    from parallax.transform.edit import Worker
    from parallax.transform.pipeline import transform

    seconds: dict[str, float] = {}
    began = time.perf_counter()

    def lap(step: str) -> None:
        nonlocal began
        seconds[step] = time.perf_counter() - began
        began = time.perf_counter()

    captured = capture(graph)
    lap("capture")
    spec, sources = classify(captured)
    lap("classify")
    plan = make_plan(spec, one_host(workers))
    lap("plan")
    decisions = propagate(captured, sources, part_routes(spec, plan))
    lap("propagate")
    transform(captured.view, decisions, Worker(0, workers, 1))
    lap("transform")
    return seconds
