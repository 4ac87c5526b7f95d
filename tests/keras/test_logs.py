"""What a `train_step` logs beside its metrics is the value of the whole batch, however the batch is cut."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.workers import KerasJob, in_keras, seeded

DATA = np.random.RandomState(1).rand(5, 3).astype("float32"), np.random.RandomState(2).rand(5, 1).astype("float32")


class Logging(keras.Model):
    """Returns its loss, as many steps of one's own do."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def compiled():
    model = Logging()
    model(DATA[0])
    model.compile(keras.optimizers.SGD(0.1))
    return model


@pytest.mark.parametrize("cuts", [[3, 2], [0, 5]])
def test_a_returned_loss_is_that_of_the_whole_batch(cuts):
    job = KerasJob(seeded(compiled), DATA)
    loss = job.steps["train"].fetches[0]["loss"].name
    found = job.run(cuts, [DATA] * 3, fetches=[loss])
    expected = [float(results["loss"]) for _, results in in_keras(seeded(compiled), [DATA] * 3)]
    assert [np.mean([one[loss] for one in step]) for step in found] == pytest.approx(expected, rel=1e-6)
