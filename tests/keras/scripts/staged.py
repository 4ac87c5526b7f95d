"""A model in stages by `fit`, `train_on_batch` and a function, and by plain Keras. Argument: a folder."""

import inspect
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import parallax.keras

FOLDER = Path(sys.argv[1])
layers = keras.layers
draw = np.random.RandomState(0)
X, Y = draw.rand(22, 5).astype("f"), draw.rand(22, 1).astype("f")
WEIGHTS = draw.rand(22).astype("f")


def build():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5,))
    first = values = layers.Dense(6, "tanh")(inputs)
    for _ in range(3):
        values = layers.Add()([values, layers.Dense(6, "tanh")(values)])
    model = keras.Model(inputs, layers.Dense(1)(layers.Add()([values, first])))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.5, global_clipnorm=0.5)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


class Reads(keras.callbacks.Callback):
    """Reads a weight of each stage between batches, and writes one."""

    def __init__(self):
        super().__init__()
        self.sums = []

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.sums.append([float(np.sum(one)) for one in self.model.get_weights()])
            last = self.model.layers[-1].bias
            last.assign(last + 0.125)


def train(model, fit, on_batch, step, name):
    file = FOLDER / f"{name}.weights.h5"
    reads = Reads()
    saves = keras.callbacks.ModelCheckpoint(str(file), save_weights_only=True)
    stops = keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=2, restore_best_weights=True)
    options = dict(batch_size=8, epochs=5, shuffle=False, sample_weight=WEIGHTS, verbose=0)
    history = fit(model, X, Y, validation_data=(X, Y), callbacks=[reads, saves, stops], **options)
    found = [history.history, reads.sums, model.get_weights(), [np.asarray(v) for v in model.optimizer.variables]]
    other = build()
    other.load_weights(file)
    found.append(other.get_weights())
    found += [model.predict(X, verbose=0), model.evaluate(X, Y, verbose=0)]
    found.append([np.asarray(on_batch(model, X[:rows], Y[:rows])) for rows in (8, 8, 7, 3)])
    found += [model.get_weights(), step_by_step(model, step), model.get_weights()]
    return found


def step_by_step(model, distribute):
    optimizer = keras.optimizers.SGD(0.01)

    @distribute
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return [float(step(tf.constant(X[:rows]), tf.constant(Y[:rows]))) for rows in (8, 8, 5)]


def distance(found, wanted):
    return float(np.max(np.abs(np.asarray(found) - wanted) / np.maximum(1, np.abs(wanted)), initial=0.0))


def main():
    config = parallax.Config(seed=1, stages=2, micro_batches=2)
    parallax.keras.use(parallax_config=config)
    kind = keras.Model
    found = train(build(), kind.fit, kind.train_on_batch, parallax.function(parallax_config=config), "staged")
    plain = inspect.unwrap(kind.fit), inspect.unwrap(kind.train_on_batch)
    wanted = train(build(), *plain, tf.function, "plain")
    tf.nest.assert_same_structure(found, wanted)
    print("differs", *(max(map(distance, *map(tf.nest.flatten, part))) for part in zip(found, wanted, strict=True)))
    print("trained", len(found[0]["loss"]), "epochs")


if __name__ == "__main__":
    main()
