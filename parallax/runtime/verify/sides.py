"""Runs the two sides of a verification, a worker's and the one process's. Each saves its results in the job's folder.

The one process runs the script's graph unchanged, fed the workers' batches one after the other, and all those of an
update at once where updates accumulate several. In islands there is one process for each, on the batches of its
workers, and these meet as the islands do (island_processes.py). All workers draw the same random numbers, and so does
the one process, so that sampled candidates agree; draws for the rows of a batch (dropout), and batches that the graph
reads itself, are taken from the workers (draws.py, batches_of_graph.py).
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from parallax.analysis.graph_to_plan import analyse
from parallax.analysis.reading.construction.launcher_graph import pack_graph, pin_packed
from parallax.base.types import Fetch, Graph, Value
from parallax.graph.row_updates import UPDATES_OF_ROWS
from parallax.graph.view import GraphView, node_of
from parallax.plans.half_precision import ROUNDING
from parallax.plans.plan import Plan, plan_from_json
from parallax.runtime.islands.averaged_variables import AveragedVariables
from parallax.runtime.supervisor.sealed_files import read_file_value, write_value
from parallax.runtime.verify.batches_of_graph import concatenate_read, read_batches
from parallax.runtime.verify.claim_records import KEPT_FILE, PLAN_FILE, START_FILE, ClaimGroups, save, walk_of
from parallax.runtime.verify.claims import Claims
from parallax.runtime.verify.draws import concatenate_draws, read_draws
from parallax.runtime.verify.island_processes import MET, UNMET, IslandProcesses
from parallax.runtime.verify.one_process import OneProcess, Values, concatenate_batches, variables_of
from parallax.runtime.verify.trials import CLAIM_TOLERANCE, Margins, evaluate_claims
from parallax.runtime.verify.verdicts import HALF_MARGIN, MARGIN
from parallax.runtime.worker.ranks import ProcessGroup
from parallax.runtime.worker.session.feeds import (
    Feeds,
    missing_feeds,
    named_batch,
    placeholders_in,
    read_feeds,
    train_op,
)
from parallax.runtime.worker.session.fetches import Request
from parallax.runtime.worker.session.run_context import PlainSession, WorkerContext
from parallax.runtime.worker.session.worker_session import Session
from parallax.settings.environment import Settings

STEPS = 5
TOLERANCE = 1e-5
"""Relative to a change: sums of float32 in another order differ by about 1e-7 a step, and by 1e-5 with feedback."""

WORKER_FILE = "worker-{rank}.npz"
BEFORE_FILE, AFTER_FILE, NOISE_FILE = "before.npz", "after.npz", "noise.json"
GRAPH_FILE, AVERAGED_FILE = "graph", "averaged.json"


def save_graph(graph: Graph, folder: Path) -> None:
    """Saves the launcher's graph for the one process, which runs the script again and may draw other numbers."""
    (folder / GRAPH_FILE).write_bytes(pack_graph(graph, math.inf))


def run_worker(
    graph: Graph, session: Session, size: int, rank: int, requested: Settings, members: ProcessGroup
) -> None:
    """One worker's side: runs the steps and saves all variables.

    Args:
        graph: the user's.
        session: of this worker.
        size: the number of workers, or of replicas of a model in stages.
        rank: of this worker, or of its replica.
        requested: steps and feeds.
        members: of the job.
    """
    fetch = train_op(graph, requested.fetch)
    feeds = feeds_of(graph, fetch, requested)
    folder, steps = Path(requested.job_folder or ""), requested.steps or STEPS
    islands = _plan_in(folder).islands
    if islands is not None:
        unmet = partial(_save_values, folder=moment_folder(folder, UNMET, members.island), members=members)
        session.verify(partial(ValuesAfterUpdate, min(islands.every, steps), unmet))
    with session:
        for number in range(steps * session.accumulate_steps):
            if requested.claims:
                start = {name: session.run(variable)[0] for name, variable in variables_of(graph).items()}
                if rank == 0:
                    save(folder / START_FILE.format(step=number), start)
            session.run(fetch, {name: [value] for name, value in named_batch(graph, feeds(number, rank, size)).items()})
        session.meet()
        values = {name: session.run(variable)[0] for name, variable in variables_of(graph).items()}
        rounding = session.exchange_report().rounding_text()
    _save_values(values, folder if islands is None else moment_folder(folder, MET, members.island), members)
    if rounding and members.rank == 0:
        sys.stdout.write(f"{rounding}\n")


class ValuesAfterUpdate:
    """Reads all variables after an update, and before the islands meet; every worker has one.

    Args:
        update: its number, from 1.
        take: gets the values.
        worker: this worker's graph.
    """

    def __init__(self, update: int, take: Callable[[Values], None], worker: WorkerContext) -> None:
        self._left = update
        self._take = take
        self._worker = worker

    @property
    def done(self) -> bool:
        """Whether they have been read."""
        return not self._left

    def before_run(self, request: Request) -> None:
        """Needs nothing of a run that is about to begin."""

    def after_run(self) -> None:
        """Counts an update, and reads the values if it is the one."""
        if self._worker.accumulation.pending:
            return
        self._left -= 1
        if not self._left:
            with self._worker.watch.run("the values before a meeting", "verify, before a meeting"):
                self._take(PlainSession(self._worker).run(variables_of(self._worker.graph)))


def _save_values(values: Values, folder: Path, members: ProcessGroup) -> None:
    """Saves a worker's values, except copies with the same bits as those of the first that trains with it.

    Stages of a replica all have the values of all, so one of them saves.
    """
    mine = {name: digest(value) for name, value in values.items()}
    first = members.team.bcast(mine, root=0)
    is_first = members.replica == 0
    if members.stage == 0:
        folder.mkdir(exist_ok=True)
        of_own = {name: value for name, value in values.items() if is_first or mine[name] != first[name]}
        save(folder / WORKER_FILE.format(rank=members.replica), of_own)


def moment_folder(folder: Path, moment: str, island: int) -> Path:
    """The folder in which both sides save an island's values at a moment."""
    return folder / f"{moment}-{island}"


def _plan_in(folder: Path) -> Plan:
    return plan_from_json((folder / PLAN_FILE).read_text())


def run_single(graph: Graph, requested: Settings, lazy_updates: bool = True) -> None:
    """The one process's side: the script's own graph on the global batch, or on those of islands."""
    folder = Path(requested.job_folder or "")
    if requested.joined_args is None:  # with other arguments the script's own constants may be of the global batch
        pin_packed(graph, (folder / GRAPH_FILE).read_bytes())
    fetch = train_op(graph, requested.fetch)
    feeds, plan = feeds_of(graph, fetch, requested), _plan_in(folder)
    size, batches_per_update = plan.num_replicas * plan.num_islands, plan.accumulate_steps
    worker_batches = [
        [named_batch(graph, feeds(n, rank, size)) for rank in range(size)]
        for n in range(batches_per_update * (requested.steps or STEPS))
    ]
    batches_by_island = [
        [
            concatenate_batches(
                [worker_batches[first + part][rank] for part in range(batches_per_update) for rank in ranks]
            )
            for first in range(0, len(worker_batches), batches_per_update)
        ]
        for ranks in ranks_by_island(plan)
    ]
    has_layouts = requested.claims and ClaimGroups.read(folder).has_layouts
    analysed = analyse(graph, lazy_updates, layouts=None if has_layouts else False)
    rounding = rounding_of(requested.wire_dtype, requested.compute_dtype)
    drawn_ops, read = read_draws(folder), read_batches(folder)
    is_as_written = not any(node.op in UPDATES_OF_ROWS for node in analysed.captured.view.nodes.values())
    as_written = analysed if is_as_written else analyse(graph, lazy_updates=False, synchronous=False)
    kept = [_kept_files(folder, plan, ranks, len(worker_batches)) for ranks in ranks_by_island(plan)]
    for files, batches in zip(kept, batches_by_island, strict=True):
        for batch, of_batch in zip(batches, files if read else (), strict=bool(read)):
            batch |= concatenate_read(of_batch, read)
    has_all = {node_of(tensor) for tensor in read} <= {op.name for op in graph.get_operations()}
    one = OneProcess(
        graph,
        as_written,
        batches_by_island[0][0],
        requested.seed or 1,
        requested.compute_dtype,
        read,
        inlined=bool(drawn_ops or requested.claims) or not has_all,
    )
    for files, batches in zip(kept, batches_by_island, strict=True):
        for batch, of_batch, shapes in zip(batches, files, one.shapes(drawn_ops, batches), strict=True):
            if shapes:
                batch |= concatenate_draws(of_batch, shapes)
    if plan.islands is not None:
        averaged = read_file_value(folder / AVERAGED_FILE, AveragedVariables)
        processes = IslandProcesses(one, plan.islands, averaged)
        island_runs = processes.run([fetch.name], batches_by_island)
        noise_by_island = processes.noise([fetch.name], batches_by_island, island_runs, rounding)
        for island, (of_island, noise) in enumerate(zip(island_runs, noise_by_island, strict=True)):
            for moment, noise_at in noise.items():
                _save_runs(moment_folder(folder, moment, island), of_island.until(moment), noise_at, one.kinds)
        return
    (global_batches,) = batches_by_island
    runs = one.run([fetch.name], global_batches)
    _save_runs(folder, runs, one.noise([fetch.name], global_batches, runs, rounding), one.kinds)
    if requested.claims:
        margins = Margins(max(tolerance_of(plan, requested), CLAIM_TOLERANCE), margin_of(plan, requested), rounding)
        evaluate_claims(one, Claims(walk_of(analysed, plan)), fetch.name, global_batches, folder, size, margins, graph)


def _kept_files(folder: Path, plan: Plan, ranks: range, count: int) -> list[list[list[Path]]]:
    """By update, and by worker in the order of rows, the files of what some workers have saved in `count` runs."""
    return [
        [
            [folder / KEPT_FILE.format(rank=rank, step=run) for rank in plan.grid.find_replica(replica)]
            for run in range(first, first + plan.accumulate_steps)
            for replica in ranks
        ]
        for first in range(0, count, plan.accumulate_steps)
    ]


def _save_runs(folder: Path, runs: tuple[Values, Values], noise: dict[str, float], kinds: dict[str, str]) -> None:
    for file, values in zip((BEFORE_FILE, AFTER_FILE), runs, strict=True):
        save(folder / file, values)
    write_value(folder / NOISE_FILE, [noise, kinds])


def ranks_by_island(plan: Plan) -> list[range]:
    """The ranks in the script of the workers of each island; of all workers where there are no islands."""
    size = plan.num_replicas
    return [range(island * size, (island + 1) * size) for island in range(plan.num_islands)]


def rounding_of(wire_dtype: str | None, compute_dtype: str | None) -> float:
    """The relative rounding of the job's own values; 0 if only each element type's own rounding applies."""
    return max((ROUNDING[dtype] for dtype in (wire_dtype, compute_dtype) if dtype is not None), default=0.0)


def tolerance_of(plan: Plan, requested: Settings) -> float:
    """The requested tolerance; else TOLERANCE, and with half precision its rounding once for each step.

    The relative error of an update is that of its gradients and rows. That of a slot of squares is twice as large, but
    the slot has only some of the steps at full weight. Where products are computed in bfloat16 the one process does so
    too: it rounds a gradient of the global batch, and each worker its own.
    """
    if requested.tolerance is not None:
        return requested.tolerance
    between = None if plan.islands is None else plan.islands.wire_dtype
    dtypes = (plan.wire_dtype, requested.compute_dtype, between)
    rounding = sum(ROUNDING[dtype] for dtype in dtypes if dtype is not None)
    return (requested.steps or STEPS) * rounding or TOLERANCE


def margin_of(plan: Plan, requested: Settings) -> float:
    """The allowed error relative to an array's noise."""
    return HALF_MARGIN if rounding_of(plan.wire_dtype, requested.compute_dtype) else MARGIN


def feeds_of(graph: Graph, fetch: Fetch, requested: Settings) -> Feeds:
    """The feeds of a step and worker, from the user's function or file.

    Raises:
        ConfigError: none are given, and the step has placeholders.
    """
    if requested.feeds is not None:
        return read_feeds(requested.feeds)
    view = GraphView(graph.as_graph_def())
    needed = placeholders_in(view, view.ancestors([fetch.name.split(":")[0]]))
    if needed:
        raise missing_feeds("A verification", needed)
    return lambda step, worker, size: {}


def digest(value: Value) -> str:
    """SHA-256 of an array's bits."""
    return hashlib.sha256(np.asarray(value).tobytes()).hexdigest()
