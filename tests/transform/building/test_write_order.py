"""Nodes whose inputs are replaced wait for the writes before them, but for those for which they must wait no longer."""

from __future__ import annotations

import tensorflow as tf

from parallax.graph.view import Edge, GraphView
from parallax.transform.building.write_order import keep_write_order

v1 = tf.compat.v1


def test_a_node_whose_input_is_replaced_waits_for_a_write_unless_it_is_freed() -> None:
    with tf.Graph().as_default() as graph:
        variable = v1.get_variable("v", [], use_resource=False)
        write = v1.assign(variable, 1.0, name="write")
        x = v1.placeholder(tf.float32, [None], name="x")
        with tf.control_dependencies([write]):
            shape = tf.shape(x, name="shape")
        tf.identity(shape, "result")
    view, edges = GraphView(graph.as_graph_def()), [Edge("result", 0)]

    def find_controls(freed: set[tuple[str, str]]) -> list[str]:
        changed = graph.as_graph_def()
        node = next(node for node in changed.node if node.name == "result")
        node.input[0] = "x"
        keep_write_order(changed, view, edges, [], freed)
        return list(node.input[1:])

    assert find_controls(set()) == ["^write"]
    assert find_controls({("shape", "write")}) == []
