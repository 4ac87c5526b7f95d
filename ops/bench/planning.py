"""Times the way from a graph to one worker's graph: capture, plan and transform, on one core.

    python -m ops.bench planning [--variables 1000] [--tables 100] [--workers 8] [--rounds 3]
    python -m ops.bench planning --timed [--variables 10000] [--tables 5000] [--hosts 512]

The graph has dense layers in sequence and embedding tables looked up in parallel, `--variables` variables in all. It is
trained by Adam with clipping by the global norm, so slots triple the number of variables. The graph is not run.

`--timed` only makes a plan by predicted seconds, without a graph: variables have random sizes, and hosts have equal
links up to measurement noise. It prints seconds, peak memory, and the plan's bound and gap.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallax.cluster.plan_inputs import PlanInputs
    from parallax.graph.spec import GraphSpec

LIMIT_S = 10.0
"""Time limit on one core, for a graph of 1,000 variables, and for a plan by seconds of 10,000 on 512 hosts."""

LIMIT_MB = 1000.0
"""Memory limit of the plan by seconds."""

TIMED_VARIABLES, TIMED_TABLES = 10_000, 5_000


def add_command(commands: Any) -> None:
    """Adds `planning` to the benchmark's command line."""
    parser = commands.add_parser("planning", help="seconds for capture, plan and transform of a large graph")
    parser.add_argument("--variables", type=int, help="default 1000; with --timed 10000")
    parser.add_argument("--tables", type=int, help="embedding tables among them; default 100; with --timed 5000")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--timed", action="store_true", help="only make a plan by predicted seconds, without a graph")
    parser.add_argument("--hosts", type=int, default=512, help="hosts of --timed, with a worker on each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Measures, and prints a line per stage, medians over the rounds."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if arguments.timed:
        run_timed(arguments.variables or TIMED_VARIABLES, arguments.tables or TIMED_TABLES, arguments.hosts)
        return
    arguments.variables, arguments.tables = arguments.variables or 1000, arguments.tables or 100
    from parallax.analysis.reading.construction import record

    record.install()
    graph = build(arguments.variables, arguments.tables)
    rounds = [measure(graph, arguments.workers) for _ in range(arguments.rounds)]
    ops = len(graph.get_operations())
    print(f"{arguments.variables} variables, {arguments.tables} of them tables, {ops} ops, one core")
    for step in rounds[0]:
        print(f"  {step:<10} {statistics.median(r[step] for r in rounds):6.2f} s")
    totals = [sum(r.values()) for r in rounds]
    spread = f"from {min(totals):.2f} to {max(totals):.2f}"
    print(f"  {'total':<10} {statistics.median(totals):6.2f} s ({spread}; limit {LIMIT_S:.0f} s)")


def run_timed(variables: int, tables: int, hosts: int) -> None:
    """Plans a large model by seconds, once."""
    from parallax.analysis.planner import make_plan
    from parallax.plans.plan import Layout
    from parallax.runtime.measure.memory import peak_bytes

    spec, measured = large_model(variables, tables, hosts)
    layout = Layout((1,) * hosts, tuple(range(hosts)))
    began, cpu_began = time.perf_counter(), time.process_time()
    plan = make_plan(spec, layout, None, measured)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    peak_mb = peak_bytes() / 1e6
    known = plan.prediction
    routes = [v.route for v in plan.variables]
    print(f"{variables} variables, {tables} of them tables, {hosts} hosts, a plan by seconds, one core")
    print(f"  time       {seconds:6.2f} s, CPU time {cpu_seconds:.2f} s (limit {LIMIT_S:.0f} s)")
    print(f"  memory     {peak_mb:6.0f} MB (limit {LIMIT_MB:.0f} MB)")
    print(f"  step       {1e3 * (known.step_s or 0):.6g} ms, bound {1e3 * (known.lower_bound_s or 0):.6g} ms")
    print(f"  gap        {100 * (known.gap or 0):.2g} % ({known.bound_of})")
    print(f"  routes     {', '.join(f'{routes.count(r)} {r}' for r in sorted(set(routes)))}")


def large_model(variables: int, tables: int, hosts: int) -> tuple[GraphSpec, PlanInputs]:
    """Returns a model of random sizes, and a made-up cluster: the benchmark measures the planner only."""
    from parallax.cluster.plan_inputs import PlanInputs
    from parallax.cluster.profiles import CLUSTER_PROFILE_VERSION, OPERATIONS, AlphaBeta, ClusterProfile, HostProfile
    from parallax.graph.spec import GradientSource, GraphSpec, Part, VariableClass, VariableSpec

    draw = random.Random(1)
    copies = []
    for number in range(variables):
        name, is_table = f"v{number:05}", number < tables
        shape = (draw.randint(100, 100_000), draw.choice([8, 16, 32, 64])) if is_table else (draw.randint(1, 500), 256)
        gradient = GradientSource(name, "values:0", "indices:0" if is_table else None, ("update",), "recorded")
        cls = VariableClass.SPARSE if is_table else VariableClass.DENSE
        part, ids = (Part(name, shape),), draw.randint(10, 3000) if is_table else None
        copies.append(VariableSpec(name, shape, "float32", 4, part, True, cls, gradients=(gradient,), ids_per_step=ids))
    rates = [1.25e9 * draw.uniform(0.99, 1) for _ in range(hosts)]
    lines = {operation: AlphaBeta(3e-4, 1e-6, 1e-10, 0.05, 20) for operation in OPERATIONS}
    machines = tuple(HostProfile(f"host{n}", 8, 1 << 40, rate, rate) for n, rate in enumerate(rates))
    return GraphSpec("0" * 64, tuple(copies)), PlanInputs(
        ClusterProfile(CLUSTER_PROFILE_VERSION, machines, lines, lines)
    )


def build(variables: int, tables: int) -> Any:
    """Returns a graph with this many variables and a training op."""
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
    """Returns the seconds of each stage, measured once."""
    from parallax.analysis.planner import make_plan, part_routes
    from parallax.analysis.propagation.classify import classify
    from parallax.analysis.propagation.propagate import propagate
    from parallax.analysis.reading.capture import capture
    from parallax.plans.plan import one_host
    from parallax.transform.building.editor import Worker
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
    rewrites = propagate(captured, sources, part_routes(spec, plan))
    lap("propagate")
    transform(captured.view, rewrites, Worker(0, workers, 1))
    lap("transform")
    return seconds
