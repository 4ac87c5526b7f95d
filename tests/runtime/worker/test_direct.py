"""Runs that go past TensorFlow's sessions."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.runtime.worker.session.direct import DirectRuns, can_be_direct

v1 = tf.compat.v1


@pytest.fixture
def runs():
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        tf.add(x, 1.0, name="more")
        v1.assign_add(
            v1.get_variable("n", [], initializer=tf.zeros_initializer(), use_resource=False), 1.0, name="count"
        )
        session.run(v1.global_variables_initializer())
        yield DirectRuns(session)


X = np.ones([3, 2], np.float32)


def test_runs_that_repeat_are_direct_from_the_first_on(runs):
    direct = DirectRuns(runs._raw, repeats=True)
    np.testing.assert_array_equal(direct.run(("more:0",), {"x:0": X})[0], X + 1)
    assert direct.run(("more:0",), {"x:0": X[:, :1]}) is None


def test_what_is_run_again_gives_what_a_session_would(runs):
    assert runs.run(("more:0", "count"), {"x:0": X}) is None  # the first time goes the long way
    more, count = runs.run(("more:0", "count"), {"x:0": X})
    np.testing.assert_array_equal(more, X + 1)
    assert count is None
    runs.run(("count:0",), {})
    assert runs.run(("count:0",), {}) == [2.0]
    assert type(runs.run(("count:0",), {})[0]) is np.float32


@pytest.mark.parametrize("value", [[[1.0, 2.0]], X.astype(np.float64), [[True, 2]], X.astype(np.int8), [X[0], X[1]]])
def test_fed_values_are_converted_as_a_session_does(runs, value):
    runs.run(("more:0",), {"x:0": X})
    [found] = runs.run(("more:0",), {"x:0": value})
    np.testing.assert_array_equal(found, runs._raw.run("more:0", {"x:0": value}))


@pytest.mark.parametrize(
    ("dtype", "value", "is_direct"),
    [
        (tf.float32, np.float32(0.1), True),
        (tf.float32, 0.1, True),
        (tf.bfloat16, 0.1, True),
        (tf.int32, True, True),
        (tf.string, "text", True),
        (tf.string, np.array("text"), True),
        (tf.int8, 300, False),
        (tf.uint8, -1, False),
        (tf.float32, "text", False),
        (tf.string, 3, False),
    ],
)
def test_a_fed_number_is_what_a_session_makes_of_it(dtype, value, is_direct):
    with tf.Graph().as_default(), v1.Session() as session:
        tf.identity(v1.placeholder(dtype, [], name="x"), name="same")
        direct = DirectRuns(session, repeats=True)
        found = direct.run(("same:0",), {"x:0": value})
        if is_direct:
            assert found == [session.run("same:0", {"x:0": value})]
        else:
            assert found is None
            with pytest.raises((TypeError, ValueError)):
                session.run("same:0", {"x:0": value})


@pytest.mark.parametrize("value", [np.ones([3, 3], np.float32), 1.0, [[1.0], [1.0, 2.0]], object()])
def test_feeds_that_a_session_refuses_are_left_to_it(runs, value):
    runs.run(("more:0",), {"x:0": X})
    assert runs.run(("more:0",), {"x:0": value}) is None
    assert runs.run(("more:0",), {"x:0": X}) is not None


@pytest.mark.parametrize(("tensors", "feeds"), [((), {}), (("more:0", "more:0"), {"x:0": X}), (("x:0",), {"x:0": X})])
def test_no_fetch_the_same_twice_and_a_fed_one_go_the_long_way(runs, tensors, feeds):
    assert [runs.run(tensors, feeds) for _ in range(3)] == [None] * 3


def test_an_error_is_tensorflows_own(runs):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.raw_ops.CheckNumerics(tensor=v1.placeholder(tf.float32, [], name="x"), message="here", name="checked")
        direct = DirectRuns(session)
        direct.run(("checked:0",), {"x:0": np.array(1.0, np.float32)})
        with pytest.raises(tf.errors.InvalidArgumentError, match="here"):
            direct.run(("checked:0",), {"x:0": np.array(np.nan, np.float32)})


def test_queues_and_servers_need_the_long_way():
    graph = tf.Graph()
    assert can_be_direct(graph, "")
    assert not can_be_direct(graph, "grpc://localhost:1")
    graph.add_to_collection("queue_runners", "one")
    assert not can_be_direct(graph, "")


class Measuring:
    """A hook that has finished some day."""

    finished = False


def test_runs_are_direct_when_the_last_hook_that_measures_has_finished(runs):
    hook = Measuring()
    direct = DirectRuns(runs._raw, [hook])
    assert [direct.run(("more:0",), {"x:0": X}) for _ in range(3)] == [None] * 3
    hook.finished = True
    assert direct.run(("more:0",), {"x:0": X}) is None
    np.testing.assert_array_equal(direct.run(("more:0",), {"x:0": X})[0], X + 1)
