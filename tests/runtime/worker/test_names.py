"""Which of what is fetched has all workers meet, and by which op of the user's graph."""

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.analysis.reading.construction import record
from parallax.base.errors import SessionError
from parallax.plans.plan import one_host
from parallax.runtime.worker.session.names import Names
from parallax.settings.config import Config
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform

v1 = tf.compat.v1
record.install()


def test_a_norm_that_only_the_chief_fetches_is_told_from_what_all_fetch():
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int32, [6], name="ids")
        rows = tf.nn.embedding_lookup(v1.get_variable("table", [11, 4]), ids)
        outputs = rows @ v1.get_variable("weights", [4, 1])
        loss = tf.reduce_mean(tf.square(outputs), name="loss")
        optimizer = v1.train.AdagradOptimizer(0.1)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 1.0, name="clip")
        train = optimizer.apply_gradients(zip(clipped, variables, strict=True), name="train")
        tf.linalg.global_norm(clipped, name="after")
    analysed = analyse(graph)
    plan = plan_for(analysed, one_host(2), Config())
    worker_graph = transform(analysed.captured.view, rewrites_of(analysed, plan), Worker(0, 2, 7))
    names = Names(analysed.captured.view, worker_graph)
    trained = names.for_all([train.name, "ids:0"], ["ids:0"])
    assert list(trained) == ["train"] and any(place.endswith(" parallax_opened_0") for place in trained["train"])  # ids
    found = names.for_all(["loss:0", "after/global_norm:0", "train"], ["ids:0"])
    assert set(found["loss:0"]) < set(trained["train"]) == set(found["train"])
    (alone,) = {place.split()[1] for place in found["after/global_norm:0"]} - {p.split()[1] for p in found["train"]}
    assert alone == "after/L2Loss"


def test_a_variable_is_fetched_by_a_read_that_comes_after_no_step():
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int32, [6], name="ids")
        other = v1.get_variable("other", [11, 4], trainable=False, use_resource=False)
        rows = tf.nn.embedding_lookup(v1.get_variable("table", [11, 4], use_resource=False), ids)
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(tf.square(rows)), name="train")
        with v1.control_dependencies([train]):
            v1.scatter_update(other, ids, tf.nn.l2_normalize(tf.gather(other.read_value(), ids), 1))
    analysed = analyse(graph)
    rewrites = rewrites_of(analysed, plan_for(analysed, one_host(2), Config()))
    names = Names(analysed.captured.view, transform(analysed.captured.view, rewrites, Worker(0, 2, 7)))
    (read,) = names.resolve(("other:0",), ()).tensors
    assert names.run_view.ancestors([read.partition(":")[0]]).isdisjoint({"ids", "train"})


def test_a_measure_of_the_global_batch_that_has_no_layout_is_refused_where_it_is_fetched():
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        scores = tf.matmul(x @ v1.get_variable("w", [4, 3]), x @ v1.get_variable("v", [4, 3]), transpose_b=True)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.range(tf.shape(x)[0]), logits=scores)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(each), name="train")
        tf.reduce_mean(tf.reshape(scores, [16], name="flat"), name="measure")
    analysed = analyse(graph)
    rewrites = rewrites_of(analysed, plan_for(analysed, one_host(2), Config()))
    names = Names(analysed.captured.view, transform(analysed.captured.view, rewrites, Worker(0, 2, 7)))
    assert rewrites.layouts and names.resolve((train.name,), ("x:0",)).tensors == (train.name,)
    with pytest.raises(SessionError, match=r"measure.* cannot be fetched: .*Reshape 'flat' .* dimension at -1"):
        names.resolve((train.name, "measure:0"), ("x:0",))
