"""Fits whose steps are cut into micro-batches (accumulate_steps), by one to three workers: what plain Keras comes to.

22 or 17 examples in batches of 8: the last batch has 6 or 1, fewer than there are micro-batches on a worker.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.test_layouts import IDS, MOST, Y, dense, positions, recurrent, recurrent_twice
from tests.keras.test_layouts import X as FEATURES
from tests.keras.two_here import fit_by

layers, ops = keras.layers, keras.ops
WEIGHTS = np.random.RandomState(2).rand(22).astype("f")


class OwnStep(keras.Model):
    """Logs what its step computes: a mean, a sum, a number without a batch, and a metric of a loss as it is."""

    def __init__(self):
        super().__init__()
        self.first, self.last = layers.Dense(6, "tanh"), layers.Dense(1)
        self.first.build((None, 5))
        self.last.build((None, 6))
        self.mean_of_losses = keras.metrics.Mean(name="mean_of_losses")

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.mean_of_losses.update_state(loss)
        size = tf.linalg.global_norm(gradients)
        return {"loss": loss, "size": size, "rate": self.optimizer.learning_rate, "mean": self.mean_of_losses.result()}

    def test_step(self, data):
        return {"loss": tf.reduce_mean(tf.square(self(data[0]) - data[1]))}


def regularized():
    l2 = keras.regularizers.L2(0.3)
    first = layers.Dense(6, "tanh", kernel_regularizer=l2, activity_regularizer=keras.regularizers.L2(0.1))
    return keras.Sequential([keras.Input((5,)), first, layers.Dense(1, kernel_regularizer=keras.regularizers.L1(0.2))])


def penalized():
    """Penalties beside what may be a sum over the batch, of a table and of a product of weights too."""
    first = layers.Embedding(40, 4, embeddings_regularizer=keras.regularizers.L2(0.2))
    last = layers.Dense(1, kernel_regularizer=lambda w: 0.1 * ops.sum(ops.square(ops.matmul(ops.transpose(w), w))))
    return keras.Sequential([keras.Input((5,), dtype="int32"), first, layers.Flatten(), last])


def transformer():
    ids = keras.Input((5,), dtype="int32")
    x = layers.Embedding(40, 8)(ids)
    attended = layers.MultiHeadAttention(2, 4)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(8)(layers.Dense(16, "relu")(x))]))
    return keras.Model(ids, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


SUM = functools.partial(keras.losses.MeanSquaredError, reduction="sum")
MODELS = {
    "dense": (dense, "mse", FEATURES, {}),
    "own step": (OwnStep, "mse", FEATURES, {}),
    "Adam": (positions, "mse", IDS, {"optimizer": keras.optimizers.Adam}),
    "LSTM": (recurrent_twice, "mse", IDS, {}),
    "mask": (recurrent, "mse", IDS, {}),
    "transformer": (transformer, "mse", IDS, {}),
    "clipped": (positions, "mse", IDS, {"optimizer": functools.partial(keras.optimizers.SGD, global_clipnorm=0.05)}),
    "clipped one by one": (
        dense,
        "mse",
        FEATURES,
        {"optimizer": functools.partial(keras.optimizers.SGD, clipnorm=0.1)},
    ),
    "regularized": (regularized, "mse", FEATURES, {}),
    "weighed": (dense, "mse", FEATURES, {"sample_weight": WEIGHTS}),
    "sum": (dense, SUM, FEATURES, {"rate": 0.01}),
    "sum, regularized": (penalized, SUM, IDS, {"rate": 0.01}),
    "sum, Adam": (positions, SUM, IDS, {"optimizer": keras.optimizers.Adam}),
}


def fitted(name, examples=22, **more):
    model, loss, x, options = MODELS[name]

    def make(train):
        made = model()
        optimizer = options.get("optimizer", keras.optimizers.SGD)(options.get("rate", 0.1))
        metrics = None if model is OwnStep else ["mae"]
        made.compile(optimizer, loss if isinstance(loss, str) else loss(), metrics=metrics)
        weights = options["sample_weight"][:examples] if "sample_weight" in options else None
        given = dict(batch_size=8, epochs=2, shuffle=False, verbose=0, sample_weight=weights, **more)
        return made, train(made, x[:examples], Y[:examples], **given).history

    return make


def check(make, size, count, **options):
    plain = outcome(fit_plainly, make)
    train = functools.partial(fit_by, size, settings={"accumulate_steps": count}, **options)
    found = outcome(train, make)
    parts = {name: difference(found[name], plain[name]) for name in plain}
    assert max(parts.values()) <= MOST, (parts, found["found"], plain["found"])


@pytest.mark.rotates
@pytest.mark.parametrize("examples", [22, 17])
@pytest.mark.parametrize("size, count", [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 2), (3, 4)])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_that_is_cut_is_the_step(name, size, count, examples):
    check(fitted(name, examples), size, count)
