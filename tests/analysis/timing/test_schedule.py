"""Bounds and schedules of steps: in numbers that can be followed by hand, and against all schedules of small steps."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from parallax.analysis.timing.intervals import length, measure_overlap, shares, union
from parallax.analysis.timing.list_schedule import hidden_frac, schedule_one_step, schedule_overlapping_steps
from parallax.analysis.timing.schedule import (
    Activity,
    StepActivities,
    bound_period_seconds,
    bound_step_seconds,
    jackson_makespan,
    largest_cycle_mean,
    step_of_activities,
)

DEVICE, LINK = "device", "link"


def layers(forward: list[float], backward: list[float], reduced: list[float]) -> StepActivities:
    """A network whose gradients are all-reduced, the last layer's first; each is read by the next step's layer."""
    number = len(forward)
    found = [Activity(f"f{n}", forward[n], DEVICE, (f"f{n - 1}",) if n else ()) for n in range(number)]
    for n in reversed(range(number)):
        found.append(Activity(f"b{n}", backward[n], DEVICE, (f"b{n + 1}" if n + 1 < number else f"f{n}",)))
        found.append(Activity(f"r{n}", reduced[n], LINK, (f"b{n}",)))
    return step_of_activities(found, [(f"r{n}", f"f{n}") for n in range(number)])


# --- by hand ---


def test_a_chain_is_as_long_as_its_parts_and_overlaps_with_nothing() -> None:
    pull, compute, push = (
        Activity("pull", 2, LINK),
        Activity("compute", 3, DEVICE, ("pull",)),
        Activity("push", 4, LINK, ("compute",)),
    )
    step = step_of_activities([push, pull, compute], [("push", "pull")])
    assert step.names == ("pull", "compute", "push")
    assert (bound_step_seconds(step), schedule_one_step(step).step_s) == (9, 9)
    assert (bound_period_seconds(step), schedule_overlapping_steps(step).step_s) == (9, 9)
    assert schedule_one_step(step).hidden_frac(DEVICE) == 0


def test_without_the_border_the_link_is_the_longest_part() -> None:
    pull, compute = Activity("pull", 2, LINK), Activity("compute", 3, DEVICE, ("pull",))
    step = step_of_activities([pull, compute, Activity("push", 4, LINK, ("compute",))])
    assert bound_period_seconds(step) == 6
    found = schedule_overlapping_steps(step)
    assert 6 <= found.step_s <= 7 and 0.4 < found.hidden_frac(DEVICE) <= 0.5, "with two steps on their way at most"


def test_all_reduces_are_hidden_behind_the_layers_before() -> None:
    step = layers([1, 1, 1], [2, 2, 2], [3, 1, 1])
    # f 3, b2 5, b1 7, b0 9; r2 5-6, r1 7-8, r0 9-12.
    assert (bound_step_seconds(step), schedule_one_step(step).step_s) == (12, 12)
    assert schedule_one_step(step).busy == {DEVICE: ((0, 9),), LINK: ((5, 6), (7, 8), (9, 12))}
    assert schedule_one_step(step).hidden_frac(DEVICE) == pytest.approx(2 / 5)
    # f0 waits for r0 of the step before, which follows all of its layers: 12 from f0 to the end of r0.
    assert bound_period_seconds(step) == 12


def test_steps_that_overlap_read_a_variable_after_its_update_and_others_before() -> None:
    step = layers([1, 1, 1], [2, 2, 2], [1, 1, 4])
    # r2 is 5-9 beside b1 and b0, which end at 9; r1 follows until 10 and r0 until 11.
    assert (bound_step_seconds(step), schedule_one_step(step).step_s) == (11, 11)
    # f0 to b0 are 9, and r0 follows at once where the link is given to it: f0 again after 10.
    assert bound_period_seconds(step) == 10
    assert schedule_overlapping_steps(step).step_s in (10, 11)


def test_what_one_resource_must_do_before_an_activity_makes_its_head() -> None:
    wide = [Activity(f"c{n}", 1, DEVICE) for n in range(4)]
    every = tuple(one.name for one in wide)
    send = Activity("send", 3, LINK, every)
    step = step_of_activities([*wide, send, *(Activity(f"d{n}", 1, DEVICE, ("send",)) for n in range(5))])
    assert bound_step_seconds(step) == 4 + 3 + 5, "the longest path is 5"


def test_what_lies_between_two_borders_on_one_resource_makes_the_period() -> None:
    wide = [Activity(f"c{n}", 1, DEVICE, ("pull",)) for n in range(4)]
    push = Activity("push", 2, LINK, tuple(one.name for one in wide))
    step = step_of_activities([Activity("pull", 1, LINK), *wide, push], [("push", "pull")])
    assert bound_period_seconds(step) == 1 + 4 + 2, "the longest path is 1 + 1 + 2"


def test_what_must_pass_from_a_layer_to_the_next_steps_makes_the_period() -> None:
    # Rows are pulled before the layer and pushed after it, and its variable is all-reduced: all of it until it begins.
    pull, layer = Activity("pull", 3, LINK), Activity("layer", 2, DEVICE, ("pull", "read"))
    ends = [Activity("push", 3, LINK, ("layer",)), Activity("reduce", 4, LINK, ("layer",)), Activity("read", 0)]
    step = step_of_activities([pull, layer, *ends], [("push", "pull"), ("reduce", "read")])
    # The rows' cycle takes 8, that of the variable 6, and the link 10.
    assert bound_period_seconds(step) == 2 + 3 + 4 + 3
    assert schedule_overlapping_steps(step).step_s == 12


def test_what_takes_no_resource_delays_and_loads_nothing() -> None:
    step = step_of_activities([Activity("wait", 5), Activity("other", 5), Activity("c", 1, DEVICE, ("wait", "other"))])
    assert bound_step_seconds(step) == schedule_one_step(step).step_s == 6
    assert bound_period_seconds(step) == 1


def test_what_must_not_be_beside_itself_makes_the_period() -> None:
    step = step_of_activities([Activity("queue", 5), Activity("c", 1, DEVICE)], [("queue", "queue")])
    assert bound_period_seconds(step) == schedule_overlapping_steps(step).step_s == 5


def test_a_cycle_over_two_borders_counts_half() -> None:
    # a -> b in a step, b to the next step's c, c -> d, d to the next step's a.
    chain = [Activity("a", 1), Activity("b", 2, None, ("a",)), Activity("c", 3), Activity("d", 4, None, ("c",))]
    step = step_of_activities(chain, [("b", "c"), ("d", "a")])
    assert bound_period_seconds(step) == pytest.approx((1 + 2 + 3 + 4) / 2)


def test_jacksons_schedule_lets_the_longest_tail_go_first() -> None:
    # 0-2 the first (tail 1), 2-5 the second (tail 7), then the rest of the first 5-7; ends 8 and 12.
    assert jackson_makespan(np.array([0.0, 2.0]), np.array([4.0, 3.0]), np.array([1.0, 7.0])) == 12
    assert jackson_makespan(np.array([]), np.array([]), np.array([])) == 0


def test_a_step_of_nothing_takes_no_time() -> None:
    nothing = step_of_activities([])
    assert bound_step_seconds(nothing) == bound_period_seconds(nothing) == 0
    assert schedule_one_step(nothing).step_s == schedule_overlapping_steps(nothing).step_s == 0
    assert schedule_one_step(nothing).hidden_frac(DEVICE) is None


@pytest.mark.parametrize(
    ("activities", "borders", "message"),
    [
        ([Activity("a", 1), Activity("a", 2)], [], "a name of its own"),
        ([Activity("a", 1, None, ("b",))], [], "needs b, which is none of the step"),
        ([Activity("a", 1)], [("a", "b")], "needs b, which is none of the step"),
        ([Activity("a", 1, None, ("b",)), Activity("b", 1, None, ("a",))], [], "in a circle, of which a waits"),
    ],
)
def test_what_is_no_step_is_refused(activities: list[Activity], borders: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step_of_activities(activities, borders)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_seconds_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="0 seconds or more"):
        Activity("a", seconds)


# --- intervals ---


def test_time_that_several_take_is_shared() -> None:
    found = shares([("a", 0, 4), ("b", 2, 6), ("c", 2, 3), ("a", 8, 10), ("d", 5, 5)])
    # a: 2 alone, 1/3 of 1, 1/2 of 1, and 2 alone; b: 1/3, 1/2 and 2 alone.
    assert found == pytest.approx({"a": 2 + 1 / 3 + 1 / 2 + 2, "b": 1 / 3 + 1 / 2 + 2, "c": 1 / 3})
    assert sum(found.values()) == pytest.approx(length([(0, 6), (8, 10)]))


def test_what_lies_beside_others_is_counted_once() -> None:
    assert measure_overlap([(0, 4), (3, 6)], [(1, 2), (5, 9)]) == 2
    assert hidden_frac([(0, 4)], [(1, 2)]) == 0.25 and hidden_frac([], [(1, 2)]) is None
    assert union([(5, 5), (3, 4), (0, 3)]) == [(0, 4)]


# --- against all schedules ---


def drawn(seed: int, number: int) -> StepActivities:
    """A random step of whole seconds, with random borders."""
    draw = random.Random(seed)
    activities = []
    for n in range(number):
        needs = tuple(f"a{k}" for k in range(n) if draw.random() < 0.35)
        activities.append(Activity(f"a{n}", draw.randint(0, 5), draw.choice([DEVICE, LINK, LINK, None]), needs))
    borders = [(f"a{a}", f"a{b}") for a in range(number) for b in range(number) if draw.random() < 0.1]
    return step_of_activities(activities, borders)


def of_several(step: StepActivities, count: int) -> StepActivities:
    """Some steps as one."""
    found = [
        Activity(
            f"{s}{step.names[n]}",
            float(step.seconds[n]),
            step.resources[n],
            tuple(
                [f"{s}{step.names[k]}" for k in step.needs[n]]
                + [f"{s - 1}{step.names[a]}" for a, b in step.borders if b == n and s]
            ),
        )
        for s in range(count)
        for n in range(len(step.names))
    ]
    return step_of_activities(found)


def optimum(step: StepActivities) -> float:
    """The shortest schedule, of all orders in which each resource may carry out what it has to."""
    by_resource = {name: [n for n, one in enumerate(step.resources) if one == name] for name in step.loads()}
    best = float("inf")
    for orders in itertools.product(*(itertools.permutations(places) for places in by_resource.values())):
        after = [set(needed) for needed in step.needs]
        for order in orders:
            for one, other in itertools.pairwise(order):
                after[other].add(one)
        ends: dict[int, float] = {}
        while len(ends) < len(after):
            ready = [n for n, needed in enumerate(after) if n not in ends and needed <= ends.keys()]
            if not ready:
                break
            for n in ready:
                ends[n] = float(step.seconds[n]) + max((ends[k] for k in after[n]), default=0.0)
        else:
            best = min(best, max(ends.values()))
    return best


@pytest.mark.rotates
@pytest.mark.parametrize("seed", range(40))
def test_the_shortest_schedule_lies_between_bound_and_list(seed: int) -> None:
    step = drawn(seed, 6)
    best = optimum(step)
    assert bound_step_seconds(step) <= best + 1e-9
    assert best <= schedule_one_step(step).step_s + 1e-9


def test_the_bound_is_mostly_the_optimum() -> None:
    steps = [drawn(seed, 6) for seed in range(20)]
    assert sum(bound_step_seconds(step) == pytest.approx(optimum(step)) for step in steps) >= 18


@pytest.mark.rotates
@pytest.mark.parametrize("seed", range(100, 130))
def test_so_many_steps_that_overlap_take_no_less_than_their_periods(seed: int) -> None:
    step = drawn(seed, 3)
    period, three, many = bound_period_seconds(step), of_several(step, 3), of_several(step, 40)
    # From the beginning of an activity in the first step to that in the last are 2 periods.
    assert max(2 * period, 3 * max(step.loads().values(), default=0.0)) <= optimum(three) + 1e-9
    assert 39 * period <= schedule_one_step(many).step_s + 1e-9
    assert schedule_overlapping_steps(step, period).step_s >= period


@pytest.mark.rotates
@pytest.mark.parametrize("seed", range(200, 230))
def test_without_resources_the_period_is_kept_exactly(seed: int) -> None:
    with_resources = drawn(seed, 6)
    step = step_of_activities(
        [
            Activity(name, float(seconds), None, tuple(with_resources.names[k] for k in needs))
            for name, seconds, needs in zip(
                with_resources.names, with_resources.seconds, with_resources.needs, strict=True
            )
        ],
        [(with_resources.names[a], with_resources.names[b]) for a, b in with_resources.borders],
    )
    over = [schedule_one_step(of_several(step, count)).step_s for count in (61, 121)]
    assert (over[1] - over[0]) / 60 == pytest.approx(bound_period_seconds(step))


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_mean_is_that_of_the_heaviest_cycle_of_all(seed: int) -> None:
    draw = np.random.default_rng(seed)
    weights = np.where(draw.random((5, 5)) < 0.4, draw.integers(0, 9, (5, 5)).astype(float), -np.inf)
    means = [0.0]
    for size in range(1, 6):
        for cycle in itertools.permutations(range(5), size):
            means.append(sum(weights[a, b] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)) / size)
    assert largest_cycle_mean(weights) == pytest.approx(max(means))
