"""Fits of ragged batches, by layouts: the history and weights of plain Keras; tolerance as in test_layouts.py.

13 examples in batches of 5: of the last batch, 3, workers have unequal shares, and of five workers two have none.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by, plan_of_fit

layers = keras.layers
TEXTS = tf.RaggedTensor.from_row_lengths(1 + np.arange(26) % 11, [1, 3, 0, 1, 3, 2, 1, 0, 5, 1, 3, 3, 3])
FULL = tf.RaggedTensor.from_row_lengths(1 + np.arange(26) % 11, [1, 3, 2, 1, 3, 2, 1, 1, 5, 1, 1, 2, 3])
DEEP = tf.RaggedTensor.from_row_lengths(
    tf.RaggedTensor.from_row_lengths(1 + np.arange(26) % 11, [1, 3, 2, 1, 3, 2, 1, 1, 5, 1, 3, 0, 3]),
    [1, 2, 1, 1, 0, 1, 1, 2, 1, 1, 0, 1, 1],
)
Y = np.random.RandomState(1).randn(13, 1).astype("f")
MOST = 1e-5


class OfRows(keras.Model):
    """Predicts of what `made` makes of the rows of a table for each word.

    Args:
        made: takes the table and the ragged batch.
    """

    def __init__(self, made):
        super().__init__()
        self.made, self.table, self.out = made, layers.Embedding(12, 3), layers.Dense(1)
        self.table.build()
        self.out.build((None, 3))

    def call(self, x):
        return self.out(self.made(self.table.embeddings.value, x))


def of_words(table, x):
    return tf.nn.embedding_lookup(table, x)


def among_all(table, x):
    """Sums of rows, counted by the longest text and the number of words and texts of the batch."""
    longest, words = tf.reduce_max(x.row_lengths()), tf.size(x.values, out_type=tf.int64)
    return tf.reduce_sum(of_words(table, x), 1) * tf.cast(longest + words, tf.float32) / tf.cast(x.nrows(), tf.float32)


FILLED = {
    "filled up before the lookup": lambda t, x: tf.reduce_mean(tf.gather(t, x.to_tensor()), 1),
    "filled up to a length": lambda t, x: tf.reduce_mean(tf.gather(t, x.to_tensor(shape=[None, 4])), 1),
    "bags of filled up words": lambda t, x: tf.reduce_sum(
        tf.gather(t, x.to_tensor()) * tf.sequence_mask(x.row_lengths(), dtype=tf.float32)[..., None], 1
    ),
}
OTHERS = {
    "sums": lambda t, x: tf.reduce_sum(of_words(t, x), 1),
    "means": lambda t, x: tf.reduce_mean(of_words(t, x + 0), 1),
    "maxima": lambda t, x: tf.reduce_max(of_words(t, x), 1),
    "filled up after the lookup": lambda t, x: tf.reduce_sum(of_words(t, x).to_tensor(), 1),
    "row numbers": lambda t, x: tf.math.unsorted_segment_sum(tf.gather(t, x.values), x.value_rowids(), x.nrows()),
    "words beside their mean": lambda t, x: tf.reduce_sum(
        x.with_values(tf.gather(t, x.values) - tf.reduce_mean(tf.gather(t, x.values), 0)), 1
    ),
    "lengths of the global batch": among_all,
}


def script(made, texts=TEXTS, rate=0.1):
    def make(train):
        model = OfRows(made)
        model.compile(keras.optimizers.SGD(rate), "mse", metrics=["mae"])
        data = tf.data.Dataset.from_tensor_slices((texts, Y)).batch(5)
        return model, train(model, data, epochs=2, verbose=0).history

    return make


def check(make, *sizes):
    plain = outcome(fit_plainly, make)
    for size in sizes:
        found = outcome(functools.partial(fit_by, size, layouts=True), make)
        parts = {name: difference(found[name], plain[name]) for name in plain}
        assert max(parts.values()) <= MOST, (size, parts, found["found"], plain["found"])


def notes(made):
    model = OfRows(made)
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((TEXTS, Y)).batch(5)
    return [one for one in plan_of_fit(model, data, layouts=True).notes if "all-gathered" in one]


@pytest.mark.rotates
@pytest.mark.parametrize("name", [*FILLED, *OTHERS])
def test_rows_of_ragged_texts_are_those_of_the_global_batch(name):
    texts = FULL if name in ("means", "maxima") else TEXTS  # of no words there are none
    check(script({**FILLED, **OTHERS}[name], texts), 2, 5)


@pytest.mark.rotates
@pytest.mark.parametrize("name", FILLED)
def test_rows_that_are_filled_up_are_not_gathered(name):
    assert notes(FILLED[name]) == []


@pytest.mark.rotates
def test_rows_of_rows_are_those_of_the_global_batch():
    check(script(lambda t, x: tf.reduce_sum(tf.reduce_sum(of_words(t, x), 2), 1), DEEP), 2, 5)
    check(
        script(lambda t, x: tf.reduce_sum(tf.gather(t, x.to_tensor()), [1, 2]), DEEP, 0.01), 3
    )  # by a larger rate the loss grows, and rounding with it


@pytest.mark.rotates
def test_a_batch_of_ragged_texts_alone_has_the_length_of_its_rows():
    """No label has an entry for each example: the loss is of the model's own outputs."""

    class Alone(OfRows):
        def train_step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - tf.reduce_mean(self(x)) - 1.0))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    def make(train):
        model = Alone(FILLED["filled up before the lookup"])
        model.compile(keras.optimizers.SGD(0.1))
        data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(5)
        return model, train(model, data, epochs=2, verbose=0).history

    check(make, 2, 5)
