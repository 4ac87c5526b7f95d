"""`Config(batch_norm="own")`: workers normalize by their own batches; moving averages are means over the workers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from parallax.functions.tracing.batch_norm_setting import statistics_of
from tests.keras.here import difference
from tests.keras.two_here import fit_by_two, plain_fit_of, plan_of_fit

pytestmark = pytest.mark.rotates(days=3)

layers = keras.layers
X = np.random.RandomState(0).randn(13, 6, 6, 2).astype("float32")
Y = np.random.RandomState(1).rand(13, 1).astype("float32")


def normalized_by_share(layer, inputs, unbiased):
    """The share of each of two workers, normalized by itself, in one process."""
    rows = tf.shape(inputs)[0]
    found, means, variances = [], [], []
    for part in (inputs[: rows // 2], inputs[rows // 2 :]):
        mean, variance = tf.nn.moments(part, [0, 1, 2])
        found.append(tf.nn.batch_normalization(part, mean, variance, layer.beta, layer.gamma, layer.epsilon))
        share = tf.cast(tf.shape(part)[0], tf.float32) / tf.cast(rows, tf.float32)
        means.append(mean * share)
        variances.append(variance * share)
    count = tf.cast(tf.size(inputs[..., 0]), tf.float32)
    correction = count / (count - 1.0) if unbiased else 1.0
    for moving, new in (
        (layer.moving_mean, tf.add_n(means)),
        (layer.moving_variance, tf.add_n(variances) * correction),
    ):
        moving.assign(moving * layer.momentum + new * (1.0 - layer.momentum))
    return tf.concat(found, 0)


class OfShares(layers.BatchNormalization):
    def call(self, inputs, training=None, mask=None):
        return normalized_by_share(self, inputs, False) if training else super().call(inputs, training=training)


class FusedOfShares(tf_keras.layers.BatchNormalization):
    def call(self, inputs, training=None):
        return normalized_by_share(self, inputs, True) if training else super().call(inputs, training=training)


def model_of(kind):
    library = tf_keras if issubclass(kind, tf_keras.layers.Layer) else keras
    of = library.layers

    def made():
        library.utils.set_random_seed(3)
        body = [of.Conv2D(3, 3), kind(momentum=0.5), of.ReLU(), of.Flatten(), of.Dense(1)]
        model = library.Sequential([library.Input((6, 6, 2)), *body])
        model.compile(library.optimizers.SGD(0.1), "mse")
        return model

    return made


def run_of(make):
    def run(train):
        model = make()
        return model, train(model, X, Y, batch_size=5, epochs=2, verbose=0, shuffle=False).history

    return run


@pytest.mark.parametrize(
    ("kind", "by_share"),
    [(layers.BatchNormalization, OfShares), (tf_keras.layers.BatchNormalization, FusedOfShares)],
    ids=["of Keras", "fused"],
)
def test_own_statistics_are_those_of_each_worker_and_moving_averages_are_means(kind, by_share):
    def plainly(model, *args, **options):
        return plain_fit_of(model)(model, *args, **options)

    def weights(train, layer):
        model, _ = run_of(model_of(layer))(train)
        return model.get_weights()

    with statistics_of("own"):
        here = weights(fit_by_two, kind)
    differences = [difference(here, weights(plainly, one)) for one in (by_share, kind)]
    assert differences[0] <= 1e-5 < 1e-3 < differences[1]


@pytest.mark.parametrize("batch", ["global", "own"])
def test_the_plan_says_what_statistics_of_the_global_batch_send(batch):
    with statistics_of(batch):
        notes = plan_of_fit(model_of(layers.BatchNormalization)(), X, Y, batch_size=5).notes
    found = [note for note in notes if "statistics of the global batch" in note]
    assert len(found) == (batch == "global")
    assert all('Config(batch_norm="own")' in note for note in found)
