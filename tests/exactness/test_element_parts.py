"""Sparse and ragged tensors that an iterator or a queue gives for a batch: each worker has those of its examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
WORDS, LONGEST, WIDTH = 13, 8, 4
FEEDS = {
    "ids": lambda rng, rows: rng.randint(1, WORDS, [rows, LONGEST]),
    "lengths": lambda rng, rows: rng.randint(1, LONGEST if rows != 7 else 3, [rows]),
    "y": lambda rng, rows: rng.randn(rows),
}


def as_sparse(ids: Any, y: Any) -> tuple[Any, Any]:
    return ids.to_sparse(), y


def as_stated(ids: Any, y: Any) -> tuple[Any, Any]:
    """As many columns as the longest text may have."""
    return tf.sparse.from_dense(ids.to_tensor(shape=[None, LONGEST])), y


def give_bags(rows: int | None, change: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """(what fills the iterator, ids of texts of other lengths, labels)."""
    ids, lengths = v1.placeholder(tf.int64, [None, LONGEST], "ids"), v1.placeholder(tf.int32, [None], "lengths")
    y = v1.placeholder(tf.float32, [None], "y")
    texts = tf.data.Dataset.from_tensor_slices((ids, lengths, y)).map(lambda t, n, y: (t[:n], y))
    bags = tf.data.experimental.dense_to_ragged_batch(rows or tf.shape(y, tf.int64)[0], drop_remainder=rows is not None)
    iterator = v1.data.make_initializable_iterator(texts.apply(bags).map(change))
    return iterator.initializer, *iterator.get_next()


def give_by_queue(rows: int | None) -> tuple[Any, Any, Any]:
    """Sparse rows of a queue, which is given their numbers in a map of tensors."""
    ids, lengths = v1.placeholder(tf.int64, [None, LONGEST], "ids"), v1.placeholder(tf.int32, [None], "lengths")
    y = v1.placeholder(tf.float32, [None], "y")
    bags = tf.sparse.from_dense(tf.where(tf.sequence_mask(lengths, LONGEST), ids, tf.zeros_like(ids)))
    bags, y = v1.train.batch([bags, y], rows, capacity=99, enqueue_many=True)
    return v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS)[0].enqueue_ops[0], bags, y


def look_up(table: Any, bags: Any) -> Any:
    return tf.nn.embedding_lookup_sparse(table, bags, None, combiner="mean")


def look_up_dense(table: Any, bags: Any) -> Any:
    """Of the padding, too, of which there is as much as the longest text of all workers leaves."""
    return tf.reduce_mean(tf.nn.embedding_lookup(table, tf.sparse.to_dense(bags)), 1)


def look_up_ragged(table: Any, bags: Any) -> Any:
    return tf.reduce_mean(tf.nn.embedding_lookup(table, bags.to_tensor()), 1)


def trains(give: Callable[..., Any], take: Callable[..., Any]) -> Callable[[int | None], Any]:
    def build(rows: int | None) -> list[Any]:
        feeding, bags, y = give(rows)
        table, w = v1.get_variable("emb", [WORDS, WIDTH]), v1.get_variable("w", [WIDTH, 1])
        losses = tf.square(tf.reshape(tf.tanh(take(table, bags)) @ w, [-1]) - y)
        return [feeding, v1.train.AdagradOptimizer(0.3).minimize(tf.sqrt(tf.reduce_mean(losses)))]

    return build


def of_iterator(change: Callable[..., Any], take: Callable[..., Any]) -> Callable[[int | None], Any]:
    return trains(lambda rows: give_bags(rows, change), take)


PROGRAMS = {
    "sparse": of_iterator(as_sparse, look_up),
    "sparse, made dense": of_iterator(as_sparse, look_up_dense),
    "sparse, of known length": of_iterator(as_stated, look_up_dense),
    "ragged": of_iterator(lambda *rows: rows, look_up_ragged),
    "of a queue": trains(give_by_queue, look_up),
}
FIXED, OPEN = [*PROGRAMS][:3] + ["of a queue"], [*PROGRAMS][:4]


@pytest.mark.parametrize(("name", "is_open"), [*((name, True) for name in OPEN), *((name, False) for name in FIXED)])
def test_parts_of_a_batch_are_one_process_s(name: str, is_open: bool) -> None:
    outcome = tried(PROGRAMS[name], FEEDS, is_open=is_open)
    assert (outcome.kind, outcome.message, outcome.notes) == ("equal", "", ())
