"""Graphs for a fixed batch with NumPy constants that number its examples: labels, masks and offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
F = tf.float64
FEEDS = {
    "x": lambda rng, rows: rng.randn(rows, 6),
    "y": lambda rng, rows: rng.randn(rows, 3),
    "ids": lambda rng, rows: rng.randint(0, 3, [rows]),
}


def weight(rows: int, name: str) -> Any:
    return v1.get_variable(name, [rows, 4], F, initializer=v1.random_normal_initializer(seed=1, dtype=F))


def project(x: Any, y: Any) -> tuple[Any, Any]:
    return tf.nn.l2_normalize(x @ weight(6, "a"), 1), tf.nn.l2_normalize(y @ weight(3, "b"), 1)


def classify(labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def by_identity(n: int, x: Any, y: Any, ids: Any) -> Any:
    one, other = project(x, y)
    logits = 5 * one @ tf.transpose(other)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=np.eye(n), logits=logits))


def by_numbers(n: int, x: Any, y: Any, ids: Any) -> Any:
    """CLIP's loss, of both directions."""
    one, other = project(x, y)
    logits = tf.matmul(one, other, transpose_b=True) * tf.exp(v1.get_variable("temperature", [], F))
    return classify(np.arange(n), logits) + classify(np.arange(n), tf.transpose(logits))


def by_views(n: int, x: Any, y: Any, ids: Any) -> Any:
    """NT-Xent: each of two views is to find the other one, and is masked itself."""
    views = tf.concat(project(x, y), 0)
    logits = views @ tf.transpose(views) / 0.5 - np.eye(2 * n) * 1e9
    return classify(np.concatenate([np.arange(n, 2 * n), np.arange(n)]), logits)


def by_margins(n: int, x: Any, y: Any, ids: Any) -> Any:
    one, other = project(x, y)
    scores, others = tf.matmul(one, other, transpose_b=True), 1 - np.eye(n)
    losses = tf.nn.relu(0.2 + scores - tf.linalg.diag_part(scores)[:, None])
    return tf.reduce_sum(losses * others) / tf.reduce_sum(tf.constant(others))


def by_masked_negatives(n: int, x: Any, y: Any, ids: Any) -> Any:
    one, other = project(x, y)
    is_negative = tf.constant(np.hstack([1 - np.eye(n)] * 2) > 0)
    similar = tf.matmul(one, tf.concat([other, one], 0), transpose_b=True)
    negative = tf.reshape(tf.boolean_mask(similar, is_negative), [n, -1])
    return classify(np.zeros([n], int), tf.concat([tf.reduce_sum(one * other, 1, keepdims=True), negative], 1))


def by_offsets(n: int, x: Any, y: Any, ids: Any) -> Any:
    chosen = tf.gather(tf.reshape(x @ weight(6, "a"), [-1]), 4 * np.arange(n, dtype=np.int32) + ids)
    return tf.reduce_mean(tf.square(chosen - y[:, 0]))


def by_places(n: int, x: Any, y: Any, ids: Any) -> Any:
    chosen = tf.gather_nd(x @ weight(6, "a"), tf.stack([np.arange(n, dtype=np.int32), ids], 1))
    return tf.reduce_mean(tf.square(chosen - y[:, 0]))


def by_logistic_pairs(n: int, x: Any, y: Any, ids: Any) -> Any:
    """SigLIP's loss, whose zeros for pairs TensorFlow makes of known shapes, and of which the batch has both axes."""
    one, other = project(x, y)
    labels = tf.cast(tf.constant(np.eye(n, dtype=np.float32)), F)
    pairs = tf.matmul(one, other, transpose_b=True)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=pairs)
    return tf.reduce_mean(losses) + tf.reduce_mean(tf.square(pairs - np.ones([n, n]) + tf.ones([n, n], F) * 0.5))


def by_centered_kernels(n: int, x: Any, y: Any, ids: Any) -> Any:
    """The dependence of Hilbert and Schmidt, by a matrix that takes away means."""
    one, center = x @ weight(6, "a"), np.eye(n) - np.ones([n, n]) / n
    kernels = [tf.matmul(rows, rows, transpose_b=True) @ center for rows in (one, y)]
    return -tf.linalg.trace(kernels[0] @ kernels[1]) / 100


def by_weights(n: int, x: Any, y: Any, ids: Any) -> Any:
    """A mean by weights of one over the batch size."""
    return tf.reduce_sum(tf.square(x @ weight(6, "a") - 1.0) * np.full([n, 1], 1 / n))


def by_ranks(n: int, x: Any, y: Any, ids: Any) -> Any:
    """A discounted gain, whose discounts are those of float positions."""
    return -tf.reduce_mean(tf.sort((x @ weight(6, "a"))[:, 0]) / tf.math.log(2.0 + tf.range(n, dtype=F)))


GATHERED = [
    by_ranks,
    by_identity,
    by_numbers,
    by_views,
    by_margins,
    by_masked_negatives,
    by_logistic_pairs,
    by_centered_kernels,
]


@pytest.mark.parametrize("loss", [*GATHERED, by_offsets, by_places, by_weights])
def test_constants_that_number_examples_are_those_of_the_global_batch(loss: Any) -> None:
    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(F, [rows, 6], name="x"), v1.placeholder(F, [rows, 3], name="y")
        ids = v1.placeholder(tf.int32, [rows], name="ids")
        return v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss(rows, x, y, ids))

    outcome = tried(build, FEEDS, is_open=False, dtype="float64", rows=14)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome
    assert bool(outcome.gathers) == (loss in GATHERED)


@pytest.mark.parametrize(
    "number", [lambda n, ids: ids * 0 + tf.range(n) * 1, lambda n, ids: tf.zeros([n], tf.int32) + tf.range(n) * 1]
)
def test_places_of_several_columns_may_be_computed_by_sums(number: Any) -> None:
    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(F, [rows, 6], name="x"), v1.placeholder(F, [rows, 3], name="y")
        ids = v1.placeholder(tf.int32, [rows], name="ids")
        chosen = tf.gather_nd(x @ weight(6, "a"), tf.stack([number(tf.shape(x)[0], ids), ids], 1))
        return v1.train.MomentumOptimizer(0.05, 0.9).minimize(tf.reduce_mean(tf.square(chosen - y[:, 0])))

    assert tried(build, FEEDS, dtype="float64").kind == "equal"


def test_axes_that_open_one_after_the_other_are_resized_in_turn() -> None:
    """A width is as long as the batch, so only tensors that are combined with it are resized, in several passes."""

    def build(rows: int | None) -> Any:
        x = v1.placeholder(F, [rows, 6], name="x")
        one, other = tf.tanh(x @ v1.get_variable("w", [6, 14], F)), np.ones([rows, 14]) * 0.5
        pairs = (tf.matmul(one, tf.tanh(one + other), transpose_b=True) + np.ones([rows, rows])) * np.full(
            [rows, rows], 2
        )
        return v1.train.MomentumOptimizer(0.05, 0.9).minimize(tf.reduce_mean(tf.square(pairs)))

    outcome = tried(build, {"x": FEEDS["x"]}, is_open=False, dtype="float64", rows=14)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome


def weigh_classes(n: int, h: Any, ids: Any) -> Any:
    return h * np.linspace(0.5, 1.5, n)


def mask_the_future(n: int, h: Any, ids: Any) -> Any:
    steps = tf.stack([h * (1 + step / n) for step in range(n)], 1)
    scores = tf.matmul(steps, steps, transpose_b=True) - 1e9 * (1 - np.tril(np.ones([n, n])))
    return tf.reduce_sum(tf.nn.softmax(scores) @ steps, 1)


def make_orthogonal(n: int, h: Any, ids: Any) -> Any:
    w = weight(n, "w")
    return h + 0.01 * tf.reduce_mean(tf.square(w @ tf.transpose(w) - np.eye(n)))


@pytest.mark.parametrize("change", [weigh_classes, mask_the_future, make_orthogonal])
def test_constants_that_lie_along_widths_of_the_batch_s_length_stay_as_they_are(change: Any) -> None:
    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(F, [rows, 6], name="x"), v1.placeholder(F, [rows, 3], name="y")
        ids = v1.placeholder(tf.int32, [rows], name="ids")
        h = change(14, x @ v1.get_variable("v", [6, 14], F), ids)
        return v1.train.MomentumOptimizer(0.05, 0.9).minimize(tf.reduce_mean(tf.square(h[:, :3] - y)))

    outcome = tried(build, FEEDS, is_open=False, dtype="float64", rows=14)
    assert (outcome.kind, outcome.notes, outcome.gathers) == ("equal", (), ()), outcome


def test_a_mask_of_as_many_steps_as_examples_keeps_the_batch() -> None:
    """The steps are those of as many tensors, of which none is added for another batch size."""

    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(F, [rows, 6], name="x"), v1.placeholder(F, [rows, 3], name="y")
        ids = v1.placeholder(tf.int32, [rows], name="ids")
        steps = tf.stack([x @ weight(6, "a")] * 14, 1)
        found = tf.reduce_sum(steps * tf.sequence_mask(ids + 1, 14, F)[:, :, None], 1)
        return v1.train.MomentumOptimizer(0.05, 0.9).minimize(tf.reduce_mean(tf.square(found[:, :3] - y)))

    outcome = tried(build, FEEDS, is_open=False, dtype="float64", rows=14)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome
