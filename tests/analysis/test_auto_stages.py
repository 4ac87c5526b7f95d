"""Stages that the planner chooses: where they pay, where memory needs them, and what a plan says otherwise."""

import itertools

import pytest
import tensorflow.compat.v1 as tf

from parallax.analysis.cut.plan_stages import get_graph_cut
from parallax.analysis.cut.stage_cut import CutRates
from parallax.analysis.graph_to_plan import analyse, memory_of, plan_for, simulation_of
from parallax.analysis.whatif.memory import FixedMemory, HostMemory
from parallax.analysis.whatif.simulate import HostKind
from parallax.base.errors import NotEnoughMemory, PlanError
from parallax.plans.model_stages import WorkerGrid, idle_share
from parallax.plans.plan import Layout, plan_from_json
from parallax.plans.what_if import WhatIf
from parallax.report.html.page import plan_page
from parallax.report.plan_table import plan_table
from parallax.settings.config import Config
from tests.analysis.measured import cluster, equal_hosts, host, model

HOSTS = Layout((1,) * 8, tuple(range(8)))
TEN_GBIT = 1.25e9


def wide(batch=32, layers=8, width=4096):
    graph = tf.Graph()
    with graph.as_default():
        values = tf.placeholder(tf.float32, [batch, width], name="values")
        for number in range(layers):
            values = tf.nn.relu(values @ tf.get_variable(f"w{number}", [width, width]), name=f"layer{number}")
        tf.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(tf.square(values)))
    return graph


def convolutions(batch=8, layers=8, size=56, channels=64):
    graph = tf.Graph()
    with graph.as_default():
        values = tf.placeholder(tf.float32, [batch, size, size, channels], name="images")
        for number in range(layers):
            kernel = tf.get_variable(f"w{number}", [3, 3, channels, channels])
            values = tf.nn.relu(tf.nn.conv2d(values, kernel, 1, "SAME"), name=f"layer{number}")
        tf.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_mean(tf.square(values)))
    return graph


@pytest.fixture(scope="module")
def analysed():
    return analyse(wide())


@pytest.fixture
def plan(tmp_path):
    """Plans a graph for some hosts with their profile, and that of the model if seconds of a run are given."""

    def make(analysed, hosts=None, layout=HOSTS, run_s=None, op_seconds=None, **settings):
        files = {"cluster_profile": tmp_path / "cluster.json"}
        files["cluster_profile"].write_text((hosts or equal_hosts(8, TEN_GBIT)).to_json())
        if run_s is not None:
            files["model_profile"] = tmp_path / "model.json"
            found = model(of=analysed.spec, compute_s=run_s, op_seconds=op_seconds or {})
            files["model_profile"].write_text(found.to_json())
        return plan_for(analysed, layout, Config(**{"stages": "auto", "micro_batches": 8, **files, **settings}))

    return make


def test_wide_layers_are_cut(analysed, plan):
    found = plan(analysed, run_s=0.005)
    assert len(found.stages) == 8 and [len(stage.variables) for stage in found.stages] == [1] * 8
    assert found.prediction.step_s == pytest.approx(max(s.turns[-1].end_s for s in found.stages), rel=0.01)
    assert any("8 stages x 1 replica were chosen" in note for note in found.notes)
    assert plan_from_json(found.to_json()) == found
    table = plan_table(found)
    assert "67.1 MB a step in 8 stages, and 940 MB without stages" in table and "  ms  " in table


def test_convolutions_are_not_cut_and_the_runner_up_is_named(plan):
    found = plan(analyse(convolutions()))
    assert not found.stages
    (told,) = (note for note in found.notes if "stages were not chosen" in note)
    assert "replica" in told and "stages are chosen at no slower links" in told


def test_the_choice_changes_at_the_rate_that_is_named(analysed, plan):
    fast = plan(analysed, run_s=0.5, hosts=equal_hosts(8, 100 * TEN_GBIT))
    (told,) = (note for note in fast.notes if "stages were not chosen" in note)
    number, unit = told.rsplit(" ", 2)[1:]
    rate = float(number) / 8 * {"Gbit/s": 1e9, "Mbit/s": 1e6}[unit]
    assert not plan(analysed, run_s=0.5, hosts=equal_hosts(8, 1.1 * rate)).stages
    assert plan(analysed, run_s=0.5, hosts=equal_hosts(8, 0.9 * rate)).stages


def test_stages_are_chosen_where_nothing_else_fits(analysed, plan):
    small = cluster(*(host(number, 100 * TEN_GBIT, memory=1 << 30) for number in range(8)))
    found = plan(analysed, run_s=0.5, hosts=small)
    assert found.stages and any("no plan without stages fits" in note for note in found.notes)
    assert all(m.values_bytes + m.exchange_bytes + m.model_bytes <= 1 << 30 for m in found.prediction.memory)
    tiny = cluster(*(host(number, TEN_GBIT, memory=1 << 20) for number in range(8)))
    with pytest.raises(NotEnoughMemory, match="Not enough memory"):
        plan(analysed, hosts=tiny)


def test_stages_are_compared_by_the_step_at_one_global_batch(analysed, plan):
    """A replica of P stages has the examples of P workers."""
    staged = plan(analysed, run_s=0.02)
    assert sum(stage.run_s for stage in staged.stages) == pytest.approx(0.02 * len(staged.stages))
    named = plan(analysed, run_s=0.02, stages=8)
    assert sum(stage.run_s for stage in named.stages) == pytest.approx(0.02)


@pytest.mark.parametrize("has_times", [True, False])
def test_what_weighs_more_stays_on_a_host(plan, has_times):
    """Gradients of wide layers, by workers of one stage; activations of many examples, by those of a replica."""
    settings = {"layout": Layout((4, 4), (0, 1)), "stages": 2, "hosts": equal_hosts(2, TEN_GBIT)}
    settings |= {} if has_times else {"cluster_profile": None}
    heavy = plan(analyse(wide(batch=4, width=512)), run_s=0.001, **settings)
    assert heavy.is_by_stage and [load.out_bytes for load in heavy.prediction.loads] in ([], [4 * 4 * 512 * 4 * 8] * 2)
    assert "consecutive workers have the same stage" in plan_table(heavy)
    assert plan_from_json(heavy.to_json()) == heavy
    light = plan(analyse(wide(batch=4096, width=512)), run_s=0.001, **settings)
    assert not light.is_by_stage and "consecutive workers form a replica" in plan_table(light)


@pytest.mark.parametrize("is_by_stage", [False, True])
def test_each_worker_has_one_stage_of_one_replica(is_by_stage):
    grid = WorkerGrid(3, 2, is_by_stage)
    places = [grid.place(rank) for rank in range(6)]
    assert sorted(places) == list(itertools.product(range(2), range(3)))
    for replica in range(2):
        assert [places[rank] for rank in grid.find_replica(replica)] == [(replica, stage) for stage in range(3)]
    for stage in range(3):
        assert [places[rank] for rank in grid.find_team(stage)] == [(replica, stage) for replica in range(2)]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 4), (4, 8), (8, 3)])
def test_equal_stages_idle_as_a_pipeline_does(plan, stages, micro_batches):
    """Where layers are alike and messages free."""
    found = plan(analyse(wide(batch=1, width=256)), run_s=10.0, stages=stages, micro_batches=micro_batches)
    busy = sum(turn.end_s - turn.start_s for turn in found.stages[0].turns)
    assert 1 - busy / found.stages[0].turns[-1].end_s == pytest.approx(idle_share(stages, micro_batches), abs=0.02)


def test_the_cut_is_the_best_of_all(analysed):
    found = get_graph_cut(analysed.captured, analysed.sources)
    crossing = found._crossing_bytes()
    for byte_s, op_seconds in itertools.product([1e-12, 1e-9, 1e-7], [{}, {f"layer{n}": 1.0 + n for n in range(8)}]):
        rates = CutRates(1.0, byte_s, 32.0, op_seconds)
        costs = found.member_seconds(rates)
        assert sum(costs) == pytest.approx(1.0)
        position = {node: number for number, nodes in enumerate(found.forward.members) for node in nodes}

        def dearest(ends, costs=costs, byte_s=byte_s):
            bounds = [0, *ends, len(costs)]
            pairs = itertools.pairwise(bounds)
            return max(sum(costs[a:b]) + 32 * byte_s * (crossing[a] + crossing[b]) for a, b in pairs)

        for count in (2, 3):
            every = itertools.combinations(range(1, len(costs)), count - 1)
            chosen = [max(position[node] for node in ends) + 1 for ends in found.find_best_ends(count, rates)]
            assert dearest(chosen) == pytest.approx(min(map(dearest, every)))


def test_measured_seconds_of_ops_move_the_cut(analysed, plan):
    slow = plan(
        analysed, run_s=0.5, stages=2, op_seconds={"MatMul": 9.0, "MatMul_7": 1.0, "layer7": 1.0, "matmul": 9.0}
    )
    assert [len(stage.variables) for stage in slow.stages] != [4, 4]
    assert [len(stage.variables) for stage in plan(analysed, run_s=0.5, stages=2).stages] == [4, 4]


def test_assumed_seconds_are_named(analysed, plan):
    assert "by 5 Gflop/s a worker: measure them" in plan_table(plan(analysed, stages=2))
    assert "Gflop/s" not in plan_table(plan(analysed, stages=2, run_s=0.5))


def test_stages_without_times_say_why(plan):
    found = plan(analyse(wide(batch=None, layers=4)), run_s=0.01, stages=4)
    assert found.prediction.step_s is None and "leaves the batch open" in plan_table(found)
    assert plan(analyse(wide(batch=None, layers=4)), run_s=0.01, stages=4, examples=32).prediction.step_s > 0


@pytest.mark.parametrize(
    ("batch", "settings", "said"),
    [
        (32, {"cluster_profile": None}, "measure the cluster"),
        (None, {}, "leaves the batch open"),
        (32, {"run_option": "PS"}, "not supported yet with servers"),
    ],
)
def test_refuses(plan, batch, settings, said):
    with pytest.raises(PlanError, match=said):
        plan(analyse(wide(batch, 2, 8)), **settings)


def test_a_page_draws_stages_and_their_micro_batches(analysed, plan):
    page = plan_page(plan(analysed, run_s=0.02, stages=4))
    assert page.count('class="turn"') == 4 * 8 * 2 and 'class="stages"' in page
    assert page.count("a copy in every worker of its stage") > 0
    assert "micro-batch 7, backward" in page


def test_a_simulation_has_the_plans_in_stages(analysed, plan, tmp_path):
    """Each size has the step, and the bytes, of its plan; replicas add batches."""
    plans = [
        plan(analysed, run_s=0.02, stages=4, layout=Layout((1,) * n, tuple(range(n))), hosts=equal_hosts(n, TEN_GBIT))
        for n in (4, 8)
    ]
    files = {"cluster_profile": tmp_path / "cluster.json", "model_profile": tmp_path / "model.json"}
    files["cluster_profile"].write_text(equal_hosts(2, TEN_GBIT).to_json())
    config = Config(stages=4, micro_batches=8, **files)
    found = simulation_of(analysed, [HostKind()] * 2, config, True, WhatIf((4, 8)))
    for size, planned in zip(found.sizes, plans, strict=True):
        assert size.step_s == pytest.approx(planned.prediction.step_s)
        assert size.sent_bytes == max(load.out_bytes for load in planned.prediction.loads)
        assert size.throughput == pytest.approx(planned.num_replicas * 8 / size.step_s)
    larger = simulation_of(analysed, [HostKind()] * 2, config, True, WhatIf((4,), batch=2.0))
    assert larger.sizes[0].step_s == pytest.approx(2 * found.sizes[0].step_s, rel=0.05)
    with pytest.raises(PlanError, match="multiple of the number of stages"):
        simulation_of(analysed, [HostKind()] * 2, config, True, WhatIf((6,)))


def test_a_memory_plan_has_each_stage_and_the_largest_micro_batch():
    analysed, hosts = analyse(wide(batch=None, width=256)), [HostMemory("a", 10**9, "this machine")]
    config, layout = Config(stages=2, micro_batches=4, examples=100), Layout((4,))
    plan, fixed = plan_for(analysed, layout, config), FixedMemory(10**8, launcher_bytes=10**8, launcher_host=0)
    found = memory_of(analysed, plan, config, hosts, fixed, examples=100)
    *workers, launcher = found.processes
    assert [use.activation_bytes for use in workers] == [
        100 * (plan.stages[s].kept_bytes * (1 - s) + plan.stages[s].most_bytes) for s in (0, 1, 0, 1)
    ]
    assert {(use.values_bytes, use.slots_bytes) for use in workers} == {(4 * 256 * 256 * 4, 0)}
    assert (launcher.kind, launcher.total_bytes) == ("launcher", 10**8)
    most = [memory_of(analysed, plan, config, hosts, fixed, examples=found.largest_batch + more) for more in (0, 1)]
    assert [one.hosts[0].fits for one in most] == [True, False]
    unknown = memory_of(analysed, plan, Config(stages=2, micro_batches=4), hosts, fixed)
    assert unknown.largest_batch == found.largest_batch and "activations are not counted" in unknown.notes[0]
