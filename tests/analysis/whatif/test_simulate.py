"""Other sizes, links, batches, vocabularies and widths: what is planned there, and what the figures rest on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from parallax.analysis.planner import make_plan
from parallax.analysis.whatif.balance import ALL_LAYERS, balance_point
from parallax.analysis.whatif.simulate import HostKind, changed_spec, changed_table, simulate
from parallax.base.errors import ConfigError, PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import AlphaBeta, TableProfile
from parallax.plans.plan import Layout, PlanConstraints
from parallax.plans.what_if import WhatIf, what_if_from
from parallax.report.html.simulation_page import simulation_text
from tests.analysis.measured import MB, equal_hosts, model, table
from tests.analysis.specs import dense, sparse, spec
from tests.report.html.plans import language_model, measured, simulated

CURVE = TableProfile("emb", 800.0, 400.0, ((1, 400.0), (2, 700.0), (4, 1100.0)), 1.1)


def test_sizes_are_planned_anew(golden: Callable[[str, str], None]) -> None:
    of_links = simulated(WhatIf((4, 64), link_bytes_per_s=1250 * MB, batch=2, vocabulary=10, width=0.5))
    alone = simulated(WhatIf((2, 8), link_bytes_per_s=125 * MB, workers_per_host=2), PlanInputs())
    golden("simulation.txt", "\n".join(simulation_text(s) for s in (simulated(), of_links, alone)))


def test_the_measured_size_is_what_the_plan_predicts() -> None:
    plan = make_plan(language_model(), Layout((1,) * 4, (0, 1, 2, 3)), None, measured())
    (size,) = simulated(WhatIf((4,))).sizes
    assert size.step_s == plan.prediction.step_s and size.phases == plan.prediction.phases
    assert size.throughput == pytest.approx(4 / plan.prediction.step_s) and size.efficiency == 1
    assert size.sent_bytes == sum(v.cost.sent_bytes for v in plan.variables)


def test_no_efficiency_is_told_where_rounds_take_no_time() -> None:
    found = simulated(WhatIf((4, 64), link_bytes_per_s=1250 * MB), replace(measured(), cluster=None))
    assert [size.efficiency for size in found.sizes] == [1.0, None] and all(size.throughput for size in found.sizes)
    text = simulation_text(found)
    assert "No links were measured: steps take at least this" in text.splitlines()[1]
    assert "parallax calibrate -r FILE" in text


def test_a_profile_of_one_host_says_what_to_measure() -> None:
    cluster = equal_hosts(1)
    local = replace(measured(), cluster=replace(cluster, across={}), cluster_name="local.json")
    with pytest.raises(
        PlanError, match="local.json was measured within one host. Measure several hosts with `parallax calibrate"
    ):
        simulated(WhatIf((1, 4)), local)
    assert simulated(WhatIf((1,), workers_per_host=4), local).sizes[0].efficiency == 1


def test_two_measured_hosts_do_not_tell_how_rounds_grow() -> None:
    two = replace(measured(), cluster=equal_hosts(2))
    assert any("with any number of them" in words for words in simulated(WhatIf((4,)), two).assumptions)
    assert not any("with any number of them" in words for words in simulated().assumptions)


def test_thousands_of_hosts_are_planned_as_any_other_number() -> None:
    sizes = simulated(WhatIf((512, 4096))).sizes
    assert [size.workers for size in sizes] == [512, 4096]
    assert sizes[1].step_s > sizes[0].step_s  # rounds grow with every member
    assert sum(count for _, count in sizes[1].routes) == 5


def test_faster_links_never_make_a_longer_step() -> None:
    steps = [simulated(WhatIf((64,), links=factor)).sizes[0].step_s for factor in (0.1, 0.5, 1.0, 3.0, 100.0)]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1]
    scaled = simulated(WhatIf((64,), links=2.0)).sizes[0]
    assert scaled.step_s == simulated(WhatIf((64,), link_bytes_per_s=50 * MB)).sizes[0].step_s


@pytest.mark.parametrize(
    ("batch", "touched", "joined"),
    [
        (1.0, 400.0, (400.0, 700.0, 1100.0)),
        (2.0, 700.0, (700.0, 1100.0, 1900.0)),  # four workers' rows, and as much again for four further ones
        (3.0, 900.0, (900.0, 1500.0, 2700.0)),
        (0.5, 200.0, (200.0, 400.0, 700.0)),
        (100.0, 5000.0, (5000.0, 5000.0, 5000.0)),
    ],
)
def test_a_larger_batch_touches_the_rows_of_so_many_workers(
    batch: float, touched: float, joined: tuple[float, ...]
) -> None:
    changed = changed_table(CURVE, 5000, batch)
    assert (changed.touched_rows, changed.ids) == (touched, 800 * batch)
    assert changed.joined_rows == tuple(zip((1, 2, 4), joined, strict=True))


def test_a_table_without_a_curve_shares_no_row() -> None:
    assert changed_table(replace(CURVE, joined_rows=()), 5000, 3.0).touched_rows == 1200


def test_vocabulary_and_width_change_tables_and_no_dense_layer() -> None:
    changed = changed_spec(language_model(), WhatIf((1,), vocabulary=0.001, width=2.0, batch=0.5))
    shapes = {v.name: (v.shape, v.parts[0].shape, v.ids_per_step) for v in changed.variables}
    assert shapes["embedding"] == ((100, 128), (100, 128), 320)
    assert shapes["positions"] == ((1, 128), (1, 128), 125)
    assert shapes["out/kernel"] == ((512, 64), (512, 64), None)
    sizes = [simulated(WhatIf((4,), vocabulary=factor)).sizes[0] for factor in (1.0, 100.0)]
    assert sizes[1].memory_bytes > 10 * sizes[0].memory_bytes / 2 and sizes[1].step_s == sizes[0].step_s


def test_hosts_are_copied_in_turn_with_their_workers_and_links() -> None:
    layouts: list[tuple[Layout, PlanInputs]] = []

    def plan(of, layout, constraints, there):  # type: ignore[no-untyped-def]
        layouts.append((layout, there))
        return make_plan(of, layout, constraints, there)

    kinds = [HostKind(1, 1, 10.0 * MB), HostKind(2, 0, 50.0 * MB)]
    simulate(language_model(), kinds, PlanConstraints(), PlanInputs(), WhatIf((3,)), plan)
    ((layout, there),) = layouts
    assert (layout.hosts, layout.servers) == ((1, 2, 1), (0, 2))
    assert [host.out_bytes_per_s for host in there.cluster.hosts] == [10 * MB, 50 * MB, 10 * MB]
    assert there.cluster.shared_cores is None


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    with pytest.raises(PlanError, match=r"the rate of the links, which is unknown.*parallax calibrate.*--link-rate"):
        simulated(known=PlanInputs())
    with pytest.raises(PlanError, match="A simulation needs times; times unknown: the cluster profile has no"):
        simulated(known=PlanInputs(equal_hosts(2, operations=("alltoall",))))
    with pytest.raises(PlanError, match="has 4, the resource file 3"):
        simulate(language_model(), [HostKind()] * 3, PlanConstraints(), measured(), WhatIf((8,)), make_plan)
    unmeasured = simulated(known=PlanInputs(equal_hosts(4)))
    assert unmeasured.balances == () and unmeasured.sizes[0].throughput is None
    assert any("Compute was not measured" in words for words in unmeasured.assumptions)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hosts": ()}, "--hosts must be increasing numbers"),
        ({"hosts": (8, 4)}, "increasing"),
        ({"hosts": (8,), "batch": 0.0}, "--batch must be a factor above 0"),
        ({"hosts": (8,), "width": math.inf}, "--width must be"),
        ({"hosts": (8,), "links": 2.0, "link_bytes_per_s": 1e9}, "cannot be combined"),
        ({"hosts": (8,), "link_bytes_per_s": 0.0}, "--link-rate must be above 0"),
    ],
)
def test_a_wrong_what_if_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WhatIf(**wrong)


def test_a_what_if_goes_through_the_environment() -> None:
    wanted = WhatIf((8, 64), 2, None, 3.0, 0.5, 2.0, 1.5)
    assert what_if_from(wanted.to_text()) == wanted
    for text in ("", "{}", '{"hosts": 3}', '{"hosts": [3], "more": 1}'):
        with pytest.raises(ConfigError, match="what-if"):
            what_if_from(text)


@pytest.mark.parametrize("seed", range(30))
def test_the_balance_point_is_the_first_number_of_workers_that_costs_as_much(seed: int) -> None:
    draw = random.Random(seed)
    line = AlphaBeta(10 ** draw.uniform(-5, -3), draw.choice([0.0, 10 ** draw.uniform(-6, -4)]), 1e-9, 0.05, 20)
    wire_bytes, rate, compute_s = 10 ** draw.uniform(3, 8), 10 ** draw.uniform(7, 10), 10 ** draw.uniform(-4, 0)

    def exchange_s(workers: int) -> float:
        return line.seconds(workers, 2 * (workers - 1) / workers * wire_bytes, rate)

    found = balance_point(line, wire_bytes, rate, compute_s)
    if found is None:
        assert line.per_peer_s == 0 and exchange_s(10**9) <= compute_s
        return
    assert exchange_s(found) >= compute_s * (1 - 1e-6)
    assert found == 2 or exchange_s(found - 1) < compute_s


def test_compute_is_shared_out_by_elements() -> None:
    of = spec(dense("large", (300, 100)), dense("small", (100, 100)), sparse("emb"))
    known = PlanInputs(equal_hosts(2), model(table("emb", 50.0), of=of, compute_s=0.004))
    found = simulate(of, [HostKind()], PlanConstraints(), known, WhatIf((2,)), make_plan).balances
    assert [b.name for b in found] == [ALL_LAYERS, "large", "small"]
    assert [b.compute_s for b in found] == pytest.approx([0.004, 0.003, 0.001])
    assert found[1].exchange_s == pytest.approx(4e-4 + 2e-4 + 120_000 * (1 / (25 * MB) + 1e-9))
