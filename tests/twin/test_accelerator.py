"""Layers that take an accelerator's time: how long, in which order, and what they give."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from ops.twin.accelerator import Values, layer

v1 = tf.compat.v1
TAKES_S = 0.1


def product(x, weights):
    return tf.linalg.matmul(x, weights)


def seconds(session, fetches, feeds=None):
    """Of the second run: the first one prepares the graph."""
    session.run(fetches, feeds)
    began = time.monotonic()
    session.run(fetches, feeds)
    return time.monotonic() - began


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def to_host(x, takes_s=TAKES_S):
    """The output of a layer that has no other input."""
    return layer(Values.ZEROS, tf.identity, [], [x], takes_s, 0.0, to_host=True)


def test_a_layer_gives_zeros_of_its_shape_after_its_time(graph):
    output = layer(Values.ZEROS, product, [tf.ones([4, 3])], [tf.ones([3, 5])], TAKES_S, 0.0, to_host=True)
    assert output.shape == (4, 5)
    with v1.Session() as session:
        np.testing.assert_array_equal(session.run(output), np.zeros([4, 5], np.float32))
        assert seconds(session, output) >= TAKES_S


def test_layers_that_are_ready_together_run_one_after_the_other(graph):
    outputs = [to_host(tf.fill([2], float(n))) for n in range(4)]
    with v1.Session() as session:
        assert seconds(session, outputs) >= 4 * TAKES_S


def test_layers_of_two_sessions_run_on_the_one_accelerator(graph):
    output = to_host(tf.ones([2]), 3 * TAKES_S)
    with v1.Session() as one, v1.Session() as other:
        one.run(output), other.run(output)
        began = time.monotonic()
        threads = [threading.Thread(target=session.run, args=(output,)) for session in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began >= 6 * TAKES_S


def test_layers_are_launched_ahead_and_follow_each_other_without_a_gap(graph):
    x = v1.placeholder(tf.float32, [2])
    for _ in range(40):
        x = layer(Values.ZEROS, tf.identity, [x], [], 0.01, 0.0)
    untils = [op.outputs[0] for op in graph.get_operations() if op.type == "TwinLaunch"]
    with v1.Session() as session:
        found = session.run([*untils, x], {graph.get_operations()[0].outputs[0]: [1, 2]})[:-1]
    assert found[-1] - found[0] == pytest.approx(39 * 1e7, abs=40)  # a nanosecond is rounded for each


def slept(how_long_s):
    time.sleep(float(how_long_s))
    return np.ones([2], np.float32)


def test_a_layer_waits_for_what_comes_late_from_the_host(graph):
    late = tf.ensure_shape(tf.numpy_function(slept, [2 * TAKES_S], tf.float32), [2])
    output = layer(Values.ZEROS, tf.add, [tf.ones([2])], [late], TAKES_S, 0.0, to_host=True)
    with v1.Session() as session:
        assert seconds(session, output) >= 3 * TAKES_S


def test_what_waits_takes_no_thread_and_no_core(graph):
    x = v1.placeholder(tf.float32, [2])
    waits = [to_host(x + n) for n in range(10)]
    config = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with v1.Session(config=config) as session:
        session.run([*waits, x + 100.0], {x: [1, 2]})
        ends = {}

        def run():
            session.run(waits, {x: [1, 2]})
            ends["waits"] = time.monotonic()

        thread = threading.Thread(target=run)
        cpu = time.process_time()
        thread.start()
        while "waits" not in ends:
            session.run(x + 100.0, {x: [1, 2]})
            ends.setdefault("other", time.monotonic())
            time.sleep(TAKES_S)
        thread.join()
        assert ends["waits"] - ends["other"] >= 5 * TAKES_S
        assert time.process_time() - cpu < 3 * TAKES_S  # of 10


def test_gradients_have_the_shapes_of_the_inputs_and_come_after_the_backward_time(graph):
    table = v1.get_variable("table", [50, 3], initializer=v1.ones_initializer())
    weights = v1.get_variable("weights", [3, 5], initializer=v1.ones_initializer())
    rows, ids = tf.nn.embedding_lookup(table, [1, 7, 7, 2]), tf.constant([1, 2, 3, 4])
    output = layer(
        Values.ZEROS, lambda x, w, n: product(x, w) + tf.cast(n[0], tf.float32), [], [rows, weights, ids], 0.0, TAKES_S
    )
    of_table, of_weights, of_ids = tf.gradients(output, [table, weights, ids])
    assert of_ids is None
    assert isinstance(of_table, tf.IndexedSlices)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        found = session.run([of_table.values, of_table.indices, of_weights])
        assert [one.shape for one in found] == [(4, 3), (4,), (3, 5)]
        assert found[1].tolist() == [1, 7, 7, 2] and not found[0].any() and not found[2].any()
        assert seconds(session, of_weights) >= TAKES_S


@pytest.mark.parametrize("values", [Values.ZEROS, Values.REAL])
def test_a_step_takes_the_forward_and_the_backward_time_of_all_its_layers(graph, values):
    variables = [v1.get_variable(f"w{n}", [3, 3], initializer=v1.ones_initializer()) for n in range(3)]
    x = tf.ones([2, 3])
    for variable in variables:
        x = layer(values, product, [x], [tf.convert_to_tensor(variable)], TAKES_S / 2, TAKES_S)
    train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(x))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert seconds(session, train) >= 3 * 1.5 * TAKES_S
        unchanged = all((value == 1.0).all() for value in session.run(variables))
        assert unchanged == (values is Values.ZEROS)


@pytest.mark.parametrize("values", [Values.ZEROS, Values.REAL])
def test_gradients_of_later_layers_are_there_before_those_of_earlier_ones(graph, values):
    variables = [v1.get_variable(f"w{n}", [3, 3], initializer=v1.ones_initializer()) for n in range(3)]
    x = tf.ones([2, 3])
    for variable in variables:
        x = layer(values, product, [x], [tf.convert_to_tensor(variable)], 0.0, TAKES_S)
    times = []
    for gradient in tf.gradients(x, variables):
        with tf.control_dependencies([gradient]):
            times.append(tf.timestamp())
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(times)
        first, second, third = session.run(times)
    assert first > second > third
    assert first - third >= TAKES_S  # twice that, less how late the third was told


def losses(values, steps=5):
    with tf.Graph().as_default():
        rng = np.random.default_rng(1)
        table, first, second = (
            v1.get_variable(name, initializer=rng.standard_normal(shape).astype(np.float32))
            for name, shape in (("table", [20, 4]), ("first", [4, 6]), ("second", [6, 2]))
        )
        rows, times = tf.nn.embedding_lookup(table, [3, 3, 9, 11, 2]), (0.01, 0.02)
        x = layer(values, lambda x, w: tf.nn.tanh(product(x, w)), [], [rows, tf.convert_to_tensor(first)], *times)
        x = layer(values, lambda x, w: tf.nn.tanh(product(x, w)), [x], [tf.convert_to_tensor(second)], *times)
        loss = tf.reduce_mean(tf.square(x - 1.0))
        train = v1.train.AdagradOptimizer(0.3).minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            began = time.monotonic()
            found = [session.run([loss, train])[0] for _ in range(steps)]
            return found, time.monotonic() - began


def test_with_real_values_training_is_bit_for_bit_that_of_the_cores_and_takes_the_layers_time():
    on_cores, _ = losses(Values.CORES)
    real, took_s = losses(Values.REAL)
    assert real == on_cores and real[-1] < real[0]
    assert took_s >= 5 * 2 * (0.01 + 0.02)


def test_the_graph_of_real_values_grows_by_the_layer():
    def ops(layers):
        with tf.Graph().as_default() as graph:
            x, weights = tf.ones([2, 3]), tf.ones([3, 3])
            for _ in range(layers):
                x = layer(Values.REAL, product, [x], [weights], 0.0, 0.0)
            tf.gradients(x, weights)
            return len(graph.get_operations())

    assert ops(8) - ops(6) == ops(4) - ops(2)


def test_an_unknown_shape_is_refused(graph):
    x = v1.placeholder(tf.float32, [None, 3], name="batch")
    with pytest.raises(ValueError, match="shapes must be known, but batch:0 is"):
        layer(Values.ZEROS, tf.identity, [x], [], TAKES_S, 0.0)
