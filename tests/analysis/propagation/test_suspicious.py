"""What `parallax check` finds in a graph that is allowed and may not be meant."""

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse
from parallax.analysis.reading.construction import record
from parallax.runtime.check.suspicious import suspicions

v1 = tf.compat.v1


@pytest.fixture(autouse=True, scope="module")
def recorded():
    record.install()


def found(build, batch=None):
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int32, [batch], name="ids")
        table = v1.get_variable("table", [11, 4])
        build(tf.gather(table, ids), ids)
    analysed = analyse(graph, layouts=False)
    return [one.text for one in suspicions(analysed.captured, analysed.spec, analysed.sources)]


def train(loss):
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss)


def test_what_is_good_to_know_is_told():
    def build(rows, ids):
        v1.get_variable("unused", [2])
        seen = v1.get_variable("seen", [], tf.int32, trainable=False)
        loss = tf.reduce_mean(tf.nn.dropout(rows, rate=0.5))
        v1.assign_add(seen, tf.reduce_sum(ids))
        train(loss)

    texts = "\n".join(found(build, batch=6))
    assert "that no gradient updates: unused." in texts
    assert "Each worker keeps its own value of seen (class local)." in texts
    assert "Placeholders with a fixed batch size: ids." in texts
    assert "A step has random ops: dropout/" in texts
