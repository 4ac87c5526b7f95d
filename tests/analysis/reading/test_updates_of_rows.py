"""Updates that touch rows alone are one op in the graphs of front ends, where nobody takes what is computed between."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse
from parallax.graph.row_updates import UPDATE_ONLY_ROWS
from tests.analysis.reading.by_row import tf1_step
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by_two, read

layers, optimizers = keras.layers, keras.optimizers
IDS = np.random.RandomState(0).randint(0, 12, (13, 4)).astype("int32")
Y = np.random.RandomState(2).rand(13, 1).astype("float32")
MERGING = {"Unique", "UnsortedSegmentSum"}


def model_of(optimizer, kind=keras.Model):
    ids = keras.Input((4,), dtype="int32")
    hidden = layers.Flatten()(layers.Embedding(12, 3, name="table")(ids))
    model = kind(ids, layers.Dense(1)(hidden))
    model.compile(optimizer, "mse")
    return model


def ops_of(model, **options):
    """The nodes of updates of rows in the captured graph of a fit, and the types of all ops there."""
    view = analyse(read(model, IDS, Y, batch_size=5, **options).graph.graph).captured.view
    nodes = view.nodes.values()
    return [node for node in nodes if node.op == UPDATE_ONLY_ROWS], {node.op for node in nodes}


@pytest.mark.parametrize(
    ("make", "slots"),
    [(lambda: optimizers.Adagrad(0.1), 1), (lambda: optimizers.SGD(0.1), 0), (lambda: optimizers.SGD(rate()), 0)],
    ids=["Adagrad", "SGD", "SGD with a schedule"],
)
def test_an_update_of_rows_is_one_op_that_merges_them_itself(make, slots):
    (update,), ops = ops_of(model_of(make()))
    assert update.attr["N"].i == 1 + slots and not ops & MERGING

    def run(train):
        model = model_of(make())
        return model, train(model, IDS, Y, batch_size=5, epochs=2, verbose=0).history

    here, plain = outcome(fit_by_two, run), outcome(fit_plainly, run)
    assert max(difference(here[name], plain[name]) for name in plain) <= 1e-6


def rate():
    return optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


class Doubled(keras.Model):
    """Multiplies rows of a gradient, by what only the table's update takes; other weights are not trained."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        table = self.get_layer("table").embeddings
        (rows,) = tape.gradient(loss, [table])
        twice = tf.cast(self.optimizer.iterations + 1, tf.float32) * rows.values
        self.optimizer.apply([tf.IndexedSlices(twice, rows.indices + 0, rows.dense_shape)], [table])
        return {"loss": loss}


def test_what_an_update_takes_is_computed_though_nobody_else_takes_it():
    def run(train):
        model = model_of(optimizers.SGD(rate()), Doubled)
        return model, train(model, IDS, Y, batch_size=5, epochs=2, verbose=0).history

    (update,), ops = ops_of(model_of(optimizers.SGD(rate()), Doubled))
    assert not ops & MERGING
    here, plain = outcome(fit_by_two, run), outcome(fit_plainly, run)
    assert max(difference(here[name], plain[name]) for name in plain) <= 1e-6


class Logged(keras.Model):
    """Logs what it takes of the gradient, or of the rows that the optimizer has made."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "largest": tf.reduce_max(tf.abs(self.get_layer("table").embeddings.value))}


def test_who_reads_the_whole_table_in_the_step_has_it_updated_as_it_was():
    updates, _ = ops_of(model_of(optimizers.Adagrad(0.1), Logged))
    assert updates == []


@pytest.mark.parametrize(("rule", "sums"), [("SGD", 1), ("Adagrad", 2)])
def test_functions_of_equal_rows_that_stay_apart_are_added_up_by_the_op(rule, sums):
    (update,), ops = ops_of(model_of(getattr(optimizers, rule)(0.1)), merge_rows=False)
    assert max(update.attr["gradients"].i, 1) == sums and not ops & MERGING


def test_rows_whose_norm_is_taken_are_merged_before():
    (update,), ops = ops_of(model_of(optimizers.Adagrad(0.1, clipnorm=0.5)), merge_rows=True)
    assert MERGING <= ops


def test_graphs_of_parallel_run_stay_as_they_are():
    def train(loss, table):
        (slices,) = tf.gradients(loss, [table])
        ids, places = tf.unique(slices.indices)
        rows = tf.math.unsorted_segment_sum(slices.values, places, tf.size(ids))
        return table.scatter_sub(tf.IndexedSlices(rows * 0.1, ids)).op

    view = analyse(tf1_step(train).graph).captured.view
    assert not [node for node in view.nodes.values() if node.op == UPDATE_ONLY_ROWS]
