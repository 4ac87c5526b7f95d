"""Conditionals that become ops of the graph give what they gave, and so do their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.reading.capture import capture
from parallax.analysis.reading.construction import record
from parallax.base.types import Graph, GraphDef

v1 = tf.compat.v1
record.install()


def built() -> tuple[Graph, list[str]]:
    """A graph of an If and a Case, one in the other too, and what it is asked for."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        index = v1.placeholder(tf.int32, [], name="index")
        w = tf.reshape(tf.range(1.0, 10.0), [3, 3]) / 10.0
        either = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.tanh(x @ w), lambda: tf.cumsum(x, 0))
        several = tf.switch_case(
            index,
            [
                lambda: tf.reduce_mean(tf.square(either)),
                lambda: tf.cond(index > 0, lambda: tf.reduce_sum(tf.sin(either)), lambda: tf.constant(2.0)),
                lambda: tf.reduce_max(either) * tf.reduce_mean(x),
            ],
        )
        loss = v1.get_variable("scale", initializer=1.5) * several
        (gradient,) = tf.gradients(loss, x)
        v1.train.GradientDescentOptimizer(0.0).minimize(loss)
    return graph, [either.name, several.name, loss.name, gradient.name]


def results(graph_def: GraphDef, names: list[str], x: np.ndarray, index: int) -> list[np.ndarray]:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        session.run("scale/Assign")
        found: list[np.ndarray] = session.run(names, {"x:0": x, "index:0": index})
        assert graph.get_operations()
    return found


@pytest.fixture(scope="module")
def graphs() -> tuple[GraphDef, GraphDef, list[str]]:
    graph, names = built()
    return graph.as_graph_def(), capture(graph).view.graph_def, names


def test_no_conditional_is_left(graphs: tuple[GraphDef, GraphDef, list[str]]) -> None:
    before, after, _ = graphs
    assert {"StatelessIf", "StatelessCase"} <= {node.op for node in before.node}
    gone = {"If", "StatelessIf", "Case", "StatelessCase", "OptionalGetValue", "OptionalFromValue"}
    assert not [(node.op, node.name) for node in after.node if node.op in gone]


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_each_branch_gives_the_same(graphs: tuple[GraphDef, GraphDef, list[str]], index: int, sign: float) -> None:
    before, after, names = graphs
    x = sign * np.array([[1.0, 2.0, 0.5], [0.25, 3.0, 1.0]], np.float32)
    for one, other in zip(results(before, names, x, index), results(after, names, x, index), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)
