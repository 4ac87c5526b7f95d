"""Changes of plan that a script asks for: what is refused, and what reaches the change itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallax.analysis.planner import make_plan
from parallax.base.errors import PlanError
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import Layout, Plan, PlanConstraints
from parallax.runtime.replan.change_over import PlanChangeResult
from parallax.runtime.replan.requested_plan import RequestedChange
from tests.analysis.specs import dense, sparse, spec

FOUR = Layout((1, 1, 1, 1))


def graph() -> GraphSpec:
    return spec(dense(shape=(400, 50)), sparse(shape=(20_000, 16), ids=600))


def plan_by(route: str, layout: Layout = FOUR, **more: Any) -> Plan:
    return make_plan(graph(), layout, PlanConstraints(routes={"emb": route}, **more))


class Over:
    """Takes the place of what changes a session."""

    def __init__(self, refusal: str = "") -> None:
        self.asked: list[tuple[Plan, int]] = []
        self.refusal = refusal

    def to(self, plan: Plan, steps: int) -> PlanChangeResult:
        self.asked.append((plan, steps))
        return PlanChangeResult(self.refusal, 2, 1_000_000, 0.25)


def change(now: Plan, over: Over, rank: int = 0) -> RequestedChange:
    worker: Any = SimpleNamespace(plan=now)
    training: Any = SimpleNamespace(trains=lambda fetched: "train" in fetched)
    comm: Any = SimpleNamespace(Get_rank=lambda: rank, bcast=lambda value: value)
    taken: Any = over
    return RequestedChange(worker, training, graph(), FOUR, taken, comm)


def test_the_steps_so_far_and_the_plan_of_a_file_reach_the_change(tmp_path: Path) -> None:
    over, wanted = Over(), plan_by("allgather")
    asked = change(plan_by("alltoall"), over)
    for fetched in (("train",), ("loss",), ("loss", "train")):
        asked.after_run(fetched, 0.1)
    (tmp_path / "plan.json").write_text(wanted.to_json())
    assert "The plan was changed in 0.25 s, 2 variables of 1 MB moved." in asked.to(tmp_path / "plan.json")
    assert over.asked == [(wanted, 2)]


@pytest.mark.parametrize(
    ("plan", "wrong"),
    [
        (replace(plan_by("allgather"), fingerprint="of another"), "The plan was made for another graph"),
        (plan_by("allgather", layout=Layout((2, 2))), "The plan was made for other hosts"),
        (plan_by("ps", layout=Layout((1, 1, 1, 1), (0,))), "servers on hosts"),
        (plan_by("allgather", accumulate_steps=2), "must have the accumulate_steps of the current one, 1, got 2"),
        ("nowhere.json", "nowhere.json: cannot read the plan file"),
    ],
)
def test_a_plan_of_something_else_is_refused(plan: Plan | str, wrong: str) -> None:
    over = Over()
    with pytest.raises(PlanError, match=wrong):
        change(plan_by("alltoall"), over).to(plan)
    assert not over.asked


def test_asynchronous_workers_and_refusals_are_named() -> None:
    now = plan_by("alltoall")
    with pytest.raises(PlanError, match="asynchronous workers"):
        change(replace(now, synchronous=False), Over()).to(now)
    with pytest.raises(PlanError, match="The plan stays as it is, on worker 1: no"):
        change(now, Over("on worker 1: no")).to(now)
