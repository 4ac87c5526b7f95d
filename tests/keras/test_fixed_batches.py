"""Models for one batch size, and states of examples that the next batch goes on from: equal to plain Keras."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax import Config, Islands
from parallax.analysis.graph_to_plan import analyse, plan_for
from parallax.base.errors import GraphError, PlanError
from parallax.keras.evaluation import LastFit, trace_call
from parallax.plans.plan import one_host
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by, plan_of_fit, read

pytestmark = pytest.mark.rotates(days=3)

layers, ops = keras.layers, keras.ops
LENGTH, ROWS, TOKENS = 8, 40, 50
_DRAWN = np.random.RandomState(1)
X, Y, SEQUENCES = (_DRAWN.randn(ROWS, *shape).astype(np.float32) for shape in ((6,), (3,), (7, 4)))
IDS = _DRAWN.randint(0, TOKENS, (ROWS, 5)).astype(np.int32)


def _in_pairs(x: Any) -> Any:
    parts = layers.Dense(6, "tanh")(ops.reshape(x, (x.shape[0], 2, 3)))
    return ops.reshape(parts, (x.shape[0], -1))


def _in_flat_rows(x: Any) -> Any:
    return ops.reshape(layers.Dense(3, "tanh")(ops.reshape(x, (x.shape[0] * 2, 3))), (x.shape[0], 6))


def _by_position(x: Any) -> Any:
    return x * ops.reshape(ops.arange(x.shape[0], dtype="float32"), (x.shape[0], 1))


def _by_running_sums(x: Any) -> Any:
    return ops.matmul(ops.tril(ops.ones((x.shape[0], x.shape[0]))), x)


def _with_the_mean(x: Any) -> Any:
    return ops.concatenate([x, ops.tile(ops.mean(x, 0, keepdims=True), (x.shape[0], 1))], 1)


BODIES = [lambda x: x, _in_pairs, _in_flat_rows, _by_position, _by_running_sums, _with_the_mean]


@pytest.mark.parametrize("body", BODIES)
def test_a_batch_size_that_a_model_computes_with_is_that_of_the_global_batch(body: Callable[[Any], Any]) -> None:
    def script(fit: Any) -> Any:
        inputs = keras.Input((6,), batch_size=LENGTH)
        model = keras.Model(inputs, layers.Dense(3)(body(inputs)))
        model.compile("adam", "mse")
        return model, fit(model, X, Y, batch_size=LENGTH, epochs=2, shuffle=False, verbose=0).history

    assert difference(outcome(functools.partial(fit_by, 3), script), outcome(fit_plainly, script)) < 1e-5


def _contrast_with_others(x: Any, h: Any) -> Any:
    labels = np.arange(int(x.shape[0]))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, h @ tf.transpose(h)))


def _from_zeros(x: Any, h: Any) -> Any:
    body = lambda step, state: (step + 1, tf.tanh(state + h))  # noqa: E731
    _, state = tf.while_loop(lambda step, state: step < 3, body, [0, tf.zeros([x.shape[0], 3])])
    return tf.reduce_mean(tf.square(state))


LOSSES = [
    lambda x, h: tf.reduce_sum(tf.square(h)) / x.shape[0],
    lambda x, h: tf.reduce_mean(tf.square(h[: x.shape[0] // 2] - h[x.shape[0] // 2 :])),
    lambda x, h: tf.reduce_mean(tf.square(h - tf.gather(h, np.random.RandomState(1).permutation(x.shape[0])))),
    lambda x, h: tf.reduce_mean(tf.square(tf.add_n([float(k) * one for k, one in enumerate(tf.unstack(h))]))),
    lambda x, h: tf.reduce_mean(tf.square(h)) * (1.0 if x.shape[0] == LENGTH else 0.1),  # nothing raises for None
    _contrast_with_others,
    _from_zeros,
]


class WithItsLoss(keras.Model):
    """A loss that is computed with the declared length of the batch."""

    def __init__(self, loss_of: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.head, self.loss_of = layers.Dense(3, "tanh"), loss_of

    def call(self, x: Any) -> Any:
        h = self.head(x)
        self.add_loss(self.loss_of(x, h))
        return h


@pytest.mark.parametrize("loss_of", LOSSES)
def test_the_declared_length_of_a_dataset_s_batches_is_that_of_the_global_batch(loss_of: Any) -> None:
    def script(fit: Any) -> Any:
        model = WithItsLoss(loss_of)
        model.compile("sgd", "mse")
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(LENGTH, drop_remainder=True)
        return model, fit(model, batches, validation_data=batches.take(2), epochs=2, verbose=0).history

    assert difference(outcome(functools.partial(fit_by, 3), script), outcome(fit_plainly, script)) < 1e-5


def _step_by_step(h: Any) -> Any:
    """A recurrence that begins with zeros, and stores its states in an array of the declared shape."""
    states = tf.TensorArray(tf.float32, 3, element_shape=[LENGTH, 6])
    body = lambda n, state, out: (n + 1, tf.tanh(state + h), out.write(n, state))  # noqa: E731
    _, last, out = tf.while_loop(lambda n, *_: n < 3, body, [0, tf.zeros([LENGTH, 6]), states])
    return last + out.stack()[2] + out.read(1)


def _of_halves(h: Any) -> Any:
    both, n = tf.concat([h, tf.tanh(h)], 0), h.shape[0] or LENGTH
    one, other = tf.split(both * both, [n, n])
    return both[:n] * both[n:] + one - other


SHAPES = [
    lambda h: tf.reshape(h, [LENGTH, 6]),
    lambda h: tf.reshape(tf.transpose(tf.reshape(h, [LENGTH, 2, 3]), [1, 0, 2]), [2, LENGTH, 3])[0],
    lambda h: tf.reshape(tf.reshape(h, [LENGTH, 2, 3])[:, :1], [LENGTH, 3]) - tf.reduce_mean(h),
    lambda h: tf.reshape(tf.reshape(h, [-1]), [LENGTH, 6]),
    lambda h: tf.broadcast_to(h[:, None], [LENGTH, 4, 6])[:, 2],
    lambda h: tf.reshape(tf.tanh(tf.reshape(h, [LENGTH * 2, 3])), [LENGTH, 2, 3])[:, 1],
    lambda h: tf.reshape(tf.reshape(h, [LENGTH * 6, 1]), [LENGTH, 1, 3, 2])[:, 0, 1],
    _step_by_step,
    lambda h: tf.scan(lambda state, one: tf.tanh(state + one), tf.stack([h, -h]), tf.zeros([LENGTH, 6]))[-1],
    _of_halves,
    lambda h: tf.ensure_shape(h, [LENGTH, 6]) + tf.transpose(tf.ensure_shape(tf.transpose(h), [None, LENGTH])),
]


@pytest.mark.parametrize("reshape", SHAPES)
def test_shapes_with_the_declared_length_gather_nothing(reshape: Callable[[Any], Any]) -> None:
    def script(fit: Any) -> Any:
        model = keras.Sequential([layers.Dense(6, "tanh"), layers.Lambda(reshape), layers.Dense(3)])
        model.compile("sgd", "mse")
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(LENGTH, drop_remainder=True)
        notes = plan_of_fit(model, batches).notes
        return model, (fit(model, batches, epochs=2, verbose=0).history, sum("all-gathered" in one for one in notes))

    found = outcome(functools.partial(fit_by, 3), script)
    assert difference(found, outcome(fit_plainly, script)) < 1e-5 and found["found"][1] == 0


SLICES = [lambda both: both[:LENGTH], lambda both: both[LENGTH:], lambda both: both[: 2 * LENGTH]]


@pytest.mark.parametrize("cut", SLICES)
def test_a_number_as_large_as_a_full_batch_cuts_shorter_ones_at_that_place(cut: Callable[[Any], Any]) -> None:
    """The last of the batches has five examples, and two views of it ten rows."""

    def script(fit: Any) -> Any:
        model = WithItsLoss(lambda x, h: tf.reduce_mean(tf.square(cut(tf.concat([h, 2.0 * tf.tanh(h)], 0)) - 1.0)))
        model.compile("sgd", "mse")
        return model, fit(model, X[:21], Y[:21], batch_size=LENGTH, epochs=2, shuffle=False, verbose=0).history

    assert difference(outcome(functools.partial(fit_by, 3), script), outcome(fit_plainly, script)) < 1e-5


def test_ids_in_a_shape_with_the_declared_length_are_looked_up_on_their_workers() -> None:
    def script(fit: Any) -> Any:
        table = layers.Embedding(TOKENS, 6)
        ids = layers.Lambda(lambda x: tf.reshape(x[:, :4], [LENGTH, 2, 2]))
        model = keras.Sequential([ids, table, layers.Flatten(), layers.Dense(3)])
        model.compile("sgd", "mse")
        batches = tf.data.Dataset.from_tensor_slices((IDS, Y)).batch(LENGTH, drop_remainder=True)
        notes = plan_of_fit(model, batches).notes
        return model, (fit(model, batches, epochs=2, verbose=0).history, sum("all-gathered" in one for one in notes))

    found = outcome(functools.partial(fit_by, 3), script)
    assert difference(found, outcome(fit_plainly, script)) < 1e-5 and found["found"][1] == 0


class Denoiser(keras.Model):
    """Adds noise to the pictures of a batch of known length, as diffusion models do."""

    def __init__(self) -> None:
        super().__init__()
        pools = [layers.AveragePooling2D(2), layers.UpSampling2D(2, interpolation="bilinear")]
        self.net = keras.Sequential([layers.Conv2D(3, 3, padding="same"), *pools, layers.DepthwiseConv2D(3)])

    def call(self, pictures: Any) -> Any:
        return self.net(pictures + tf.random.stateless_normal([LENGTH, 4, 4, 2], [1, 2]))


def test_noise_of_the_declared_length_is_that_of_the_global_batch() -> None:
    def script(fit: Any) -> Any:
        model, pictures = Denoiser(), np.resize(X, (16, 4, 4, 2))
        model.compile("sgd", "mse")
        batches = tf.data.Dataset.from_tensor_slices((pictures, pictures[:, 1:3, 1:3, :1]))
        return model, fit(model, batches.batch(LENGTH, drop_remainder=True), epochs=2, verbose=0).history

    assert difference(outcome(functools.partial(fit_by, 3), script), outcome(fit_plainly, script)) < 1e-5


def test_an_evaluation_of_other_batches_has_a_step_of_its_own() -> None:
    model = WithItsLoss(LOSSES[0])
    model.compile("sgd", "mse")
    eight, four = (tf.data.Dataset.from_tensor_slices((X, Y)).batch(n, drop_remainder=True) for n in (8, 4))
    fit = read(model, eight, validation_data=eight)
    names = [trace_call(model, "test", {"x": one}, LastFit(fit, None, 2, 1.0, 0, False)).name for one in (eight, four)]
    assert names == ["test", "test_1"]


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_batch_whose_length_is_a_number_is_not_cut_into_micro_batches(is_declared: bool) -> None:
    inputs = keras.Input((6,), batch_size=LENGTH)
    model = WithItsLoss(LOSSES[0]) if is_declared else keras.Model(inputs, layers.Dense(3)(_in_pairs(inputs)))
    model.compile("sgd", "mse")
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(LENGTH, drop_remainder=True)
    with pytest.raises(GraphError, match="the length of the whole batch as a number"):
        fit_by(2, model, batches, verbose=0, settings={"accumulate_steps": 2})


def test_a_batch_whose_length_is_a_number_is_not_shared_by_islands() -> None:
    inputs = keras.Input((6,), batch_size=LENGTH)
    model = keras.Model(inputs, layers.Dense(3)(_in_pairs(inputs)))
    model.compile("sgd", "mse")
    analysed = analyse(read(model, X, Y, batch_size=LENGTH, size=4).graph.graph)
    with pytest.raises(PlanError, match="a batch length that is a number"):
        plan_for(analysed, one_host(4), Config(islands=Islands(count=2)))


def test_a_batch_without_a_declared_length_has_none() -> None:
    model = WithItsLoss(LOSSES[0])
    model.compile("sgd", "mse")
    with pytest.raises((TypeError, ValueError), match=r"use tf.shape\(x\)\[0\]"):
        fit_by(2, model, X, Y, verbose=0)


class ResetStates(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.get_layer("recurrent").reset_states()


@pytest.mark.parametrize("kind", [layers.SimpleRNN, layers.LSTM])
def test_each_example_continues_from_the_state_at_its_position(kind: Any) -> None:
    def script(fit: Any) -> Any:
        inputs = keras.Input((7, 4), batch_size=LENGTH)
        model = keras.Model(inputs, layers.Dense(3)(kind(5, stateful=True, name="recurrent")(inputs)))
        model.compile("adam", "mse")
        validation = {"validation_data": (SEQUENCES[:16], Y[:16]), "validation_batch_size": LENGTH}
        options = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": [ResetStates()], **validation}
        return model, fit(model, SEQUENCES, Y, batch_size=LENGTH, **options).history

    assert difference(outcome(functools.partial(fit_by, 3), script), outcome(fit_plainly, script)) < 1e-5


def test_a_stateful_language_model_is_plain_keras_s() -> None:
    def script(fit: Any) -> Any:
        recurrent = layers.GRU(7, stateful=True, return_sequences=True)
        tokens = keras.Input((5,), batch_size=LENGTH, dtype="int32")
        model = keras.Sequential([tokens, layers.Embedding(TOKENS, 6), recurrent, layers.Dense(TOKENS)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        following = (IDS + 1) % TOKENS
        return model, fit(model, IDS, following, batch_size=LENGTH, epochs=2, shuffle=False, verbose=0).history

    assert difference(outcome(functools.partial(fit_by, 2), script), outcome(fit_plainly, script)) < 1e-5
