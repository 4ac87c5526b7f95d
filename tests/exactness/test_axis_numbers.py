"""Graphs for a fixed batch of as many examples as an axis has a number."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import Feed, tried

v1 = tf.compat.v1


@pytest.mark.parametrize("rows", [2, 3])
def test_a_batch_may_have_as_many_examples_as_an_axis_has_a_number(rows: int) -> None:
    """Numbers of axes, and a computed rank, are no batch sizes."""

    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, None, 5, 7], name="x")
        along = tf.transpose(x, tf.concat([[1, 0], tf.range(2, tf.rank(x))], 0))
        picked = tf.reduce_sum(tf.split(along, 7, axis=3)[1], [0, 2, 3]) * v1.get_variable("w", [])
        spread = tf.reduce_max(tf.expand_dims(x, 2), axis=tf.range(2, 5)) / tf.cast(tf.shape(x)[2], tf.float32)
        loss = tf.sqrt(tf.reduce_sum(tf.square(picked[:, None] + spread - 1.0)))
        return v1.train.AdagradOptimizer(0.1).minimize(loss)

    feeds: dict[str, Feed] = {"x": lambda rng, rows: rng.randn(rows, 6, 5, 7)}
    found = tried(build, feeds, is_open=False, rows=rows)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())
