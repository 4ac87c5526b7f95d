"""Metrics and states of evaluation that are no sums over examples: all workers have the values of one process."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import GraphError
from parallax.functions.tracing.written_variables import check_sums, find_sums, find_written
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by

pytestmark = pytest.mark.rotates(days=3)

layers, ops = keras.layers, keras.ops
MOST = 1e-5
ROWS = 23  # in batches of 6: the last has 5, and that of validation 1
X = np.random.RandomState(0).randn(ROWS, 4).astype("f")
Y = np.random.RandomState(1).randn(ROWS, 1).astype("f")


class OneState(keras.metrics.Metric):
    """A metric with one variable."""

    shape = ()

    def __init__(self):
        super().__init__(name="found")
        self.found = self.add_weight(name="value", shape=self.shape, initializer="zeros")

    def result(self):
        return ops.sum(self.found)


class Largest(OneState):
    def update_state(self, y, found, sample_weight=None):
        self.found.assign(ops.maximum(self.found, ops.max(found)))


class LastMean(OneState):
    def update_state(self, y, found, sample_weight=None):
        self.found.assign(ops.mean(ops.square(found)))


class Decayed(OneState):
    def update_state(self, y, found, sample_weight=None):
        self.found.assign(0.9 * self.found + 0.1 * ops.mean(found))


class Written(OneState):
    """Its first row is overwritten, the others are added to."""

    shape = (3,)

    def update_state(self, y, found, sample_weight=None):
        self.found.assign_add(tf.fill([3], tf.reduce_sum(found)))
        tf.raw_ops.ResourceScatterUpdate(resource=self.found.value.handle, indices=[0], updates=[tf.reduce_max(found)])


class LargestAndMean(OneState):
    """The largest and the mean in one result."""

    shape = (2,)

    def __init__(self):
        super().__init__()
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y, found, sample_weight=None):
        self.found.assign_add([tf.reduce_sum(found), tf.cast(tf.size(found), tf.float32)])
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(found)))

    def result(self):
        return self.found[0] / tf.maximum(self.found[1], 1.0) + self.largest


class InFunctions(OneState):
    """Written in a branch and in a function of its own."""

    def update_state(self, y, found, sample_weight=None):
        largest = ops.max(found)

        @tf.function
        def decay():
            self.found.assign(0.5 * self.found)

        decay()
        tf.cond(largest > self.found, lambda: self.found.value.assign(largest), lambda: self.found.value.read_value())


METRICS = (Largest, LastMean, Decayed, Written, LargestAndMean, InFunctions)


def fitted(metric, **options):
    def make(train):
        made = keras.Sequential([keras.Input((4,)), layers.Dense(3, "tanh"), layers.Dense(1)])
        made.compile("sgd", "mse", metrics=[metric()])
        given = dict(batch_size=6, epochs=2, shuffle=False, verbose=0, **options)
        return made, train(made, X, Y, **given).history

    return make


def check(make, size, **settings):
    plain = outcome(fit_plainly, make)
    found = outcome(functools.partial(fit_by, size, **settings), make)
    assert difference(found, plain) <= MOST, (found["found"], plain["found"])


@pytest.mark.rotates
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_a_metric_is_that_of_one_process(metric, size):
    check(fitted(metric, validation_data=(X[:7], Y[:7])), size)


def test_a_largest_value_is_that_of_all_micro_batches():
    check(fitted(Largest), 2, settings={"accumulate_steps": 2})


class CountsEvaluations(keras.Model):
    """Writes a variable of its own in `test_step`, and updates one metric in `train_step` alone."""

    def __init__(self):
        super().__init__()
        self.dense, self.largest = layers.Dense(1), Largest()
        self.seen = self.add_weight(name="seen", initializer="zeros", trainable=False)

    def call(self, x):
        return self.dense(x)

    @property
    def metrics(self):
        return [self.largest]

    def train_step(self, data):
        self.largest.update_state(data[1], self(data[0]))
        return super().train_step(data)

    def test_step(self, data):
        self.seen.assign_add(ops.sum(data[0]))
        return {"seen": self.seen.value, "largest": self.largest.result()}


@pytest.mark.parametrize("size", [2, 3])
def test_what_evaluation_writes_is_seen_by_callbacks(size):
    def make(train):
        made, seen = CountsEvaluations(), []
        made.compile("sgd", "mse")

        class Notes(keras.callbacks.Callback):
            def on_test_begin(self, logs=None):  # from here on, only evaluation changes the value
                seen.append(float(made.seen.value))

            def on_test_end(self, logs=None):
                seen.append(float(made.seen.value))

        given = dict(batch_size=6, epochs=2, shuffle=False, verbose=0, validation_data=(X[:7], Y[:7]))
        return made, (train(made, X, Y, callbacks=[Notes()], **given).history, seen)

    check(make, size)


def traced(write):
    variables = [tf.Variable([1.0, 2.0], aggregation=tf.VariableAggregation.SUM) for _ in range(2)]

    @tf.function
    def step(x):
        write(*variables, x)

    return variables, step.get_concrete_function(tf.TensorSpec([2])).graph


def overwrite_in_loop(one, x):
    for _ in tf.range(2):
        one.assign(x)


WRITES = {
    "adds": (lambda one, other, x: one.assign_add(x), 2, 1),
    "adds to what it reads": (lambda one, other, x: one.assign(one + x), 2, 1),
    "subtracts": (lambda one, other, x: one.assign_sub(other), 2, 1),
    "reads": (lambda one, other, x: one + other, 2, 0),
    "adds rows": (lambda one, other, x: one.scatter_add(tf.IndexedSlices(x[0], 1)), 2, 1),
    "multiplies": (lambda one, other, x: one.assign(other * x + one * 2.0), 1, 1),
    "overwrites rows": (lambda one, other, x: one.scatter_update(tf.IndexedSlices(x[0], 1)), 1, 1),
    "adds in a function": (lambda one, other, x: tf.function(lambda: one.assign_add(x))(), 2, 1),
    "overwrites in a function": (lambda one, other, x: tf.function(lambda: one.assign(x))(), 1, 1),
    "overwrites in a branch": (lambda one, other, x: tf.cond(x[0] > 0, lambda: one.assign(x), lambda: one), 1, 1),
    "overwrites in a loop": (lambda one, other, x: overwrite_in_loop(one, x), 1, 1),
    "overwrites a slice": (lambda one, other, x: one[:1].assign(x[:1]), 1, 1),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_of_a_step_are_found(name):
    write, sums, written = WRITES[name]
    variables, graph = traced(write)
    assert len(find_sums(graph, variables)) == sums
    assert len(find_written(graph, variables)) == written


def test_a_variable_that_one_step_adds_to_and_another_overwrites_is_refused():
    variables, adds = traced(WRITES["adds"][0])
    check_sums([adds], variables)

    @tf.function
    def overwrite(x):
        variables[0].assign(x)

    other = overwrite.get_concrete_function(tf.TensorSpec([2])).graph
    with pytest.raises(GraphError, match="update 'Variable' in the same way.*overwrites it by .*a separate metric"):
        check_sums([adds, other], find_sums(adds, variables))
