"""What workers get of a graph that they do not read themselves."""

import pickle

import tensorflow.compat.v1 as tf

import parallax
from parallax.analysis.graph_decisions import GraphDecisions
from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.plans.plan import one_host
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform


def test_the_graph_of_a_worker_follows_from_decisions_that_were_sent():
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int64, [None], name="ids")
        table = tf.get_variable("table", [8, 4], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, ids)))
        tf.train.AdamOptimizer(0.1).minimize(loss)
    analysed = analyse(graph)
    plan = plan_for(analysed, one_host(2), parallax.Config())
    assert analysed.captured.lazy  # its graph has an op of Parallax's own
    sent = pickle.loads(pickle.dumps(GraphDecisions.of(analysed, plan)))
    sent.register_ops()
    place = Worker(rank=1, size=2, seed=1)
    made = transform(sent.analysed.captured.view, sent.rewrites, place).graph_def
    expected = transform(analysed.captured.view, rewrites_of(analysed, plan), place).graph_def
    assert made.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
    assert sent.analysed.spec == analysed.spec
