"""Before which nodes gates stand, and which runs cannot overlap."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from parallax.graph.view import GraphView
from parallax.transform.building.editor import Worker
from parallax.transform.passes.turns import GATE, add_gates, find_ungated
from parallax.transform.pipeline import transform
from tests.equality import models
from tests.transform.test_transform import decided

v1 = tf.compat.v1


def gated(build: Any) -> GraphView:
    graph = tf.Graph()
    with graph.as_default():
        build()
    graph_def = graph.as_graph_def()
    add_gates(graph_def)
    return GraphView(graph_def)


def keys(view: GraphView, node: str) -> set[str]:
    gates = [view.nodes[name] for name in view.controls(node) if view.op(name) == GATE]
    return {gate.attr["key"].s.decode() for gate in gates}


def test_all_that_take_a_variable_and_ops_with_state_of_their_own_have_a_gate() -> None:
    def build() -> None:
        with v1.variable_scope("", use_resource=True):
            kept = v1.get_variable("kept", initializer=1.0)
        kept.assign_add(1.0, name="add")
        tf.random.uniform([2], name="drawn")
        tf.add(1.0, 2.0, name="plain")
        v1.assert_equal(1, 1, name="checked")

    view = gated(build)
    assert keys(view, "kept/Read/ReadVariableOp") == keys(view, "kept/Assign") == {"kept"}
    assert {key for node in view.nodes if view.op(node) == "AssignAddVariableOp" for key in keys(view, node)} == {
        "kept"
    }
    assert keys(view, "drawn/RandomUniform") == {"drawn/RandomUniform"}
    assert not keys(view, "plain") and find_ungated(view, sorted(view.nodes)) is None


def test_variables_of_one_shared_name_have_one_key() -> None:
    def build() -> None:
        for name in ("a", "b"):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="one:1", name=name)
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name=f"read_{name}")

    view = gated(build)
    assert keys(view, "read_a") == keys(view, "read_b") == {"one:1"}


def test_reference_variables_and_draws_inside_of_old_loops_cannot_wait() -> None:
    def build() -> None:
        with v1.variable_scope("", use_resource=False):
            v1.get_variable("old", initializer=1.0)
        v1.while_loop(lambda i: i < 2.0, lambda i: i + tf.random.uniform([], 1.0, 2.0, name="drawn"), [0.0])

    v1.disable_control_flow_v2()
    try:
        view = gated(build)
    finally:
        v1.enable_control_flow_v2()
    assert find_ungated(view, ["old"]) == "old" and find_ungated(view, ["while/drawn/RandomUniform"]) is not None


def test_exchanges_and_all_reduces_take_turns_and_a_single_worker_or_servers_need_none() -> None:
    view, rewrites = decided(models.several_tables)
    made = transform(view, rewrites, Worker(0, 2, 7), overlaps=True)
    own = GraphView(made.graph_def)
    meetings = [n for n in own.nodes if own.op(n).startswith(("ParallaxAll", "Horovod"))]
    assert made.overlaps and meetings and all(node in keys(own, node) for node in meetings)
    assert not transform(view, rewrites, Worker(0, 2, 7)).overlaps
