"""When systems count as having computed the same, and how long their turns are."""

import pytest

from ops.bench.race.agreement import agreements, bound
from ops.bench.race.results import Race, Ran, Results, Turn, results_from_json
from ops.bench.race.rounds import turn_steps


def ran(system, *losses, synchronous=True):
    return Ran(system, synchronous, (), losses, ())


def test_losses_are_compared_over_the_steps_that_both_have_run():
    [one] = agreements([ran("a", 4.0, 2.0, 1.0), ran("b", 4.0, 2.0001)])
    assert (one.system, one.reference, one.steps, one.at_step, one.holds) == ("b", "a", 2, 1, True)
    assert one.worst == pytest.approx(5e-5, rel=1e-3)


def test_a_loss_beyond_the_bound_of_its_step_is_found_wherever_it_is():
    late = [1.0] * 100
    late[99] += 0.9 * bound(99)
    assert agreements([ran("a", *[1.0] * 100), ran("b", *late)])[0].holds
    early = [1.0, 1.0 + 0.9 * bound(99), *[1.0] * 98]
    assert not agreements([ran("a", *[1.0] * 100), ran("b", *early)])[0].holds


def test_a_loss_that_is_no_number_agrees_with_none():
    assert not agreements([ran("a", 1.0), ran("b", float("nan"))])[0].holds


def test_asynchronous_systems_and_those_that_did_not_run_are_not_compared():
    runs = [ran("dead"), ran("async", 9.0, synchronous=False), ran("a", 1.0), ran("b", 1.0)]
    assert [(one.system, one.reference) for one in agreements(runs)] == [("b", "a")]


@pytest.mark.parametrize(("step_s", "steps"), [(0.001, 200), (0.1, 50), (2.0, 3), (19.0, 3), (21.0, 2)])
def test_a_turn_has_as_many_steps_as_fit_within_bounds(step_s, steps):
    assert turn_steps(step_s, turn_s=5.0) == steps


def test_results_come_back_from_json_as_they_were():
    turn = Turn(3, 0.5, (10, 20), (30, 40), 1.5)
    runs = (Ran("a", True, (turn, turn), (1.0, 0.5), (7, 6)), Ran("b", False, (), (), (), "died"))
    race = Race("embed", (("rows", 10), ("skew", 1.3)), 2, 1, 25e6, 64, "words", 12.5, "1 + 2", 0.01, runs)
    results = Results("race", "a machine", "2026-01-01", ("no lab",), (race,))
    assert results_from_json(results.to_json()) == results
