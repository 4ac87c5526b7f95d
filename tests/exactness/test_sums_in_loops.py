"""Loops whose iterations need sums over all examples: these are reduced in each iteration, and nothing is gathered."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
F = tf.float64


def distances(z: Any, centers: Any) -> Any:
    return tf.reduce_sum(tf.square(z[:, None] - centers), 2)


def soft_means(x: Any, y: Any, w: Any) -> Any:
    """Centers that iterations move to the means of the examples that they attract."""
    z = tf.tanh(x @ w)

    def turn(number: Any, centers: Any) -> Any:
        shares = tf.nn.softmax(-distances(z, centers))
        return number + 1, tf.matmul(shares, z, transpose_a=True) / (tf.reduce_sum(shares, 0)[:, None] + 0.1)

    _, centers = tf.while_loop(lambda number, _: number < 3, turn, [0, v1.get_variable("centers", [4, 3], F)])
    return tf.reduce_mean(tf.reduce_min(distances(z, centers), 1))


def transport(x: Any, y: Any, w: Any) -> Any:
    """Sinkhorn's iterations: a factor for each example, and for each center."""
    costs = distances(tf.tanh(x @ w), v1.get_variable("centers", [5, 3], F))
    kernel = tf.exp(-costs)

    def turn(number: Any, rows: Any, columns: Any) -> Any:
        columns = 1.0 / tf.linalg.matvec(kernel, rows, transpose_a=True)
        return number + 1, 1.0 / tf.linalg.matvec(kernel, columns), columns

    starts = [0, tf.ones([tf.shape(x)[0]], F), tf.ones([5], F)]
    _, rows, columns = tf.while_loop(lambda number, *_: number < 3, turn, starts)
    return tf.reduce_mean(tf.reduce_sum(rows[:, None] * kernel * columns * costs, 1))


def beams(x: Any, y: Any, w: Any) -> Any:
    """The best sequences of each example, by the risk that they are wrong."""
    words, table = 7, v1.get_variable("table", [7, 3], F)
    scores, ids = tf.math.top_k(tf.nn.log_softmax(tf.tanh(x @ w) @ tf.transpose(table)), 2)

    def turn(number: Any, scores: Any, ids: Any, state: Any) -> Any:
        state = tf.tanh(state + tf.gather(table, ids))
        ahead = tf.nn.log_softmax(tf.tensordot(state, tf.transpose(table), 1))
        scores, found = tf.math.top_k(tf.reshape(scores[:, :, None] + ahead, [-1, 2 * words]), 2)
        return number + 1, scores, found % words, tf.gather(state, found // words, batch_dims=1)

    starts = [0, scores, ids, tf.tile(tf.tanh(x @ w)[:, None], [1, 2, 1])]
    shapes = [tf.TensorShape(shape) for shape in ([], [None, 2], [None, 2], [None, 2, 3])]
    _, scores, ids, _ = tf.while_loop(lambda number, *_: number < 3, turn, starts, shape_invariants=shapes)
    return tf.reduce_mean(tf.reduce_sum(tf.nn.softmax(scores) * tf.cast(ids != tf.cast(y, tf.int32)[:, None], F), 1))


@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("loss", [soft_means, transport, beams])
def test_iterations_reduce_what_they_need_of_all_examples(loss: Any, control_flow_v2: bool) -> None:
    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(F, [rows, 6], name="x"), v1.placeholder(tf.int64, [rows], name="y")
        w = v1.get_variable("w", [6, 3], F)
        return v1.train.GradientDescentOptimizer(0.1).minimize(loss(x, y, w))

    feeds = {"x": lambda rng, rows: rng.randn(rows, 6), "y": lambda rng, rows: rng.randint(0, 4, [rows])}
    found = tried(build, feeds, dtype="float64", control_flow_v2=control_flow_v2)
    assert (found.kind, found.message, found.gathers) == ("equal", "", ())
