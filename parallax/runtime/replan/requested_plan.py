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
    """Carries out the changes of plan that a script asks for; each worker has one.

    Attributes:
        worker: whose session it is.
        training: which runs train.
        spec: what plans of the graph are of.
        layout: of the job.
        over: carries a change out.
        comm: communicator of the workers.
        done: never, for a script may ask at any time.
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
        """Goes over to a plan, or to that of worker 0's file; every worker must call it.

        Returns:
            What is to be told of it.

        Raises:
            PlanError: on all workers, when the plan is another graph's, for another job, or cannot be carried out here.
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
