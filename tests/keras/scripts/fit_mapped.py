"""Fits whose input maps functions over elements: KIND. "plain" is for plain Keras.

"here" is for workers on this machine, and "away" has workers make rows as those of other machines do.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import parallax.keras
from parallax.functions.remote import driven_workers

KIND = sys.argv[1]
if KIND != "plain":
    parallax.keras.use()
if KIND == "away":
    driven_workers.DrivenWorkers._is_spread = True
Path("/proc/self/comm").write_text("the script")  # workers have shorter names
keras.utils.set_random_seed(2)
random = np.random.default_rng(1)
elements = [one.tobytes() for one in random.normal(size=[40, 6]).astype(np.float32)], np.arange(40) % 3


@tf.function
def bend(x):
    return tf.tanh(x)


def decode(raw, label):
    x = tf.io.decode_raw(raw, tf.float32)
    x.set_shape([6])
    return tf.cond(label == 1, lambda: bend(x), lambda: x), tf.one_hot(label, 3)


def name(raw, label):
    """A file whose content is another one in each process."""
    x, label = decode(raw, label)
    return x + tf.cast(tf.strings.length(tf.io.read_file("/proc/self/comm")), tf.float32), label


source = tf.data.Dataset.from_tensor_slices(elements)
pictures = source.shuffle(40, seed=3).map(decode, tf.data.AUTOTUNE).batch(7).prefetch(1)
held_out = source.map(decode).take(10).batch(4)
model = keras.Sequential([keras.Input([6]), keras.layers.Dense(5, "relu"), keras.layers.Dense(3)])
loss = keras.losses.CategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
seen = []
look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(model.evaluate(held_out, verbose=0)))
histories = [model.fit(pictures, validation_data=held_out, epochs=3, verbose=0, callbacks=[look]).history]
histories.append(model.fit(pictures.repeat(), steps_per_epoch=4, epochs=2, verbose=0).history)
histories.append(model.fit(source.map(name).batch(9), epochs=2, verbose=0).history)
weights = [weight.tolist() for weight in model.get_weights()]
print("FOUND " + json.dumps({"histories": histories, "seen": seen, "weights": weights}), flush=True)
