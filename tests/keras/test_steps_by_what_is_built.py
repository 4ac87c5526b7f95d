"""Steps that ask what is built, as a scaled loss asks its optimizer: the trace is TensorFlow's last one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by_two

ROWS = 26
X = np.random.RandomState(1).randn(ROWS, 6).astype("float32")
Y = X.sum(1, keepdims=True)


class OwnStep(keras.Model):
    """Builds its layer in its first call, and trains by a step of its own, on a loss that grows once it is built."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        factor = 2.0 if self.optimizer.built else 1.0
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y)) * factor
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


MODELS = {
    "functional": lambda: keras.Sequential([keras.Input([6]), keras.layers.Dense(1)]),
    "built by its first batch": lambda: keras.Sequential([keras.layers.Dense(1)]),
    "a step of its own": OwnStep,
}


@pytest.mark.rotates
@pytest.mark.parametrize("kind", MODELS)
def test_a_loss_scale_grows_as_in_plain_keras(kind):
    def make(train):
        model = MODELS[kind]()
        scaled = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05), initial_scale=1024.0, dynamic_growth_steps=4
        )
        model.compile(scaled, "mse")
        history = train(model, X, Y, batch_size=5, epochs=3, verbose=0, shuffle=False).history
        return model, {**history, "scale": float(model.optimizer.dynamic_scale)}

    expected = outcome(fit_plainly, make)
    assert expected["found"]["scale"] > 1024.0
    assert difference(outcome(fit_by_two, make), expected) <= 1e-5
