"""Random layers of Keras: each worker draws other numbers, the same in a repeated run, and seeds stay equal on all."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.workers import KerasJob, seeded

layers = keras.layers
ROWS = np.ones((8, 4), np.float32)


class NoiseInLoop(layers.Layer):
    """Draws in the body of a loop."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x):
        seed = tf.cast(self.seeds.next(), tf.int64)
        noisy = tf.while_loop(
            lambda i, _: i < 2,
            lambda i, a: (i + 1, a + tf.random.stateless_normal(tf.shape(a), seed + tf.cast(i, tf.int64))),
            (tf.constant(0), x),
        )
        return tf.reshape(noisy[1], [-1, 4])


class NoiseInBranch(layers.Layer):
    """Draws in a branch that all workers take."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x):
        seed = self.seeds.next()
        noise = tf.cond(
            seed[1] % 2 < 5, lambda: tf.random.stateless_normal(tf.shape(x), tf.cast(seed, tf.int64)), lambda: x
        )
        return x + tf.reshape(noise, [-1, 4])


class FixedProjection(layers.Layer):
    """Draws the same matrix in each step, by a constant seed."""

    def call(self, x):
        return x @ tf.random.stateless_normal([4, 4], [1, 2])


class Drawn(layers.Layer):
    """Gives what a function draws for images of 8 x 8 pixels."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, x):
        images = tf.reshape(tf.range(64.0), [1, 8, 8, 1]) * x[:, :1, None, None]
        return tf.reshape(self.draw(images), [-1, 25])


class ShowsRows(keras.Model):
    """Gives what goes into the last layer."""

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            rows, prediction = self(x, training=True)
            loss = tf.reduce_mean(tf.square(prediction - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"rows": rows}


def with_layers(make):
    def build():
        inputs = x = keras.Input((4,))
        for layer in make():
            x = layer(x)
        x = layers.Flatten()(x)
        model = ShowsRows(inputs, [x, layers.Dense(1)(x)])
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    return build


def image():
    return layers.Reshape((2, 2, 1)), layers.Lambda(lambda x: x * tf.reshape(tf.range(4.0), (1, 2, 2, 1)))


DRAWING = {
    "Dropout": lambda: [layers.Dropout(0.5)],
    "RandomFlip": lambda: [*image(), layers.RandomFlip()],
    "in a loop": lambda: [NoiseInLoop()],
    "in a branch": lambda: [NoiseInBranch()],
}
SLOW = {
    "GaussianNoise": lambda: [layers.GaussianNoise(1.0)],
    "GaussianDropout": lambda: [layers.GaussianDropout(0.5)],
    "SpatialDropout1D": lambda: [layers.Reshape((2, 2)), layers.SpatialDropout1D(0.5)],
    "RandomTranslation": lambda: [*image(), layers.RandomTranslation(0.5, 0.5)],
    "RandomContrast": lambda: [*image(), layers.RandomContrast(0.3)],
}


def shown(job, equal_randomness=False):
    """By batch and worker, what the layers gave, and the states of seeds."""
    rows = job.steps["train"].fetches[0]["rows"].name
    batches = [(ROWS, ROWS[:, :1])] * 2
    found = job.run([4, 4], batches, fetches=[rows], equal_randomness=equal_randomness)
    seeds = [{n: v for n, v in one.items() if "seed" in n} for one in found[-1]]
    return [[one[rows] for one in batch] for batch in found], seeds


@pytest.mark.parametrize(
    "make",
    [*DRAWING.values(), *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW.values())],
    ids=[*DRAWING, *SLOW],
)
def test_workers_draw_other_numbers_and_a_repeated_run_the_same(make) -> None:
    job = KerasJob(seeded(with_layers(make)), (ROWS, ROWS[:, :1]))
    found, seeds = shown(job)
    again, _ = shown(job)
    for batch in found:
        assert not np.allclose(batch[0], batch[1])
    assert not np.allclose(found[0], found[1])
    np.testing.assert_array_equal(found, again)
    assert seeds[0]
    for name, value in seeds[0].items():
        np.testing.assert_array_equal(value, seeds[1][name])


def test_workers_draw_the_same_numbers_for_verification() -> None:
    job = KerasJob(seeded(with_layers(DRAWING["Dropout"])), (ROWS, ROWS[:, :1]))
    for batch in shown(job, equal_randomness=True)[0]:
        np.testing.assert_array_equal(batch[0], batch[1])


@pytest.mark.parametrize(
    "draw",
    [
        lambda images: tf.nn.fractional_max_pool(images, [1, 1.4, 1.4, 1], True)[0],
        lambda images: tf.nn.fractional_avg_pool(images, [1, 1.4, 1.4, 1], True, seed=5)[0],
    ],
    ids=["by no seed", "by a seed"],
)
def test_regions_that_are_drawn_for_a_pool_are_equal_on_all_workers(draw) -> None:
    job = KerasJob(seeded(with_layers(lambda: [Drawn(draw)])), (ROWS, ROWS[:, :1]))
    for batch in shown(job)[0]:
        np.testing.assert_array_equal(batch[0], batch[1])


def test_what_a_constant_seed_draws_is_a_constant() -> None:
    job = KerasJob(seeded(with_layers(lambda: [FixedProjection()])), (ROWS, ROWS[:, :1]))
    rows = job.steps["train"].fetches[0]["rows"].name
    (batch,) = job.run([4, 4], [(ROWS, ROWS[:, :1])], fetches=[rows])
    np.testing.assert_array_equal(batch[0][rows], batch[1][rows])
