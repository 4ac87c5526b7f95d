"""Bytes of activations that are alive on a stage, against those of graphs that are small enough to count by hand."""

import pytest
import tensorflow.compat.v1 as tf

from parallax.analysis.cut.plan_stages import get_graph_cut
from parallax.analysis.graph_to_plan import analyse
from parallax.plans.model_stages import StagePlan, count_activation_bytes

WIDTH = 10
TENSOR = 4 * WIDTH  # bytes of an example's activation


def measure(build, ends=()):
    graph = tf.Graph()
    with graph.as_default(), tf.variable_scope("", use_resource=True):
        values = tf.placeholder(tf.float32, [None, WIDTH], name="values")
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(build(values)))
    analysed = analyse(graph)
    found = get_graph_cut(analysed.captured, analysed.sources)
    return [(one.kept, one.most) for one in found.measure_activations(found.cut_at([(end,) for end in ends]))]


def kernel(name):
    return tf.get_variable(name, [WIDTH, WIDTH])


def test_products_keep_their_inputs_and_a_gradient_needs_a_tensor_more():
    # values and both outputs of relu are kept; the mean's gradient is broadcast, and relu's is written into it
    layers = measure(lambda values: tf.nn.relu(tf.nn.relu(values @ kernel("a")) @ kernel("b"), name="end"))
    assert layers == [(3 * TENSOR, 4 * TENSOR)]


def test_what_shares_memory_is_counted_once():
    def build(values):
        values = tf.identity(tf.reshape(values, [-1, WIDTH])) @ kernel("a")
        return tf.square(tf.expand_dims(tf.identity(values), 1))

    assert measure(build) == [(2 * TENSOR, 3 * TENSOR)]  # the input and the product, and what comes of it


def test_a_tensor_that_only_the_forward_pass_takes_ends_with_it():
    def build(values):
        return tf.reduce_sum(values @ kernel("a") + 1.0, axis=1)

    # the input of the product; there is only a shape of all else. Then its gradient too, and that of its input
    assert measure(build) == [(TENSOR, 3 * TENSOR)]


def test_a_stage_keeps_what_it_receives():
    def build(values):
        values = tf.nn.relu(values @ kernel("a"), name="first")
        return tf.nn.relu(values @ kernel("b"))

    first, second = measure(build, ["first"])
    assert first[0] == 2 * TENSOR and second[0] == 2 * TENSOR  # `first` is on both


@pytest.mark.parametrize(("runs", "most"), [(1, 50), (3, 50 + 2 * 30)])
def test_runs_in_flight_wait_with_what_they_keep(runs, most):
    stage = StagePlan((), (), (), 0, 0, 1.0, 0, kept_bytes=30, most_bytes=50)
    assert count_activation_bytes(stage, runs) == most
