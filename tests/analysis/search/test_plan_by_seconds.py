"""Plans by predicted seconds: the best of all choices, whatever the order; what they say, and what they refuse."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ops.bench.regret.alternatives import alternatives
from parallax.analysis.planner import make_plan
from parallax.analysis.routes.candidates import list_candidates
from parallax.analysis.routes.owners import all_slots, equal_shares, kinds_of, shares_of
from parallax.analysis.search import flips as flips_module
from parallax.analysis.search import milp
from parallax.analysis.search.route_all import problem_of, setting_of
from parallax.base.errors import PlanError
from parallax.cluster.plan_inputs import PlanInputs, read_measured
from parallax.graph.spec import GraphSpec, Slot
from parallax.plans.plan import Layout, Plan, PlanConstraints, one_host, plan_from_json
from parallax.plans.prediction import LINK, Flip
from parallax.report.plan_table import explain_variable, plan_table
from tests.analysis.measured import COLLECTIVES, MB, cluster, drawn, equal_hosts, host, model, scaled, table
from tests.analysis.specs import dense, sparse, spec

FOUR = Layout((1, 1, 1, 1))
CASES = [(seed, servers) for seed in range(24) for servers in (False, True)]


def mixed() -> GraphSpec:
    return spec(dense("w", (256, 512)), sparse("emb", (100_000, 64), 640), sparse("small", (300, 64), 250))


def least(of: GraphSpec, layout: Layout, measured: PlanInputs) -> float | None:
    """The shortest step of all choices of routes, servers and owners; None when nothing fits into memory."""
    patterns = {equal_shares(layout.num_workers).slots}
    if len(layout.hosts) > 1:
        kinds = kinds_of(layout, measured.cluster)
        patterns = {shares_of(layout, kinds, slots).slots for slots in all_slots(kinds)}
    found = [a.step_s for slots in patterns for a in alternatives(of, layout, PlanConstraints(), measured, slots)]
    return min(found, default=None)


@pytest.mark.parametrize(("seed", "servers"), CASES)
def test_the_plan_is_the_best_of_all_choices(seed: int, servers: bool) -> None:
    of, layout, measured = drawn(seed, servers)
    wanted = least(of, layout, measured)
    if wanted is None:
        with pytest.raises(PlanError, match="memory"):
            make_plan(of, layout, None, measured)
        return
    prediction = make_plan(of, layout, None, measured).prediction
    assert prediction.step_s == pytest.approx(wanted, rel=1e-9)
    assert prediction.lower_bound_s == pytest.approx(wanted, rel=1e-9)
    assert prediction.bound_of.startswith("all routes")


@pytest.mark.parametrize("seed", range(12))
def test_the_solver_finds_what_looking_at_every_choice_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    of, layout, measured = drawn(seed, servers=False)
    setting, _ = setting_of(
        list_candidates(of, layout, PlanConstraints(), measured), layout, PlanConstraints(), measured, measured.cluster
    )
    problem = problem_of(setting, equal_shares(layout.num_workers))
    wanted = min((a.step_s for a in alternatives(of, layout, PlanConstraints(), measured)), default=None)
    monkeypatch.setattr(milp, "ENUMERATED", 0)
    monkeypatch.setattr(milp, "_drop_dominated", lambda p, known_s, slowness: [list(range(len(o))) for o in p.options])
    if wanted is None:
        with pytest.raises(PlanError, match="memory"):
            milp.solve(problem)
        return
    solution = milp.solve(problem)
    assert solution.step_s == pytest.approx(wanted, rel=1e-6)
    assert solution.bound_s <= solution.step_s * (1 + 1e-9)
    assert solution.bound_s == pytest.approx(wanted, rel=1e-5)


@pytest.mark.rotates
def test_the_plan_does_not_depend_on_the_order_of_the_variables() -> None:
    equal = [sparse(f"table_{n}", (5000, 16), 300) for n in range(3)]
    variables = [*equal, *mixed().variables]
    texts = set()
    for seed in range(100):
        shuffled = spec(*random.Random(seed).sample(variables, len(variables)))
        texts.add(make_plan(shuffled, FOUR, None, PlanInputs(equal_hosts(4))).to_json())
    assert len(texts) == 1


def test_a_large_model_stays_a_small_program_with_a_bound() -> None:
    draw = random.Random(1)
    kinds = [(draw.randint(1000, 50_000), draw.choice([8, 32]), draw.randint(100, 900)) for _ in range(150)]
    variables = [sparse(f"t{n:04}", kinds[n % 150][:2], kinds[n % 150][2]) for n in range(600)]
    variables += [dense(f"w{n:04}", (draw.randint(1, 50), 64)) for n in range(200)]
    layout = Layout((1,) * 64)
    measured = PlanInputs(equal_hosts(64, 1250 * MB))
    setting, _ = setting_of(
        list_candidates(spec(*variables), layout, PlanConstraints(), measured),
        layout,
        PlanConstraints(),
        measured,
        measured.cluster,
    )
    problem = problem_of(setting, equal_shares(64))
    assert problem.pricing.topology.ends[1:] == problem.pricing.topology.ends[1:2]  # one link each way stands for all
    solution = milp.solve(problem)
    assert solution.step_s <= solution.bound_s * 1.001
    assert {problem.options[n][p].route for n, p in enumerate(solution.picks)} >= {"alltoall", "allreduce"}


def planned_at(
    of: GraphSpec,
    layout: Layout,
    measured: PlanInputs,
    flip: Flip,
    name: str,
    factor: float,
    constraints: PlanConstraints | None = None,
) -> str:
    """The route of a variable when what a flip is about has `factor` times its value."""
    if flip.quantity == LINK:
        slowest = min(min(h.out_bytes_per_s, h.in_bytes_per_s) for h in measured.cluster.hosts)
        changed = replace(measured, cluster=scaled(measured.cluster, factor * flip.value / slowest))
    else:
        tables = [t for t in measured.model.tables if t.name != name]
        now = measured.model.table(name)
        by = factor * flip.value / now.touched_rows
        joined = tuple((k, min(float(of.variable(name).rows), rows * by)) for k, rows in now.joined_rows)
        tables.append(replace(now, ids=now.ids * by, touched_rows=now.touched_rows * by, joined_rows=joined))
        changed = replace(measured, model=replace(measured.model, tables=tuple(tables)))
    return make_plan(of, layout, constraints, changed).variable(name).route


@pytest.mark.parametrize("rate", [3 * MB, 25 * MB, 1250 * MB])
def test_a_choice_changes_where_the_plan_says_so(rate: float) -> None:
    of = spec(*mixed().variables, sparse("pos", (2000, 16), 900))
    tables = table("emb", 400), table("small", 200, 280), table("pos", 600, 1000)
    measured = PlanInputs(equal_hosts(4, rate), model(*tables, compute_s=0.02))
    plan = make_plan(of, FOUR, None, measured)
    flips = [(v, flip) for v in plan.variables for flip in v.flips]
    assert flips
    for variable, flip in flips:
        before, after = (0.999, 1.001) if flip.above else (1.001, 0.999)
        assert planned_at(of, FOUR, measured, flip, variable.name, before) == variable.route
        assert planned_at(of, FOUR, measured, flip, variable.name, after) == flip.route


@pytest.mark.parametrize("rate", [25 * MB, 1250 * MB])
def test_in_a_large_model_a_choice_changes_there_with_all_others_as_planned(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flips_module, "REPLANNED", 0)
    of = spec(*mixed().variables, sparse("pos", (2000, 16), 900))
    tables = table("emb", 400), table("small", 200, 280), table("pos", 600, 1000)
    measured = PlanInputs(equal_hosts(4, rate), model(*tables, compute_s=0.02))
    plan = make_plan(of, FOUR, None, measured)
    found = [(v, flip) for v in plan.variables for flip in v.flips]
    assert found
    for variable, flip in found:
        others = PlanConstraints(routes={v.name: v.route for v in plan.variables if v is not variable})
        before, after = (0.999, 1.001) if flip.above else (1.001, 0.999)
        assert planned_at(of, FOUR, measured, flip, variable.name, before, others) == variable.route
        assert planned_at(of, FOUR, measured, flip, variable.name, after, others) == flip.route


def test_the_next_best_route_costs_what_the_plan_says() -> None:
    measured = PlanInputs(equal_hosts(4), model(compute_s=0.02))
    plan = make_plan(mixed(), FOUR, None, measured)
    for variable in plan.variables:
        if variable.runner_up is not None:
            others = {v.name: v.route for v in plan.variables} | {variable.name: variable.runner_up.route}
            other = make_plan(mixed(), FOUR, PlanConstraints(routes=others), measured).prediction
            assert other.step_s - plan.prediction.step_s == pytest.approx(
                variable.runner_up.more_s, rel=1e-6, abs=1e-12
            )
            assert variable.runner_up.more_s >= -1e-9


@pytest.mark.parametrize("seed", range(8))
def test_faster_links_never_make_a_step_longer(seed: int) -> None:
    of, layout, measured = drawn(seed, servers=False)
    measured = replace(
        measured,
        cluster=replace(
            measured.cluster, hosts=tuple(replace(h, memory_bytes=8 << 30) for h in measured.cluster.hosts)
        ),
    )
    faster = replace(measured, cluster=scaled(measured.cluster, 3))
    steps = [make_plan(of, layout, None, m).prediction.step_s for m in (measured, faster)]
    assert steps[1] <= steps[0] * (1 + 1e-9)


def slow_sender(rate: float) -> Plan:
    hosts = [host(0), host(1), host(2), host(3, rate, 25 * MB)]
    return make_plan(
        spec(sparse("emb", (100_000, 64), 6000)), FOUR, None, PlanInputs(cluster(*hosts, operations=COLLECTIVES))
    )


def test_a_worker_behind_a_slow_link_owns_fewer_rows_and_sends_less() -> None:
    equal, slow = slow_sender(25 * MB), slow_sender(5 * MB)
    assert equal.variable("emb").owner_pattern == ()
    planned = slow.variable("emb")
    assert planned.owner_rows[3] < planned.owner_rows[0] / 1.5 and sum(planned.owner_rows) == 100_000
    assert len(planned.owner_pattern) <= 8 * 4
    assert slow.prediction.loads[3].out_bytes < equal.prediction.loads[3].out_bytes
    assert plan_from_json(slow.to_json()) == slow


def test_links_that_differ_less_than_the_noise_of_the_measurement_are_equal() -> None:
    assert slow_sender(24 * MB).variable("emb").owner_pattern == ()
    assert slow_sender(24 * MB).variable("emb").owner_rows == (25_000,) * 4


def test_memory_has_a_table_spread_over_the_workers() -> None:
    of = spec(replace(sparse("emb", (2000, 64), 2000), slots=tuple(Slot(f"s{n}", (), 64, 4) for n in range(10))))
    measured = PlanInputs(equal_hosts(4, 1250 * MB), model(table("emb", 1900)))
    assert make_plan(of, FOUR, None, measured).variable("emb").route == "allreduce"
    # 5.6 MB of values and 1 MB of buffers by all-reduce; 1.4 and 2 MB by all-to-all
    plan = make_plan(of, FOUR, PlanConstraints(memory_bytes=5 * MB), measured)
    assert plan.variable("emb").route == "alltoall"
    assert [m.values_bytes for m in plan.prediction.memory] == [11 * 500 * 256] * 4
    assert all(m.values_bytes + m.exchange_bytes <= 5 * MB for m in plan.prediction.memory)
    assert next(r.note for r in plan.variable("emb").rejected if r.route == "allreduce") == "does not fit into memory"


def test_what_fits_nowhere_is_refused_with_name_bytes_and_limit() -> None:
    hosts = [host(n, memory=MB) for n in range(4)]
    needed, free = r"on host0: the variables need at least .* \(\d+ bytes\)", r"but only .* \(1000000 bytes\) are free"
    message = f"{needed}, of which emb takes .*, {free}"
    with pytest.raises(PlanError, match=message):
        make_plan(mixed(), FOUR, None, PlanInputs(cluster(*hosts)))
    with pytest.raises(PlanError, match="on host 0: the variables need at least .* of which emb takes"):
        make_plan(mixed(), FOUR, PlanConstraints(memory_bytes=MB))


def test_without_a_cluster_profile_no_seconds_are_predicted() -> None:
    plan = make_plan(mixed(), FOUR, None, PlanInputs(None, model(table("emb", 17.5))))
    assert plan.prediction.unknown == "times unknown: measure the cluster with `parallax calibrate`"
    assert (plan.prediction.step_s, plan.prediction.phases) == (None, ())
    assert all(c.seconds is None for v in plan.variables for c in (v.cost, *v.rejected))
    assert plan.variable("emb").touched_rows == 18
    assert [p.kind for p in plan.profiles] == ["model"]


def test_measured_rows_go_before_static_shapes_and_wishes_before_both() -> None:
    measured = PlanInputs(equal_hosts(4), model(table("emb", 100, 120)))
    rows = [
        make_plan(mixed(), FOUR, w, measured).variable("emb").touched_rows
        for w in (None, PlanConstraints(touched_rows={"emb": 50}))
    ]
    assert rows == [100, 50]
    assert make_plan(mixed(), FOUR, None, PlanInputs(equal_hosts(4))).variable("emb").touched_rows == 640


def test_what_was_not_measured_is_not_predicted() -> None:
    lacking = PlanInputs(equal_hosts(4, operations=("alltoall",)))
    plan = make_plan(mixed(), FOUR, None, lacking)
    assert plan.prediction.unknown.startswith("times unknown: the cluster profile has no allreduce across hosts")
    assert plan.variable("emb").route == "alltoall"
    plan = make_plan(mixed(), Layout((1,) * 4, (0,)), None, PlanInputs(equal_hosts(4)))
    notes = {r.route: r.note for r in plan.variable("emb").rejected}
    assert notes["ps"] == "not measured: pull across hosts and push across hosts"
    asynchronous = make_plan(
        mixed(), Layout((1,) * 4, (0,)), PlanConstraints(synchronous=False), PlanInputs(equal_hosts(4))
    )
    assert asynchronous.prediction.unknown == "times unknown: only synchronous steps are predicted"


def test_unknown_touched_rows_are_left_out_of_the_times_and_said() -> None:
    plan = make_plan(spec(sparse("emb", ids=None), dense()), FOUR, None, PlanInputs(equal_hosts(4)))
    assert (plan.variable("emb").route, plan.variable("emb").cost.seconds) == ("alltoall", None)
    assert plan.prediction.step_s > 0
    assert "predicted times exclude emb, whose touched rows are unknown" in plan.notes


def test_profiles_must_belong(tmp_path) -> None:
    with pytest.raises(PlanError, match="has 3 hosts, but the job has 4"):
        make_plan(mixed(), FOUR, None, PlanInputs(equal_hosts(3)))
    with pytest.raises(PlanError, match="of model 000000000000, but the script built model ffffffffffff"):
        make_plan(mixed(), FOUR, None, PlanInputs(None, replace(model(), graph="0" * 64)))
    file = tmp_path / "cluster.json"
    with pytest.raises(PlanError, match="cluster.json: cannot read the profile: No such file"):
        read_measured(file, None)
    file.write_text(equal_hosts(2).to_json(), encoding="utf-8")
    found = read_measured(file, None)
    assert (found.cluster, found.cluster_name) == (equal_hosts(2), "cluster.json")
    found.check_names(["host0", "host1"])
    with pytest.raises(PlanError, match="cluster.json has host0, host1, but the job has host0, other"):
        found.check_names(["host0", "other"])


def test_a_step_is_its_phases_one_after_the_other() -> None:
    measured = PlanInputs(equal_hosts(4), model(table("emb", 100), compute_s=0.02))
    found = make_plan(spec(sparse("emb")), FOUR, PlanConstraints(routes={"emb": "alltoall"}), measured).prediction
    names = ["pull: ids to owners", "pull: rows back", "compute", "gradients"]
    assert [phase.name for phase in found.phases] == names
    assert [p.start_s for p in found.phases[1:]] == [p.end_s for p in found.phases[:-1]]
    round_s = 3e-4 + 3 * 1e-4  # of four members
    away = 0.75 * 100
    on_link = [away * b * (1e-9 + 1 / (25 * MB)) for b in (4, 32, 32)]
    assert found.step_s == pytest.approx(0.02 + 3 * round_s + sum(on_link), rel=1e-12)
    assert found.step_s == pytest.approx(found.phases[-1].end_s)
    assert (found.loads[2].out_bytes, found.loads[2].in_bytes) == (round(away * 68), round(away * 68))


def test_compute_is_crowded_on_shared_cores_and_hides_what_it_may() -> None:
    of, slow = spec(dense("w", (1000, 100))), {"compute_s": 0.02}
    alone = make_plan(of, FOUR, None, PlanInputs(equal_hosts(4), model(**slow))).prediction.step_s
    shared = replace(equal_hosts(4), shared_cores=2.0)
    assert make_plan(of, FOUR, None, PlanInputs(shared, model(**slow))).prediction.step_s == pytest.approx(alone + 0.02)
    hiding = make_plan(of, FOUR, None, PlanInputs(equal_hosts(4), model(**slow, overlap_s=0.005))).prediction
    assert hiding.step_s == pytest.approx(alone - 0.005)
    assert hiding.phases[-1].start_s == pytest.approx(0.015)
    session = make_plan(of, FOUR, None, PlanInputs(equal_hosts(4), model(**slow, session_s=0.001))).prediction
    assert session.step_s == pytest.approx(alone + 0.001) and session.phases[0].name == "session"


def test_tables_of_one_exchange_pay_its_rounds_once() -> None:
    def seconds(*names: str) -> float:
        of = spec(*(sparse(name) for name in names))
        constraints = PlanConstraints(routes=dict.fromkeys(names, "alltoall"))
        return make_plan(of, FOUR, constraints, PlanInputs(equal_hosts(4))).prediction.step_s

    bytes_s = 0.75 * 50 * 68 * (1e-9 + 1 / (25 * MB))
    assert seconds("a") == pytest.approx(3 * 6e-4 + bytes_s, rel=1e-12)
    assert seconds("a", "b") == pytest.approx(3 * 6e-4 + 2 * bytes_s, rel=1e-12)


def test_workers_of_a_host_merge_before_their_rows_leave_it() -> None:
    layout, of = Layout((2, 2)), spec(sparse("emb", (10_000, 8), 500))
    constraints = PlanConstraints(routes={"emb": "alltoall"})
    measured = PlanInputs(equal_hosts(2), model(table("emb", 400, joined=600)))
    merged = make_plan(of, layout, constraints, measured).prediction
    apart = make_plan(of, layout, replace(constraints, merges_in_host=False), measured).prediction
    assert [p.name for p in merged.phases] == [
        "merge ids within hosts",
        "pull: ids to owners",
        "pull: rows back",
        "merge gradients within hosts",
        "gradients",
    ]
    assert merged.loads[0].out_bytes == round(0.5 * 600 * 68)
    assert apart.loads[0].out_bytes == round(0.5 * 800 * 68)


def test_one_worker_waits_for_nobody() -> None:
    plan = make_plan(mixed(), one_host(1, 0), None, PlanInputs(cluster(host(0)), model(compute_s=0.02)))
    assert plan.prediction.step_s == 0.02
    assert {v.route for v in plan.variables} == {"allreduce"}
    assert plan_from_json(plan.to_json()) == plan


def test_a_plan_with_profiles_is_shown_and_read_back(golden) -> None:
    profile = cluster(*(host(n) for n in range(4)))
    known = model(table("emb", 400, 700, 1.2), compute_s=0.02, memory_bytes=300 * MB)
    frozen = replace(dense("step", ()), cls=sparse().cls.UNTRAINED, gradients=())
    of = spec(*mixed().variables, frozen)
    measured = PlanInputs(profile, known, "cluster.json", "profile.json")
    plan = make_plan(of, Layout((1,) * 4, (0, 1)), None, measured)
    assert plan_from_json(plan.to_json()) == plan
    golden(
        "plan_timed.txt",
        plan_table(plan) + "\n" + explain_variable(plan, "emb") + "\n" + explain_variable(plan, "small"),
    )
    golden("plan_timed.json", plan.to_json())
