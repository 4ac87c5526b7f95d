"""Losses made of gradients of losses: by layouts the inner gradients too are those of the global batch."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
F = tf.float64


def loss_of(w: Any, x: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.tanh(x @ w)))


def of_rows(x: Any, ids: Any, w: Any, emb: Any) -> Any:
    (first,) = tf.gradients(tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids))), [emb])
    return tf.nn.l2_loss(emb - tf.convert_to_tensor(first))


def by_rows_of_no_variable(x: Any, ids: Any, w: Any, emb: Any) -> Any:
    (slope,) = tf.gradients(tf.reduce_mean(tf.square(tf.gather(at := emb * w[0], ids))), [at])
    return tf.nn.l2_loss(emb - tf.convert_to_tensor(slope))


def mixed(x: Any, ids: Any, w: Any, emb: Any) -> Any:
    first = tf.gradients(loss_of(w + tf.sin(emb[:3]), x), [w, emb])
    return loss_of(w - first[0], x) + loss_of(emb[:3] - tf.convert_to_tensor(first[1])[:3], x)


def outside_of_a_function(x: Any, ids: Any, w: Any, emb: Any) -> Any:
    (slope,) = tf.gradients(loss_of(w, x), [w])
    return tf.function(lambda x: loss_of(w - slope, x))(x)


def of_no_batch(x: Any, ids: Any, w: Any, emb: Any) -> Any:
    (slope,) = tf.gradients(tf.nn.l2_loss(tf.square(w)), [w])
    return loss_of(w, x) + tf.nn.l2_loss(slope)


def of_two_steps(x: Any, ids: Any, w: Any, emb: Any) -> Any:
    once = w - tf.gradients(loss_of(w, x), [w])[0]
    return loss_of(once - tf.gradients(loss_of(once, tf.reverse(x, [1])), [once])[0], x)


def within_a_function(x: Any, ids: Any, w: Any, emb: Any) -> Any:
    """The rows of constants: nothing but their number is the batch's, which may be so by chance."""
    rows = tf.shape(x)[0] if x.shape[0] is None else int(x.shape[0])
    first, places = tf.unique(tf.fill([rows], 1))
    slope_of = tf.function(lambda h: tf.gradients(tf.reduce_sum(tf.tanh(h * w[0])), h)[0])
    return tf.reduce_mean(tf.square(slope_of(tf.gather(tf.gather(emb, first), places))))


LOSSES = [of_rows, by_rows_of_no_variable, mixed, outside_of_a_function, of_no_batch, of_two_steps, within_a_function]


def trained(loss: Any, is_open: bool) -> Any:
    def build(rows: int | None) -> Any:
        x, ids = v1.placeholder(F, [rows, 3], name="x"), v1.placeholder(tf.int64, [rows], name="ids")
        w = v1.get_variable("w", [3, 1], F, use_resource=True)
        emb = v1.get_variable("emb", [11, 1], F, use_resource=True)
        total = loss(x, ids, w, emb) + loss_of(w, x) + 0.1 * tf.reduce_mean(tf.gather(emb, ids))
        return v1.train.GradientDescentOptimizer(0.1).minimize(total)

    feeds = {"x": lambda rng, rows: rng.randn(rows, 3), "ids": lambda rng, rows: rng.randint(0, 11, [rows])}
    return tried(build, feeds, dtype="float64", is_open=is_open)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_made_of_gradients_is_that_of_the_global_batch(loss: Any) -> None:
    found = trained(loss, is_open=True)
    assert (found.kind, found.message) == ("equal", "")


@pytest.mark.parametrize("loss", [outside_of_a_function, of_two_steps, within_a_function])
def test_inner_gradients_of_a_fixed_batch_are_derived_first(loss: Any) -> None:
    found = trained(loss, is_open=False)
    has_note = any("may be the batch size" in note for note in found.notes)
    assert (found.kind, found.message, has_note) == ("equal", "", loss is within_a_function)
