"""Scripts whose `fit` fails on a worker, by what the first argument says."""

import sys

import keras
import numpy as np
import tensorflow as tf

import parallax.keras

parallax.keras.use()
kind = sys.argv[1]
keras.utils.set_random_seed(4)
x, y = np.ones((16, 4), "float32"), np.ones((16, 1), "float32")


class Checks(keras.Model):
    """A step of the user's own, with an assertion that does not hold on all workers."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        if kind == "step":
            rows = tf.reduce_max(data[0])
            with tf.control_dependencies([tf.debugging.assert_less(rows, 2.0, message="the rows are too large")]):
                data = tf.nest.map_structure(tf.identity, data)
        return super().train_step(data)


class Breaks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if kind == "callback" and batch == 1:
            raise ValueError("a callback that breaks")


model = Checks()
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
if kind == "step":
    x[9] = 3.0
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
model.fit(data, epochs=2, verbose=0, callbacks=[Breaks()])
print("WENT ON", flush=True)
