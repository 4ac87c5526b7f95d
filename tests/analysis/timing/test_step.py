"""A step's phases from lines, and its compute from profiles, in numbers that can be followed by hand."""

from __future__ import annotations

import pytest

from parallax.analysis.planner import make_plan
from parallax.analysis.timing.step_time import derive_step_load
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import AlphaBeta, ClusterProfile
from parallax.plans.plan import Layout, PlanConstraints
from parallax.report.plan_table import step_texts
from tests.analysis.measured import MB, equal_hosts, host, model
from tests.analysis.specs import dense, sparse, spec

FOUR = Layout((1, 1, 1, 1))


def measured(overlap: float, rate: float = 25 * MB) -> PlanInputs:
    lines = {
        "allreduce": AlphaBeta(3e-3, 1e-3, 1e-9, 0.05, 9, overlap),  # 6 ms for four members
        "alltoall": AlphaBeta(2e-3, 1e-3, 0.0, 0.05, 9, overlap),
    }
    return PlanInputs(ClusterProfile(1, tuple(host(n, rate) for n in range(4)), lines, {}))


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("elements", [1000, 25_000, 500_000])  # 0.24, 6 and 120 ms on the link
def test_an_exchange_alone_takes_what_its_line_says(overlap: float, elements: int) -> None:
    known = measured(overlap)
    plan = make_plan(spec(dense("w", (elements,))), FOUR, None, known)
    line = known.cluster.across["allreduce"]
    assert plan.prediction.step_s == pytest.approx(line.seconds(4, 1.5 * 4 * elements, 25 * MB))


@pytest.mark.parametrize(
    ("hosts", "part"),
    [((2, 2, 2, 2), 1.5), ((1, 2, 1, 1), 1.5)],
)
def test_workers_of_a_host_reduce_among_themselves_first(hosts: tuple[int, ...], part: float) -> None:
    known = measured(0.0)
    plan = make_plan(spec(dense("w", (500_000,))), Layout(hosts), None, known)
    line = known.cluster.across["allreduce"]
    assert plan.prediction.step_s == pytest.approx(line.seconds(len(hosts), part * 4 * 500_000, 25 * MB))


def test_what_overlaps_is_taken_off_each_phase() -> None:
    table = sparse("emb", (100_000, 64), 1000)
    plans = [make_plan(spec(table), FOUR, PlanConstraints(routes={"emb": "alltoall"}), measured(o)) for o in (0.0, 1.0)]
    seconds = [[phase.end_s - phase.start_s for phase in plan.prediction.phases] for plan in plans]
    ids_s, rows_s = 750 * 4 / (25 * MB), 750 * 256 / (25 * MB)  # 0.12 and 7.68 ms; a round takes 5
    assert seconds[0] == pytest.approx([0.005 + ids_s, 0.005 + rows_s, 0.005 + rows_s])
    assert seconds[1] == pytest.approx([0.005, rows_s, rows_s])


def test_exchanges_of_two_kinds_hide_their_rounds_behind_the_bytes_of_both() -> None:
    of = spec(dense("w", (25_000,)), sparse("emb", (100_000, 64), 1000))
    plan = make_plan(of, FOUR, PlanConstraints(routes={"emb": "alltoall"}), measured(1.0))
    last = plan.prediction.phases[-1]
    on_link = (1.5 * 4 * 25_000 + 750 * 256) / (25 * MB)
    assert last.end_s - last.start_s == pytest.approx(on_link + 1.5 * 4 * 25_000 * 1e-9)


def test_rows_are_pulled_for_every_batch_and_gradients_travel_once() -> None:
    table = sparse("emb", (100_000, 64), 1000)
    constraints = PlanConstraints(routes={"emb": "alltoall"}, accumulate_steps=3)
    known = PlanInputs(measured(0.0).cluster, model(compute_s=0.02))
    plan = make_plan(spec(table), FOUR, constraints, known)
    seconds = [phase.end_s - phase.start_s for phase in plan.prediction.phases]
    ids_s, rows_s = 750 * 4 / (25 * MB), 750 * 256 / (25 * MB)
    gradients_s = 2 * 0.005 + 3 * (ids_s + rows_s)  # the ids of 3000 rows go before them
    assert seconds == pytest.approx([3 * (0.005 + ids_s), 3 * (0.005 + rows_s), 3 * 0.02, gradients_s])


def test_what_compute_hides_of_the_exchanges_is_told_beside_what_it_could() -> None:
    # The all-reduce of 25,000 elements takes 6 ms of rounds, 6 on the link and 0.15 beside it.
    plan = make_plan(
        spec(dense("w", (25_000,))),
        FOUR,
        None,
        PlanInputs(measured(0.0).cluster, model(compute_s=0.00243, overlap_s=0.00122)),
    )
    assert step_texts(plan)[1] == (
        "Communication hidden: 10 % of at most 20 %; no step is shorter than the longer of exchanges and compute, "
        "12.2 ms."
    )
    unknown = make_plan(spec(dense("w", (25_000,))), FOUR, None, measured(0.0))
    assert not any("hidden" in line for line in step_texts(unknown)), "compute was not measured"


def compute_s(workers: int, shared: float | None, **measured_model: float) -> float:
    cluster = equal_hosts(workers)
    cluster = ClusterProfile(1, cluster.hosts, cluster.across, cluster.within, shared)
    return derive_step_load(PlanInputs(cluster, model(**measured_model)), Layout((1,) * workers)).compute_s


def test_workers_with_cores_of_their_own_compute_as_fast_as_one() -> None:
    assert compute_s(8, None, compute_s=0.02, one_core_s=0.05) == 0.02


def test_workers_that_share_cores_compute_as_fast_as_these() -> None:
    assert compute_s(8, 2.0, compute_s=0.02) == pytest.approx(0.08)
    assert compute_s(8, 2.0, compute_s=0.02, one_core_s=0.03) == pytest.approx(0.12)  # each takes one and a half cores
    assert compute_s(8, 2.0, compute_s=0.02, one_core_s=0.001) == 0.02  # it waits for something else


def test_compute_that_was_measured_beside_others_holds_their_waiting_already() -> None:
    assert compute_s(4, 2.0, compute_s=0.08, computing=4) == pytest.approx(0.08)
    assert compute_s(8, 2.0, compute_s=0.08, computing=4) == pytest.approx(0.16)
