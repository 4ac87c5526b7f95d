"""Between steps any op of the script finds trained values, and what it writes reaches the next step."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from parallax.base.errors import SessionError
from parallax.functions.mirrors import Mirrors
from parallax.functions.tracing.handles import is_read_only

v1 = tf.compat.v1
TRAINED = np.arange(8, dtype=np.float32).reshape(4, 2) + 1
ROWS = tf.IndexedSlices(tf.fill([2, 2], 3.0), tf.constant([1, 2]))


@pytest.fixture
def table():
    """A variable, and its mirror, whose session has other values than the variable."""
    table = tf.Variable(tf.zeros([4, 2]), name="table")
    mirrors = Mirrors([("table", table)], {"table": TRAINED}.get)
    mirrors.invalidate(["table"])
    yield table, mirrors
    mirrors.release()


def in_a_function(write):
    def called(table):
        @tf.function
        def step():
            write(table)

        step()

    return called


def in_a_function_of_a_function(write):
    def called(table):
        @tf.function
        def inner(given):
            write(given)

        tf.function(lambda: inner(table))()

    return called


def in_a_branch(table):
    tf.function(lambda flag: tf.cond(flag, lambda: table.assign_add(tf.ones([4, 2])), lambda: table.read_value()))(
        tf.constant(True)
    )


def restored(table):
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(table=tf.Variable(tf.fill([4, 2], 9.0))).save(f"{folder}/saved")
        tf.train.Checkpoint(table=table).restore(path)


def saved(table):
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(table=table).save(f"{folder}/saved")
        return tf.train.load_variable(path, "table/.ATTRIBUTES/VARIABLE_VALUE")


WRITES = {
    "assign": lambda t: t.assign(tf.ones([4, 2])),
    "assign of itself": lambda t: t.assign(t),
    "assign_add": lambda t: t.assign_add(tf.ones([4, 2])),
    "assign_sub": lambda t: t.assign_sub(tf.ones([4, 2])),
    "slice": lambda t: t[1:3].assign(tf.ones([2, 2])),
    "scatter_add": lambda t: t.scatter_add(ROWS),
    "scatter_sub": lambda t: t.scatter_sub(ROWS),
    "scatter_mul": lambda t: t.scatter_mul(ROWS),
    "scatter_div": lambda t: t.scatter_div(ROWS),
    "scatter_max": lambda t: t.scatter_max(ROWS),
    "scatter_min": lambda t: t.scatter_min(ROWS),
    "scatter_update": lambda t: t.scatter_update(ROWS),
    "batch_scatter_update": lambda t: t.batch_scatter_update(
        tf.IndexedSlices(tf.ones([4, 1]), tf.constant([[1], [0], [0], [1]]))
    ),
    "scatter_nd_add": lambda t: t.scatter_nd_add([[1], [2]], tf.ones([2, 2])),
    "scatter_nd_sub": lambda t: t.scatter_nd_sub([[1], [2]], tf.ones([2, 2])),
    "scatter_nd_max": lambda t: t.scatter_nd_max([[1], [2]], tf.ones([2, 2])),
    "scatter_nd_update": lambda t: t.scatter_nd_update([[1], [2]], tf.ones([2, 2])),
    "v1.assign": lambda t: v1.assign(t, tf.ones([4, 2])),
    "v1.scatter_update": lambda t: v1.scatter_update(t, [1, 2], tf.zeros([2, 2])),
    "v1.scatter_nd_update": lambda t: v1.scatter_nd_update(t, [[1], [2]], tf.ones([2, 2])),
    "raw op": lambda t: tf.raw_ops.AssignAddVariableOp(resource=t.handle, value=tf.ones([4, 2])),
    "raw overwriting op": lambda t: tf.raw_ops.AssignVariableOp(resource=t.handle, value=tf.ones([4, 2])),
    "optimizer's op": lambda t: tf.raw_ops.ResourceApplyGradientDescent(var=t.handle, alpha=0.5, delta=tf.ones([4, 2])),
    "TF1 optimizer": lambda t: v1.train.GradientDescentOptimizer(0.5).apply_gradients([(tf.ones([4, 2]), t)]),
    "Keras optimizer": lambda t: tf.keras.optimizers.SGD(0.5).apply_gradients([(tf.ones([4, 2]), t)]),
    "function": in_a_function(lambda t: t.scatter_mul(ROWS)),
    "function of a function": in_a_function_of_a_function(lambda t: t.scatter_max(ROWS)),
    "branch": in_a_branch,
    "checkpoint": restored,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_any_op_writes_reaches_the_next_step(table, write):
    expected = tf.Variable(TRAINED)
    write(expected)
    variable, mirrors = table
    write(variable)
    assert mirrors.written == {"table"}
    np.testing.assert_array_equal(variable.numpy(), expected.numpy())


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.numpy(),
        lambda t: t + 0.0,
        lambda t: tf.stack([t, t])[0],
        lambda t: tf.gather(t, tf.range(4)),
        saved,
        lambda t: tf.gather_nd(t, tf.range(4)[:, None]),
        lambda t: tf.function(lambda: t * 1.0)(),
        lambda t: tf.function(tf.function(lambda: t * 1.0))(),
        lambda t: tf.function(lambda flag: tf.cond(flag, lambda: t * 1.0, lambda: t * 2.0))(tf.constant(True)),
    ],
)
def test_what_only_reads_finds_trained_values_and_writes_nothing(table, read):
    variable, mirrors = table
    np.testing.assert_array_equal(np.asarray(read(variable)), TRAINED)
    assert mirrors.written == set() and mirrors.stale == set()


def test_a_handle_that_was_taken_before_a_step_finds_what_the_step_has_trained(table):
    variable, mirrors = table
    mirrors.refresh_all()
    handle = variable.handle
    mirrors.invalidate(["table"])
    read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
    np.testing.assert_array_equal(read, TRAINED)
    assert mirrors.stale == set()


def test_a_write_that_fails_changes_nothing(table):
    variable, mirrors = table
    with pytest.raises(ValueError, match="shape"):
        variable.assign(tf.ones([3]))
    assert mirrors.written == set()
    np.testing.assert_array_equal(variable.numpy(), TRAINED)


def test_a_dataset_that_would_read_a_variable_later_is_refused_by_name(table):
    variable, _ = table
    with pytest.raises(SessionError, match="MapDataset would read table later.*tf.constant"):
        tf.data.Dataset.range(3).map(lambda number: variable[number])


def test_nothing_is_watched_after_mirroring():
    variable = tf.Variable(TRAINED)
    mirrors = Mirrors([("table", variable)], {}.get)
    mirrors.release()
    variable.scatter_mul(ROWS)
    assert mirrors.written == set() and type(variable).__name__ == "ResourceVariable"


def test_ops_that_take_a_variable_and_are_not_registered_as_reading_it_count_as_writes():
    for name in ("AssignVariableOp", "ResourceStridedSliceAssign", "ResourceApplyAdam", "RngReadAndSkip"):
        assert op_def_registry.get(name) is not None and not is_read_only(name, 0)
    assert is_read_only("ReadVariableOp", 0) and is_read_only("ResourceGather", 0)
