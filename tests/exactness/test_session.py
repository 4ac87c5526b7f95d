"""What a session has fetched stays as it was, whatever runs afterwards."""

from __future__ import annotations

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
