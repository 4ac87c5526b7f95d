"""Losses and layers whose ops take each example by itself: nothing is gathered, and fits are those of plain Keras."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by, plan_of_fit

pytestmark = pytest.mark.rotates(days=3)

layers = keras.layers
_random = np.random.RandomState(0)
X, IMAGES = _random.randn(22, 6).astype("f"), _random.rand(22, 8, 8, 3).astype("f")
Y = _random.randint(0, 2, (22, 1)).astype("f")
MOST = 1e-5


def places(y):
    return tf.cast(y, tf.int32)


def matrices(p):
    return tf.reshape(p, [-1, 2, 3])


def numbered(y):
    """Each example's number, and its place."""
    return tf.stack([tf.range(tf.shape(y)[0]), places(y)[:, 0]], 1)


def size_of(tensor):
    return tf.reduce_mean(tf.square(tf.abs(tensor)))


LOSSES = {
    "own entries": lambda y, p: size_of(tf.gather(p, places(y), batch_dims=1)),
    "own entries by several indices": lambda y, p: size_of(tf.gather_nd(p, places(y), batch_dims=1)),
    "entries by the number of the example": lambda y, p: size_of(tf.gather_nd(p, numbered(y))),
    "entries along an axis": lambda y, p: size_of(keras.ops.take_along_axis(p, places(y), axis=1)),
    "entries of matrices along an axis": lambda y, p: size_of(
        keras.ops.take_along_axis(matrices(p), places(y)[:, :, None], axis=1)
    ),
    "diagonal matrices": lambda y, p: size_of(tf.linalg.diag(p) @ tf.ones([6, 2])),
    "diagonals": lambda y, p: size_of(tf.linalg.diag_part(matrices(p))) + size_of(tf.linalg.trace(matrices(p))),
    "diagonals that are set": lambda y, p: size_of(tf.linalg.set_diag(matrices(p), tf.concat([y, y], 1))),
    "spectra": lambda y, p: size_of(tf.signal.rfft(p)) + size_of(tf.signal.irfft(tf.signal.rfft(p))),
    "spectra of frames": lambda y, p: size_of(tf.signal.stft(p, 4, 2)),
    "spectra of matrices": lambda y, p: (
        size_of(tf.signal.rfft2d(matrices(p))) + size_of(tf.signal.fft2d(tf.cast(matrices(p), tf.complex64)))
    ),
}
GATHERED = {
    "entries of any example": lambda y, p: size_of(tf.gather_nd(p, tf.stack([places(y)[:, 0], places(y)[:, 0]], 1))),
    "entries of the next example": lambda y, p: size_of(tf.gather_nd(p, (numbered(y) + [1, 0]) % tf.shape(y)[0])),
}


class Patches(layers.Layer):
    def call(self, x):
        return tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")


class Recomputed(layers.Layer):
    """A layer whose activations are computed again for its gradients, to save memory."""

    def build(self, shape):
        self.inner = layers.Dense(6, activation="tanh")
        self.inner.build(shape)

    def call(self, x):
        return tf.recompute_grad(lambda given: self.inner(given))(x)


def dense():
    return keras.Sequential([keras.Input((6,)), layers.Dense(6)])


def of_patches():
    first = [keras.Input((8, 8, 3)), layers.Conv2D(2, 3), Patches(), layers.Flatten()]
    return keras.Sequential([*first, layers.Dense(1)])


def of_recomputed():
    return keras.Sequential([keras.Input((6,)), Recomputed(), Recomputed(), layers.Dense(1)])


def check(model, loss, x, are_gathered=False):
    def make(train):
        made = model()
        made.compile(keras.optimizers.SGD(0.05), loss)
        return made, train(made, x, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history

    plain = outcome(fit_plainly, make)
    for size in (2, 5):
        found = outcome(functools.partial(fit_by, size, layouts=True), make)
        parts = {name: difference(found[name], plain[name]) for name in plain}
        assert max(parts.values()) <= MOST, (size, parts, found["found"], plain["found"])
    planned = model()
    planned.compile("sgd", loss)
    notes = [one for one in plan_of_fit(planned, x, Y, batch_size=8, layouts=True).notes if "all-gathered" in one]
    assert bool(notes) == are_gathered, notes


@pytest.mark.rotates
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_each_example_gathers_nothing(name):
    check(dense, LOSSES[name], X)


def test_patches_of_images_gather_nothing():
    check(of_patches, "mse", IMAGES)


def test_layers_that_are_computed_again_for_their_gradients_gather_nothing():
    check(of_recomputed, "mse", X)


@pytest.mark.rotates
@pytest.mark.parametrize("name", GATHERED)
def test_entries_of_other_examples_are_gathered(name):
    check(dense, GATHERED[name], X, are_gathered=True)


class PerExampleGradients(keras.Model):
    """Clips the gradient of each example, as differentially private training does."""

    def __init__(self, find_gradients):
        super().__init__()
        self.dense, self.find_gradients = layers.Dense(1), find_gradients
        self.dense.build([None, 6])

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        weights = self.dense.trainable_variables
        gradients = self.find_gradients(self.dense, *data)
        squares = tf.add_n([tf.reduce_sum(tf.reshape(one, [tf.shape(one)[0], -1]) ** 2, 1) for one in gradients])
        scales = tf.minimum(1.0, 0.3 / tf.sqrt(squares))
        count = tf.cast(tf.size(scales), tf.float32)
        means = [tf.einsum("b,b...->...", scales, one) / count for one in gradients]
        self.optimizer.apply_gradients(zip(means, weights, strict=True))
        return {"scale": tf.reduce_mean(scales)}


def by_jacobian(dense, x, y):
    with tf.GradientTape() as tape:
        losses = tf.reduce_sum(tf.square(dense(x) - y), 1)
    return tape.jacobian(losses, dense.trainable_variables)


def by_map(dense, x, y):
    def find_gradient(example):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(dense(example[0][None]) - example[1]))
        return tape.gradient(loss, dense.trainable_variables)

    return tf.vectorized_map(find_gradient, (x, y))


def beside_recorded_ones(dense, x, y):
    with tf.GradientTape(persistent=True) as tape:
        losses = tf.reduce_sum(tf.square(dense(x) - y), 1)
    of_kernel = tape.jacobian(losses, dense.kernel)
    return [of_kernel * (1.0 + tf.norm(tape.gradient(losses, dense.bias))), losses[:, None]]


@pytest.mark.rotates
@pytest.mark.parametrize("find_gradients", [by_jacobian, by_map, beside_recorded_ones])
def test_updates_by_gradients_of_single_examples_are_exact(find_gradients):
    def make(train):
        made = PerExampleGradients(find_gradients)
        made.compile(keras.optimizers.Adam(0.05))
        return made, train(made, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history

    assert difference(outcome(functools.partial(fit_by, 3), make), outcome(fit_plainly, make)) <= MOST
