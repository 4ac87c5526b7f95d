"""Metrics that a `train_step` makes of gradients or of updated weights: all workers compute them, and one adds them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from parallax.base.errors import GraphError
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by_two

pytestmark = pytest.mark.rotates(days=3)

ROWS = 12
X = np.random.RandomState(0).randn(ROWS, 6).astype("float32")
IDS = np.random.RandomState(1).randint(0, 9, (ROWS, 6))
Y = np.random.RandomState(2).randn(ROWS, 1).astype("float32")


class Observed(keras.Model):
    """Logs what `observe` makes of the gradients and the weights after the update."""

    def __init__(self, observe, kind, **kwargs):
        super().__init__(**kwargs)
        self.observe, self.observed = observe, kind(name="observed")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.observed.update_state(self.observe(gradients, self.trainable_variables))
        return {"loss": loss, "observed": self.observed.result()}

    @property
    def metrics(self):
        return [self.observed]


def fit(observe, kind=keras.metrics.Mean, ids=False):
    def make(train):
        inputs = keras.Input((6,), dtype="int32" if ids else "float32")
        hidden = layers.Flatten()(layers.Embedding(9, 3)(inputs)) if ids else inputs
        outputs = layers.Dense(1)(layers.Dense(4, "tanh")(hidden))
        model = Observed(observe, kind, inputs=inputs, outputs=outputs)
        model.compile(keras.optimizers.Adam(0.05), "mse")
        return model, train(model, IDS if ids else X, Y, batch_size=5, epochs=2, verbose=0).history

    here, expected = outcome(fit_by_two, make), outcome(fit_plainly, make)
    return max(difference(here[name], expected[name]) for name in expected)


OBSERVATIONS = {
    "norm of gradients": lambda gradients, weights: tf.linalg.global_norm(gradients),
    "largest entry": lambda gradients, weights: tf.reduce_max([tf.reduce_max(tf.abs(g)) for g in gradients]),
    "norm of updated weights": lambda gradients, weights: tf.linalg.global_norm([w.value for w in weights]),
    "all norms": lambda gradients, weights: tf.stack([tf.norm(g) for g in gradients]),
}


@pytest.mark.rotates
@pytest.mark.parametrize("what", OBSERVATIONS)
def test_metrics_of_dense_gradients_are_one_process_s(what):
    assert fit(OBSERVATIONS[what], keras.metrics.Sum if what == "all norms" else keras.metrics.Mean) <= 1e-6


def test_the_norm_of_a_table_s_gradient_is_one_process_s():
    assert fit(OBSERVATIONS["norm of gradients"], ids=True) <= 1e-6


def test_a_value_that_differs_between_workers_is_refused_by_name():
    with pytest.raises(GraphError, match="AddV2 .* adds .* to a metric, but workers have different values of it"):
        fit(lambda gradients, weights: tf.cast(gradients[0].indices[0], tf.float32), ids=True)


class Largest(keras.metrics.Metric):
    def __init__(self, name="observed"):
        super().__init__(name=name)
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, value):
        self.largest.assign(tf.maximum(self.largest, value))

    def result(self):
        return self.largest


@pytest.mark.parametrize("ids", [False, True])
def test_the_largest_norm_of_gradients_is_one_process_s(ids):
    assert fit(OBSERVATIONS["norm of gradients"], Largest, ids) <= 1e-6
