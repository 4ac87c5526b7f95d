"""Whether another plan is better with what the first steps showed, and how many partitions measured steps ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallax.analysis.planner import make_plan
from parallax.analysis.search.predict_plan import step_seconds
from parallax.analysis.whatif.partition_search import (
    MOST_SAMPLES,
    PartitionSample,
    best_count,
    fit,
    next_count,
    searched_tables,
    with_partitions,
)
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.ownership import Ownership
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import ROUTES, Layout, Plan, PlanConstraints
from parallax.runtime.replan.replan import verdict
from tests.analysis.measured import MB, cluster, equal_hosts, host, model, table
from tests.analysis.specs import dense, sparse, spec

FOUR = Layout((1, 1, 1, 1))


def graph() -> GraphSpec:
    return spec(dense(shape=(400, 50)), sparse(shape=(20_000, 16), ids=600))


def measured(rows: float = 450) -> PlanInputs:
    return PlanInputs(equal_hosts(4), model(table("emb", rows, 1.6 * rows), of=graph()))


def plan_by(route: str) -> Plan:
    """As a job may have begun: without a profile, by a route that was asked for."""
    return make_plan(graph(), FOUR, PlanConstraints(routes={"emb": route}))


def test_a_plan_is_priced_as_the_planner_prices_it() -> None:
    best = make_plan(graph(), FOUR, None, measured())
    assert step_seconds(graph(), best, FOUR, PlanConstraints(), measured()) == pytest.approx(best.prediction.step_s)
    for route in ("allreduce", "allgather", "alltoall"):
        forced = make_plan(graph(), FOUR, PlanConstraints(routes={"emb": route}), measured())
        found = step_seconds(graph(), plan_by(route), FOUR, PlanConstraints(), measured())
        assert found == pytest.approx(forced.prediction.step_s) and found >= best.prediction.step_s


def test_unequal_owners_and_servers_are_priced_where_the_plan_has_them() -> None:
    slow = PlanInputs(cluster(*(host(n, 25 * MB if n else 2 * MB, 25 * MB) for n in range(4))), measured().model)
    layout = Layout((1, 1, 1, 1), (0, 1, 2, 3))
    for constraints in (
        PlanConstraints(routes={"emb": "alltoall"}),
        PlanConstraints(routes={"emb": "ps"}, partitions={"emb": 3}),
    ):
        plan = make_plan(graph(), layout, constraints, slow)
        found = step_seconds(graph(), plan, layout, PlanConstraints(), slow)
        assert found == pytest.approx(plan.prediction.step_s), constraints
    assert make_plan(graph(), layout, PlanConstraints(routes={"emb": "alltoall"}), slow).variable("emb").owner_pattern


def test_without_links_nothing_is_priced() -> None:
    assert step_seconds(graph(), plan_by("alltoall"), FOUR, PlanConstraints(), PlanInputs()) is None
    lacking = replace(measured(), cluster=equal_hosts(4, operations=("allreduce",)))
    assert step_seconds(graph(), plan_by("alltoall"), FOUR, PlanConstraints(), lacking) is None


def test_a_plan_must_be_better_by_the_margin() -> None:
    best, now = make_plan(graph(), FOUR, None, measured()), plan_by("allreduce")
    step_s = best.prediction.step_s
    assert step_s is not None and best.variable("emb").route == "alltoall"
    taken = verdict(now, 2 * step_s, best, 0.4, 7)
    assert taken.plan is best and taken.text.startswith("After 7 steps: ") and ", 50 % less:\n" in taken.text
    assert "  emb: allreduce, held by every worker -> alltoall, held by 4 owners\n" in taken.text
    stays = verdict(now, 2 * step_s, best, 0.6, 7)
    assert stays.plan is None and "50 % less, below 60 %" in stays.text
    assert verdict(now, 2 * step_s, best, 0.5, 7).plan is best


def test_what_travels_alike_is_no_other_plan_and_the_unknown_no_better_one() -> None:
    best = make_plan(graph(), FOUR, None, measured())
    same = verdict(plan_by("alltoall"), 99.0, best, 0.1, 1)
    assert (
        same.plan is None
        and same.text == "After 1 step the plan stays: it is still the best for the rows that they touched.\n"
    )
    unknown = verdict(plan_by("allreduce"), None, best, 0.1, 2)
    assert unknown.plan is None and "the cluster profile lacks" in unknown.text


def tried(seconds: dict[int, float], first: int, most: int = 64) -> tuple[list[int], int]:
    """(the counts in the order in which they are tried, the best), where steps last as long as `seconds` says."""
    samples = [PartitionSample(first, seconds[first])]
    while (count := next_count(samples, most)) is not None:
        samples.append(PartitionSample(count, seconds[count]))
    return [s.count for s in samples], best_count(samples)


def test_partitions_double_while_steps_get_shorter_then_the_curve_says_which() -> None:
    curve = {count: 64 / count + count + 10 for count in range(1, 129)}  # least at 8
    assert tried(curve, 2) == ([2, 4, 8, 16, 1], 8)
    between = {count: 36 / count + count + 10 for count in range(1, 129)}  # least at 6
    assert tried(between, 1) == ([1, 2, 4, 8, 16, 6], 6)
    assert fit([PartitionSample(n, between[n]) for n in (1, 2, 4)]).seconds(6) == pytest.approx(between[6])


def test_partitions_that_only_cost_are_halved_to_one() -> None:
    rising = {count: 10.0 + count for count in range(1, 129)}
    assert tried(rising, 4) == ([4, 8, 2, 1], 1)
    assert tried(rising, 1, most=1) == ([1], 1)


def test_a_search_ends_after_so_many_counts_whatever_the_steps() -> None:
    falling = {count: 1000.0 / count for count in range(1, 10_000)}
    counts, best = tried(falling, 1, most=9_000)
    assert counts == [2**n for n in range(MOST_SAMPLES)] and best == counts[-1]
    level = {count: 5.0 for count in range(1, 129)}
    assert tried(level, 4) == ([4, 8, 2], 2)


def test_tables_get_as_many_partitions_as_they_have_rows_and_all_else_stays() -> None:
    of = spec(dense(), sparse("a", (1000, 8)), sparse("b", (3, 8), 3), sparse("c", (90, 8)))
    plan = make_plan(of, Layout((2,), (0, 0)), PlanConstraints("PS", partitions={"c": 2}))
    tables = searched_tables(of, plan, {"c": 2})
    assert tables == ("a", "b")
    found = with_partitions(plan, of, tables, 5)
    assert [len(found.variable(name).servers[0]) for name in ("a", "b", "c")] == [5, 3, 2]
    assert sum(found.variable("a").owner_rows) == 1000 and max(found.variable("a").owner_rows) <= 600
    assert found.variable("a").owner_rows[0] == sum(
        Ownership.even(5).count(part, 1000) for part, server in enumerate(found.variable("a").servers[0]) if server == 0
    )
    assert [found.variable(n) for n in ("c", "w")] == [plan.variable(n) for n in ("c", "w")]
    assert {v.route for v in found.variables} <= set(ROUTES)
