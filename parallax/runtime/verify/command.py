"""`parallax verify`: runs k steps on N workers and on one process, and compares all variables."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.base.types import Graph
from parallax.graph.spec import VariableClass
from parallax.plans.plan import ALLTOALL, Plan
from parallax.report.text import pluralize
from parallax.runtime.islands.averaged_variables import find_averaged_variables
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import launch
from parallax.runtime.supervisor.sealed_files import read_file_value, write_value
from parallax.runtime.verify.batches_of_graph import find_batches_of, save_batches
from parallax.runtime.verify.claim_records import PLAN_FILE, save_claims, walk_of
from parallax.runtime.verify.draws import draws_of, hidden_text, save_draws
from parallax.runtime.verify.island_processes import MET, UNMET
from parallax.runtime.verify.one_process import OneProcess, check_fits, concatenate_batches
from parallax.runtime.verify.sides import (
    AFTER_FILE,
    AVERAGED_FILE,
    BEFORE_FILE,
    NOISE_FILE,
    STEPS,
    WORKER_FILE,
    feeds_of,
    margin_of,
    moment_folder,
    tolerance_of,
)
from parallax.runtime.verify.table import join_islands, status, table_text, verdict_text
from parallax.runtime.verify.trials import Trials
from parallax.runtime.verify.verdicts import OTHERS, OWN, ArrayPair, ArrayVerdict, judge, measure
from parallax.runtime.worker.session.feeds import named_batch, train_op
from parallax.settings.environment import Role, Settings, environment_with


def check_feeds(graph: Graph, parts: Sequence[range], requested: Settings) -> None:
    """Refuses, before anything is started, feeds and a fetch that the graph lacks, or that cannot be concatenated.

    Args:
        graph: the user's.
        parts: the ranks of the workers of each island, or of all.
        requested: feeds and fetch.

    Raises:
        ConfigError: says which.
        GraphError: the graph cannot be fed the global batch.
    """
    feeds = feeds_of(graph, train_op(graph, requested.fetch), requested)
    size = sum(map(len, parts))
    for ranks in parts:
        batch = concatenate_batches([named_batch(graph, feeds(0, rank, size)) for rank in ranks])
        if requested.joined_args is None:
            check_fits(graph, batch)


def prepare(graph: Graph, analysed: AnalysedGraph, plan: Plan, folder: Path, requested: Settings) -> list[str]:
    """Saves for both sides the plan, what islands average, random draws, batches, and the claims of each step.

    Args:
        graph: the user's.
        analysed: the same.
        plan: of the job.
        folder: of the job.
        requested: feeds, fetch and seed.

    Returns:
        Ops whose draws or batches the one process cannot be fed from the workers.
    """
    fetch, walk = train_op(graph, requested.fetch), walk_of(analysed, plan)
    op = fetch.name.split(":")[0]
    random_tensors, hidden = draws_of(walk, op)
    batches, unread = find_batches_of(walk, op)
    save_draws(folder, random_tensors)
    save_batches(folder, batches)
    (folder / PLAN_FILE).write_text(plan.to_json())
    if plan.islands is not None:
        tables = [one for one in analysed.spec.variables if plan.variable(one.name).route == ALLTOALL]
        averaged = find_averaged_variables(graph, analysed, plan, {part.op for one in tables for part in one.parts})
        write_value(folder / AVERAGED_FILE, asdict(averaged))
    if requested.claims:
        feeds, size = feeds_of(graph, fetch, requested), plan.num_replicas
        batch = concatenate_batches([named_batch(graph, feeds(0, rank, size)) for rank in range(size)])
        one = OneProcess(graph, analysed, batch, requested.seed or 1, requested.compute_dtype, inlined=True)
        save_claims(walk, folder, op, lambda tensors: one.sizes(tensors, batch))
    return [*hidden, *unread]


def compare_runs(job: Job, plan: Plan, folder: Path, hidden: Sequence[str], requested: Settings) -> int:
    """Runs both sides and prints the verdict of every variable and slot (verdicts.py describes the rule).

    Args:
        job: the workers' side.
        plan: of its graph.
        folder: in which both sides save their variables.
        hidden: ops whose draws or batches the one process cannot be fed from the workers.
        requested: steps, feeds, tolerance and seed.

    Returns:
        0 when all are equal or noise and no claim is false, else 1; or the status of the side that failed.
    """
    terms = {"workers": None, "wire_dtype": plan.wire_dtype}
    failed = launch(job).status or _start_single(job, folder, replace(requested, **terms))  # type: ignore[arg-type]
    if failed:
        return failed
    steps, tolerance = requested.steps or STEPS, tolerance_of(plan, requested)
    if plan.islands is None:
        judged, local_names = _judge(folder, plan, requested)
        sides = f"{job.num_workers} workers and one process"
        text = table_text(judged, local_names) + verdict_text(judged, sides, steps, tolerance)
    else:
        found = {
            (moment, island): _judge(moment_folder(folder, moment, island), plan, requested)
            for moment in (UNMET, MET)
            for island in range(plan.num_islands)
        }
        judged, text = join_islands({key: of_island for key, (of_island, _) in found.items()}, plan.num_replicas)
        sides = f"{plan.num_islands} islands of {pluralize(plan.num_replicas, 'worker')} and a process for each"
        text = table_text(judged, found[MET, 0][1]) + text + verdict_text(judged, sides, steps, tolerance)
    text += hidden_text(hidden) if hidden and status(judged) else ""
    trials = Trials.read(folder) if requested.claims else None
    sys.stdout.write(text if trials is None else f"{text}{trials.text()}")
    sys.stdout.flush()
    return 1 if trials is not None and trials.false else status(judged)


def _judge(folder: Path, plan: Plan, requested: Settings) -> tuple[list[ArrayVerdict], list[str]]:
    """The verdicts on what both sides have saved in a folder; and the names of per-worker variables."""
    noise, kinds = read_file_value(folder / NOISE_FILE, tuple[dict[str, float], dict[str, str]])
    if plan.accumulate_steps == 1:  # per-batch writes differ from those of the global batch
        kinds |= {v.name: OTHERS for v in plan.variables if v.cls == VariableClass.UNTRAINED}
    measured = _measure(folder, plan.num_replicas, noise, kinds)
    judged = judge(measured, tolerance_of(plan, requested), margin_of(plan, requested))
    return judged, [name for name in noise if kinds.get(name) == OWN]


def _measure(folder: Path, size: int, noise: dict[str, float], kinds: dict[str, str]) -> Iterator[ArrayPair]:
    """Yields all arrays except per-worker ones, one after the other."""
    with contextlib.ExitStack() as stack:
        files = [BEFORE_FILE, AFTER_FILE, *(WORKER_FILE.format(rank=rank) for rank in range(size))]
        before, after, *workers = (stack.enter_context(np.load(folder / file)) for file in files)
        for name in sorted(after.files):
            kind = kinds.get(name, OTHERS)
            if kind == OWN:
                continue
            first = workers[0][name]  # a worker that has saved no copy has the same bits
            found = [first, *(worker[name] if name in worker.files else first for worker in workers[1:])]
            yield measure(name, kind, before[name], after[name], noise[name], found)


def _start_single(job: Job, folder: Path, requested: Settings) -> int:
    """Runs the one process and returns its exit status."""
    script = job.program[2:]  # -m parallax.runtime.worker.main
    arguments = script if requested.joined_args is None else (*_program(script), *requested.joined_args.split("\n"))
    mine = replace(requested, role=Role.VERIFY_SINGLE, job_folder=str(folder), resource=None)
    argv: list[str] = [sys.executable, "-m", "parallax.runtime.worker.script", *arguments]
    return subprocess.run(argv, env=environment_with(mine, dict(job.environment)), check=False).returncode


def _program(script: tuple[str, ...]) -> tuple[str, ...]:
    return script[:2] if script[0] == "-m" else script[:1]
