"""The bytes and seconds of a meeting of islands, and the step within one, in numbers that can be followed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallax.analysis import planner
from parallax.analysis.plan_islands import plan_in_islands
from parallax.base.errors import PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import cluster_profile_from_json
from parallax.plans.island_plan import IslandPlan
from parallax.plans.plan import Layout, Plan, PlanConstraints
from parallax.report.plan_table import plan_table
from parallax.settings.config import Config
from parallax.settings.islands import Islands
from tests.analysis.measured import LINES, MB, cluster, equal_hosts, host, scaled
from tests.analysis.specs import dense, sparse, spec

TERMS = IslandPlan(2, 8, 0.7, 0.9, 1.0, False)
ON_FOUR = Layout((1, 1, 1, 1), (), 2)
MODEL = spec(dense("w", (500, 1000)), sparse("emb", (100_000, 64), 1000))
TO_OWNERS = PlanConstraints(routes={"emb": "alltoall"})


def planned(layout: Layout, known: PlanInputs, terms: IslandPlan = TERMS, of=MODEL) -> Plan:
    routes = TO_OWNERS.routes if of is MODEL else {}

    def make(own: Layout, constraints: PlanConstraints, given: PlanInputs) -> Plan:
        return planner.make_plan(of, own, constraints, given)

    return plan_in_islands(layout, Config(islands=Islands()), terms, replace(TO_OWNERS, routes=routes), known, of, make)


def test_a_step_is_that_of_a_job_of_the_islands_hosts() -> None:
    known = PlanInputs(equal_hosts(4))
    alone = planner.make_plan(MODEL, Layout((1, 1)), TO_OWNERS, PlanInputs(equal_hosts(2)))
    plan = planned(ON_FOUR, known)
    assert plan.prediction.step_s == pytest.approx(alone.prediction.step_s)
    assert plan.profiles[0].fingerprint == known.cluster.fingerprint
    slow = cluster(*(host(n, rate * MB) for n, rate in enumerate((25, 25, 25, 5))))
    half = planner.make_plan(MODEL, Layout((1, 1)), TO_OWNERS, PlanInputs(cluster(host(0), host(1, 5 * MB))))
    assert planned(ON_FOUR, PlanInputs(slow)).prediction.step_s == pytest.approx(half.prediction.step_s)


def test_a_meeting_sends_dense_variables_and_the_union_of_touched_rows() -> None:
    plan = planned(ON_FOUR, PlanInputs())
    rows = 4 * 8 * 1000  # workers, updates, and ids of each
    assert plan.islands.meeting_bytes == 4 * 500_000 + 100_000 / 8 + 4 * 64 * rows
    assert plan.islands.meeting_s is None
    assert "At a meeting an island sends others at most 10.2 MB." in plan_table(plan)
    assert planned(ON_FOUR, PlanInputs(), replace(TERMS, every=1000)).islands.meeting_bytes == 27_612_500  # all rows


def test_half_precision_halves_the_dense_part_of_a_meeting() -> None:
    plan = planned(ON_FOUR, PlanInputs(), replace(TERMS, wire_dtype="bfloat16"))
    assert plan.islands.meeting_bytes == 2 * 500_000 + 100_000 / 8 + 4 * 64 * 4 * 8 * 1000
    assert plan.islands.travels_as("float64") == "float64"


def test_a_meeting_takes_the_links_between_islands_and_a_broadcast_within() -> None:
    fast = replace(equal_hosts(4), between_bytes_per_s=1.0 * MB)
    assert cluster_profile_from_json(fast.to_json()) == fast
    of = spec(dense("w", (500, 1000)))
    plan = planned(ON_FOUR, PlanInputs(fast), of=of)
    line = LINES["allreduce"]
    seconds = line.seconds(2, 2 * MB, 1.0 * MB) + line.seconds(2, 2 * MB, 25 * MB)
    assert plan.islands.meeting_s == pytest.approx(seconds)
    table = plan_table(plan)
    assert "At a meeting an island sends others at most 2 MB, in 2085 ms as predicted: 261 ms an update" in table
    slower = planned(ON_FOUR, PlanInputs(replace(scaled(fast, 0.5))), of=of)
    assert slower.islands.meeting_s == pytest.approx(seconds + 0.08)
    assert planned(ON_FOUR, PlanInputs(fast), replace(TERMS, every=16), of).islands.meeting_s == plan.islands.meeting_s


def test_hosts_of_an_island_share_the_link_to_others_where_it_was_measured() -> None:
    own, shared = (replace(equal_hosts(4), between_bytes_per_s=rate) for rate in (None, 25.0 * MB))
    seconds = [planned(ON_FOUR, PlanInputs(one)).islands.meeting_s for one in (own, shared)]
    half = (100_000 / 8 + 4 * 64 * 4 * 8 * 1000) / 2
    assert seconds[1] - seconds[0] == pytest.approx(half / (25 * MB) + half * LINES["allreduce"].byte_s)


def test_islands_of_unequal_hosts_are_not_predicted() -> None:
    with pytest.raises(PlanError, match="only for islands of equal hosts"):
        planned(Layout((2, 1, 1), (), 2), PlanInputs(equal_hosts(3)))
    with pytest.raises(PlanError, match="has 3 hosts, but the job has 4"):
        planned(ON_FOUR, PlanInputs(equal_hosts(3)))
