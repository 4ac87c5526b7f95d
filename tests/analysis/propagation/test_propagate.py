"""What a walk over the graph is asked again, and what it takes for granted before it has seen it."""

from dataclasses import replace

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from parallax.analysis.graph_to_plan import AnalysedGraph, analyse, make_feasible_plan
from parallax.analysis.planner import part_routes
from parallax.analysis.propagation import propagate as walks
from parallax.analysis.propagation.propagate import propagate, walk_graph
from parallax.analysis.reading.construction import record
from parallax.plans.plan import PlanConstraints, one_host
from tests.equality.models import ROWS, dense, ids, squared, table

record.install()
v1 = tf.compat.v1


def analysed(optimizer: v1.train.Optimizer, beside: bool = False) -> AnalysedGraph:
    """One table; beside it, where wanted, a variable that is named as its slots are, and is none."""
    graph = tf.Graph()
    with graph.as_default():
        emb = table()
        if beside:
            v1.get_variable("emb/seen", emb.shape, initializer=v1.ones_initializer(), trainable=False)
        optimizer.minimize(squared(dense(tf.nn.embedding_lookup(emb, ids(6))), 6))
    return analyse(graph)


def routes_of(found: AnalysedGraph) -> dict[str, str]:
    plan = make_feasible_plan(found, one_host(2), PlanConstraints(routes={"emb": "alltoall"}))
    return dict(part_routes(found.spec, plan))


def count_walks(monkeypatch) -> list[int]:
    """Grows by one with every walk."""
    counted, walk = [], walks._walk

    def counting(*given):
        counted.append(1)
        return walk(*given)

    monkeypatch.setattr(walks, "_walk", counting)
    return counted


def test_decisions_belong_to_one_capture_and_not_to_every_capture_of_its_view() -> None:
    found = analysed(v1.train.AdagradOptimizer(0.1))
    routes = routes_of(found)
    first = propagate(found.captured, found.sources, routes)
    assert propagate(found.captured, found.sources, routes) is first
    other = replace(found.captured, fingerprint="another")
    assert propagate(other, found.sources, routes) == first
    assert propagate(other, found.sources, routes) is not first


def test_slots_that_are_named_after_their_table_take_one_walk(monkeypatch) -> None:
    for optimizer in (v1.train.AdagradOptimizer(0.1), v1.train.AdamOptimizer(0.1)):
        found = analysed(optimizer)
        counted = count_walks(monkeypatch)
        walk = walk_graph(found.captured, found.sources, routes_of(found))
        assert walk.assumptions.table_of["emb"] == "emb" and len(walk.assumptions.table_of) > 1
        assert len(counted) == 1
        monkeypatch.undo()


def test_a_variable_that_is_only_named_like_a_slot_is_none(monkeypatch) -> None:
    found = analysed(v1.train.AdamOptimizer(0.1), beside=True)
    assert found.captured.variables["emb/seen"].part.shape[0] == ROWS
    walk = walk_graph(found.captured, found.sources, routes_of(found))
    assert sorted(walk.assumptions.table_of) == ["emb", "emb/Adam", "emb/Adam_1"]


def test_looking_at_a_graph_adds_no_attribute_to_its_nodes() -> None:
    graph = tf.Graph()
    with graph.as_default():
        emb, taken = v1.get_variable("table", [11, 4, 4], use_resource=False), v1.placeholder(tf.int64, [None])
        rows = tf.raw_ops.Gather(params=emb, indices=taken)
        products = tf.matmul(rows, tf.raw_ops.BatchMatMul(x=rows, y=tf.reverse(rows, [0]), adj_y=True))
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(products))
    found = analyse(graph)
    walk_graph(found.captured, found.sources, {"table": "allgather"})
    for node in found.captured.view.nodes.values():
        known = {attribute.name for attribute in op_def_registry.get(node.op).attr}
        assert {name for name in node.attr if not name.startswith("_")} <= known, node.name
