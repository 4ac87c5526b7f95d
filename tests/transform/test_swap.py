"""Another plan's graph beside the one that runs: what is shared, what is added by which names, what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph, analyse, rewrites_of
from parallax.analysis.planner import make_plan
from parallax.analysis.reading.construction import record
from parallax.base.errors import TransformError
from parallax.graph.view import GraphView
from parallax.plans.plan import Layout, PlanConstraints
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import WorkerGraph, transform
from parallax.transform.swap import add_plan, as_planned, list_stored_elsewhere, outside

v1 = tf.compat.v1
record.install()


def build() -> None:
    data = v1.data.make_one_shot_iterator(tf.data.Dataset.range(100).batch(4)).get_next()
    words = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), tf.constant([2], tf.int64)), 0
    )
    emb = v1.get_variable("emb", [12, 3], initializer=v1.ones_initializer(), use_resource=True)
    kept = v1.get_variable("kept", [3, 1], initializer=v1.ones_initializer(), use_resource=True)
    rows = tf.nn.embedding_lookup(emb, data % 11 + words.lookup(data) % 2)
    noise = tf.random.normal([3, 1], name="noise")
    moving = tf.random.normal(tf.shape(rows[:, :1]), name="moving")
    loss = tf.reduce_mean(tf.square(rows @ (kept + noise) + moving), name="loss")
    v1.train.AdagradOptimizer(0.1).minimize(loss, name="train")


@functools.cache  # a word table has another name in every graph
def analysed_with(more: Callable[[Any], None] | None) -> AnalysedGraph:
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(3)
        build()
        if more is not None:
            more(graph)
    return analyse(graph)


def made(
    route: str, rank: int = 0, more: Callable[[Any], None] | None = None, servers: int = 0, keeps: bool = False
) -> WorkerGraph:
    analysed = analysed_with(more)
    layout = Layout((2,), (0,) * servers)
    partitions = {"emb": 2} if route == "ps" else {}
    plan = make_plan(analysed.spec, layout, PlanConstraints(routes={"emb": route}, partitions=partitions))
    worker = Worker(rank, 2, 7, servers=(0,) * servers, keeps_positions=keeps)
    return transform(analysed.captured.view, rewrites_of(analysed, plan), worker)


def ops(graph_def: Any, op: str) -> list[str]:
    return [node.name for node in graph_def.node if node.op == op]


def test_what_a_session_keeps_is_there_once_and_what_changes_has_a_name_of_its_own() -> None:
    running, new = made("allreduce"), made("alltoall")
    found = add_plan(running, {}, new, 2)
    assert list_stored_elsewhere(running, new) == {"emb", "emb/Adagrad"}
    shared = {node.name for node in running.graph_def.node} & {n.name for n in found.worker_graph.graph_def.node}
    for op in ("OneShotIterator", "IteratorGetNext", "HashTableV2", "LookupTableFindV2"):
        assert ops(running.graph_def, op) and set(ops(running.graph_def, op)) <= shared and not ops(found.added, op)
    assert {"noise/RandomStandardNormal", "kept", "kept/Adagrad"} <= shared
    assert ops(found.added, "VarHandleOp")[:2] == ["parallax/plan_2/emb", "parallax/plan_2/emb/Adagrad"]
    assert all(name.startswith("parallax/plan_2/") for name in (n.name for n in found.added.node))
    assert found.redrawn == ("moving/RandomStandardNormal",)
    assert found.names["loss"] == "parallax/plan_2/loss" and "noise" not in found.names
    assert found.worker_graph.spread.keys() == {"emb", "emb/Adagrad"}


def test_collectives_have_new_names_on_all_workers_and_the_same_ones() -> None:
    def meets(rank: int) -> list[str]:
        found = add_plan(made("allreduce", rank), {}, made("alltoall", rank), 2)
        return sorted(n.name for n in found.added.node if n.op.startswith(("Horovod", "ParallaxAll")))

    assert meets(0) == meets(1)
    assert all(name.startswith("parallax/plan_2/parallax/") for name in meets(0))
    assert as_planned(meets(0)[0]).startswith("parallax/all_reduce/")


def test_the_added_nodes_take_what_they_lack_from_the_graph_that_runs() -> None:
    running, new = made("allgather", servers=1), made("ps", servers=1)
    found = add_plan(running, {}, new, 2)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(running.graph_def, name="")
        given = {
            n if n.startswith("^") or ":" in n else f"{n}:0": graph.get_operation_by_name(
                n.removeprefix("^").split(":")[0]
            ).outputs[0]
            for n in outside(found.added)
        }
        tf.graph_util.import_graph_def(found.added, input_map=given, name="")
    assert found.worker_graph.partitions["emb"] == tuple(
        f"parallax/plan_2/parallax/server/emb/part_{part}" for part in range(2)
    )
    names = {node.name for node in graph.as_graph_def().node}
    assert {node.name for node in found.worker_graph.graph_def.node} <= names
    shared_names = [n.attr["shared_name"].s.decode() for n in found.added.node if n.attr["shared_name"].s]
    assert shared_names and all(name.startswith("parallax/plan_2/") for name in shared_names)


def test_positions_of_random_ops_and_iterators_are_there_once() -> None:
    found = add_plan(made("alltoall", keeps=True), {}, made("allreduce", keeps=True), 2)
    added = {node.name: node for node in found.added.node}
    (moving,) = [node for node in added.values() if node.op == "StatefulStandardNormalV2"]
    assert moving.input[0].startswith("parallax_streams/moving/") and moving.input[0] not in added
    assert not found.redrawn and not any("parallax_inputs" in name for name in added)


def test_a_third_plan_shares_with_the_second_and_has_names_of_its_own() -> None:
    first, second = made("allreduce"), made("alltoall")
    once = add_plan(first, {}, second, 2)
    again = add_plan(second, once.names, made("allgather"), 3)
    assert again.names["emb"] == "parallax/plan_3/emb" and again.names["loss"] == "parallax/plan_3/loss"
    assert "noise" not in again.names and not ops(again.added, "OneShotIterator")
    view = GraphView(again.worker_graph.graph_def)
    assert not [n for n in view.nodes if n.startswith("parallax/plan_2/")]
    same = add_plan(second, once.names, second, 3)
    assert same.names["emb"] == "parallax/plan_2/emb", "rows that stay are not moved"


def test_partitions_stay_when_all_of_a_variable_do() -> None:
    one, other = made("ps", servers=2), made("ps", servers=2)
    found = add_plan(one, {}, other, 2)
    assert found.worker_graph.partitions["emb"] == one.partitions["emb"]
    assert not [n for n in ops(found.added, "VarHandleOp") if "/server/" in n]


def staged(graph: Any) -> None:
    rows = graph.get_tensor_by_name("loss:0")
    v1.raw_ops.Stage(values=[rows], name="kept_for_later")


def test_state_that_would_be_lost_is_refused_by_name() -> None:
    with pytest.raises(TransformError, match="depend on variables that the new plan moves: kept_for_later"):
        add_plan(made("allreduce", more=staged), {}, made("alltoall", more=staged), 2)


def counted(graph: Any) -> None:
    seen = v1.get_variable("seen", [], initializer=v1.zeros_initializer(), trainable=False, use_resource=True)
    add = seen.assign_add(1.0, read_value=False)
    with tf.control_dependencies([add, graph.get_operation_by_name("train")]):
        tf.no_op(name="both")


def test_what_waits_for_an_op_without_a_tensor_has_one_of_its_own() -> None:
    found = add_plan(made("allreduce", more=counted), {}, made("alltoall", more=counted), 2)
    adds = [n for n in ops(found.added, "AssignAddVariableOp") if "counter" not in n and "/parallax/" not in n]
    assert adds == ["parallax/plan_2/AssignAddVariableOp"] and "seen" not in found.names
    assert not {"^AssignAddVariableOp", "^both"} & set(outside(found.added))
