"""New ops of a turn take what is outside of their loop."""

from __future__ import annotations

import tensorflow as tf

from parallax.graph.view import GraphView
from parallax.transform.building.loop_entries import bring_into_loops

v1 = tf.compat.v1


def test_an_op_of_a_loop_in_a_loop_takes_what_is_outside_of_both() -> None:
    was_v2 = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            tf.constant(10.0, name="outside")

            def turn(number: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                added = tf.while_loop(
                    lambda n, _: n < 2, lambda n, t: (n + 1, tf.add(t, 1.0, name="added")), [tf.constant(0), total]
                )
                return number + 1, added[1]

            tf.identity(tf.while_loop(lambda n, _: n < 3, turn, [tf.constant(0), tf.constant(0.0)])[1], name="result")
    finally:
        if was_v2:
            v1.enable_control_flow_v2()
    graph_def = graph.as_graph_def()
    [added] = [node for node in graph_def.node if node.name.endswith("/added")]
    added.input[1] = "outside"
    bring_into_loops(graph_def)
    with tf.Graph().as_default() as changed:
        tf.graph_util.import_graph_def(graph_def, name="")
    with v1.Session(graph=changed) as session:
        assert session.run("result:0") == 60.0
    before = GraphView(graph_def)
    bring_into_loops(graph_def)
    assert GraphView(graph_def).nodes.keys() == before.nodes.keys()
