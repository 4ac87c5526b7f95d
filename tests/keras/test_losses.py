"""Keras's losses on workers whose batches are of unequal length, or empty: weights and losses are plain Keras's.

A whole batch is cut among workers in memory (workers.py). Weights are compared relative to their norm after the last
batch, and each batch's results of `Mean` metrics (the total loss and each output's) as all workers' states give them.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.transform.building.all_to_all import ALL_REDUCE
from parallax.transform.passes.fused_all_reduces import members_of, unfuse_view
from tests.keras.workers import KerasJob, cut, difference, in_keras, means_of, seeded

pytestmark = pytest.mark.rotates(days=3)

layers = keras.layers
CUTS = {5: ([3, 2], [0, 5]), 7: ([2, 2, 1, 2], [3, 4]), 1: ([0, 0, 1, 0],)}
"""By the length of the whole batch how many rows of it each worker has."""
TOLERANCE = 1e-5
STEPS = 5


def ids(rng, rows):
    """Six ids an example; the last ones are 0, which `mask_zero` leaves out, and one example has 0 alone."""
    found = rng.randint(1, 20, (rows, 6)).astype(np.int32)
    found[:, 3:] *= rng.randint(0, 2, (rows, 3)).astype(np.int32)
    found[rows // 2] = 0
    return found


def numbers(*shape):
    return lambda rng, rows: rng.randn(rows, *shape).astype(np.float32)


def classes(rng, rows):
    return rng.randint(0, 3, (rows, 1)).astype(np.int32)


def weights(*shape):
    """Of the examples' first half alone: a worker may have nothing else."""

    def drawn(rng, rows):
        found = np.abs(rng.randn(rows, *shape)).astype(np.float32)
        found[(rows + 1) // 2 :] = 0
        return found

    return drawn


def compiled(inputs, outputs, kind=keras.Model, **options):
    model = kind(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), **({"loss": "mse", "metrics": ["mae"]} | options))
    return model


class OfVector(keras.Model):
    """Trains by the gradient of a vector, which is that of its sum; by a tape's own weights too."""

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape(persistent=True) as tape:
            each = tf.reduce_mean(tf.square(self(x, training=True) - y), -1)
        variables = self.trainable_variables
        gradients = tape.gradient(each, variables)
        more = tape.gradient(each, variables, output_gradients=0.1 * tf.abs(y[:, 0]))
        pairs = [map(tf.convert_to_tensor, pair) for pair in zip(gradients, more, strict=True)]
        self.optimizer.apply([tf.add(*pair) for pair in pairs], variables)
        self._loss_tracker.update_state(each)
        return {"loss": self._loss_tracker.result()}


def embedded(**options):
    inputs = keras.Input((6,), dtype="int32")
    return inputs, layers.Embedding(20, 4, name="emb", **options)(inputs)


def plain(kind=keras.Model, **options):
    inputs, x = embedded()
    return compiled(inputs, layers.Dense(1, name="out")(layers.Flatten()(x)), kind, **options)


def reduced(reduction):
    return lambda: plain(loss=keras.losses.MeanSquaredError(reduction=reduction))


def of_vectors(reduction=None):
    """Two outputs, of which the loss of one may be a number."""
    inputs, x = embedded()
    x = layers.Flatten()(x)
    outputs = {"a": layers.Dense(1, name="a")(x), "b": layers.Dense(3, activation="softmax", name="b")(x)}
    losses = {
        "a": keras.losses.MeanSquaredError(reduction=reduction),
        "b": keras.losses.SparseCategoricalCrossentropy(reduction="none"),
    }
    return compiled(inputs, outputs, loss=losses, loss_weights={"a": 0.3, "b": 2.0}, metrics=None)


def recurrent(**options):
    inputs, x = embedded(mask_zero=True)
    return compiled(inputs, layers.Dense(1)(layers.LSTM(3, **options)(x)))


def of_sequences():
    inputs, x = embedded()
    loss = keras.losses.MeanSquaredError(reduction=None)
    return compiled(inputs, layers.Dense(1, name="out")(x), loss=loss, loss_weights=0.1)


def masking():
    inputs = keras.Input((6, 2))
    return compiled(inputs, layers.Dense(1)(layers.SimpleRNN(3, return_sequences=True)(layers.Masking()(inputs))))


def of_several_outputs():
    inputs, x = embedded()
    x = layers.Flatten()(x)
    outputs = {"a": layers.Dense(1, name="a")(x), "b": layers.Dense(3, activation="softmax", name="b")(x)}
    losses = {"a": "mse", "b": "sparse_categorical_crossentropy"}
    return compiled(inputs, outputs, loss=losses, loss_weights={"a": 0.3, "b": 2.0}, metrics=None)


class AddsLosses(layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        self.add_loss(0.1 * keras.ops.sum(keras.ops.square(x)))
        return x


def regularized():
    inputs, x = embedded()
    x = AddsLosses()(layers.Dense(5, activity_regularizer="l2")(layers.Flatten()(x)))
    return compiled(inputs, layers.Dense(1, kernel_regularizer="l2")(x))


class OwnStep(keras.Model):
    """Means over the batch, one of them under a root, clipped; the tracker counts each batch once."""

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            error = self(x, training=True) - y
            mean = tf.reduce_mean(tf.square(error))
            loss = mean + 0.1 * keras.ops.mean(keras.ops.abs(error)) + tf.sqrt(tf.reduce_mean(tf.square(error)))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.5)
        self.optimizer.apply(gradients, self.trainable_variables)
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


def summed(y, prediction):
    return tf.reduce_sum(tf.square(y - prediction), 0)


X, Y, SEQUENCE = ids, numbers(1), numbers(6, 1)


def of_outputs(rng, rows):
    return {"a": Y(rng, rows), "b": classes(rng, rows)}


CASES = {
    "the mean of the batch": (plain, (X, Y)),
    "sample weights": (plain, (X, Y, weights())),
    "reduction sum, weighted": (reduced("sum"), (X, Y, weights())),
    "a sum along the batch": (lambda: plain(loss=summed), (X, Y)),
    "the mean by sample weights": (reduced("mean_with_sample_weight"), (X, Y, weights())),
    "several outputs": (of_several_outputs, (X, of_outputs)),
    "regularizers and added losses": (regularized, (X, Y)),
    "a step of the user's own": (lambda: plain(OwnStep, metrics=None), (X, Y)),
    "an entry for each example, weighted": (reduced(None), (X, Y, weights())),
    "entries for each example of several outputs": (of_vectors, (X, of_outputs)),
    "numbers added to each entry": (lambda: of_vectors("sum_over_batch_size"), (X, of_outputs)),
    "the gradient of a vector": (lambda: plain(OfVector, metrics=None), (X, Y)),
    "a masked sequence, weighted": (lambda: recurrent(return_sequences=True), (X, SEQUENCE, weights(6))),
}
SLOW_CASES = {
    "an entry for each example": (reduced(None), (X, Y)),
    "an entry for each element": (of_sequences, (X, SEQUENCE)),
    "reduction sum": (reduced("sum"), (X, Y)),
    "numbers added to each entry of a sum": (lambda: of_vectors("sum"), (X, of_outputs)),
    "reduction mean": (reduced("mean"), (X, Y, weights())),
    "a masked sequence": (lambda: recurrent(return_sequences=True), (X, SEQUENCE)),
    "the last of a masked sequence": (recurrent, (X, Y)),
    "a Masking layer": (
        masking,
        (lambda rng, rows: numbers(6, 2)(rng, rows) * (ids(rng, rows) > 0)[..., None], SEQUENCE),
    ),
}


def params():
    return [
        *(pytest.param(case, 5, id=f"{name}, 5") for name, case in CASES.items()),
        *(pytest.param(case, 5, id=f"{name}, 5", marks=pytest.mark.slow) for name, case in SLOW_CASES.items()),
        *(
            pytest.param(case, rows, id=f"{name}, {rows}", marks=pytest.mark.slow)
            for name, case in (CASES | SLOW_CASES).items()
            for rows in (1, 7)
        ),
    ]


@pytest.mark.rotates
@pytest.mark.parametrize(("case", "rows"), params())
def test_uneven_workers_train_and_evaluate_as_keras_does(case, rows) -> None:
    build, kinds = case
    rng = np.random.RandomState(1)
    batches = [tuple(kind(rng, rows) for kind in kinds) for _ in range(STEPS)]
    model = seeded(build)
    job = KerasJob(model, batches[0], evaluates=True)
    found = {(step, tuple(cuts)): job.run(cuts, batches, step) for step in ("test", "train") for cuts in CUTS[rows]}
    expected = {step: in_keras(model, batches, step) for step in ("test", "train")}  # evaluates before it trains
    for (step, cuts), values in found.items():
        for result, (_, one) in zip(means_of(model, values), expected[step], strict=True):
            for name, value in one.items():
                assert result[name] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), (step, cuts, name)
        for name, value in expected[step][-1][0].items():
            own = [worker[name] for worker in values[-1] if name in worker]
            assert max(difference(one, value) for one in own or [value]) < TOLERANCE, (step, cuts, name)


def test_class_weights_are_sample_weights() -> None:
    model = seeded(lambda: plain(metrics=None))
    rng = np.random.RandomState(1)
    x, y = X(rng, 7), rng.randint(0, 2, (7, 1)).astype(np.float32)
    weighted = (x, y, np.where(y[:, 0] > 0, 3.0, 0.5).astype(np.float32))
    found = KerasJob(model, weighted).run([2, 5], [weighted])
    expected = model.train_on_batch(x, y, class_weight={0: 0.5, 1: 3.0}, return_dict=True)
    assert means_of(model, found)[0]["loss"] == pytest.approx(float(expected["loss"]), rel=TOLERANCE)
    assert difference(found[0][0]["emb/embeddings"], model.variables[0].numpy()) < TOLERANCE


def test_a_step_that_is_fed_the_length_of_the_batch_adds_up_gradients_alone() -> None:
    model = seeded(lambda: plain(metrics=None))
    job = KerasJob(model, (X(np.random.RandomState(1), 4), np.zeros((4, 1), np.float32)))
    view, step = unfuse_view(job.worker_graphs(2)[0].graph_def), job.steps["train"]
    gradients = [v for v in job.plan(2).variables if v.route == "allreduce"]
    assert _sums(view, step, fed={step.length.name}) == len(gradients)
    assert _sums(view, step, fed=set()) == len(gradients) + 1
    before = view.ancestors({step.length.op.name}, set())
    assert {n for n in before if n.startswith("train/")} == job.analysed.captured.view.ancestors(
        {step.length.op.name}, set()
    )  # nothing of the model


def _sums(view, step, fed):
    """How many sums over the workers a run of the step takes."""
    joined = members_of(view.graph_def)
    return sum(view.op(n) == ALL_REDUCE or n in joined for n in view.ancestors({step.run.name}, fed))


class OfRagged(keras.Model):
    """Adds up the numbers of each example, of which there may be any number."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(tf.expand_dims(tf.reduce_sum(x, axis=1), 1))


@pytest.mark.parametrize("cuts", [[3, 2], [1, 4], [0, 5]])
def test_ragged_examples_count_as_one_each(cuts) -> None:
    x = tf.ragged.constant([[1.0], [2.0, 3.0, 1.0, 0.5], [], [4.0], [0.5, 1.0]], tf.float32)
    batch = (x, np.random.RandomState(1).rand(5, 1).astype(np.float32))

    def build():
        model = OfRagged()
        model(x)
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        return model

    model = seeded(build)
    found = KerasJob(model, batch).run(cuts, [batch] * 3)
    for values, (expected, _) in zip(found, in_keras(seeded(build), [batch] * 3), strict=True):
        for name, value in expected.items():
            assert difference(values[0][name], value) < TOLERANCE, name


def test_a_batch_is_cut_in_the_order_of_the_workers() -> None:
    assert [part.tolist() for part in cut(np.arange(5), [2, 0, 3])] == [[0, 1], [], [2, 3, 4]]
