"""Compares the first steps of a running job with one process: `parallax run --verify-first K`.

All variables are read before and after each of these steps. Worker 0 has the one process take the same step in its own
session: the user's graph unchanged, from the values read before, on the concatenated batches of all workers. In islands
the first worker of each does so for its own, before a meeting. The job
itself is not affected: it trains as it would have without. So each step is judged by itself, and anything that a script
does between steps (a learning rate that it assigns, an evaluation) is not part of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.analysis.reading.batches.batch_sources import data_ops, random_ops
from parallax.analysis.reading.gradients import training_updates
from parallax.base.errors import ConfigError, GraphError
from parallax.base.types import Value
from parallax.plans.plan import Plan
from parallax.report.show import show
from parallax.report.text import list_first
from parallax.runtime.verify.one_process import OneProcess, Values, concatenate_batches, variables_of
from parallax.runtime.verify.sides import digest, margin_of, rounding_of, tolerance_of
from parallax.runtime.verify.table import is_wrong, table_text, verdict_text
from parallax.runtime.verify.verdicts import OTHERS, OWN, ArrayVerdict, judge, measure
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.ranks import ProcessGroup
from parallax.runtime.worker.session.fetches import Request
from parallax.runtime.worker.session.run_context import PlainSession, TrainingRuns, WorkerContext
from parallax.settings.environment import Settings

_TOLD = "the first steps, in one process"


def check_comparable(analysed: AnalysedGraph, plan: Plan) -> None:
    """Refuses, before anything is started, a job whose steps one process cannot repeat from their feeds.

    Raises:
        ConfigError: names the reason and the alternative.
    """
    view = analysed.captured.view
    step = view.ancestors(training_updates(analysed.captured, analysed.sources))
    instead = "`parallax verify` draws equal numbers and batches on both sides; or leave --verify-first out."
    if not plan.synchronous:
        raise ConfigError("--verify-first needs synchronous training, but this job has sync=False.")
    if draws := random_ops(view, step):
        raise ConfigError(
            f"--verify-first repeats steps in one process, but a step has random ops ({list_first(draws)}), "
            f"for which each worker draws its own numbers. {instead}"
        )
    if batches := data_ops(view, step):
        raise ConfigError(
            f"--verify-first joins what the workers feed, but {list_first(batches)} produce batches inside "
            f"the graph. {instead}"
        )


class VerifiedSteps:
    """Compares the first steps of a session; every worker has one.

    Args:
        count: how many steps.
        worker: this worker's graph.
        members: of the job.
        requested: tolerance and element type of products.
    """

    def __init__(self, count: int, worker: WorkerContext, members: ProcessGroup, requested: Settings) -> None:
        self._left = self._count = count
        self._worker = worker
        self._members = members
        self._requested = replace(requested, steps=1)
        updates = training_updates(worker.analysed.captured, worker.analysed.sources)
        self._training = TrainingRuns(worker, updates)
        self._variables = variables_of(worker.graph)
        self._before: Values = {}
        self._batches: list[dict[str, Value]] = []  # on worker 0, of all workers, one per batch of the update
        self._fetches: list[str] = []
        self._compares = members.replica == 0 and members.stage == 0

    @property
    def done(self) -> bool:
        """Whether all steps have been compared."""
        return not self._left

    def before_run(self, request: Request) -> None:
        """Processes a run that is about to begin; all workers call it for the same training runs."""
        self._fetches = [name for name in request.names if self._training.trains((name,))]
        if not self._fetches:
            return
        with self._worker.watch.run(_TOLD, "verify first, before"):
            accumulation = self._worker.accumulation
            if (
                accumulation.pending == accumulation.steps - 1
            ):  # the updating run, with all values that the script has assigned by then
                self._before = self._values()
            feeds = {name: np.asarray(value) for name, value in request.feeds.items()}
            self._batches += self._members.team.gather(feeds, root=0) or []  # stages of a replica are fed alike

    def after_run(self) -> None:
        """Compares the values, if the run was an update.

        Raises:
            GraphError: on the worker that compares, if the workers do not have the values of one process.
        """
        if not self._fetches or self._worker.accumulation.pending:
            return
        with self._worker.watch.run(_TOLD, "verify first, after"):
            after = self._values()
            copies = self._copies(after)
            if self._compares:
                self._compare(copies)
            barrier(self._members.workers)  # the one process may take long; if it finds an error, the job ends here
        self._left -= 1
        self._batches = []

    def _values(self) -> Values:
        values: Values = PlainSession(self._worker).run(dict(self._variables))
        return values

    def _copies(self, values: Values) -> list[Values]:
        """The values of each worker of an island, or of all, on the first, with whose bits a copy is the first's."""
        comm = self._members.workers if self._members.islands == 1 else self._members.team
        mine = {name: digest(value) for name, value in values.items()}
        first = comm.bcast(mine, root=0)
        others = comm.gather({n: v for n, v in values.items() if mine[n] != first[n]}, root=0)
        return [{**values, **other} for other in others or []]

    def _compare(self, copies: list[Values]) -> None:
        """Makes the one process take the step, and compares the values."""
        plan, step = self._worker.plan, self._count - self._left + 1
        if plan is None:
            return
        batch = concatenate_batches(self._batches)
        seed, dtype = self._members.parcel.seed, self._requested.compute_dtype
        one = OneProcess(self._worker.graph, self._worker.analysed, batch, seed, dtype)
        runs = one.run(self._fetches, [batch], self._before)
        noise = one.noise(self._fetches, [batch], runs, rounding_of(plan.wire_dtype, dtype), self._before)
        judged = self._judge(one, runs, noise, copies, plan)
        local_names = [name for name in runs[0] if one.kinds.get(name) == OWN]
        of_island = f" of island {self._members.island}" if self._members.islands > 1 else ""
        sides = f"{len(copies)} workers{of_island} and one process"
        verdict = verdict_text(judged, sides, 1, tolerance_of(plan, self._requested))
        if any(is_wrong(one) for one in judged):
            raise GraphError(
                f"In step {step} of this job the workers{of_island} did not make the update that one process makes "
                "on all their batches together. A loss must be a mean over the batch, and the batches of the "
                "workers must have the same size; `parallax check` shows what is suspicious, `parallax verify "
                f"--claims` the first wrong op.\n{table_text(judged, local_names)}{verdict.rstrip()}"
            )
        show(f"Verified step {step} of {self._count}: {verdict}")

    def _judge(
        self, one: OneProcess, runs: tuple[Values, Values], noise: dict[str, float], copies: list[Values], plan: Plan
    ) -> list[ArrayVerdict]:
        measured = []
        for name in sorted(runs[0]):
            kind = one.kinds.get(name, OTHERS)
            if kind != OWN:
                found = [copy[name] for copy in copies]
                measured.append(measure(name, kind, runs[0][name], runs[1][name], noise[name], found))
        return judge(measured, tolerance_of(plan, self._requested), margin_of(plan, self._requested))
