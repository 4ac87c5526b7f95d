"""Graphs for a fixed batch of sequences of any length, with the batch size beside lengths that the graph computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import Feed, tried

v1 = tf.compat.v1


def dense(x: Any, width: int = 3) -> Any:
    """As `conv1d` of GPT-2: flattens, projects, and restores the shape `[batch size, computed length, width]`."""
    rows, columns = x.shape[0] or tf.shape(x)[0], x.shape[-1]
    w = v1.get_variable("w", [columns, width])
    return tf.reshape(tf.reshape(x, [-1, columns]) @ w, [rows, tf.shape(x)[1], width])


def with_unknown_length(x: Any) -> Any:
    rows = x.shape[0] or tf.shape(x)[0]
    return tf.reshape(dense(x), [rows, -1, 3])


def heads(x: Any) -> Any:
    rows, longest = x.shape[0] or tf.shape(x)[0], tf.shape(x)[1]
    parts = tf.transpose(tf.reshape(dense(x, 4), [rows, longest, 2, 2]), [0, 2, 1, 3])
    return tf.nn.softmax(tf.matmul(parts, parts, transpose_b=True))


def beside_zeros(x: Any) -> Any:
    rows, longest = x.shape[0] or tf.shape(x)[0], tf.shape(x)[1]
    return tf.concat([tf.zeros([rows, longest, 2]), dense(x)], 2)


def tiled(x: Any) -> Any:
    rows, longest = x.shape[0] or tf.shape(x)[0], tf.shape(x)[1]
    return dense(x) * tf.tile(v1.get_variable("scale", [1, 1, 3]), [rows, longest, 1])


def of_concatenated_shape(x: Any) -> Any:
    rows = x.shape[0] or tf.shape(x)[0]
    return tf.reshape(dense(x), tf.concat([[rows], tf.shape(x)[1:2], [3, 1]], 0))


def by_flat_position(x: Any) -> Any:
    """As `gather_indexes` of BERT."""
    rows, longest = x.shape[0] or tf.shape(x)[0], tf.shape(x)[1]
    flat = tf.reshape(dense(x), [rows * longest, 3])
    return tf.gather(flat, tf.range(rows) * longest + longest - 1)


def cut(x: Any) -> Any:
    rows, longest = x.shape[0] or tf.shape(x)[0], tf.shape(x)[1]
    return tf.slice(dense(x), [0, 1, 0], [rows, longest - 1, 3])


def scattered(x: Any) -> Any:
    """As in pointer-generator networks, whose vocabulary is extended by words of the batch."""
    rows, longest = x.shape[0] or tf.shape(x)[0], tf.shape(x)[1]
    places = tf.stack([tf.range(rows), tf.argmax(x[:, :, 0], 1, tf.int32)], 1)
    return tf.scatter_nd(places, dense(x)[:, 0, 0], [rows, longest])


_ALL = (dense, with_unknown_length, heads, beside_zeros, tiled, of_concatenated_shape, by_flat_position, cut, scattered)
PROGRAMS: Mapping[str, Callable[[Any], Any]] = {program.__name__: program for program in _ALL}
FEEDS: Mapping[str, Feed] = {"x": lambda rng, rows: rng.randn(rows, 6, 4)}


def minimize(made: Any, x: Any) -> Any:
    found = tf.reduce_sum(tf.reshape(made, [tf.shape(made)[0], -1]), 1) - tf.reduce_max(x, [1, 2])
    return v1.train.AdagradOptimizer(0.1).minimize(tf.sqrt(tf.reduce_sum(tf.square(found))))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_batch_size_beside_computed_lengths_is_opened(program: str) -> None:
    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, None, 4], name="x")
        return minimize(PROGRAMS[program](x), x)

    found = tried(build, FEEDS, is_open=False, rows=5)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


@pytest.mark.parametrize("program", ["with_unknown_length", "dense", "of_concatenated_shape"])
def test_a_batch_with_as_many_examples_as_columns_is_opened_by_its_place(program: str) -> None:
    """One process reshapes to `[3, -1, 3]`; on workers the first is their share of the batch."""

    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, None, 4], name="x")
        return minimize(PROGRAMS[program](x), x)

    found = tried(build, FEEDS, is_open=False, rows=3)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())
