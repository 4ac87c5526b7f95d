"""Losses that steps of a user's own compute of a whole batch, on two workers with uneven batches: as in plain Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by_two

ROWS = 13  # batches of five, cut into two and three, and a last one of three
X = np.random.RandomState(1).rand(ROWS, 4).astype("float32")
Y = np.random.RandomState(2).randn(ROWS, 2).astype("float32")
Y[3] = np.abs(Y[3])  # no batch is without a positive target
OPTIONS = {"batch_size": 5, "epochs": 2, "verbose": 0, "shuffle": False}


def each(y, out):
    return tf.reduce_sum(tf.square(out - y), 1)


def kept(y, out):
    return tf.reduce_mean(tf.boolean_mask(each(y, out), y[:, 0] > 0.0))


def weighed(y, out):
    weights = tf.abs(y[:, 1])
    return tf.reduce_sum(each(y, out) * weights) / tf.reduce_sum(weights)


def length(y):
    return tf.cast(tf.shape(y)[0], tf.float32)


LOSSES = {
    "a sum over a mask": lambda y, out: 0.1 * tf.reduce_sum(tf.boolean_mask(each(y, out), y[:, 0] > 0.0)),
    "a mean, and a penalty of what a mask leaves": lambda y, out: (
        tf.reduce_mean(each(y, out)) + 0.1 * tf.nn.l2_loss(tf.boolean_mask(out, y[:, 0] > 0.0))
    ),
    "a sum of products": lambda y, out: tf.reduce_mean(each(y, out)) + 0.1 * tf.einsum("bi,bi->", out, y),
    "one sum twice": lambda y, out: 0.1 * tf.reduce_sum(each(y, out)) + 0.05 * tf.reduce_sum(each(y, out)),
    "a sum, and sums of rows": lambda y, out: (
        0.1 * tf.reduce_sum(out) + tf.reduce_mean(tf.square(tf.reduce_sum(out, 1) - y[:, 0]))
    ),
    "an L2 loss, and squares": lambda y, out: tf.reduce_mean(tf.square(out)) + 0.1 * tf.nn.l2_loss(out),
    "a mean over a mask, scaled": lambda y, out: (
        tf.reduce_mean(each(y, out) * tf.abs(y[:, 0])) * length(y) / tf.reduce_sum(tf.abs(y[:, 0]))
    ),
    "a sum times an inverse": lambda y, out: (
        (1.0 / tf.reduce_sum(tf.abs(y[:, 0]))) * tf.reduce_sum(each(y, out) * tf.abs(y[:, 0]))
    ),
    "the root of a mean over a mask": lambda y, out: tf.sqrt(kept(y, out)),
    "a quotient of a mean and one over a mask": lambda y, out: tf.reduce_mean(each(y, out)) / (1.0 + kept(y, out)),
    "the logarithm of a weighed mean": lambda y, out: tf.math.log(weighed(y, out)),
    "a sum by the length less one": lambda y, out: (
        tf.reduce_sum(each(y, out)) / (tf.cast(tf.shape(y)[0], tf.float32) - 0.5)
    ),
    "the root of a sum by the length": lambda y, out: tf.sqrt(
        tf.reduce_sum(each(y, out)) / tf.cast(tf.shape(y)[0], tf.float32)
    ),
    "a mean by the length": lambda y, out: tf.reduce_mean(each(y, out)) / tf.cast(tf.shape(y)[0], tf.float32),
    "a sum by the width": lambda y, out: tf.reduce_sum(each(y, out)) / (10.0 * tf.cast(tf.shape(y)[1], tf.float32)),
    "a sum that counts in full": lambda y, out: 0.1 * tf.reduce_sum(each(y, out)),
    "half the sum of squares of mapped rows": lambda y, out: 0.1 * tf.nn.l2_loss(tf.map_fn(tf.square, out)),
    "a sum of which something else is made": (
        lambda y, out: 0.1 * tf.reduce_sum(out) + tf.square(tf.reduce_sum(out) / length(y))
    ),
    "a mean over a mask, and the root of a weighed one": lambda y, out: kept(y, out) + tf.sqrt(weighed(y, out)),
}


class OwnStep(keras.Model):
    def __init__(self, loss_of):
        super().__init__()
        self.dense, self.loss_of, self.losses_seen = keras.layers.Dense(2), loss_of, keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.losses_seen]

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.losses_seen.update_state(loss)
        return {"loss": self.losses_seen.result(), "last": loss}


@pytest.mark.rotates
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_the_whole_batch_is_plain_keras_s(loss):
    def make(train):
        model = OwnStep(LOSSES[loss])
        model.compile(keras.optimizers.SGD(0.05))
        return model, train(model, X, Y, **OPTIONS).history

    here, expected = outcome(fit_by_two, make), outcome(fit_plainly, make)
    assert np.isfinite(expected["found"]["last"]).all()
    assert difference(here, expected) <= 1e-5


SEQUENCES = np.random.RandomState(3).randn(ROWS, 3, 4).astype("float32")
KEPT = np.random.RandomState(4).rand(ROWS, 3).astype("float32")
OF_SEQUENCES = {
    "a mean over elements that a mask leaves": lambda kept, out: tf.reduce_mean(
        tf.boolean_mask(tf.reduce_sum(tf.square(out), 2), kept > 0.4)
    ),
    "a weighed mean": lambda kept, out: tf.reduce_sum(tf.reduce_sum(tf.square(out), 2) * kept) / tf.reduce_sum(kept),
    "a sum by the length of sequences": lambda kept, out: (
        tf.reduce_sum(tf.square(out)) / tf.cast(tf.shape(kept)[1], tf.float32) / 10.0
    ),
    "the root of a mean": lambda kept, out: tf.sqrt(tf.reduce_mean(tf.square(out[:, -1]))),
}


@pytest.mark.parametrize("loss", OF_SEQUENCES)
def test_a_loss_of_what_a_dense_layer_makes_of_sequences_is_plain_keras_s(loss):
    def make(train):
        model = OwnStep(OF_SEQUENCES[loss])
        model.compile(keras.optimizers.SGD(0.05))
        return model, train(model, SEQUENCES, KEPT, **OPTIONS).history

    assert difference(outcome(fit_by_two, make), outcome(fit_plainly, make)) <= 1e-5
