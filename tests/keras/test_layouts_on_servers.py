"""Fits whose variables are on servers, on two and three workers by layouts: the history and weights of plain Keras.

22 examples in batches of 8: the last batch has unequal shares. Tolerance 1e-5: sums over workers are rounded otherwise.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by, plan_of_fit

layers = keras.layers
_random = np.random.RandomState(0)
X, Y = _random.randn(22, 5).astype("f"), _random.randn(22, 1).astype("f")
IDS = _random.randint(0, 12, (22, 5)).astype("int32")
MOST = 1e-5
OPTIONS = {"PS": {"run_option": "PS", "servers": 2}, "HYBRID": {"run_option": "HYBRID", "servers": 2}}
EACH = ["PS", pytest.param("HYBRID", marks=pytest.mark.rotates)]


class Scaled(layers.Layer):
    """Weights of a column, which meet the sorted examples of the global batch: their gradient is replicated."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        return tf.sort(x, axis=0) * self.scale


def check(option, model, loss, x, optimizer=keras.optimizers.SGD, examples=22, size=2, rate=0.1, **kwargs):
    """A fit comes to the same by layouts, on so many workers and two servers, as in plain Keras."""

    def make(train):
        made = model()
        made.compile(optimizer(rate, **kwargs), loss, metrics=["mae"])
        options = dict(batch_size=8, epochs=2, shuffle=False, verbose=0)
        return made, train(made, x[:examples], Y[:examples], **options).history

    plain = outcome(fit_plainly, make)
    found = outcome(functools.partial(fit_by, size, layouts=True, **OPTIONS[option]), make)
    parts = {name: difference(found[name], plain[name]) for name in plain}
    assert max(parts.values()) <= MOST, (parts, found["found"], plain["found"])


def normalized():
    return keras.Sequential(
        [keras.Input((5,)), layers.Dense(4, use_bias=False), layers.BatchNormalization(), layers.Dense(1)]
    )


def table(width=1, penalty=None):
    looked_up = layers.Embedding(16, 4, name="table", embeddings_regularizer=penalty)
    first = [keras.Input((5,), dtype="int32"), looked_up, layers.GlobalAveragePooling1D()]
    return keras.Sequential([*first, layers.Dense(3, activation="tanh"), layers.Dense(width)])


def normalized_table():
    first = [keras.Input((5,), dtype="int32"), layers.Embedding(16, 4), layers.GlobalAveragePooling1D()]
    return keras.Sequential([*first, layers.BatchNormalization(), layers.Dense(1)])


def contrastive(y, p):
    labels = tf.range(tf.shape(p)[0])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, p @ tf.transpose(p)))


def sorted_and_scaled():
    return keras.Sequential([keras.Input((5,)), layers.Dense(3), Scaled(), layers.Dense(1)])


@pytest.mark.rotates
@pytest.mark.parametrize("option", OPTIONS)
def test_some_variables_are_on_servers(option):
    for model, x in ((table(), IDS), (normalized(), X)):
        model.compile("sgd", "mse")
        routes = {one.name: one.route for one in plan_of_fit(model, x, Y, batch_size=8, **OPTIONS[option]).variables}
        on_servers = {name for name, route in routes.items() if route == "ps"}
        trained = {v.path for v in model.trainable_variables}
        assert on_servers >= (trained if option == "PS" else {name for name in trained if name.startswith("table")})


@pytest.mark.rotates
@pytest.mark.parametrize("option", EACH)
def test_a_gradient_that_all_workers_have_is_counted_once(option):
    check(option, sorted_and_scaled, "mse", X)


@pytest.mark.rotates
@pytest.mark.parametrize("option", EACH)
def test_batch_statistics_are_those_of_the_global_batch(option):
    check(option, normalized, "mse", X)
    check(option, normalized_table, "mse", IDS, keras.optimizers.Adam, size=3, rate=0.01)


@pytest.mark.rotates
@pytest.mark.parametrize("option", EACH)
@pytest.mark.parametrize("optimizer", [keras.optimizers.Adagrad, keras.optimizers.Adam])
def test_servers_take_the_sum_of_rows_of_repeated_ids(option, optimizer):
    check(option, table, "mse", IDS, optimizer)


@pytest.mark.rotates
@pytest.mark.parametrize("option", EACH)
def test_a_contrastive_loss_is_the_one_process_s(option):
    check(option, functools.partial(table, 4), contrastive, IDS)


@pytest.mark.rotates
@pytest.mark.parametrize("option", EACH)
def test_clipping_by_global_norm_takes_the_norm_of_the_global_batch(option):
    check(option, table, "mse", IDS, global_clipnorm=0.05, size=3)
    check(option, normalized, "mse", X, keras.optimizers.Adam, global_clipnorm=0.05, rate=0.01)


@pytest.mark.rotates
@pytest.mark.parametrize("option", EACH)
def test_a_penalty_of_a_table_is_counted_once(option):
    check(option, functools.partial(table, penalty="l2"), "mse", IDS)


@pytest.mark.rotates
@pytest.mark.parametrize("option", EACH)
def test_workers_without_examples_give_servers_nothing(option):
    check(option, table, "mse", IDS, examples=17, size=4)
    check(option, normalized, "mse", X, examples=17, size=2)
