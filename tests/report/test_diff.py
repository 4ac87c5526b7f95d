"""In what plans differ: every field is seen, in words, and the command says it by its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from parallax.analysis.planner import make_plan
from parallax.entry import cli
from parallax.graph.spec import VariableClass
from parallax.plans.plan import Layout, Plan, PlanConstraints, VariablePlan, plan_from_json
from parallax.plans.prediction import Flip, Prediction
from parallax.report.diff import difference_text, differences
from tests.analysis.measured import MB
from tests.report.html.plans import language_model, timed, untimed

OTHER: dict[type, Callable[[Any], Any]] = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: value * 1.0001 + 1e-12,
    str: lambda value: value + "!",
    tuple: lambda value: value[:-1] if value else ("one",),
    type(None): lambda value: 1,
    VariableClass: lambda value: VariableClass.MIXED,
}


def diff(capsys: pytest.CaptureFixture[str], *files: Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["diff", *map(str, files)])
    return ended.value.code, *capsys.readouterr()


def test_plans_of_two_clusters(golden: Callable[[str, str], None]) -> None:
    constraints = PlanConstraints(routes={"embedding": "ps", "positions": "allreduce"})
    served = make_plan(language_model(), Layout((2, 2), (0, 1)), constraints)
    found = [differences(untimed(), served), differences(timed(), timed(250 * MB)), differences(timed(), served)]
    golden("plan_differences.txt", "\n".join(difference_text(d, ("first.json", "second.json")) for d in found))


@pytest.mark.parametrize(
    "field", [f.name for f in fields(VariablePlan) if f.name not in ("cost", "runner_up", "flips")]
)
def test_every_property_of_a_variable_is_compared(field: str) -> None:
    plan = timed()
    variable = plan.variable("embedding")
    value = getattr(variable, field)
    changed = replace(variable, **{field: OTHER[type(value)](value)})
    others = [v for v in plan.variables if v is not variable]
    found = differences(plan, replace(plan, variables=tuple(sorted((*others, changed), key=lambda v: v.name))))
    assert found and all(d.first != d.second for d in found)


@pytest.mark.parametrize("field", [f.name for f in fields(Plan) if f.name not in ("variables", "prediction")])
def test_every_property_of_a_plan_is_compared(field: str) -> None:
    plan = timed()
    value = getattr(plan, field)
    other = {"hosts": (1, 1, 1, 2), "servers": (0,), "profiles": plan.profiles[:1]}.get(
        field, OTHER[type(value)](value)
    )
    found = differences(plan, replace(plan, **{field: other}))
    assert [d for d in found if d.variable == ""] and all(d.first != d.second for d in found)


@pytest.mark.parametrize("field", [f.name for f in fields(Prediction)])
def test_every_property_of_a_prediction_is_compared(field: str) -> None:
    plan = timed()
    value = getattr(plan.prediction, field)
    changed = replace(plan.prediction, **{field: OTHER[type(value)](value)})
    (found,) = differences(plan, replace(plan, prediction=changed))
    assert found.variable == "" and found.first != found.second


def test_costs_flips_and_runners_up_are_compared() -> None:
    plan = timed()
    old = plan.variable("embedding")
    flips = (Flip("link", 1e9, True, "allreduce"),)
    for new in (
        replace(old, cost=replace(old.cost, sent_bytes=None)),
        replace(old, cost=replace(old.cost, rounds=9)),
        replace(old, cost=replace(old.cost, terms=old.cost.terms[1:])),
        replace(old, cost=replace(old.cost, note="x")),
        replace(old, flips=flips),
        replace(old, runner_up=None),
        replace(old, cost=replace(old.cost, seconds=(old.cost.seconds or 0) * (1 + 1e-12))),
    ):
        found = differences(plan, replace(plan, variables=(new, *plan.variables[1:])))
        assert found and all(d.first != d.second for d in found), new


def test_a_variable_that_one_plan_lacks_is_named() -> None:
    plan = timed()
    (_, found) = differences(plan, replace(plan, variables=plan.variables[1:]))
    assert (found.variable, found.first, found.second) == ("embedding", "alltoall", "there is none")


def test_the_exit_status_says_whether_plans_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, same, other = (tmp_path / name for name in ("one.json", "same.json", "other.json"))
    one.write_text(timed().to_json())
    same.write_text(json.dumps(json.loads(timed().to_json())))
    other.write_text(timed(30 * MB).to_json())
    assert plan_from_json(one.read_text()) == timed()
    assert diff(capsys, one, same) == (0, "The plans are equal.\n", "")
    status, said, _ = diff(capsys, one, other)
    assert status == 1 and "predicted step" in said and str(other) in said
    status, _, said = diff(capsys, one, tmp_path / "none.json")
    assert status == 2 and "cannot read the plan file" in said
