"""Sessions of the tests: which graphs they take, and that what one has fetched stays as it was."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ops.exactness.session import NamedSession

v1 = tf.compat.v1


def test_the_value_of_a_variable_of_the_old_kind_is_that_before_the_next_run() -> None:
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", [40], use_resource=False, initializer=v1.ones_initializer())
        less = v1.assign_sub(w, tf.ones([40]))
    with NamedSession(graph.as_graph_def(), v1.ConfigProto()) as session:
        session.run([w.initializer.name])
        (before,) = session.run([w.name])
        session.run([less.op.name])
        (after,) = session.run([w.name])
    assert (before.max(), after.max()) == (1.0, 0.0)


def test_a_graph_with_a_branch_without_arguments_is_taken_and_one_with_an_attribute_without_value_is_not() -> None:
    with tf.Graph().as_default() as graph:
        chosen = tf.cond(v1.placeholder(tf.bool, [], name="is_first"), lambda: 1.0, lambda: 2.0)
    graph_def = graph.as_graph_def(add_shapes=True)
    with NamedSession(graph_def, v1.ConfigProto()) as session:
        assert session.run([chosen.name], {"is_first:0": False}) == [2.0]
    graph_def.node[0].attr["looked_up"]  # an empty value is now there
    with pytest.raises(ValueError, match="looked_up have none"):
        NamedSession(graph_def, v1.ConfigProto())
