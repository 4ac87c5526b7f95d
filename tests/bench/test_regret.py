"""What the bench of regret compares and says; a tiny run of it needs a lab."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ops.bench.regret.cases import Case, Choice, case_from_json, models, table
from ops.bench.regret.flip import Point, points_of, side_line
from ops.bench.regret.measure import Wanted, measured_cases
from ops.lab import why_not
from parallax.analysis.planner import make_plan
from parallax.cluster.plan_inputs import PlanInputs
from parallax.plans.plan import Layout
from tests.analysis.measured import MB, equal_hosts
from tests.analysis.specs import sparse, spec

ROOT = Path(__file__).parents[2]
MBIT = 125_000
RATES = (50 * MBIT, 1000 * MBIT)


def choice(route: str, predicted_s: float, plan: str = "{}") -> Choice:
    return Choice((("emb", route), ("w", "allreduce")), predicted_s, plan)


def case(*rounds_s: tuple[float, ...]) -> Case:
    choices = tuple(choice(route, 0.01) for route in ("alltoall", "allgather", "ps")[: len(rounds_s)])
    return Case(models(1, RATES)[0], choices, 9, 4, 2, rounds_s)


def test_the_models_are_the_same_every_time_and_take_the_rates_in_turn() -> None:
    assert models(20, RATES) == models(20, RATES)
    assert models(3, RATES) == models(20, RATES)[:3]
    assert [m.rate_bytes_per_s for m in models(3, RATES)] == [RATES[0], RATES[1], RATES[0]]
    assert len({m.title for m in models(20, RATES)}) == 20


def test_the_ratio_is_that_of_the_medians() -> None:
    slower = case((0.011, 0.022, 0.033), (0.010, 0.020, 0.050))
    assert slower.best == 1 and slower.ratio == pytest.approx(1.1)
    assert case((0.01, 0.02, 0.03), (0.02, 0.03, 0.04)).ratio == 1.0
    assert case_from_json(slower.to_json()) == slower


def test_the_table_tells_the_share_near_the_best_and_what_was_left_out() -> None:
    near, far = case((0.0104,), (0.01,)), case((0.02,), (0.01,))
    lines = table([near] * 9 + [far])
    assert "ratio 2.000; 2 of 9 plans measured, 4 left out as too slow, 2 by --plans" in lines[-3]
    assert "Within 5% of the best: 9 of 10 cases, 90%; target at least 90%: met" in lines[-2]
    assert "40 of 90 plans" in lines[-1]
    assert "MISSED" in table([near, far])[-2]


def test_cases_that_were_measured_are_not_measured_again(tmp_path: Path) -> None:
    wanted = Wanted(models(2, RATES), RATES, 3, 6, 3, 0.1, tmp_path)
    known = case((0.01,), (0.02,))
    wanted.done(wanted.models[0]).write_text(known.to_json())
    assert measured_cases(wanted, lambda: False, pytest.fail) == (known,)


def test_a_flip_point_is_taken_from_the_plan_where_a_lab_can_emulate_both_sides() -> None:
    of = spec(sparse("emb", (2000, 64), 900))
    plan = make_plan(of, Layout((1,) * 3), None, PlanInputs(equal_hosts(3, 25 * MB)))
    planned = replace(case((0.01,)), choices=(choice("alltoall", 0.01, plan.to_json()),))
    (variable,) = plan.variables
    links = [flip for flip in variable.flips if flip.quantity == "link"]
    assert links
    found = points_of([planned])
    inside = [flip for flip in links if 2_500_000 <= flip.value <= 62_500_000]
    assert [(p.rate, p.other, p.above) for p in found] == [(f.value, f.route, f.above) for f in inside]
    assert Point(planned.model, "emb", "alltoall", "allgather", 12.5e6, True).title == (
        "emb: alltoall, but allgather above 100.0 mbit/s"
    )


def test_a_side_of_a_flip_point_is_as_planned_when_its_own_plan_is_faster() -> None:
    assert side_line(case((0.01,), (0.02,))).endswith(": as planned")
    assert side_line(case((0.02,), (0.01,))).endswith(": NOT as planned")


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_plans_of_a_model_are_measured_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    sizes = ("--cases", "1", "--rates", "400mbit", "--hosts", "2", "--plans", "3", "--rounds", "2")
    argv = [sys.executable, "-m", "ops.bench", "regret", *sizes, "--turn-seconds", "0.05", "--json", str(file)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(file.read_text())
    assert 1 <= len(found["choices"]) <= 3
    assert [len(of_choice) for of_choice in found["rounds_s"]] == [2] * len(found["choices"])
    assert found["ratio"] >= 1
