"""Sparse tensors that a script feeds: a worker's rows are its examples', and its adjacency that of its own graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse
from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
Sparse = v1.SparseTensorValue
COLUMNS, WIDTH = 11, 4


def draw_bags(rng: Any, rows: int) -> Any:
    """Each row has entries in its first column, and in some others."""
    mask = rng.rand(rows, COLUMNS) < 0.3
    mask[:, 0] = True
    places = np.argwhere(mask)
    return Sparse(places, rng.randint(0, COLUMNS, len(places)), np.array([rows, COLUMNS]))


def draw_weights(rng: Any, rows: int) -> Any:
    bags = draw_bags(rng, rows)
    return Sparse(bags.indices, 0.5 + rng.rand(len(bags.values)), bags.dense_shape)


def draw_graph(rng: Any, rows: int) -> Any:
    places = np.argwhere((rng.rand(rows, rows) < 0.4) | np.eye(rows, dtype=bool))
    return Sparse(places, rng.rand(len(places)).astype("f"), np.array([rows, rows]))


def draw_texts(rng: Any, rows: int) -> Any:
    """As many columns as the longest text of a worker has words."""
    places = np.argwhere(np.arange(2 * rows) < rng.randint(1, 2 * rows, [rows, 1]))
    return Sparse(places, rng.randint(0, COLUMNS, len(places)), np.array([rows, places[:, 1].max() + 1]))


FEEDS: dict[str, Callable[..., Any]] = {
    "bags": draw_bags,
    "matrix": lambda rng, rows: draw_weights(rng, rows)._replace(dense_shape=np.array([rows, COLUMNS])),
    "graph": draw_graph,
    "y": lambda rng, rows: rng.randn(rows),
    "mask": lambda rng, rows: rng.randint(0, 2, rows) + np.arange(rows) % 2,
}
Rows = Callable[[Any, Any, Any, Any], Any]
"""(table, bags of ids, a matrix of weights, a graph) -> rows of examples `[batch, WIDTH]`."""


def looked_up(combiner: str, is_weighted: bool = False) -> Rows:
    def rows(table: Any, bags: Any, matrix: Any, graph: Any) -> Any:
        weights = tf.SparseTensor(bags.indices, 1.0 + tf.cast(bags.values, tf.float32), bags.dense_shape)
        return tf.nn.embedding_lookup_sparse(table, bags, weights if is_weighted else None, combiner)

    return rows


def convolve(table: Any, bags: Any, matrix: Any, graph: Any) -> Any:
    """Two layers of a graph convolution."""
    hidden = tf.nn.relu(tf.sparse.sparse_dense_matmul(graph, tf.sparse.sparse_dense_matmul(matrix, table)))
    return tf.sparse.sparse_dense_matmul(graph, hidden @ table[:WIDTH])


def attend(table: Any, bags: Any, matrix: Any, graph: Any) -> Any:
    """Attention over the neighbours of a node, which are looked up."""
    nodes = tf.sparse.sparse_dense_matmul(matrix, table)
    scores = tf.sparse.sparse_dense_matmul(graph, nodes)
    at, of = graph.indices[:, 0], graph.indices[:, 1]
    edges = tf.exp(tf.tanh(tf.reduce_sum(tf.gather(scores, at) * tf.gather(nodes, of), 1)))
    return tf.math.segment_sum(edges[:, None] * tf.gather(nodes, of), at)


def attend_by_softmax(table: Any, bags: Any, matrix: Any, graph: Any) -> Any:
    """Attention by tf.sparse.softmax, of edges that are divided by those of a node together."""
    nodes = tf.sparse.sparse_dense_matmul(matrix, table)
    at, of = graph.indices[:, 0], graph.indices[:, 1]
    scores = tf.reduce_sum(tf.gather(nodes, at) * tf.gather(nodes, of), 1)
    edges = tf.sparse.softmax(tf.SparseTensor(graph.indices, scores, graph.dense_shape))
    shares = graph / (1.0 + tf.sparse.reduce_sum(graph, 1, keepdims=True))
    return tf.sparse.sparse_dense_matmul(edges, nodes) + tf.sparse.sparse_dense_matmul(shares, nodes)


PROGRAMS: dict[str, Rows] = {
    "bags, mean": looked_up("mean"),
    "bags, sum": looked_up("sum"),
    "bags, weighted": looked_up("sqrtn", is_weighted=True),
    "bags that are looked up safely": lambda table, bags, matrix, graph: tf.reshape(
        v1.nn.safe_embedding_lookup_sparse(table, bags), [-1, WIDTH]
    ),
    "a matrix": lambda table, bags, matrix, graph: tf.sparse.sparse_dense_matmul(matrix, table),
    "a dense copy": lambda table, bags, matrix, graph: tf.sparse.to_dense(matrix) @ table,
    "sums of rows": lambda table, bags, matrix, graph: tf.reshape(tf.sparse.reduce_sum(matrix, 1), [-1, 1]) * table[0],
    "factors": lambda table, bags, matrix, graph: (
        tf.square(tf.sparse.sparse_dense_matmul(matrix, table))
        - tf.sparse.sparse_dense_matmul(tf.square(matrix), tf.square(table))
    ),
    "a graph convolution": convolve,
    "a graph's attention": attend,
    "a graph's attention, by a softmax": attend_by_softmax,
}


def build(program: Rows, is_stated: bool = True) -> Callable[[int | None], Any]:
    def built(rows: int | None) -> Any:
        table = v1.get_variable("emb", [COLUMNS, WIDTH], initializer=v1.random_normal_initializer(seed=1))
        shape = [None, COLUMNS] if is_stated else None
        bags = v1.sparse_placeholder(tf.int64, shape, name="bags")
        matrix = v1.sparse_placeholder(tf.float32, shape, name="matrix")
        graph = v1.sparse_placeholder(tf.float32, name="graph")
        y = v1.placeholder(tf.float32, [None], name="y")
        mask = tf.cast(v1.placeholder(tf.int32, name="mask"), tf.float32)
        losses = tf.square(tf.reduce_sum(tf.tanh(program(table, bags, matrix, graph)), 1) - y)
        return v1.train.AdagradOptimizer(0.3).minimize(tf.reduce_mean(losses * (mask / tf.reduce_mean(mask))))

    return built


@pytest.mark.rotates
@pytest.mark.parametrize("name", PROGRAMS)
def test_fed_sparse_tensors_are_one_process_s(name):
    outcome = tried(build(PROGRAMS[name], is_stated="bags" in name or "dense" in name), FEEDS)
    assert outcome.kind == "equal", outcome


@pytest.mark.parametrize(
    "name",
    ["bags, mean", "a matrix", "sums of rows", *(name for name in PROGRAMS if name.startswith("a graph"))],
)
def test_rows_of_fed_sparse_tensors_stay_with_their_workers(name):
    graph = tf.Graph()
    with graph.as_default():
        build(PROGRAMS[name], is_stated=False)(None)
    notes = [one for one in analyse(graph).spec.notes if "all-gathered" in one]
    assert not notes


OF_TEXTS: dict[str, Callable[[Any, Any], Any]] = {
    "looked up safely": lambda table, texts: v1.nn.safe_embedding_lookup_sparse(table, texts),
    "a mean over columns": lambda table, texts: tf.reduce_mean(tf.gather(table, tf.sparse.to_dense(texts)), 1),
    "a sum by the number of columns": lambda table, texts: (
        v1.nn.embedding_lookup_sparse(table, texts, None, combiner="sum") / tf.cast(texts.dense_shape[1], tf.float32)
    ),
}


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("case", OF_TEXTS)
def test_texts_are_as_long_as_the_longest_of_the_global_batch(case, is_open):
    def minimize(rows: int | None) -> Any:
        table = v1.get_variable("emb", [COLUMNS, WIDTH], initializer=v1.random_normal_initializer(seed=1))
        rows_of = OF_TEXTS[case](table, v1.sparse_placeholder(tf.int64, [None, None], name="texts"))
        y = v1.placeholder(tf.float32, [rows], name="y")
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.tanh(rows_of), 1) - y))
        return v1.train.AdagradOptimizer(0.3).minimize(loss)

    outcome = tried(minimize, {"texts": draw_texts, "y": FEEDS["y"]}, is_open=is_open, rows=7)
    assert (outcome.kind, outcome.notes, outcome.gathers) == ("equal", (), ()), outcome


def test_a_dense_matrix_of_an_adjacency_is_refused():
    def densify(table: Any, bags: Any, matrix: Any, graph: Any) -> Any:
        rows = convolve(table, bags, matrix, graph)
        return rows + tf.reduce_sum(tf.sparse.to_dense(graph), 1, keepdims=True)

    outcome = tried(build(densify, is_stated=False), FEEDS)
    assert outcome.kind == "refused" and "whose rows and columns are examples" in outcome.message, outcome
