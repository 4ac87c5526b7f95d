"""What a `train_step` logs beside its metrics is the value of the whole batch, however the batch is cut."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import fit_plainly
from tests.keras.two_here import fit_by
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


class LogsAnything(Logging):
    """Logs numbers of any type, vectors, rows, and what is made of gradients, beside metrics."""

    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Sum(name="seen", dtype="int32")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x)
            loss = self.compute_loss(x, y, outputs)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.seen.update_state(tf.ones_like(y[:, 0], tf.int32))
        logs = self.compute_metrics(x, y, outputs)
        own = {
            "norm": tf.linalg.global_norm(gradients),
            "own_loss": loss,
            "length": tf.shape(x)[0],
            "right": tf.reduce_sum(tf.cast(outputs > y, tf.int32)),
            "all": tf.reduce_all(outputs > -9.0),
            "sums": tf.reduce_sum(x, 0),
            "largest": tf.reduce_max(x, 0),
            "products": tf.matmul(x, x, transpose_a=True),
            "outputs": outputs,
            "sorted": tf.sort(x[:, 0]),
            "kernel": self.dense.kernel + 1.0,
            "constant": tf.constant([1, 2]),
        }
        return {**logs, "own": own}


@pytest.mark.parametrize("workers", [2, 3])
def test_what_a_step_logs_beside_metrics_is_what_one_process_logs(workers):
    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            noted.append({name: np.asarray(one) for name, one in logs.items()})

    seen = []
    for fit in (lambda model, *args, **kwargs: fit_by(workers, model, *args, **kwargs), fit_plainly):
        model = seeded(LogsAnything)
        model(DATA[0])
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        noted = []
        fit(model, *DATA, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[Notes()])
        seen.append(noted)
    assert len(seen[0]) == len(seen[1]) == 4 and len(seen[0][0]) == 15
    for found, expected in zip(*seen, strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
