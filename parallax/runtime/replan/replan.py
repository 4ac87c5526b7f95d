"""Searches for a better plan once the first steps have been profiled, and switches to it or reports it.

Worker 0 makes the best plan that the running processes can execute: its servers are those that were started, or none.
It prices the current plan by the same profiles (analysis/search/predict_plan.py). If the other plan's predicted step is
shorter by the margin, the plan goes to all workers, and with `on` they switch before their next run. Asynchronous
workers have no common step, and without a cluster profile there are no predicted seconds: both are refused at the
start.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from parallax.analysis.graph_to_plan import AnalysedGraph, make_feasible_plan
from parallax.analysis.search.predict_plan import step_seconds
from parallax.base.errors import ParallaxError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import ModelProfile, cluster_profile_from_json
from parallax.plans.plan import Layout, Plan, PlanConstraints, plan_from_json
from parallax.report.diff import places_text
from parallax.report.show import show
from parallax.report.text import bytes_text, ms_text, pluralize
from parallax.runtime.measure.first_steps import FirstSteps
from parallax.runtime.replan.change_over import ChangeOver, PlanChangeResult
from parallax.runtime.replan.options import ReplanOptions
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.ranks import ProcessGroup
from parallax.runtime.worker.session.run_context import WorkerContext
from parallax.settings.parts import ON

_LOG = logging.getLogger("parallax.replan")
_DIGITS = 12


class Replan:
    """Compares plans once, after the first steps; all workers have one, and call `after_run` after each of their runs.

    Attributes:
        done: whether that has happened, and nothing is left to do.

    Args:
        options: the replanning options.
        members: the job.
        worker: this one's graph.
        first: measures the first steps.
        analysed: the plans' graph, without the additions of hooks.
        constraints: the user's constraints on plans.
        over: executes a change.
    """

    def __init__(
        self,
        options: ReplanOptions,
        members: ProcessGroup,
        worker: WorkerContext,
        first: FirstSteps,
        analysed: AnalysedGraph,
        constraints: PlanConstraints,
        over: ChangeOver,
    ) -> None:
        self.done = False
        self._options = options
        self._members = members
        self._worker = worker
        self._first = first
        self._analysed = analysed
        self._constraints = constraints
        self._over = over

    def after_run(self, fetched: tuple[str, ...], seconds: float) -> None:
        """Compares plans after the last of the measured steps, which all workers reach after the same run."""
        if self.done or not self._first.finished:
            return
        self.done = True
        with self._worker.watch.run("a better plan", "replan"):
            plan = self._better()
        if plan is None or self._options.mode != ON:
            return
        with self._worker.watch.run("the change of plan", "replan, change"):
            changed = self._over.to(plan, self._options.steps)
        if self._members.rank == 0:
            show(change_text(changed))

    def _better(self) -> Plan | None:
        """Returns the better plan on all workers; None if there is none."""
        comm, text = self._members.workers, None
        if self._members.rank == 0:
            comparison = self._compare()
            show(comparison.text)
            if comparison.plan is not None:
                text = comparison.plan.to_json()
                self._write(text)
        barrier(comm)  # planning may take long
        text = comm.bcast(text)
        return None if text is None else plan_from_json(text)

    def _compare(self) -> Comparison:
        now, profile, steps = self._worker.plan, self._first.profile, self._options.steps
        if profile is None or now is None:
            return Comparison(None, f"After {pluralize(steps, 'step')} the plan stays: no step was measured.\n")
        try:
            best, now_s = self._best(now, profile)
        except ParallaxError as error:
            return Comparison(None, f"After {pluralize(steps, 'step')} the plan stays: {error}\n")
        return verdict(now, now_s, best, self._options.margin, steps)

    def _best(self, now: Plan, profile: ModelProfile) -> tuple[Plan, float | None]:
        """Returns the best plan that the running processes can execute, and the predicted step of the current one."""
        parcel = self._members.parcel
        measured = PlanInputs(
            cluster_profile_from_json(parcel.cluster, parcel.cluster_name), profile, parcel.cluster_name, "first steps"
        )
        layout = Layout(now.hosts, parcel.servers)  # no more servers can be started
        best = make_feasible_plan(self._analysed, layout, self._constraints, measured)
        return best, step_seconds(self._analysed.spec, now, layout, self._constraints, measured)

    def _write(self, text: str) -> None:
        graph = "" if self._worker.plan is None else self._worker.plan.fingerprint[:_DIGITS]
        path = self._options.path or Path(f"parallax-plan-{graph}.json").absolute()
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:  # a failed write of a plan does not end training
            _LOG.warning("The better plan is lost: %s cannot be written: %s.", path, error.strerror)
            return
        how = ""
        if self._options.mode != ON:
            how = f" Use it with --plan {path} or Config.plan_file, or have jobs switch to it with replan='on'."
        show(f"The other plan is written to {path}.{how}\n")


def change_text(changed: PlanChangeResult) -> str:
    """The report of a change."""
    if changed.refusal:
        return f"The plan stays as it is, {changed.refusal}\n"
    moved = f"{pluralize(changed.variables, 'variable')} of {bytes_text(changed.moved_bytes)} moved"
    anew = ""
    if changed.redrawn:
        anew = f" {pluralize(len(changed.redrawn), 'random op')} draws from other seeds from here on."
    return f"The plan was changed in {changed.seconds:.2f} s, {moved}.{anew}\n"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing the current plan with the best one.

    Attributes:
        plan: the better one; None if the job stays with its plan.
        text: the comparison, for readers; lines that end with a newline.
    """

    plan: Plan | None
    text: str


def verdict(now: Plan, now_s: float | None, best: Plan, margin: float, steps: int) -> Comparison:
    """Compares two plans of one graph by their predicted steps, from the same profiles.

    Args:
        now: the current plan.
        now_s: its predicted step in seconds; None if it cannot be predicted.
        best: another.
        margin: the share of `now_s` by which the other's step must be shorter.
        steps: the number of steps in the profile.
    """
    best_s = best.prediction.step_s
    since = f"After {pluralize(steps, 'step')}"
    if now_s is None or best_s is None:
        unknown = best.prediction.unknown or "the cluster profile lacks what the current plan needs"
        return Comparison(None, f"{since} the plan stays: {unknown}.\n")
    changed = places_text(now, best)
    if not changed:
        return Comparison(None, f"{since} the plan stays: it is still the best for the rows that they touched.\n")
    gain = 1 - best_s / now_s if now_s > 0 else 0.0
    compared = f"{ms_text(now_s)} a step are predicted for the current plan, {ms_text(best_s)} of another"
    if gain < margin:
        return Comparison(
            None, f"{since} the plan stays: {compared}, {_percent(gain)} less, below {_percent(margin)}.\n"
        )
    return Comparison(best, f"{since}: {compared}, {_percent(gain)} less:\n{changed}")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
