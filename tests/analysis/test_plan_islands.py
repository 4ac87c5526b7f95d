"""The plan of a job in islands, and what is refused."""

from dataclasses import replace

import pytest

from parallax.analysis.graph_to_plan import analyse, plan_for
from parallax.analysis.plan_islands import islands_of, layout_of_island
from parallax.base.errors import ConfigError, PlanError
from parallax.entry.planned_call import checked_call, plan_on
from parallax.plans.island_plan import IslandPlan
from parallax.plans.plan import Layout, plan_from_json
from parallax.report.plan_table import plan_table
from parallax.settings.config import Config
from parallax.settings.islands import Islands
from parallax.settings.parts import CheckPointConfig, ReplanConfig, RestartConfig
from tests.end_to_end.scripts.islands import build

ON_TWO = Layout((2, 2), (0, 1), 2)
PAIR = Config(islands=Islands())


@pytest.fixture(scope="module")
def analysed():
    return analyse(build("adam")[0])


def test_an_island_is_planned_as_a_job_of_its_workers(analysed):
    plan = plan_for(analysed, ON_TWO, PAIR)
    assert plan.islands == IslandPlan(2, 32, 0.7, 0.9, 1.0, False)  # touched rows are unknown, and bytes so too
    assert (plan.num_workers, plan.num_replicas, plan.hosts) == (4, 2, (2, 2))
    alone = plan_for(analysed, Layout((2,)), Config(run_option="MPI"))
    assert plan.variables == alone.variables
    assert plan_from_json(plan.to_json()) == plan
    assert "islands" not in alone.to_json()
    first = plan_table(plan).splitlines()[0]
    assert first.endswith("2 islands of 2 workers, each as one process on its own batches, averaged every 32 updates")


def test_one_island_is_no_island(analysed):
    one = Layout((2, 2), (0, 1))
    assert plan_for(analysed, one, PAIR) == plan_for(analysed, one, Config())
    assert plan_for(analysed, ON_TWO, Config()) == plan_for(analysed, one, Config())


def test_islands_of_one_machine_and_of_several_hosts():
    assert islands_of(Layout((6,)), Config(islands=Islands(count=3))).count == 3
    assert layout_of_island(Layout((6,)), 3) == Layout((2,))
    assert layout_of_island(Layout((1, 2, 3), (), 2), 2) == Layout((1, 2))


REFUSED = [
    (Layout((5,)), Islands(count=2), "5 workers were given for 2 islands"),
    (ON_TWO, Islands(count=4), "it names 2, and count=4 was given"),
    (Layout((2, 2)), Islands(count=2), "Leave count out, and give each host an `island: NAME`"),
    (ON_TWO, Islands(pull=2 / 3, simultaneous=True), "with 2 islands below 0.6667, and pull=0.6666666666666666"),
    (Layout((4,)), Islands(pull=0.4, simultaneous=True, count=4), "with 4 islands below 0.4, and pull=0.4"),
]


@pytest.mark.parametrize(("layout", "islands", "said"), REFUSED)
def test_islands_that_do_not_fit_the_workers_are_refused(layout, islands, said):
    with pytest.raises(PlanError, match=said):
        islands_of(layout, Config(islands=islands))


def test_a_pull_below_the_bound_is_planned():
    assert islands_of(ON_TWO, Config(islands=Islands(pull=0.95 * 2 / 3, simultaneous=True))).simultaneous


UNSUPPORTED = [
    (Config(run_option="PS"), "run_option='PS'"),
    (Config(stages=2), "stages"),
    (Config(plan_file="plan.json"), "plan_file"),
    (Config(replan=ReplanConfig("on")), "replan"),
    (Config(search_partitions=True), "search_partitions"),
    (Config(restart=RestartConfig(max_restarts=1, min_hosts=1)), "min_hosts"),
    (Config(ckpt_config=CheckPointConfig(memory_steps=3)), "memory_steps"),
    (Config(ckpt_config=CheckPointConfig("folder", 3, whole_every=2)), "whole_every"),
    (Config(routes={"table": "ps"}), "table goes by ps|must be one of|servers"),
]


@pytest.mark.parametrize(("config", "said"), UNSUPPORTED, ids=[said for _, said in UNSUPPORTED])
def test_settings_that_islands_do_not_support_are_refused_by_name(analysed, config, said):
    config.islands = Islands()
    with pytest.raises(PlanError, match=said):
        plan_for(analysed, ON_TWO, config)


def test_asynchronous_training_and_hosts_for_servers_are_refused(analysed):
    with pytest.raises(PlanError, match="sync=False"):
        plan_for(analysed, ON_TWO, PAIR, synchronous=False)
    with pytest.raises(PlanError, match="hosts for servers only"):
        plan_for(analysed, Layout((2, 2, 0), (2,), 2), PAIR)


@pytest.mark.parametrize("name", ["measure", "memory", "html"])
def test_options_that_need_one_team_are_refused_by_name(analysed, name):
    from parallax.cluster.machines import local_cluster

    call = checked_call(None, None, True, Config(islands=Islands(count=2)))
    call = replace(call, requested=replace(call.requested, **{name: 3}))
    with pytest.raises(PlanError, match=f"--{name.replace('_', '-')} is not supported yet with islands"):
        plan_on(local_cluster(4, ""), analysed, call)


def test_a_plan_of_islands_is_not_taken_from_a_file(analysed, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(plan_for(analysed, ON_TWO, PAIR).to_json())
    with pytest.raises(PlanError, match="this one is for 2 islands. Leave the file out"):
        plan_for(analysed, Layout((2, 2)), Config(plan_file=file))


@pytest.mark.parametrize("sync", [False, "bounded"])
def test_islands_contradict_asynchronous_training(sync):
    staleness = 2 if sync == "bounded" else None
    with pytest.raises(ConfigError, match=f"sync={sync!r} .* contradicts islands"):
        checked_call(None, None, sync, Config(islands=Islands(count=2), staleness=staleness))
