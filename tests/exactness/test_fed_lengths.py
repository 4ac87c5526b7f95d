"""A number that each worker is fed, which is the length of its batch, is that of the global batch in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from ops.exactness.script import FedRows
from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
Program = Callable[[Any, Any, Any], Any]
"""(how many rows, the batch `[rows, 3, 4]`, a variable `[4, 4]`) -> what is to be small."""


def start_with_zeros(rows: Any, x: Any, w: Any) -> Any:
    h = tf.zeros([rows, 4])
    for turn in range(3):
        h = tf.tanh(x[:, turn] @ w + h)
    return h


def loop(rows: Any, x: Any, w: Any, start: float = 0.0) -> Any:
    def turn(t: Any, h: Any) -> Any:
        return t + 1, tf.tanh(x[:, t] @ w + h)

    return tf.while_loop(lambda t, h: t < 3, turn, [tf.constant(0), tf.fill(tf.stack([rows, 4]), start)])[1]


def scatter(rows: Any, x: Any, w: Any) -> Any:
    places = tf.stack([tf.range(rows), tf.cast(x[:, 0, 0] > 0, tf.int32)], 1)
    return tf.scatter_nd(places, tf.reduce_sum(x[:, 0] @ w, 1), tf.stack([rows, 4]))


PROGRAMS: dict[str, Program] = {
    "zeros": start_with_zeros,
    "a loop from zeros": loop,
    "a loop from others": lambda rows, x, w: loop(rows, x, w, 0.3),
    "reshape": lambda rows, x, w: tf.reshape(tf.reshape(x, [-1, 4]) @ w, [rows, 3, 4])[:, 0],
    "rows of all": lambda rows, x, w: tf.reshape(tf.tanh(tf.reshape(x, [3 * rows, 4]) @ w), [rows, 3, 4])[:, 0],
    "tile": lambda rows, x, w: tf.tile(w[:1], [rows, 1]) * x[:, 0],
    "range": lambda rows, x, w: tf.gather_nd(
        tf.tanh(x @ w), tf.stack([tf.range(rows), tf.cast(x[:, 0, 0] > 0, tf.int32)], 1)
    ),
    "scatter": scatter,
    "draw": lambda rows, x, w: x[:, 0] @ w + 1e-9 * tf.random.normal(tf.stack([rows, 4]), seed=3),
    "mean": lambda rows, x, w: tf.reduce_sum(x[:, 0] @ w) / tf.cast(rows, tf.float32) * tf.ones([4, 4]),
    "product": lambda rows, x, w: start_with_zeros(rows, x, w) * tf.cast(rows, tf.float32) / 10.0,
}


def build(program: Program, shape: Any = ()) -> Callable[[int | None], Any]:
    def built(_: int | None) -> Any:
        x = v1.placeholder(tf.float32, [None, 3, 4], name="x")
        rows = v1.placeholder(tf.int32, shape, name="rows")
        w = v1.get_variable("w", [4, 4], initializer=v1.random_normal_initializer(seed=1))
        losses = tf.reduce_sum(tf.square(program(rows, x, w)), 1)
        return v1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(losses))

    return built


FEEDS: dict[str, Callable[..., Any]] = {
    "x": lambda rng, rows: rng.randn(rows, 3, 4).astype("f"),
    "rows": lambda rng, rows: FedRows(rows),
}


@pytest.mark.rotates
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fed_length_is_the_one_process_s(name):
    outcome = tried(build(PROGRAMS[name]), FEEDS)
    assert outcome.kind == "equal", outcome


def test_a_fed_length_of_open_shape_is_found_where_it_is_packed():
    outcome = tried(build(loop, None), FEEDS)
    assert outcome.kind == "equal", outcome


def test_another_number_where_a_batch_s_length_must_be_is_refused():
    outcome = tried(build(PROGRAMS["mean"]), {**FEEDS, "rows": lambda rng, rows: 3})
    assert "rows:0 is fed the length of a batch" in outcome.message


NUMBERS: dict[str, Program] = {
    "turns": lambda turns, x, w: tf.reduce_sum(x[:, :turns] @ w, 1) * tf.cast(turns, tf.float32),
    "the first of the batch": lambda count, x, w: x[:count, 0] @ w,
    "columns": lambda count, x, w: tf.reshape(x @ w, [-1, 4 * count])[:, :4],
    "some of the batch": lambda count, x, w: tf.tanh(tf.gather(x[:, 0] @ w, tf.range(count) + 1)),
    "the largest of the batch": lambda count, x, w: tf.math.top_k(tf.reduce_sum(x[:, 0] @ w, 1), count)[0][:, None],
    "negatives that are drawn": lambda count, x, w: tf.gather(
        x[:, 0] @ w, tf.random.stateless_uniform([count], [1, 2], 0, 16, tf.int32)
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_other_fed_numbers_stay_numbers(name):
    outcome = tried(build(NUMBERS[name]), {**FEEDS, "rows": lambda rng, rows: 2})
    assert outcome.kind == "equal", outcome
