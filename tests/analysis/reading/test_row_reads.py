"""Rows are taken of a variable itself where a graph reads the variable whole and takes rows of that."""

import numpy as np
import tensorflow as tf

from parallax.analysis.reading.capture import capture
from parallax.analysis.reading.row_reads import take_rows_of_variables

v1 = tf.compat.v1
VALUE = np.arange(8, dtype=np.float32).reshape(4, 2) / 3


def built(body):
    """A graph that calls a traced function of a table and ids; (it, the result)."""
    graph = tf.Graph()
    with graph.as_default():
        table = v1.get_variable("table", initializer=VALUE, use_resource=True)
        call = tf.function(lambda ids: body(table, ids), autograph=False)
        result = call(tf.constant([2, 0, 2]))
    return graph, result


def rows_then_write(table, ids):
    """As Keras looks rows up, in mixed precision; the write waits for the read."""
    rows = tf.gather(tf.cast(tf.convert_to_tensor(table), tf.bfloat16), ids)
    table.assign_sub(tf.ones_like(table), read_value=False)
    return tf.cast(rows, tf.float32), tf.gather(tf.convert_to_tensor(table), ids)


def value_of(graph_def, tensors):
    with tf.Graph().as_default(), v1.Session() as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        session.run("table/Assign")
        return session.run(tensors)


def test_rows_are_those_before_a_write_that_came_after_the_read():
    graph, (before, after) = built(rows_then_write)
    view = capture(graph).view
    lookups = [node for node in view.nodes if view.op(node) == "ResourceGather"]
    (write,) = [node for node in view.nodes if view.op(node) == "AssignSubVariableOp"]
    assert len(lookups) == 2
    assert [node for node in lookups if node in view.ancestors([write])] == [n for n in lookups if "/rows" in n]
    for _ in range(20):
        first, second = value_of(view.graph_def, [before.name, after.name])
        np.testing.assert_array_equal(first, tf.cast(tf.cast(VALUE[[2, 0, 2]], tf.bfloat16), tf.float32))
        np.testing.assert_array_equal(second, VALUE[[2, 0, 2]] - 1)


def test_nothing_reads_the_whole_that_needs_rows_only():
    graph, (before, _) = built(rows_then_write)
    view = capture(graph).view
    assert not [n for n in view.ancestors([before.op.name]) if view.op(n) == "ReadVariableOp"]


def test_a_value_from_before_a_write_stays_where_its_rows_are_chosen_after_the_write():
    def body(table, ids):
        value = tf.convert_to_tensor(table)
        table.assign_sub(tf.ones_like(table), read_value=False)
        return tf.gather(value, ids + tf.cast(tf.reduce_max(table) < 0, tf.int32))

    graph, result = built(body)
    view = capture(graph).view
    assert "ResourceGather" not in {view.op(node) for node in view.nodes}
    np.testing.assert_array_equal(value_of(view.graph_def, result.name), VALUE[[2, 0, 2]])


def test_a_graph_without_such_reads_is_given_back():
    graph = tf.Graph()
    with graph.as_default():
        tf.gather(v1.get_variable("table", [4, 2], use_resource=True), [1])
    graph_def = graph.as_graph_def()
    assert take_rows_of_variables(graph_def) is graph_def
