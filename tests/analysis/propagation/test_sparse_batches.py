"""Sparse, ragged and parsed batches: elements that are added up by example are no meeting of examples, groups are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.reading import record
from parallax.analysis.stages import analyse

v1 = tf.compat.v1
record.install()

WORDS, WIDTH = 11, 4
Rows = Callable[[Any], tuple[Any, Any]]
"""A table -> (rows of examples `[batch, WIDTH]`, targets `[batch]`)."""


def fed_targets() -> Any:
    return v1.placeholder(tf.float32, [None])


def fed_sparse(dtype: Any = tf.int64) -> Any:
    places, shape = v1.placeholder(tf.int64, [None, 2]), v1.placeholder(tf.int64, [2])
    return tf.SparseTensor(places, v1.placeholder(dtype, [None]), shape)


def fed_ragged() -> Any:
    ids, splits = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [None])
    return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)


def safely(table: Any, ids: Any, weights: Any = None, combiner: str = "mean") -> Any:
    found = v1.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner=combiner)
    return tf.reshape(found, [-1, WIDTH])


def weighted(table: Any) -> tuple[Any, Any]:
    ids = fed_sparse()
    weights = tf.SparseTensor(ids.indices, v1.placeholder(tf.float32, [None]), ids.dense_shape)
    return safely(table, ids, weights), fed_targets()


def parsed(table: Any) -> tuple[Any, Any]:
    features = {"ids": tf.io.VarLenFeature(tf.int64), "target": tf.io.FixedLenFeature([], tf.float32)}
    found = v1.io.parse_example(v1.placeholder(tf.string, [None]), features)
    return safely(table, found["ids"]), found["target"]


def column(table: Any) -> tuple[Any, Any]:
    words = tf.feature_column.categorical_column_with_hash_bucket("words", WORDS)
    embedded = tf.feature_column.embedding_column(words, WIDTH, combiner="mean")
    return v1.feature_column.input_layer({"words": v1.placeholder(tf.string, [None])}, [embedded]), fed_targets()


def indicator(table: Any) -> tuple[Any, Any]:
    words = tf.feature_column.categorical_column_with_vocabulary_list("words", ["a", "b", "c"])
    ages = tf.feature_column.bucketized_column(tf.feature_column.numeric_column("age"), [18.0, 30.0])
    fed = {"words": v1.placeholder(tf.string, [None]), "age": v1.placeholder(tf.float32, [None, 1])}
    found = v1.feature_column.input_layer(fed, [tf.feature_column.indicator_column(words), ages])
    return tf.concat([found[:, :3], found[:, 3:4]], 1) * table[0], fed_targets()


def ragged(table: Any, reduce: Callable[..., Any]) -> tuple[Any, Any]:
    return tf.reshape(reduce(tf.nn.embedding_lookup(table, fed_ragged()), axis=1), [-1, WIDTH]), fed_targets()


APART: dict[str, Rows] = {
    "sparse": lambda table: (tf.nn.embedding_lookup_sparse(table, fed_sparse(), None, "mean"), fed_targets()),
    "sparse, with rows that have none": lambda table: (safely(table, fed_sparse()), fed_targets()),
    "sparse, summed": lambda table: (safely(table, fed_sparse(), combiner="sum"), fed_targets()),
    "sparse, weighted": weighted,
    "parsed": parsed,
    "a feature column": column,
    "a column of words as numbers": indicator,
    "a sparse matrix": lambda table: (tf.sparse.sparse_dense_matmul(fed_sparse(tf.float32), table), fed_targets()),
    "ragged means": lambda table: ragged(table, tf.reduce_mean),
    "ragged sums": lambda table: ragged(table, tf.reduce_sum),
    "ragged maxima": lambda table: ragged(table, tf.reduce_max),
}


def chosen(table: Any) -> tuple[Any, Any]:
    rows, y = safely(table, fed_sparse()), fed_targets()
    return tf.boolean_mask(rows, y > 0), tf.boolean_mask(y, y > 0)


def by_classes(table: Any) -> tuple[Any, Any]:
    """Rows that are put in order by class, and added up by classes that are counted off."""
    ids = v1.placeholder(tf.int64, [None])
    classes = tf.repeat(tf.range(3), v1.placeholder(tf.int32, [3]))
    return tf.math.unsorted_segment_sum(tf.nn.embedding_lookup(table, ids), classes, 3), tf.zeros([3])


def every_other(rows: Any) -> Any:
    return tf.math.unsorted_segment_sum(rows, tf.range(tf.shape(rows)[0]) % 2, 2)


def turned(rows: Any) -> Any:
    return tf.math.unsorted_segment_sum(rows, tf.range(tf.shape(rows)[0])[::-1], tf.shape(rows)[0])


def negatives(rows: Any) -> Any:
    return tf.nn.softmax(rows @ tf.transpose(rows)) @ rows


MEET: dict[str, Rows] = {
    "examples that a mask chooses": chosen,
    "sums of classes": by_classes,
    "sums of every other row": lambda table: (every_other(safely(table, fed_sparse())), tf.zeros([2])),
    "rows that are turned round": lambda table: (
        turned(tf.gather(table, v1.placeholder(tf.int64, [None]))),
        fed_targets(),
    ),
    "negatives of the batch": lambda table: (negatives(safely(table, fed_sparse())), fed_targets()),
    "negatives of a batch of ragged ids": lambda table: (negatives(ragged(table, tf.reduce_mean)[0]), fed_targets()),
    "negatives of a batch that is parsed": lambda table: (negatives(parsed(table)[0]), fed_targets()),
}


def notes_and_doubt(rows: Rows) -> tuple[list[str], str]:
    """(what the plan says of examples that meet or are chosen, what is said of those not proven to stay apart)."""
    graph = tf.Graph()
    with graph.as_default():
        found, y = rows(v1.get_variable("table", [WORDS, WIDTH]))
        weights = v1.get_variable("weights", [WIDTH, 1])
        loss = tf.reduce_mean(tf.square(tf.reshape(found @ weights, [-1]) - y))
        v1.train.AdagradOptimizer(0.1).minimize(loss)
    analysed = analyse(graph, layouts=False)
    doubts = [note for note in analysed.spec.notes if "not proven" in note]
    told = [one for one in analysed.spec.notes if one not in doubts and ("meet" in one or "mean over" in one)]
    return told, "".join(doubts)


@pytest.mark.parametrize("case", APART)
def test_elements_that_are_added_up_by_example_stay_apart(case: str) -> None:
    notes, doubt = notes_and_doubt(APART[case])
    assert notes == []
    assert not doubt or case == "sparse, weighted"  # that there are as many weights as ids is not proven


@pytest.mark.parametrize("case", MEET)
def test_examples_that_are_chosen_or_put_into_groups_are_told(case: str) -> None:
    notes, _ = notes_and_doubt(MEET[case])
    assert notes


def test_a_shape_of_a_sparse_batch_is_told_where_a_loss_is_divided_by_it() -> None:
    graph = tf.Graph()
    with graph.as_default():
        ids = fed_sparse()
        errors = tf.square(safely(v1.get_variable("table", [WORDS, WIDTH]), ids))
        loss = tf.reduce_sum(errors) / tf.cast(ids.dense_shape[0], tf.float32)
        v1.train.AdagradOptimizer(0.1).minimize(loss)
    (note,) = analyse(graph, layouts=False).spec.notes
    assert "divides a loss by" in note and "workers are taken to have it equal" in note
