"""The program of every worker of the measuring job: runs the plans of each case in turn, round by round.

All plans of a case are open at once, each in its own session and under its own name, so that variables on servers and
collectives of different plans have different names. Graphs, exchanges, all-reduces and servers are those of any job.
What a job's session adds around a run (hooks, the user's names) is left out, as it is the same for all plans.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ops.bench.race.models import model_of
from ops.bench.race.turns import write_json
from ops.bench.regret.cases import Case, case_from_json
from ops.bench.regret.choices import analysed_of
from parallax.analysis.graph_to_plan import rewrites_of
from parallax.plans.plan import Plan, plan_from_json
from parallax.runtime.worker.barrier import wait_for_all
from parallax.runtime.worker.ranks import SERVER_TASK, WORKER_TASK, ProcessGroup, current_process_group
from parallax.runtime.worker.session.channels import open_channels
from parallax.runtime.worker.session.direct import DirectRuns
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import WorkerGraph, transform

BATCHES = 7
_WARM_UP = 5
_SEED = 1


def main() -> None:
    """Measures the cases in the files named; worker 0 writes their step times next to them."""
    rounds, turn_s, *files = sys.argv[1:]
    members = current_process_group()
    members.start()
    for file in files:
        path = Path(file)
        case = case_from_json(path.read_text(encoding="utf-8"))
        seconds = measured(case, members, int(rounds), float(turn_s))
        if members.rank == 0:
            done = replace(case, rounds_s=tuple(map(tuple, seconds)))
            write_json(path.with_suffix(".measured.json"), json.loads(done.to_json()))
        wait_for_all(members.workers)


def _run_next(run: Callable[[Any], None], batches: Iterator[Any]) -> None:
    run(next(batches))


def measured(case: Case, members: ProcessGroup, rounds: int, turn_s: float) -> list[list[float]]:
    """Returns the step times of the slowest worker, `[choice][round]`, in seconds."""
    graph, analysed, train, feeds = analysed_of(case.model.sizes)
    model = model_of("generated", **case.model.sizes)
    batches = [model.batch(members.rank, step) for step in range(BATCHES)]
    steps: list[Callable[[], None]] = []
    sessions = []
    for number, choice in enumerate(case.choices):
        name = f"case_{case.model.number}_{number}"
        session, run = _opened(name, graph, analysed, plan_from_json(choice.plan), members, train)
        fed = itertools.cycle([{f"{name}/{feeds[k].name}": v for k, v in batch.items()} for batch in batches])
        sessions.append(session)
        steps.append(partial(_run_next, run, fed))
    times: list[list[float]] = [[] for _ in steps]
    counts = []
    for step in steps:
        for _ in range(_WARM_UP):
            step()
        once_s = _timed(step, members, _WARM_UP)
        counts.append(max(3, min(200, math.ceil(turn_s / once_s))))
    for _ in range(rounds):
        for own, step, count in zip(times, steps, counts, strict=True):
            own.append(_timed(step, members, count))
    for session in sessions:
        session.close()
    return times


def _timed(step: Callable[[], None], members: ProcessGroup, count: int) -> float:
    """Returns the step time of the slowest worker, in seconds; the same on all workers."""
    from mpi4py import MPI

    wait_for_all(members.workers)
    members.workers.Barrier()
    began_s = time.perf_counter()
    for _ in range(count):
        step()
    return float(members.workers.allreduce((time.perf_counter() - began_s) / count, MPI.MAX))


def _opened(
    name: str, graph: Any, analysed: Any, plan: Plan, members: ProcessGroup, train: Any
) -> tuple[Any, Callable[[dict[str, Any]], None]]:
    """Returns a session with its variables initialized, and a function that runs one step."""
    import tensorflow as tf

    v1 = tf.compat.v1
    hosts = members.parcel.hosts
    place = Worker(members.rank, members.size, _SEED, hosts=hosts, servers=plan.servers)
    made = transform(analysed.captured.view, rewrites_of(analysed, plan), place)
    imported = _imported(name, graph, made)
    open_channels(imported.as_graph_def(), members.teams)
    target = members.target if plan.servers else ""
    home = f"/job:{WORKER_TASK}/task:{members.rank}"
    with imported.as_default(), tf.device(home if target else None):
        initialize = [imported.get_operation_by_name(f"{name}/{op}") for op in made.counter_initializers]
        initialize = tf.group(*initialize, *(v.initializer for v in v1.global_variables()))
    options = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    if target:
        options.device_filters.extend([f"/job:{SERVER_TASK}", home])
    session = v1.Session(target, imported, options)
    session.run(initialize)
    direct, fetch = DirectRuns(session), f"{name}/{train.name}"
    if target:
        return session, lambda feeds: session.run(fetch, feeds)

    def run(feeds: dict[str, Any]) -> None:
        while direct.run((fetch,), feeds) is None:  # the first call only records the run
            pass

    return session, run


def _imported(name: str, graph: Any, made: WorkerGraph) -> Any:
    """Imports the worker's graph with all its names under `name`, including those of resources on servers."""
    import tensorflow as tf
    from tensorflow.python.framework import meta_graph

    graph_def = type(made.graph_def)()
    graph_def.CopyFrom(made.graph_def)
    for node in graph_def.node:
        shared = node.attr["shared_name"].s if "shared_name" in node.attr else b""
        if shared:
            node.attr["shared_name"].s = name.encode() + b"/" + shared
    with graph.as_default():
        keys = [tf.compat.v1.GraphKeys.GLOBAL_VARIABLES]
        meta = meta_graph.create_meta_graph_def(graph_def=graph_def, graph=graph, collection_list=keys)
    imported = tf.Graph()
    with imported.as_default():
        meta_graph.import_scoped_meta_graph(meta, import_scope=name)
    return imported


if __name__ == "__main__":
    main()
