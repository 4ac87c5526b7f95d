"""Entries of examples that a script numbers itself: by the example's number, times its entries, and an offset."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from ops.exactness.trial import Outcome
from tests.exactness.loss_trials import Feed, tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
STEPS = 7
FEEDS: dict[str, Feed] = {
    "x": lambda rng, rows: rng.randn(rows, STEPS, 4),
    "y": lambda rng, rows: rng.randn(rows),
    "lengths": lambda rng, rows: rng.randint(1, STEPS + 1, [rows]),
}
CHOICES = {
    "the last step": lambda n, steps, lengths: tf.range(n) * steps + (lengths - 1),
    "the last step, by long numbers": lambda n, steps, lengths: (
        tf.cast(tf.range(0, n) * steps, tf.int64) + tf.cast(lengths - 1, tf.int64)
    ),
    "two steps": lambda n, steps, lengths: steps * tf.range(n)[:, None] + tf.stack([lengths - 1, lengths // 2], 1),
}


def outcome(choose: Any, is_open: bool, steps: int | None, **feeds: Feed) -> Outcome:
    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, steps, 4], name="x")
        y = v1.placeholder(tf.float32, [rows], name="y")
        lengths = v1.placeholder(tf.int32, [rows], name="lengths")
        h = tf.tanh(tf.tensordot(x, v1.get_variable("w", [4, 4]), 1))
        places = choose(tf.shape(h)[0], steps or tf.shape(h)[1], lengths)
        chosen = tf.reshape(tf.gather(tf.reshape(h, [-1, 4]), places), [tf.shape(h)[0], -1, 4])
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(chosen, [1, 2]) - y))
        return v1.train.AdamOptimizer(0.3).minimize(loss)

    return tried(build, {**FEEDS, **feeds}, is_open=is_open)


@pytest.mark.parametrize("steps", [STEPS, None])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("choice", CHOICES)
def test_entries_are_looked_up_by_the_worker_that_has_them(choice: str, is_open: bool, steps: int | None) -> None:
    found = outcome(CHOICES[choice], is_open, steps)
    assert found.kind == "equal", found
    assert not found.gathers


def score_tags(h: Any, tags: Any) -> Any:
    """The scores of some tags, as in crf_unary_score of TensorFlow 1."""
    n, steps, kinds = (tf.shape(h)[axis] for axis in range(3))
    offsets = tf.expand_dims(tf.range(n) * steps * kinds, 1)
    offsets += tf.expand_dims(tf.range(steps) * kinds, 0)
    return tf.reshape(tf.gather(tf.reshape(h, [-1]), tf.reshape(offsets + tags, [-1])), [n, steps])


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("steps", [STEPS, None])
def test_entries_of_two_axes_are_looked_up_by_the_worker_that_has_them(steps: int | None, is_open: bool) -> None:
    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, steps, 4], name="x")
        tags = v1.placeholder(tf.int32, [rows, steps], name="tags")
        h = tf.tanh(tf.tensordot(x, v1.get_variable("w", [4, 4]), 1))
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(score_tags(h, tags), 1) - 1.0))
        return v1.train.AdamOptimizer(0.3).minimize(loss)

    feeds = {"x": FEEDS["x"], "tags": lambda rng, rows: rng.randint(0, 4, [rows, STEPS])}
    found = tried(build, feeds, is_open=is_open)
    assert (found.kind, found.gathers) == ("equal", ()), found


def test_entries_of_a_batch_of_several_sources_are_looked_up_by_the_worker_that_has_them() -> None:
    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, STEPS, 4], name="x")
        lengths = v1.placeholder(tf.int32, [rows], name="lengths")
        batches = tf.data.Dataset.from_tensors((x, lengths)).repeat()
        iterator = v1.data.make_initializable_iterator(batches)
        x, lengths = iterator.get_next()
        h = tf.tanh(tf.tensordot(x, v1.get_variable("w", [4, 4]), 1))
        loss = tf.reduce_mean(tf.square(tf.gather(h, lengths - 1, batch_dims=1)))
        return [iterator.initializer, v1.train.AdamOptimizer(0.3).minimize(loss)]

    found = tried(build, {name: FEEDS[name] for name in ("x", "lengths")})
    assert (found.kind, found.gathers) == ("equal", ()), found


def test_an_entry_of_another_example_of_the_worker_is_one_process_s() -> None:
    found = outcome(CHOICES["the last step"], True, STEPS, lengths=lambda rng, rows: _of_the_one_before(rows))
    assert found.kind == "equal", found


def test_an_entry_of_another_worker_is_named_in_the_run() -> None:
    def choose(n: Any, steps: Any, lengths: Any) -> Any:
        return tf.range(n) * steps + tf.where(tf.range(n) < 6, lengths, -tf.ones_like(lengths))

    found = outcome(choose, True, STEPS)
    assert (found.kind, "Keep each offset within its example" in found.message) == ("foreign", True), found


def _of_the_one_before(rows: int) -> Any:
    """Lengths of which one is 0, of an example that is not a worker's first one."""
    lengths = [STEPS] * rows
    lengths[1] = 0
    return lengths
