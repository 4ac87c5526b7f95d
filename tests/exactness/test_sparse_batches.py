"""Sparse, ragged and parsed batches: what is added up by example, or put into groups, is the one process's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ops.exactness.trial import Outcome
from parallax.analysis.graph_to_plan import analyse
from parallax.base.errors import GraphError
from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
WORDS, WIDTH = 11, 4
Rows = Callable[[Any, Any, Any], Any]
"""(a table, ids `[batch, 3]` with zeros for none, targets `[batch]`) -> rows of examples `[batch, WIDTH]`."""


def sparse(ids: Any) -> Any:
    return tf.sparse.from_dense(ids)


def safely(table: Any, ids: Any, weights: Any = None, combiner: str = "mean") -> Any:
    found = v1.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner=combiner)
    return tf.reshape(found, [-1, WIDTH])


def weighted(table: Any, ids: Any, y: Any) -> Any:
    found = sparse(ids)
    weights = 1.0 + tf.cast(found.values, tf.float32) % 3.0
    return safely(table, found, tf.SparseTensor(found.indices, weights, found.dense_shape))


def ragged(table: Any, ids: Any, reduce: Callable[..., Any]) -> Any:
    lengths = 1 + ids[:, 0] % 3
    return tf.reshape(reduce(tf.nn.embedding_lookup(table, tf.RaggedTensor.from_tensor(ids, lengths)), axis=1), [-1, 4])


def columns_by_constant(rows: Any) -> Any:
    """Compact bilinear pooling: a count sketch adds columns up, and signs are constants."""
    sketch = tf.SparseTensor([[0, 3], [1, 0], [2, 3], [3, 1]], [1.0, -1.0, 1.0, -1.0], [WIDTH, WIDTH])
    added = tf.sparse.sparse_dense_matmul(sketch, tf.transpose(rows), adjoint_a=True)
    return tf.transpose(tf.tanh(added) + tf.sparse.sparse_dense_matmul(sketch, tf.tanh(rows), adjoint_b=True))


APART: dict[str, Rows] = {
    "sparse": lambda table, ids, y: tf.nn.embedding_lookup_sparse(table, sparse(ids + 1), None, "mean"),
    "sparse, with rows that have none": lambda table, ids, y: safely(table, sparse(ids)),
    "sparse, summed": lambda table, ids, y: safely(table, sparse(ids), combiner="sum"),
    "sparse, weighted": weighted,
    "a sparse matrix": lambda table, ids, y: tf.sparse.sparse_dense_matmul(sparse(tf.one_hot(ids[:, 0], WORDS)), table),
    "columns by a constant": lambda table, ids, y: columns_by_constant(tf.gather(table, ids[:, 0])),
    "ragged means": lambda table, ids, y: ragged(table, ids, tf.reduce_mean),
    "ragged sums": lambda table, ids, y: ragged(table, ids, tf.reduce_sum),
    "ragged maxima": lambda table, ids, y: ragged(table, ids, tf.reduce_max),
}


def every_other(rows: Any) -> Any:
    return tf.math.unsorted_segment_sum(rows, tf.range(tf.shape(rows)[0]) % 2, 2)


def by_classes(rows: Any, y: Any) -> Any:
    """Rows that are put in order by class, and added up by classes that are counted off."""
    classes = tf.cast(y > 0, tf.int32) + tf.cast(y > 1, tf.int32)
    counts = tf.math.bincount(classes, minlength=3)
    return tf.math.unsorted_segment_sum(tf.gather(rows, tf.argsort(classes)), tf.repeat(tf.range(3), counts), 3)


def turned(rows: Any) -> Any:
    return tf.math.unsorted_segment_sum(rows, tf.range(tf.shape(rows)[0])[::-1], tf.shape(rows)[0])


def negatives(rows: Any) -> Any:
    return tf.nn.softmax(rows @ tf.transpose(rows)) @ rows


MEET: dict[str, Rows] = {
    "examples that a mask chooses": lambda table, ids, y: tf.boolean_mask(safely(table, sparse(ids)), y > 0),
    "sums of classes": lambda table, ids, y: by_classes(tf.gather(table, ids[:, 0]), y),
    "sums of every other row": lambda table, ids, y: every_other(safely(table, sparse(ids))),
    "rows that are turned round": lambda table, ids, y: turned(tf.gather(table, ids[:, 0])),
    "negatives of the batch": lambda table, ids, y: negatives(safely(table, sparse(ids))),
    "negatives of a batch of ragged ids": lambda table, ids, y: negatives(ragged(table, ids, tf.reduce_mean)),
}


def outcome_of(rows: Rows) -> Outcome:
    def build(length: int | None) -> Any:
        ids = v1.placeholder(tf.int64, [length, 3], name="ids")
        y = v1.placeholder(tf.float32, [length], name="y")
        found = rows(v1.get_variable("table", [WORDS, WIDTH]), ids, y)
        scores = tf.reshape(found @ v1.get_variable("weights", [WIDTH, 1]), [-1])
        of_targets = tf.reduce_mean(tf.square(y)) * tf.reduce_mean(scores)
        return v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(tf.square(scores - 1.0)) + 0.1 * of_targets)

    feeds = {
        "ids": lambda rng, length: rng.randint(0, WORDS - 1, [length, 3]) * rng.randint(0, 2, [length, 3]),
        "y": lambda rng, length: rng.randn(length),
    }
    return tried(build, feeds)


GATHERING = {
    "ragged means": "Cumsum",
    "ragged sums": "Cumsum",
    "ragged maxima": "Cumsum",
}
"""Case of APART -> the op that takes tensors of the global batch all the same: no rule follows examples through it."""


@pytest.mark.rotates
@pytest.mark.parametrize("case", [*APART, *MEET])
def test_elements_are_added_up_by_the_examples_of_the_global_batch(case: str) -> None:
    found = outcome_of({**APART, **MEET}[case])
    assert (found.kind, found.message) == ("equal", "")
    said = "".join(found.gathers)
    assert case in MEET or (case in GATHERING) == bool(said) and f"{GATHERING.get(case, '')} '" * bool(said) in said


def test_rows_of_gathered_ids_are_not_sought_among_those_of_one_worker() -> None:
    """A reference variable's lookup sums rows itself, and its gradient deduplicates ids, here those of all workers."""

    def build(length: int | None) -> Any:
        ids = v1.placeholder(tf.int64, [length, 3], name="ids")
        y = v1.placeholder(tf.float32, [length], name="y")
        tables = [v1.get_variable(f"table_{i}", [WORDS, WIDTH], use_resource=False) for i in range(2)]
        rows = tf.reduce_sum(
            tf.ragged.map_flat_values(tf.gather, tables[0], tf.RaggedTensor.from_tensor(ids, padding=0)), 1
        )
        bags = tf.nn.embedding_lookup_sparse(tables[1], sparse(ids + 1), None, combiner="sqrtn")
        scores = tf.reduce_sum(tf.ensure_shape(rows, [length, WIDTH]) + tf.ensure_shape(bags, [length, WIDTH]), 1)
        return v1.train.GradientDescentOptimizer(0.3).minimize(tf.reduce_mean(tf.square(scores - y)))

    feeds = {
        "ids": lambda rng, length: rng.randint(0, WORDS - 1, [length, 3]),
        "y": lambda rng, length: rng.randn(length),
    }
    found = tried(build, feeds, control_flow_v2=True)
    assert (found.kind, found.message) == ("equal", "")


def column(words: Any, table: Any) -> Any:
    hashed = tf.feature_column.categorical_column_with_hash_bucket("words", WORDS)
    embedded = tf.feature_column.embedding_column(hashed, WIDTH, combiner="mean")
    return v1.feature_column.input_layer({"words": words}, [embedded])


def parsed(words: Any, table: Any) -> Any:
    return safely(table, v1.io.parse_example(words, {"ids": tf.io.VarLenFeature(tf.int64)})["ids"])


def draw_words(rng: Any, length: int) -> Any:
    return np.array([b"abcdefgh"[at : at + 1] for at in rng.randint(0, 8, [length])], object)


def draw_examples(rng: Any, length: int) -> Any:
    drawn = [tf.train.Int64List(value=rng.randint(0, WORDS, [rng.randint(1, 4)])) for _ in range(length)]
    features = [tf.train.Features(feature={"ids": tf.train.Feature(int64_list=one)}) for one in drawn]
    return np.array([tf.train.Example(features=one).SerializeToString() for one in features], object)


@pytest.mark.parametrize(("rows", "draw"), [(column, draw_words), (parsed, draw_examples)])
def test_texts_are_those_of_the_global_batch(rows: Any, draw: Any) -> None:
    def build(length: int | None) -> Any:
        words, y = v1.placeholder(tf.string, [length], name="words"), v1.placeholder(tf.float32, [length], name="y")
        found = rows(words, v1.get_variable("table", [WORDS, WIDTH]))
        scores = tf.reshape(found @ v1.get_variable("weights", [WIDTH, 1]), [-1])
        return v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(tf.square(scores - y)))

    found = tried(build, {"words": draw, "y": lambda rng, length: rng.randn(length)})
    assert (found.kind, found.message) == ("equal", "")


def fed_bags(table: Any) -> Any:
    places, values = v1.placeholder(tf.int64, [None, 2]), v1.placeholder(tf.int64, [None])
    return tf.nn.embedding_lookup_sparse(table, tf.SparseTensor(places, values, [4, 3]), None, "mean")


def fed_ragged(table: Any) -> Any:
    values, splits = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [None])
    return tf.reduce_mean(tf.gather(table, tf.RaggedTensor.from_row_splits(values, splits, validate=False)), 1)


@pytest.mark.parametrize(("rows", "said"), [(fed_bags, "segment ids that are fed"), (fed_ragged, "row splits")])
def test_numbers_of_rows_that_each_worker_feeds_are_its_own(rows: Callable[[Any], Any], said: str) -> None:
    graph = tf.Graph()
    with graph.as_default():
        v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(rows(v1.get_variable("table", [WORDS, WIDTH]))))
    analysed = analyse(graph)
    assert not analysed.captured.by_layouts and said in analysed.captured.means
    with pytest.raises(GraphError, match=said):
        analyse(graph, layouts=True)
