"""Switches to a plan that the script requests, between two of its runs (`Session.change_plan`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parallax.base.errors import PlanError
from parallax.base.types import Comm
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import Layout, Plan, plan_from_json, read_plan
from parallax.runtime.replan.change_over import ChangeOver
from parallax.runtime.replan.replan import change_text
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext


@dataclass
class RequestedChange:
    """Executes the plan changes that a script requests; each worker has one.

    Attributes:
        worker: the worker of the session.
        training: identifies the training runs.
        spec: of the plans' graph.
        layout: of the job.
        over: executes a change.
        comm: communicator of the workers.
        done: never, because a script may request a change at any time.
    """

    worker: WorkerContext
    training: TrainingRuns
    spec: GraphSpec
    layout: Layout
    over: ChangeOver
    comm: Comm
    done: bool = False
    _steps: int = 0

    def after_run(self, fetched: tuple[str, ...], seconds: float) -> None:
        """Counts the steps."""
        self._steps += self.training.trains(fetched)

    def to(self, plan: Plan | str | Path) -> str:
        """Switches to a plan, or to that of worker 0's file; every worker must call it.

        Returns:
            A message about it.

        Raises:
            PlanError: on all workers, when the plan is another graph's, for another job, or cannot be executed here.
        """
        now = self.worker.plan
        if not isinstance(plan, Plan):
            plan = self._read(Path(plan))
        plan.check_belongs_to(self.spec, self.layout)
        if now is None or not (now.synchronous and plan.synchronous):
            raise PlanError(
                "A plan can change only at a step that all workers have in common, and asynchronous workers "
                "(sync=False) have none. Train with sync=True."
            )
        if plan.accumulate_steps != now.accumulate_steps:
            raise PlanError(
                f"The new plan must have the accumulate_steps of the current one, {now.accumulate_steps}, got "
                f"{plan.accumulate_steps}. Plan with accumulate_steps={now.accumulate_steps}."
            )
        changed = self.over.to(plan, self._steps)
        if changed.refusal:
            raise PlanError(f"The plan stays as it is, {changed.refusal}")
        return change_text(changed)

    def _read(self, path: Path) -> Plan:
        """The plan of a file that worker 0 has."""
        text = refusal = ""
        if self.comm.Get_rank() == 0:
            try:
                text = read_plan(path).to_json()
            except PlanError as error:
                refusal = str(error)
        text, refusal = self.comm.bcast((text, refusal))
        if refusal:
            raise PlanError(refusal)
        return plan_from_json(text)
