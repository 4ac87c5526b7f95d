"""Where a graph counts ids from the end of a table, and where it does something else."""

import pytest
import tensorflow as tf

from parallax.graph.view import GraphView
from parallax.transform.passes.ids_from_end import ids_before

ROWS = 9
FROM_END = {
    "a constant": lambda ids, table: tf.where(ids < 0, ids + ROWS, ids),
    "the table's shape": lambda ids, table: tf.where(ids < 0, ids + tf.constant(table.shape.as_list())[0], ids),
    "the other way round": lambda ids, table: tf.where(ids < 0, tf.constant(ROWS) + ids, ids),
}
NOT = {
    "another number": lambda ids, table: tf.where(ids < 0, ids + 8, ids),
    "another bound": lambda ids, table: tf.where(ids < 1, ids + ROWS, ids),
    "another test": lambda ids, table: tf.where(ids <= 0, ids + ROWS, ids),
    "the width": lambda ids, table: tf.where(ids < 0, ids + tf.constant(table.shape.as_list())[1], ids),
    "otherwise": lambda ids, table: tf.where(ids < 0, ids, ids + ROWS),
    "other ids": lambda ids, table: tf.where(ids < 0, ids[::-1] + ROWS, ids),
    "the ids": lambda ids, table: tf.identity(ids),
    "a number for each": lambda ids, table: tf.where(ids < 0, ids + tf.constant([ROWS, 3]), ids),
}


def found(count):
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.compat.v1.placeholder(tf.int32, [2], name="ids")
        table = tf.zeros([ROWS, 4])
        counted = count(ids, table)
    return ids_before(GraphView(graph.as_graph_def(add_shapes=True)), counted.name, ROWS)


@pytest.mark.parametrize("case", FROM_END)
def test_ids_that_are_counted_from_the_end_are_found(case):
    assert found(FROM_END[case]) == "ids:0"


@pytest.mark.parametrize("case", NOT)
def test_other_ids_are_left_alone(case):
    assert found(NOT[case]) is None
