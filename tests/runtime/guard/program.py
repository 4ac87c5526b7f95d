"""Runs under mpirun on two ranks: trains small graphs with a guard, some of them broken by hand.

    python -m tests.runtime.guard.program RESULT.json

Rank 0 writes {case: by rank [steps made, steps after which workers were compared, what the guard said]}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from parallax.analysis.reading.construction import record  # noqa: E402

record.install()

from mpi4py import MPI  # noqa: E402  isort: skip
import horovod.tensorflow as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from parallax.analysis.graph_to_plan import analyse, rewrites_of  # noqa: E402
from parallax.analysis.planner import make_plan  # noqa: E402
from parallax.analysis.reading.capture import initialization_phases  # noqa: E402
from parallax.analysis.reading.gradients import training_updates  # noqa: E402
from parallax.base.errors import GuardError  # noqa: E402
from parallax.plans.plan import one_host  # noqa: E402
from parallax.runtime.guard.guard import Guard  # noqa: E402
from parallax.runtime.worker.heartbeat import Heartbeat  # noqa: E402
from parallax.runtime.worker.session.channels import open_channels  # noqa: E402
from parallax.runtime.worker.session.names import Names  # noqa: E402
from parallax.runtime.worker.session.run_context import WorkerContext  # noqa: E402
from parallax.runtime.worker.teams import Teams  # noqa: E402
from parallax.transform.building import editor  # noqa: E402
from parallax.transform.pipeline import transform  # noqa: E402

v1 = tf.compat.v1
STEPS, SEED = 8, 7


def built() -> Any:
    """A dense layer and two tables, a fed rate, a counter under a fed condition, an average, and an evaluation."""
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=True):
        x = v1.placeholder(tf.float32, [4, 3], name="x")
        ids = v1.placeholder(tf.int32, [4], name="ids")
        rate = v1.placeholder_with_default(0.1, [], name="rate")
        goes = v1.placeholder_with_default(True, [], name="goes")
        w = v1.get_variable("w", [3, 1])
        bias = v1.get_variable("bias", [1], initializer=tf.zeros_initializer())
        tables = [v1.get_variable(name, [40, 1]) for name in ("first", "second")]
        rows = [tf.nn.embedding_lookup(table, ids) for table in tables]
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_mean(tf.square(x @ w + bias + tf.add_n(rows) - 1.0))
        train = v1.train.MomentumOptimizer(rate, 0.9).minimize(loss, step)
        seen = v1.get_variable("seen", [], tf.int32, tf.zeros_initializer(), trainable=False)
        count = tf.cond(goes, lambda: seen.assign_add(1, read_value=False), tf.no_op)
        with tf.control_dependencies([train]):
            averaged = tf.train.ExponentialMovingAverage(0.9).apply([w])
        tf.group(train, count, averaged, name="train")
        evaluated = v1.get_variable("evaluated", [], tf.int32, tf.zeros_initializer(), trainable=False)
        evaluated.assign_add(4, read_value=False, name="evaluate")
        bias.assign([5.0], read_value=False, name="set_bias")
    return graph


Run = tuple[list[str], dict[str, Any]]


def plain(rank: int, step: int) -> list[Run]:
    """A step of every worker."""
    rng = np.random.RandomState(10 * step + rank)
    return [(["train"], {"x:0": rng.randn(4, 3).astype(np.float32), "ids:0": rng.randint(0, 40, 4)})]


def feeding(**of_worker_1: Any) -> Callable[[int, int], list[Run]]:
    """Steps in which worker 1 feeds something besides, and worker 0 feeds it too, but otherwise."""
    other = {"rate": 0.1, "goes": True}

    def runs(rank: int, step: int) -> list[Run]:
        ((fetches, feeds),) = plain(rank, step)
        return [(fetches, {**feeds, **{f"{n}:0": v if rank else other[n] for n, v in of_worker_1.items()}})]

    return runs


def evaluating(rank: int, step: int) -> list[Run]:
    """Worker 0 evaluates besides."""
    return [*plain(rank, step), *([(["evaluate"], {})] if rank == 0 else [])]


def assigning(rank: int, step: int) -> list[Run]:
    """Worker 0 assigns a trained variable before the second step."""
    return [*([(["set_bias"], {})] if (rank, step) == (0, 1) else []), *plain(rank, step)]


def fetching(rank: int, step: int) -> list[Run]:
    """Before the second step both fetch two tables, worker 1 at once and worker 0 one after the other."""
    fetches = [["first:0"], ["second:0"]] if rank == 0 else [["first:0", "second:0"]]
    return [*([(names, {}) for names in fetches] if step == 1 else []), *plain(rank, step)]


def without_broadcasts(rewrites: Any) -> Any:
    """What is fed stays each worker's own."""
    return replace(rewrites, broadcasts=())


def without_variable(rewrites: Any) -> Any:
    """The gradient of `w` is not all-reduced."""
    kept = [one for one in rewrites.all_reduces if not any("update_w" in edge.node for edge in one.edges)]
    if len(kept) != len(rewrites.all_reduces) - 1:
        raise ValueError(f"One all-reduce was to be left out, of {rewrites.all_reduces}.")
    return replace(rewrites, all_reduces=tuple(kept))


@dataclass(frozen=True)
class Case:
    """How a graph is broken, and what workers run."""

    breaks: Callable[[Any], Any] = field(default=lambda rewrites: rewrites)
    runs: Callable[[int, int], list[Run]] = plain
    equal_randomness: bool = True


CASES = {
    "healthy": Case(),
    "evaluated by one worker alone": Case(runs=evaluating),
    "a fed rate that is not broadcast": Case(without_broadcasts, feeding(rate=0.2)),
    "a variable left out of the plan": Case(without_variable),
    "a predicate of each worker": Case(without_broadcasts, feeding(goes=False)),
    "unequal random numbers": Case(lambda d: replace(d, equal_random_ops=()), equal_randomness=False),
    "assigned by one worker alone": Case(runs=assigning),
    "exchanges in another order": Case(runs=fetching),
}


def train(case: Case, rank: int, size: int) -> tuple[int, list[int], str]:
    """Steps made, steps after which workers were compared, and what the guard said."""
    graph = built()
    analysed = analyse(graph)
    view = analysed.captured.view
    plan = make_plan(analysed.spec, one_host(size))
    rewrites = case.breaks(rewrites_of(analysed, plan, case.equal_randomness))
    made = transform(view, rewrites, editor.Worker(rank, size, SEED, equal_randomness=case.equal_randomness))
    open_channels(made.graph_def, Teams(MPI.COMM_WORLD))
    worker = WorkerContext(graph, Names(view, made), Heartbeat(), analysed)
    updates = training_updates(analysed.captured, analysed.sources)
    guard = Guard(worker, MPI.COMM_WORLD, view, updates)
    imported, compared = tf.Graph(), []
    with imported.as_default():
        tf.graph_util.import_graph_def(made.graph_def, name="")
        guard.follow(made)
    with v1.Session(graph=imported) as worker.raw:
        for phase in initialization_phases(analysed.captured):
            worker.raw.run(phase)
        worker.raw.run(made.counter_initializers)
        try:
            guard.begin()
            for step in range(STEPS):
                checks = guard.checks
                for names, feeds in case.runs(rank, step):
                    resolved = worker.names.resolve(tuple(names), feeds)
                    worker.raw.run(list(resolved.tensors), {**resolved.feeds(feeds), **resolved.empty})
                    guard.after_run(tuple(names), (), feeds, None, 0.0)
                compared += [guard.step] * (guard.checks - checks)
            guard.finish()
        except GuardError as error:
            return guard.step, compared, str(error)
    return guard.step, compared, ""


def main() -> None:
    """All cases."""
    hvd.init()
    results = {}
    for name, case in CASES.items():
        try:
            found = train(case, hvd.rank(), hvd.size())
        except Exception as error:
            # A rank that fails alone would leave the other waiting: the job ends here.
            print(f"{name}: {type(error).__name__}: {str(error)[:600]}", file=sys.stderr, flush=True)
            os._exit(1)
        results[name] = MPI.COMM_WORLD.gather(found)
    if hvd.rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
