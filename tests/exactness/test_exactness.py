"""Graphs of the grammar are equal to one process or refused; a fault is noticed, and kept as a minimal program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.exactness.__main__ import main
from ops.exactness.children import Trials, run_trials
from ops.exactness.draft import Program, Statement
from ops.exactness.grammar import program
from ops.exactness.runs import Built
from ops.exactness.shrink import shrink_program
from ops.exactness.trial import ROUTES, Outcome, try_program
from parallax.analysis.reading.capture import capture
from parallax.plans.rewrites import Rewrites

PLAIN = Program(
    title="A lookup and a dense layer.",
    workers=3,
    feeds=(("ids", "rng.randint(0, 11, [rows])"), ("y", "rng.randn(rows)")),
    statements=(
        Statement('ids = v1.placeholder(tf.int64, [rows], name="ids")', is_kept=True),
        Statement('y = v1.placeholder(F, [rows], name="y")', is_kept=True),
        Statement('emb = v1.get_variable("emb", [11, 4], F)', is_kept=True),
        Statement('w = v1.get_variable("w", [4, 1], F)', is_kept=True),
        Statement("h0 = tf.gather(emb, ids)", "h0", is_kept=True),
        Statement("h1 = tf.tanh(h0)", "h1", "h0"),
        Statement("h2 = h1 + h0", "h2", "h1"),
        Statement("loss = tf.reduce_mean(tf.square((h2 @ w)[:, 0] - y))", is_kept=True),
        Statement("train = v1.train.AdagradOptimizer(0.3).minimize(loss)", is_kept=True),
    ),
)


GRAPHS, QUICK, GROUP = 300, 40, 20
"""A group, which is one test, takes some 10 s of processor. Those after QUICK are for `-m slow`, and
`python -m ops.exactness` tries more.
"""
ONE_ROUTE = Trials(1, workers=None, routes="one", claims=False)


def without_all_reduces(rewrites: Rewrites) -> Rewrites:
    return replace(rewrites, all_reduces=())


def test_a_transform_broken_on_purpose_is_wrong_with_a_minimal_program_that_runs() -> None:
    def trial(one: Program) -> Outcome:
        return try_program(one.source(), ["allgather"], without_all_reduces)["allgather"]

    fault = trial(PLAIN)
    assert (fault.kind, "w:0 by " in fault.message) == ("wrong", True)
    least, outcome = shrink_program(PLAIN, fault, trial)
    assert (outcome.kind, least.workers) == ("wrong", 2)
    assert [s.text for s in least.statements if not s.is_kept] == []
    assert "(h0 @ w)" in least.source()
    assert try_program(least.source(), ["allgather"])["allgather"].kind == "equal"


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=[pytest.mark.slow] * (n >= QUICK)) for n in range(0, GRAPHS, GROUP)]
)
def test_graphs_of_the_grammar_are_equal_or_refused(first: int, request: pytest.FixtureRequest) -> None:
    """The seed is the date's (tests/conftest.py): each day tries other graphs."""
    trials = replace(ONE_ROUTE, seed=request.config.getoption("--graphs-seed"))
    assert faults_of(trials, range(first, first + GROUP)) == []


def faults_of(trials: Trials, numbers: Sequence[int]) -> list[str]:
    """What came of graphs that are neither equal nor refused, each with the command that tries it again."""
    return [
        f"{outcome.kind} by {route}: {outcome.message[:300]}\n"
        f"Again: python -m ops.exactness --seed {trials.seed} --only {number} --routes {route}"
        for number, outcomes in run_trials(trials, numbers, processes=1, until=math.inf)
        for route, outcome in outcomes.items()
        if outcome.is_fault
    ]


def test_a_graph_with_a_fault_is_told_with_the_command_that_tries_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {4: {"alltoall": Outcome("wrong", "w:0 by 0.5")}, 5: {"hybrid": Outcome("equal")}}
    monkeypatch.setattr("tests.exactness.test_exactness.run_trials", lambda *_, **__: found.items())
    assert faults_of(replace(ONE_ROUTE, seed=20261231), [4, 5]) == [
        "wrong by alltoall: w:0 by 0.5\nAgain: python -m ops.exactness --seed 20261231 --only 4 --routes alltoall"
    ]


def test_a_plain_graph_is_equal_by_every_route_and_what_is_said_of_its_tensors_holds() -> None:
    outcomes = try_program(PLAIN.source(), claims=True)
    assert {r: (o.kind, o.claim) for r, o in outcomes.items()} == dict.fromkeys(ROUTES, ("equal", ""))
    assert "emb: sparse by allgather" in outcomes["allgather"].routes


def test_a_refusal_and_an_error_of_the_program_are_told_apart() -> None:
    def with_loss(text: str) -> Outcome:
        made = replace(PLAIN, statements=(*PLAIN.statements[:-2], Statement(text), PLAIN.statements[-1]))
        return try_program(made.source(), ["hybrid"])["hybrid"]

    assert with_loss("loss = unheard_of").kind == "invalid"
    refused = with_loss("loss = tf.reduce_mean(h2)\ntf.no_op(name='parallax/taken')")
    assert (refused.kind, refused.message.split(":")[0]) == ("refused", "TransformError")


def test_seed_and_number_say_which_program_it_is() -> None:
    assert program(5, 3) == program(5, 3)
    assert len({program(5, number).source() for number in range(20)}) == 20
    assert "exactness" not in program(5, 3).source(how="")


def test_values_that_are_not_finite_in_one_process_are_counted_apart_and_are_no_fault() -> None:
    statements = (*PLAIN.statements[:-1], Statement("train = v1.train.GradientDescentOptimizer(1e300).minimize(loss)"))
    outcome = try_program(replace(PLAIN, statements=statements).source(), ["hybrid"])["hybrid"]
    assert (outcome.kind, outcome.is_fault) == ("infinite", False)


def test_what_a_program_magnifies_roundings_to_is_counted_apart_and_is_no_fault() -> None:
    def with_loss(text: str, **options: Any) -> Outcome:
        steep = (*PLAIN.statements[:-2], Statement(f"loss = tf.reduce_mean({text})"), PLAIN.statements[-1])
        return try_program(replace(PLAIN, statements=steep).source(), ["hybrid"], **options)["hybrid"]

    outcome = with_loss("tf.sin(1e5 * (h2 @ w)[:, 0] - y)")
    assert (outcome.kind, outcome.is_fault) == ("unstable", False)
    # What is left of sums that are equal but for roundings, which no initial value moves.
    left = "tf.square((h2 @ w)[:, 0] - y) * tf.sign(tf.reduce_sum(y) - tf.reduce_sum(3.0 * y) / 3.0)"
    assert with_loss(left).kind == "unstable"
    # A wrong gradient of a program that magnifies less is no rounding.
    assert with_loss("tf.sin((h2 @ w)[:, 0] - y)", break_on_purpose=without_all_reduces).kind == "wrong"


def test_the_bound_follows_from_the_type_computed_in() -> None:
    def computed_in(loss: str) -> str:
        made = replace(PLAIN, statements=(*PLAIN.statements[:-2], Statement(loss), PLAIN.statements[-1]))
        built = Built.of(made.source())
        return built.computed_in(capture(built.graph).view)

    assert computed_in("loss = tf.reduce_mean(tf.square((h2 @ w)[:, 0] - y))") == "float64"
    assert computed_in("loss = v1.losses.mean_squared_error(y, (h2 @ w)[:, 0])") == "float32"


def test_children_try_all_programs_and_say_what_came_of_them() -> None:
    found = dict(run_trials(ONE_ROUTE, [4, 5], processes=2, until=math.inf))
    assert {number: len(outcomes) for number, outcomes in found.items()} == {4: 1, 5: 1}


def test_many_graphs_are_tried_by_one_route_each_in_turn() -> None:
    assert [ONE_ROUTE.routes_of(number)[0] for number in range(3, 7)] == list(ROUTES)
    assert replace(ONE_ROUTE, routes="all").routes_of(3) == ROUTES
    assert replace(ONE_ROUTE, routes="hybrid,allgather").routes_of(3) == ("hybrid", "allgather")


def test_the_command_tries_a_program_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "program.py"
    file.write_text(PLAIN.source())
    assert main(["--script", str(file), "--routes", "hybrid"]) == 0
    assert capsys.readouterr().out.startswith("hybrid: equal")
