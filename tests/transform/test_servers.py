"""The workers' graphs for plans with servers: what is on which device, who gives and takes what; no cluster."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, make_feasible_plan, rewrites_of
from parallax.analysis.reading.construction import record
from parallax.base.errors import TransformError
from parallax.graph.view import GraphView
from parallax.plans.plan import Layout, PlanConstraints, one_host, server_fronts
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.all_to_all import ALL_TO_ALL
from parallax.transform.building.editor import Worker
from parallax.transform.invariants import check_servers
from parallax.transform.pipeline import WorkerGraph, transform
from tests.equality import models

v1 = tf.compat.v1
record.install()

SERVERS = 2
PARTITIONS = {"emb": 3, "w": 2}


def two_lookups(rows: int) -> None:
    models.two_lookups(rows, "Adagrad", True)


def one_lookup(rows: int) -> None:
    h = tf.nn.embedding_lookup(models.table(), models.ids(rows))
    v1.train.AdagradOptimizer(0.1).minimize(models.squared(models.dense(h), rows))


def decided(
    build: Any, resource: bool = True, workers: int = 2, layout: Layout | None = None, **constraints: Any
) -> tuple[GraphView, Rewrites]:
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=resource):
        v1.set_random_seed(3)
        build(6)
    analysed = analyse(graph, synchronous=constraints.get("synchronous", True))
    plan = make_feasible_plan(
        analysed, layout or one_host(workers, SERVERS), PlanConstraints(**{"run_option": "PS", **constraints})
    )
    return analysed.captured.view, rewrites_of(analysed, plan)


def both(build: Any, **constraints: Any) -> list[WorkerGraph]:
    """The graphs of both workers."""
    view, rewrites = decided(build, **constraints)
    return [transform(view, rewrites, Worker(rank, 2, 7, servers=(0,) * SERVERS)) for rank in range(2)]


def horovod(made: WorkerGraph, where: str = "") -> list[str]:
    return [n.name for n in made.graph_def.node if n.op.startswith(("Horovod", ALL_TO_ALL)) and where in n.name]


def updates(made: WorkerGraph) -> list[tuple[str, str]]:
    """(op, device) of all that optimizers do to variables."""
    found = [(n.op, n.device) for n in made.graph_def.node if re.search("Apply(?!Gradient)|AssignAdd|AssignSub", n.op)]
    return [(op, device) for op, device in found if op != "AssignAddVariableOp" or "/job:ps" in device]


def meetings(made: WorkerGraph) -> dict[str, list[str]]:
    """Meeting -> its queues' shared names, types, and devices."""
    found: dict[str, list[str]] = {}
    for node in made.graph_def.node:
        if node.op == "FIFOQueueV2":
            name = node.attr["shared_name"].s.decode()
            kinds = [tf.dtypes.as_dtype(t).name for t in node.attr["component_types"].list.type]
            found.setdefault(name.rpartition("/")[0], []).append(f"{name} {kinds} {node.device}")
    return found


@pytest.mark.rotates
@pytest.mark.parametrize("model", ["bags, clipped", "positions, mixed", "sampled softmax", "tied", "several tables"])
def test_all_on_servers_leaves_no_collective(model: str) -> None:
    for made in both(models.MODELS[model]):
        assert horovod(made) == []


def test_asynchronous_training_has_no_collective_and_no_accumulator() -> None:
    for made in both(two_lookups, synchronous=False):
        assert horovod(made) == []
        assert not [n.name for n in made.graph_def.node if "Accumulator" in n.op]


@pytest.mark.rotates
@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("optimizer", ["Adagrad", "Adam", "Momentum", "Ftrl"])
def test_updates_are_on_servers_only_and_worker_0s_only(optimizer: str, resource: bool) -> None:
    def build(rows: int) -> None:
        models.two_lookups(rows, optimizer, False)

    view, rewrites = decided(build, resource, partitions=PARTITIONS)
    names = {one.node for one in rewrites.owned if one.writes and not one.initial}
    zero, one = (transform(view, rewrites, Worker(rank, 2, 7, servers=(0,) * SERVERS)) for rank in range(2))
    written = [n for n in zero.graph_def.node if n.name.startswith("parallax/server/") and _node(n.name) in names]
    assert {_node(n.name) for n in written} == names and all("/job:ps/" in n.device for n in written)
    assert not [n.name for n in one.graph_def.node if _node(n.name) in names and n.op != "NoOp" and "ps" in n.device]
    for made in (zero, one):
        left = {n.op for n in made.graph_def.node if n.name in names}
        assert left <= {"NoOp", "Identity"}


def _node(name: str) -> str:
    """The node of the user's graph that a copy on a server was made of."""
    return re.sub(r"^parallax/server/(.*)/part_\d+$", r"\1", name)


def test_asynchronous_updates_are_in_every_workers_graph_and_on_servers() -> None:
    zero, one = (updates(made) for made in both(two_lookups, synchronous=False, partitions=PARTITIONS))
    assert sorted(zero) == sorted(one)
    assert Counter(op for op, _ in zero) == {
        "ResourceSparseApplyAdagrad": 3 + 1,  # partitions of emb and bias
        "ResourceApplyAdagrad": 2,
        "AssignAddVariableOp": 1,  # global_step
    }
    assert all("/job:ps/" in device for _, device in zero)


def test_asynchronous_updates_of_a_partition_are_under_one_mutex() -> None:
    for made in both(lambda rows: models.two_lookups(rows, "Adam", True), synchronous=False, partitions=PARTITIONS):
        ops = Counter(n.op for n in made.graph_def.node)
        assert ops["MutexV2"] == ops["MutexLock"] == ops["ConsumeMutexLock"] >= 3 + 1 + 2 + 1
        mutexes = [n.attr["shared_name"].s.decode() for n in made.graph_def.node if n.op == "MutexV2"]
        assert len(set(mutexes)) == len(mutexes)


def test_every_worker_gives_once_to_each_accumulator_and_worker_0_takes() -> None:
    given = []
    for rank, made in enumerate(both(two_lookups, partitions=PARTITIONS)):
        nodes = made.graph_def.node
        accumulators = {
            n.name: n.attr["shared_name"].s.decode() for n in nodes if n.op.endswith("ConditionalAccumulator")
        }
        gives = [n.input[0] for n in nodes if n.op.endswith("AccumulatorApplyGradient")]
        takes = [n.input[0] for n in nodes if n.op.endswith("AccumulatorTakeGradient")]
        assert sorted(gives) == sorted(accumulators)
        assert sorted(takes) == (sorted(accumulators) if rank == 0 else [])
        given.append(sorted(accumulators.values()))
    emb, bias, w = 3, 1, 2  # partitions
    assert given[0] == given[1] and len(set(given[0])) == emb + bias + w


@pytest.mark.parametrize(
    ("model", "synchronous"),
    [(m, s) for m in ("bags, clipped", "tied", "several tables", "two losses") for s in (True, False)]
    + [("moving averages", True)],  # asynchronously its table cannot be on servers
)
def test_workers_meet_under_the_same_numbers(model: str, synchronous: bool) -> None:
    zero, one = (meetings(made) for made in both(models.MODELS[model], synchronous=synchronous))
    assert zero == one and zero


def test_in_each_meeting_one_gives_what_another_takes() -> None:
    zero, one = both(two_lookups, partitions=PARTITIONS)
    ends = [
        Counter(n.op for n in m.graph_def.node if n.op in ("QueueEnqueueV2", "QueueDequeueV2")) for m in (zero, one)
    ]
    assert ends[0]["QueueEnqueueV2"] == ends[1]["QueueDequeueV2"]
    assert ends[0]["QueueDequeueV2"] == ends[1]["QueueEnqueueV2"] == 2  # the two sparse gradients' norms


def with_hosts(route: str, synchronous: bool = True) -> WorkerGraph:
    """The graph of worker 1 of four on two hosts, who merge what they ask for."""
    constraints: dict[str, Any] = {"run_option": "HYBRID", "routes": {"emb": route}} if synchronous else {}
    view, rewrites = decided(one_lookup, workers=4, synchronous=synchronous, **constraints)
    worker = Worker(1, 4, 7, hosts=(0, 0, 1, 1), merges_in_host=True, servers=(0,) * SERVERS)
    return transform(view, rewrites, worker)


@pytest.mark.parametrize(
    ("route", "pull", "push"),
    [
        # Ids within the host, ids to owners, rows back, rows within the host; gradient rows the same two ways.
        ("alltoall", ["host", "workers", "workers", "host"], ["host", "workers"]),
        # Owners are servers: the exchanges within the host remain.
        ("ps", ["host", "host"], ["host"]),
    ],
)
def test_workers_of_a_host_merge_what_they_ask_for(route: str, pull: list[str], push: list[str]) -> None:
    made = with_hosts(route)
    found: dict[str, list[str]] = {"pull": [], "push": []}
    for node in made.graph_def.node:
        if node.op == ALL_TO_ALL:
            found[node.name.split("/")[1].partition("_")[0]].append(node.attr["among"].s.decode())
    assert found == {"pull": pull, "push": push}


def apart(servers: tuple[int, ...], synchronous: bool = True) -> list[WorkerGraph]:
    """The graphs of three workers on hosts of their own, with servers on some hosts."""
    constraints: dict[str, Any] = {"run_option": "HYBRID", "routes": {"emb": "ps"}} if synchronous else {}
    hosts = (0, 1, 2)
    layout = Layout(tuple(int(host in hosts) for host in range(max(*hosts, *servers) + 1)), servers)
    constraints["partitions"] = {"emb": len(servers)}
    view, rewrites = decided(one_lookup, layout=layout, synchronous=synchronous, **constraints)
    return [transform(view, rewrites, Worker(rank, 3, 7, hosts=hosts, servers=servers)) for rank in hosts]


def on_servers(made: WorkerGraph, op: str) -> list[str]:
    """The devices of the ops of one kind that an exchange has put on servers."""
    return [
        n.device for n in made.graph_def.node if n.op == op and re.match(r"parallax/(pull|accumulate|front)", n.name)
    ]


def test_each_server_is_asked_by_the_worker_of_its_host_for_all():
    for rank, made in enumerate(apart((0, 1, 2))):
        own = [f"/job:ps/task:{rank}"]
        assert [n.attr["among"].s for n in made.graph_def.node if n.op == ALL_TO_ALL] == [b"workers"] * 3
        assert on_servers(made, "ResourceGather") == own
        assert on_servers(made, "SparseAccumulatorApplyGradient") == own
        taken = [n for n in made.graph_def.node if n.op == "SparseAccumulatorTakeGradient"]
        assert [n.device for n in taken] == [f"/job:ps/task:{server}" for server in range(3) if rank == 0]
        needed = {c.name: c.attr["value"].tensor.int_val for c in made.graph_def.node if c.op == "Const"}
        assert all(list(needed[n.input[1]]) == [1] for n in taken)


def test_a_worker_without_a_server_takes_part_and_asks_none():
    zero, one, two = apart((0, 2))
    assert on_servers(one, "ResourceGather") == on_servers(one, "SparseAccumulatorApplyGradient") == []
    assert len(horovod(zero)) == len(horovod(one)) == len(horovod(two))
    update = next(n.name for n in one.graph_def.node if "update_emb/ResourceSparseApply" in n.name)
    assert set(horovod(one, "/push")) <= GraphView(one.graph_def).ancestors([update])


@pytest.mark.parametrize("servers", [(1, 2), (2,), (0, 1)])
def test_all_workers_send_gradient_rows_whichever_has_the_server(servers: tuple[int, ...]):
    for made in apart(servers):
        updates = [n.name for n in made.graph_def.node if "update_emb/ResourceSparseApply" in n.name]
        sends = {n.name for n in made.graph_def.node if n.op == ALL_TO_ALL and "/push" in n.name}
        assert updates and sends and sends <= GraphView(made.graph_def).ancestors(updates)


@pytest.mark.parametrize(("servers", "synchronous"), [((0, 3), True), ((0, 1, 2), False)])
def test_without_fronts_every_worker_asks_every_server(servers: tuple[int, ...], synchronous: bool):
    for made in apart(servers, synchronous):
        assert not [n for n in made.graph_def.node if n.op == ALL_TO_ALL]
        assert len(on_servers(made, "ResourceGather")) == len(servers)


@pytest.mark.parametrize(
    ("hosts", "servers", "fronts"),
    [
        ((0, 1, 2), (0, 1, 2), (0, 1, 2)),
        ((0, 2), (2, 2, 0), (1, 1, 0)),
        ((0, 1), (), ()),
        ((0, 1), (0, 2), ()),  # a host of servers alone
        ((0, 0, 1), (0, 1), ()),  # two workers on a host
        ((0,), (0,), ()),
        ((), (0,), ()),
    ],
)
def test_who_asks_a_server_for_all(hosts: tuple[int, ...], servers: tuple[int, ...], fronts: tuple[int, ...]):
    assert server_fronts(hosts, servers) == fronts


def test_asynchronous_workers_merge_nothing_with_their_host() -> None:
    assert horovod(with_hosts("ps", synchronous=False)) == []


def test_an_update_left_in_the_worker_is_found_and_its_op_named() -> None:
    view, rewrites = decided(two_lookups)
    made = transform(view, rewrites, Worker(0, 2, 7, servers=(0,) * SERVERS)).graph_def
    check_servers({node.name: node for node in made.node}, rewrites)
    one = next(o for o in rewrites.owned if o.writes and not o.initial)
    node = next(n for n in made.node if n.name == one.node)
    node.CopyFrom(view.nodes[one.node])
    message = f"'{one.node}' must write the partitions of '{one.table}' on their servers, and is still {node.op}"
    with pytest.raises(TransformError, match=message):
        check_servers({node.name: node for node in made.node}, rewrites)


def test_every_node_of_a_worker_has_its_device() -> None:
    for rank, made in enumerate(both(two_lookups)):
        devices = {n.device for n in made.graph_def.node}
        assert devices == {f"/job:worker/task:{rank}", "/job:ps/task:0", "/job:ps/task:1"}


def test_the_same_decisions_give_the_same_graph_byte_for_byte() -> None:
    view, rewrites = decided(models.MODELS["several tables"])
    worker = Worker(0, 2, 7, servers=(0,) * SERVERS)
    first, again = (transform(view, rewrites, worker).graph_def for _ in range(2))
    assert first.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)


def test_the_decisions_and_ops_of_a_small_graph_on_servers(golden) -> None:
    view, rewrites = decided(one_lookup, partitions={"emb": 2})
    lines = [repr(rewrites.terms)]
    lines += [repr(d) for name in Rewrites.__slots__ if name != "terms" for d in getattr(rewrites, name)]
    before = Counter(n.op for n in view.graph_def.node)
    for rank in range(2):
        made = transform(view, rewrites, Worker(rank, 2, 7, servers=(0,) * SERVERS))
        after = Counter(n.op for n in made.graph_def.node)
        lines.append(f"worker {rank}")
        lines += [f"{op} {after[op] - before[op]:+d}" for op in sorted(after | before) if after[op] != before[op]]
    golden("small_graph_on_servers.txt", "\n".join(lines) + "\n")
