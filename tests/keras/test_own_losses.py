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


LOSSES = {
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


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_the_whole_batch_is_plain_keras_s(loss):
    def make(train):
        model = OwnStep(LOSSES[loss])
        model.compile(keras.optimizers.SGD(0.05))
        return model, train(model, X, Y, **OPTIONS).history

    here, expected = outcome(fit_by_two, make), outcome(fit_plainly, make)
    assert np.isfinite(expected["found"]["last"]).all()
    assert difference(here, expected) <= 1e-5
