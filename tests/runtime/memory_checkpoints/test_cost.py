"""What a plan says of the state in the memory of hosts, and what is refused; the loop of it is in tests/lab."""

from dataclasses import replace

import pytest

from parallax.analysis.routes.peer_memory import peer_memory_cost
from parallax.base.errors import ConfigError, PlanError
from parallax.cluster.machines import local_cluster
from parallax.graph.spec import GraphSpec, Slot, VariableClass, VariableSpec
from parallax.plans.plan import ALLREDUCE, ALLTOALL, PLAN_VERSION, Plan, RouteCost, VariablePlan
from parallax.runtime.planned_job import check_restarts
from parallax.settings.config import Config
from parallax.settings.parts import CheckPointConfig, RestartConfig

TABLE = VariableSpec("table", (100, 4), "float32", 4, (), True, VariableClass.SPARSE)
TABLE = replace(TABLE, slots=(Slot("table/m", ("table/m",), 4, 4),))
DENSE = VariableSpec("dense", (5, 5), "float32", 4, (), True, VariableClass.DENSE)
SPEC = GraphSpec("f" * 64, (DENSE, TABLE))
PLAN = Plan(
    *(PLAN_VERSION, "f" * 64, (1, 1, 1, 1), (), "HYBRID", True, True),
    variables=(
        VariablePlan("dense", DENSE.cls, (5, 5), "float32", ALLREDUCE, (), None, RouteCost(ALLREDUCE, 1, 1), ""),
        VariablePlan("table", TABLE.cls, (100, 4), "float32", ALLTOALL, (25,) * 4, 6, RouteCost(ALLTOALL, 1, 3), ""),
    ),
)


@pytest.mark.parametrize(
    ("plan", "lazy", "steps", "alone", "sent", "host"),
    [
        (PLAN, (), 1, (), 6 * 40, 2 * (25 * 32 + 3 * 6 * 40) + 300),
        (PLAN, (), 2, (), 12 * 40, 2 * (25 * 32 + 3 * 12 * 40) + 300),
        (PLAN, (), 9, (), 25 * 40, 2 * (25 * 32 + 3 * 25 * 40) + 300),  # never more than all rows of an owner
        (PLAN, ("table",), 1, (), 25 * 32, 2 * 3 * 25 * 32 + 300),
        (PLAN, (), 1, ("table",), 0, 25 * 32 + 3 * 6 * 40 + 300),
        (replace(PLAN, hosts=(4,)), (), 1, (), 0, 4 * (25 * 32 + 3 * 6 * 40) + 300),
    ],
)
def test_what_a_set_sends_and_a_host_holds_at_most(plan, lazy, steps, alone, sent, host):
    found = peer_memory_cost(plan, SPEC, lazy, steps, alone)
    assert (found.sent_bytes, found.host_bytes) == (sent, host)


def test_what_cannot_be_is_refused_with_a_remedy():
    with pytest.raises(PlanError, match='keeps variables on servers. Use run_option="MPI"'):
        peer_memory_cost(replace(PLAN, servers=(0,)), SPEC, (), 1)
    in_memory = CheckPointConfig(memory_steps=1)
    cluster = local_cluster(2, "")
    with pytest.raises(ConfigError, match="memory_steps=1 needs max_restarts"):
        check_restarts(Config(ckpt_config=in_memory), cluster, is_call=False)
    restarted = Config(ckpt_config=in_memory, restart=RestartConfig(2))
    check_restarts(restarted, cluster, is_call=False)
    with pytest.raises(ConfigError, match="for a call such as `fit`"):
        check_restarts(restarted, cluster, is_call=True)
    with pytest.raises(ConfigError, match="whole_every and memory_steps cannot be combined"):
        CheckPointConfig("folder", save_ckpt_steps=2, whole_every=3, memory_steps=1)
    with pytest.raises(ConfigError, match="memory_steps"):
        CheckPointConfig(memory_steps=0)
