"""The planner with servers, on variables written down by hand: who goes there, who cannot, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from parallax.analysis.planner import get_training_mode, make_plan, placements
from parallax.base.errors import PlanError
from parallax.graph.spec import GraphSpec, Part, VariableClass, VariableSpec
from parallax.plans.plan import Layout, PlanConstraints, RouteCost, one_host, plan_from_json
from parallax.plans.rewrites import Placement, TrainingMode
from parallax.report.plan_table import explain_variable, plan_table
from tests.analysis.specs import dense, sparse, spec

TWO_HOSTS = Layout((2, 2), (0, 1))
HOSTS_FOR_SERVERS = Layout((2, 0, 0), (1, 2))


def counter(name: str = "global_step") -> VariableSpec:
    part = (Part(name, ()),)
    return VariableSpec(name, (), "int64", 8, part, False, VariableClass.UNTRAINED, is_counter=True)


def frozen(name: str = "frozen") -> VariableSpec:
    return replace(counter(name), is_counter=False)


def tied(name: str = "tied") -> VariableSpec:
    return replace(sparse(name), cls=VariableClass.MIXED)


def odd(name: str = "odd") -> VariableSpec:
    return replace(sparse(name), cls=VariableClass.NOT_SHARDABLE, reason="Sort 'sort' has no rule")


def every_kind() -> GraphSpec:
    return spec(dense(), sparse(), tied(), frozen(), counter())


def routes(layout: Layout, of: GraphSpec | None = None, **constraints: Any) -> dict[str, str]:
    return {v.name: v.route for v in make_plan(of or every_kind(), layout, PlanConstraints(**constraints)).variables}


def refused(message: str, of: GraphSpec, layout: Layout, **constraints: Any) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(of, layout, PlanConstraints(**constraints))


def test_run_option_ps_puts_every_trained_variable_on_servers() -> None:
    plan = make_plan(every_kind(), TWO_HOSTS, PlanConstraints("PS"))
    on_servers = {v.name: v.reason for v in plan.variables if v.route == "ps"}
    assert on_servers == dict.fromkeys(("w", "emb", "tied"), "run option PS")
    assert {v.name: v.route for v in plan.variables if v.name not in on_servers} == {
        "frozen": "none",
        "global_step": "none",
    }
    assert plan.servers == (0, 1) and get_training_mode(plan) == TrainingMode(True, True, "servers")


def test_run_option_mpi_plans_no_servers_and_refuses_them_by_name() -> None:
    plan = make_plan(every_kind(), HOSTS_FOR_SERVERS, PlanConstraints("MPI"))
    assert "ps" not in {v.route for v in plan.variables} and plan.servers == ()
    refused(
        "'emb' cannot take route ps: run option MPI", every_kind(), TWO_HOSTS, run_option="MPI", routes={"emb": "ps"}
    )


@pytest.mark.parametrize("run_option", ["HYBRID", "PS"])
def test_asynchronous_training_puts_counters_on_servers_too(run_option: str) -> None:
    found = routes(TWO_HOSTS, run_option=run_option, synchronous=False)
    assert found == {"w": "ps", "emb": "ps", "tied": "ps", "frozen": "none", "global_step": "ps"}


def test_asynchronous_training_says_so_in_the_plan() -> None:
    plan = make_plan(every_kind(), TWO_HOSTS, PlanConstraints(synchronous=False))
    assert plan.variable("w").reason == "asynchronous training"
    assert plan.variable("frozen").reason == "no gradient: each worker's own, as none waits for the others"
    assert plan.notes == ("asynchronous: each worker updates the variables on the servers on its own",)
    assert get_training_mode(plan).synchronous is False


def test_asynchronous_training_without_servers_is_refused() -> None:
    refused("run option MPI starts no servers", every_kind(), TWO_HOSTS, run_option="MPI", synchronous=False)
    refused("need a server, .*`servers: 0`", every_kind(), Layout((4,)), synchronous=False)
    refused("need a server, .*`servers: 0`", every_kind(), Layout((4,)), run_option="PS")


def test_asynchronous_training_refuses_what_cannot_be_on_servers_with_the_reason() -> None:
    refused(r"ps is impossible: Sort 'sort' has no rule \(odd\)", spec(odd(), dense()), TWO_HOSTS, synchronous=False)
    message = r"ps is impossible: a moving average reads it \(emb\)"
    refused(message, every_kind(), TWO_HOSTS, synchronous=False, refused={"emb": "a moving average reads it"})
    message = "keeps all trained variables on servers: 'w' was given 'allreduce'"
    refused(message, every_kind(), TWO_HOSTS, synchronous=False, routes={"w": "allreduce"})


def test_synchronous_training_keeps_another_route_for_what_cannot_be_on_servers() -> None:
    found = routes(TWO_HOSTS, spec(odd(), dense()), run_option="PS")
    assert found == {"odd": "allgather", "w": "ps"}
    plan = make_plan(every_kind(), TWO_HOSTS, PlanConstraints("PS", refused={"emb": "a moving average reads it"}))
    (why,) = [r.note for r in plan.variable("emb").rejected if r.route == "ps"]
    assert (plan.variable("emb").route, why) == ("alltoall", "impossible: a moving average reads it")


def test_accumulators_are_needed_by_synchronous_training_only() -> None:
    half = spec(replace(dense(), dtype="bfloat16", dtype_bytes=2))
    refused("no gradient accumulators of type bfloat16", half, TWO_HOSTS, routes={"w": "ps"})
    assert routes(TWO_HOSTS, half, synchronous=False) == {"w": "ps"}


@pytest.mark.parametrize("layout", [one_host(4), TWO_HOSTS, Layout((4, 4), (0, 0, 1, 1))])
def test_hybrid_takes_no_servers_by_itself_where_workers_are(layout: Layout) -> None:
    plan = make_plan(every_kind(), layout)
    assert {v.name: v.route for v in plan.variables if v.route != "none"} == {
        "emb": "alltoall",
        "tied": "allreduce",
        "w": "allreduce",
    }
    assert plan.servers == () and all(v.servers == () for v in plan.variables)


def test_hybrid_puts_what_is_looked_up_by_row_on_hosts_for_servers() -> None:
    plan = make_plan(every_kind(), HOSTS_FOR_SERVERS)
    assert {v.name: v.route for v in plan.variables} == {
        "emb": "ps",
        "frozen": "none",
        "global_step": "none",
        "tied": "allreduce",
        "w": "allreduce",
    }
    assert plan.variable("emb").reason == "some hosts run servers only"
    assert plan.servers == (1, 2) and get_training_mode(plan).sums == "collectives"


def test_hybrid_obeys_a_wish_for_servers() -> None:
    plan = make_plan(every_kind(), TWO_HOSTS, PlanConstraints(routes={"w": "ps"}))
    assert (plan.variable("w").route, plan.variable("emb").route) == ("ps", "alltoall")
    assert plan.servers == (0, 1)


def test_what_servers_cost_is_what_the_formulas_say() -> None:
    plan = make_plan(every_kind(), TWO_HOSTS, PlanConstraints("PS"))
    # 50 rows: a 4-byte id out, 8 floats back, 8 floats and an 8-byte row number out; or the whole there and back.
    assert plan.variable("emb").cost == RouteCost("ps", 50 * (4 + 32 + 32 + 8), 4)
    assert plan.variable("w").cost == RouteCost("ps", 2 * 160, 2)
    assert plan.variable("tied").cost == RouteCost("ps", 2 * 32_000, 2)


def test_a_variable_that_workers_need_whole_is_mirrored() -> None:
    of = every_kind()
    found = placements(of, make_plan(of, TWO_HOSTS, PlanConstraints("PS", partitions={"emb": 3})))
    assert {name: p.replicated for name, p in found.items()} == {"emb": False, "w": True, "tied": True}
    # The largest, tied, is on server 0; of three partitions of the next one two go to the other.
    assert (found["tied"].servers, found["emb"]) == ((0,), Placement((1, 0, 1), replicated=False))


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 13, 997, 1000])
@pytest.mark.parametrize("servers", [1, 2, 5])
def test_any_number_of_partitions_can_be_asked_for_and_every_row_has_one_owner(partitions: int, servers: int) -> None:
    plan = make_plan(spec(sparse()), one_host(2, servers), PlanConstraints("PS", partitions={"emb": partitions}))
    planned = plan.variable("emb")
    (server_by_partition,) = planned.servers
    assert len(server_by_partition) == partitions
    held = [0] * servers
    for row in range(1000):
        held[server_by_partition[row % partitions]] += 1
    assert planned.owner_rows == tuple(held) and sum(held) == 1000


@pytest.mark.parametrize("partitions", [0, -1, 1001])
def test_more_partitions_than_rows_are_refused(partitions: int) -> None:
    message = f"and the number of rows: 'emb' has 1000 rows, got {partitions}"
    refused(message, every_kind(), TWO_HOSTS, run_option="PS", partitions={"emb": partitions})


def test_partitions_of_what_is_not_on_servers_are_refused() -> None:
    refused(
        "only variables on servers .route ps. have partitions and 'emb'", every_kind(), TWO_HOSTS, partitions={"emb": 2}
    )
    refused("no variable 'embb'. Did you mean: emb", every_kind(), TWO_HOSTS, run_option="PS", partitions={"embb": 2})


def test_a_plan_with_servers_reads_back_as_it_was_written() -> None:
    plan = make_plan(every_kind(), TWO_HOSTS, PlanConstraints("PS", average_sparse=False, partitions={"emb": 3}))
    assert plan_from_json(plan.to_json()) == plan
    assert plan.notes == ("sparse gradients are summed over the workers, not averaged",)
    assert json.loads(plan.to_json())["servers"] == [0, 1]


@pytest.mark.parametrize("layout", [Layout((3, 1), (0, 1)), Layout((4,), (0, 0)), Layout((2, 2), (0, 0, 1))])
def test_a_plan_for_another_layout_is_refused(layout: Layout) -> None:
    plan = make_plan(every_kind(), TWO_HOSTS, PlanConstraints("PS"))
    plan.check_belongs_to(every_kind(), TWO_HOSTS)
    with pytest.raises(PlanError, match=r"hosts with \[2, 2\] workers and servers on hosts \[0, 1\], but the job has"):
        plan.check_belongs_to(every_kind(), layout)


def test_a_plan_without_servers_fits_any_servers() -> None:
    plan = make_plan(every_kind(), TWO_HOSTS)
    plan.check_belongs_to(every_kind(), Layout((2, 2), (0, 0, 1)))


def test_the_table_and_the_explanation_show_hosts_servers_and_what_each_holds(golden) -> None:
    of = spec(dense(), sparse(), sparse("long", (100_000, 64)), sparse("unknown", ids=None), frozen())
    constraints = PlanConstraints("PS", partitions={"emb": 3, "w": 1, "long": 40})
    spread = make_plan(of, Layout((2, 2, 0), (0, 1, 2, 2)), constraints)
    one = make_plan(of, one_host(2, 2), replace(constraints, synchronous=False))
    hybrid = make_plan(of, HOSTS_FOR_SERVERS)
    shown = [plan_table(spread), *(explain_variable(spread, n) for n in ("emb", "long", "w")), plan_table(one)]
    golden("plan_table_servers.txt", "\n".join([*shown, explain_variable(one, "emb"), plan_table(hybrid)]))
