"""Tries numbers of partitions in the running job, and selects the one with the shortest steps.

Each number is measured in WARM_UP + TIMED steps, after a change of plan (change_over.py);
parallax/analysis/whatif/partition_search.py selects the next number. All numbers are printed with their steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from parallax.analysis.whatif.partition_search import (
    PartitionSample,
    best_count,
    fit,
    next_count,
    searched_tables,
    with_partitions,
)
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import Plan
from parallax.report.show import show
from parallax.report.text import ms_text, pluralize
from parallax.runtime.replan.change_over import ChangeOver
from parallax.runtime.worker.ranks import ProcessGroup
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.settings.config import Config

WARM_UP, TIMED = 3, 12
"""Steps of each count that are excluded, because TensorFlow creates its executors in them, and steps that count."""
MOST_PER_SERVER = 16
"""The maximum of a table's partitions on one server: each costs every worker a request."""


class PartitionSearch:
    """Times steps and changes the plan between them; all workers have one, and call `after_run` after each run.

    Attributes:
        done: whether the search is over.

    Args:
        members: the job.
        worker: this one's graph.
        training: identifies the runs that are steps.
        spec: of the plans' graph.
        fixed_counts: variable name -> the number of partitions that the user has set.
        over: executes changes.
    """

    def __init__(
        self,
        members: ProcessGroup,
        worker: WorkerContext,
        training: TrainingRuns,
        spec: GraphSpec,
        fixed_counts: Mapping[str, int],
        over: ChangeOver,
    ) -> None:
        self.done = False
        self._members = members
        self._worker = worker
        self._training = training
        self._spec = spec
        self._fixed_counts = fixed_counts
        self._over = over
        self._tables: tuple[str, ...] | None = None
        self._count = 0
        self._steps = 0
        self._seconds: list[float] = []
        self._samples: list[PartitionSample] = []

    def after_run(self, fetched: tuple[str, ...], seconds: float) -> None:
        """Records the time of a step, and after enough of them switches to another count."""
        if self.done or not self._training.trains(fetched):
            return
        plan = self._worker.plan
        if plan is None or not self._begin(plan):
            self.done = True
            return
        self._steps += 1
        self._seconds.append(seconds)
        if len(self._seconds) < WARM_UP + TIMED:
            return
        with self._worker.watch.run("the search for partitions", "partitions"):
            times_s = self._members.workers.allgather(statistics.median(self._seconds[WARM_UP:]))
            self._seconds = []
            self._samples.append(PartitionSample(self._count, statistics.mean(times_s)))
            self._go_on(plan)

    def _begin(self, plan: Plan) -> bool:
        """Starts the search; returns whether there is anything to search for."""
        if self._tables is None:
            self._tables = searched_tables(self._spec, plan, self._fixed_counts)
            if self._tables:
                self._count = max(len(part) for name in self._tables for part in plan.variable(name).servers)
            elif self._members.rank == 0:
                show("Numbers of partitions are not compared: no table on servers is looked up by row.\n")
        return bool(self._tables)

    def _go_on(self, plan: Plan) -> None:
        rows = max(self._spec.variable(name).rows for name in self._tables or ())
        count = next_count(self._samples, min(rows, MOST_PER_SERVER * len(plan.servers)))
        self.done = count is None
        count = count or best_count(self._samples)
        refusal = ""
        if count != self._count:
            changed = self._over.to(with_partitions(plan, self._spec, self._tables or (), count), self._steps)
            refusal = changed.refusal
            self.done = self.done or bool(refusal)
        if not refusal:
            self._count = count
        if self._members.rank == 0 and self.done:
            show(search_text(self._samples, self._count, refusal))


def searches(config: Config, plan: Plan, verifying: bool) -> bool:
    """Whether a job tries numbers of partitions: it is configured, has servers, and its workers step together.

    Args:
        config: of the job.
        plan: its initial plan.
        verifying: whether it is one side of a verification, which is too short.
    """
    return config.search_partitions and plan.synchronous and bool(plan.servers) and not verifying


def search_text(samples: list[PartitionSample], count: int, refusal: str = "") -> str:
    """The report of a search.

    Args:
        samples: in the order of the trials.
        count: of the current plan.
        refusal: why the search ended early; empty if it did not.
    """
    curve = fit(samples)
    lines = ["Partitions of the tables on servers, and seconds of a step:"]
    for sample in sorted(samples, key=lambda s: s.count):
        fitted = "" if curve is None else f", fitted {ms_text(curve.seconds(sample.count))}"
        lines.append(f"  {sample.count}: {ms_text(sample.step_s)} measured{fitted}")
    if refusal:
        lines.append(f"The search ended early, {refusal}")
    lines.append(f"The job continues with {pluralize(count, 'partition')}.")
    return "\n".join(lines) + "\n"
