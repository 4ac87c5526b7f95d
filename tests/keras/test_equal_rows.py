"""Updates that take sums of several functions of equal gradient rows: one message, and plain Keras's result."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax import Config
from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.plans.plan import one_host
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by, plan_of_fit, read

layers, ops, optimizers = keras.layers, keras.ops, keras.optimizers
IDS = np.random.RandomState(0).randint(0, 12, (13, 4)).astype("int32")
Y = np.random.RandomState(2).rand(13, 1).astype("float32")


class Rule(optimizers.Optimizer):
    """Has one slot beside each variable."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.slots = self.add_optimizer_variables(variables, "slot")

    def update_step(self, gradient, variable, learning_rate):
        rate = ops.cast(learning_rate, variable.dtype)
        self.update(gradient, variable, self.slots[self._get_variable_index(variable)], rate)


class OfThreeFunctions(Rule):
    def update(self, gradient, variable, slot, rate):
        square = ops.square(gradient)
        self.assign_add(slot, ops.abs(gradient))
        self.assign_sub(variable, ops.divide(ops.multiply(rate, ops.multiply(square, gradient)), ops.add(slot, 1.0)))
        self.assign_sub(variable, ops.multiply(ops.negative(square), rate))


class OfOneFunction(Rule):
    def update(self, gradient, variable, slot, rate):
        self.assign_sub(variable, ops.multiply(ops.tanh(ops.multiply(gradient, 3.0)), rate))


class OfRowsAfterTheirSum(Rule):
    """Takes the rows of a slot after it has added to them: what is read must wait for what is written."""

    def update(self, gradient, variable, slot, rate):
        if not isinstance(gradient, tf.IndexedSlices):
            variable.assign_sub(rate * gradient)
            return
        slot.value.scatter_add(tf.IndexedSlices(tf.square(gradient.values), gradient.indices))
        now = tf.gather(slot.value, gradient.indices)
        change = rate * gradient.values / tf.sqrt(now + tf.abs(gradient.values) + 1.0)
        variable.scatter_sub(tf.IndexedSlices(change, gradient.indices))


class TwoTables(keras.Model):
    """Two tables that are looked up by the same numbers, one of single numbers and one of matrices."""

    def __init__(self):
        super().__init__()
        self.of_numbers = self.add_weight(shape=(12,), name="numbers")
        self.of_matrices = self.add_weight(shape=(12, 2, 3), name="matrices")

    def call(self, ids):
        flat = tf.reshape(ids, [-1])
        numbers, matrices = tf.gather(self.of_numbers.value, flat), tf.gather(self.of_matrices.value, flat)
        each = numbers + tf.reduce_sum(tf.square(matrices - 0.2), [1, 2])
        return tf.reduce_sum(tf.reshape(each, [-1, 4]), 1, keepdims=True)


class TiedTable(keras.Model):
    """One table for two lookups and for scores of all of its rows."""

    def __init__(self):
        super().__init__()
        self.table = self.add_weight(shape=(12, 3), name="table")

    def call(self, ids):
        table = self.table.value
        rows = tf.gather(table, ids[:, 0]) + tf.gather(table, ids[:, 1])
        return tf.reduce_mean(tf.tanh(rows @ tf.transpose(table)), 1, keepdims=True)


def one_table():
    return keras.Sequential(
        [keras.Input((4,), dtype="int32"), layers.Embedding(12, 3), layers.Flatten(), layers.Dense(1)]
    )


def fitted(make, optimizer, train):
    model = make()
    model.compile(optimizer(), "mse")
    return model, train(model, IDS, Y, batch_size=5, epochs=2, verbose=0).history


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("make", "optimizer"),
    [
        (one_table, lambda: OfThreeFunctions(0.5)),
        (one_table, lambda: OfOneFunction(0.5)),
        (one_table, lambda: OfRowsAfterTheirSum(0.5)),
        (TwoTables, lambda: optimizers.Adam(0.1)),
        (TwoTables, lambda: optimizers.Adagrad(0.1)),
        (TiedTable, lambda: optimizers.Adam(0.1, epsilon=0.1)),
    ],
    ids=["three functions", "one function", "rows after their sum", "two tables", "two tables, rows alone", "tied"],
)
def test_sums_of_functions_of_equal_rows_are_those_of_plain_keras(make, optimizer):
    def run(train):
        return fitted(make, optimizer, train)

    plain = outcome(fit_plainly, run)
    here = outcome(lambda *args, **options: fit_by(3, *args, **options), run)
    assert max(difference(here[name], plain[name]) for name in plain) <= 1e-6


def exchanges(merge_rows):
    """How many messages a worker's step has, and what the plan says of equal rows."""
    model = one_table()
    model.compile(optimizers.Adam(0.1), "mse")
    graph = read(model, IDS, Y, batch_size=5, merge_rows=merge_rows).graph.graph
    analysed = analyse(graph)
    plan = plan_for(analysed, one_host(2), Config())
    made = transform(analysed.captured.view, rewrites_of(analysed, plan), Worker(0, 2, 7))
    return sum(node.op == "ParallaxAllToAll" for node in made.graph_def.node), plan


def test_two_sums_travel_in_one_message_and_the_plan_says_what_they_cost():
    apart, merged = exchanges(False), exchanges(True)
    assert apart[0] == merged[0]
    (table,) = [one for one in apart[1].variables if one.route == "alltoall"]
    (same,) = [one for one in merged[1].variables if one.route == "alltoall"]
    more = table.cost.sent_bytes - same.cost.sent_bytes
    (note,) = [note for note in apart[1].notes if "duplicate gradient rows" in note]
    assert more == 12 * 3 * 4 // 2 and f"a worker sends {more} B less per step" in note
    assert not [note for note in merged[1].notes if "duplicate gradient rows" in note]


def test_an_optimizer_that_takes_one_sum_sends_no_more():
    model = one_table()
    model.compile(optimizers.Lion(0.1), "mse")
    assert not [note for note in plan_of_fit(model, IDS, Y, batch_size=5).notes if "duplicate gradient rows" in note]


@pytest.mark.parametrize("optimizer", [optimizers.SGD, optimizers.Adam])
def test_lookups_of_a_tied_table_gather_no_row_numbers(optimizer):
    model = TiedTable()
    model.compile(optimizer(0.1), "mse")
    assert not [note for note in plan_of_fit(model, IDS, Y, batch_size=5).notes if "all-gathered" in note]
