"""Batches with fewer examples than workers: some have none, and training and evaluation are plain Keras's."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by, plain_fit_of

pytestmark = pytest.mark.rotates(days=3)

layers, ops = keras.layers, keras.ops
EXAMPLES, BATCH = 9, 8
"""The last batch of an epoch has one example."""


def check(make, sizes=(3,), plain=fit_plainly, most=1e-5):
    expected = outcome(plain, make)
    for size in sizes:
        here = outcome(lambda *args, size=size, **options: fit_by(size, *args, **options), make)
        parts = {name: difference(here[name], expected[name]) for name in expected}
        assert max(parts.values()) <= most, (size, parts, here["found"], expected["found"])


def drawn(*shape):
    return np.random.RandomState(4).rand(EXAMPLES, *shape).astype("float32")


KINDS = np.arange(EXAMPLES) % 3
IDS = np.random.RandomState(0).randint(1, 12, (EXAMPLES, 4)).astype("int32")


def trained(body, inputs, train, outputs=3, loss="sparse_categorical_crossentropy", y=KINDS, **options):
    """(a model, its history) of a fit with batches, and an evaluation, whose last one is short."""
    dense = [layers.Dense(outputs, "softmax" if outputs == 3 else None)]
    dtype = "int32" if inputs.dtype == np.int32 else "float32"
    model = keras.Sequential([keras.Input(inputs.shape[1:], dtype=dtype), *body, *dense])
    model.compile(options.pop("optimizer", "sgd"), loss, metrics=options.pop("metrics", ["accuracy"]))
    options = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "validation_batch_size": 4} | options
    return model, train(model, inputs, y, validation_data=(inputs[:5], y[:5]), **options).history


class Positions(layers.Layer):
    """Two tables; the second one is looked up by ids that all examples have alike."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = layers.Embedding(12, 3), layers.Embedding(8, 3)

    def call(self, ids):
        return self.tokens(ids) + self.positions(ops.arange(0, ops.shape(ids)[-1], 1))


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        (lambda: [layers.Conv1D(4, 3, activation="relu"), layers.MaxPooling1D(), layers.Flatten()], drawn(9, 2)),
        (lambda: [layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()], drawn(8, 8, 3)),
        (lambda: [layers.Conv3D(2, 2, strides=2), layers.AveragePooling3D(2), layers.Flatten()], drawn(5, 5, 5, 1)),
        (lambda: [layers.DepthwiseConv2D(3, depth_multiplier=2), layers.GlobalMaxPooling2D()], drawn(6, 6, 2)),
        (lambda: [layers.SeparableConv2D(3, 3), layers.AveragePooling2D(2), layers.Flatten()], drawn(6, 6, 2)),
        (lambda: [layers.Conv2DTranspose(3, 3, strides=2), layers.GlobalAveragePooling2D()], drawn(4, 4, 2)),
        (lambda: [layers.Reshape((-1, 4)), layers.Conv1D(3, 2), layers.Reshape((-1,))], drawn(3, 4)),
        (lambda: [layers.LSTM(4)], drawn(5, 3)),
        (lambda: [layers.GRU(4, return_sequences=True), layers.Flatten()], drawn(5, 3)),
        (lambda: [layers.Bidirectional(layers.LSTM(3, unroll=True))], drawn(4, 3)),
        (lambda: [layers.LayerNormalization(), layers.Dense(4, "relu")], drawn(5)),
        (lambda: [layers.Lambda(lambda x: tf.image.resize(x, (7, 5))), layers.Flatten()], drawn(4, 4, 2)),
        (lambda: [layers.Embedding(12, 3), layers.Conv1D(4, 2), layers.GlobalMaxPooling1D()], IDS),
        (lambda: [layers.Embedding(12, 3, mask_zero=True), layers.LSTM(4)], IDS * (np.arange(4) < 3)),
        (lambda: [Positions(), layers.Flatten()], IDS),
    ],
    ids=[
        *("conv1d", "conv2d", "conv3d", "depthwise", "separable", "transposed", "reshaped", "lstm", "gru", "unrolled"),
        *("layer norm", "resized", "embedding and conv", "masked"),
        "positions",
    ],
)
def test_layers_may_have_fewer_examples_than_workers(body, inputs):
    check(lambda train: trained(body(), inputs, train))


@pytest.mark.rotates
def test_gradient_rows_of_a_stand_in_reach_no_update():
    """Keras's Adam takes a row more for another step of it, if of zeros."""

    def make(train):
        return trained([layers.Embedding(12, 3), layers.Flatten()], IDS, train, optimizer="adam", batch_size=7)

    check(make, (4,))


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("loss", "outputs", "y"),
    [
        ("mse", 1, drawn()),
        (lambda: keras.losses.MeanSquaredError(reduction="sum"), 1, drawn()),
        (lambda: lambda y, out: ops.sqrt(ops.mean(ops.square(ops.reshape(y, (-1, 1)) - out))), 1, drawn()),
        (lambda: keras.losses.SparseCategoricalCrossentropy(ignore_class=1), 3, KINDS),
        (lambda: lambda y, out: ops.sum(ops.square(out) * ops.reshape(y, (-1, 1))) / ops.sum(y), 1, drawn()),
        (lambda: lambda y, out: ops.mean(ops.roll(ops.reshape(y, (-1, 1)) - out, 1, 0) * out), 2, drawn()),
        (lambda: lambda y, out: ops.mean(out) + tf.reduce_mean(tf.boolean_mask(out, out[:, 0] > 9)), 1, drawn()),
    ],
    ids=["mean", "sum", "root", "ignored", "divided", "beside others", "of none"],
)
@pytest.mark.parametrize("batch", [BATCH, 3])
def test_losses_count_examples_and_no_stand_ins(loss, outputs, y, batch):
    """Of three examples some workers have one."""

    def make(train):
        made = loss() if callable(loss) else loss
        return trained([layers.Dense(4, "tanh")], drawn(4), train, outputs, made, y, metrics=[], batch_size=batch)

    check(make, sizes=(2, 3))


@pytest.mark.rotates
def test_metrics_count_examples_and_no_stand_ins():
    def make(train):
        metrics = [
            keras.metrics.AUC(),
            keras.metrics.MeanAbsoluteError(),
            keras.metrics.Precision(),
            keras.metrics.R2Score(),
            keras.metrics.RootMeanSquaredError(),
        ]
        y = (drawn() > 0.5).astype("float32")[:, None]
        weights = np.linspace(0.5, 2, EXAMPLES).astype("float32")
        options = {"metrics": metrics[:-2], "weighted_metrics": metrics[-2:], "sample_weight": weights}
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1, "sigmoid")])
        model.compile("sgd", "mse", metrics=options["metrics"], weighted_metrics=options["weighted_metrics"])
        fitted = train(model, drawn(4), y, sample_weight=weights, batch_size=BATCH, epochs=2, verbose=0)
        return model, fitted.history

    check(make, sizes=(2, 4))


@pytest.mark.rotates
def test_attention_of_few_examples():
    class Attending(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.attention = layers.Embedding(12, 4), layers.MultiHeadAttention(2, 2)
            self.norm, self.out = layers.LayerNormalization(), layers.Dense(3, "softmax")

        def call(self, ids):
            rows = self.embedding(ids)
            return self.out(ops.mean(self.norm(rows + self.attention(rows, rows, use_causal_mask=True)), 1))

    def make(train):
        model = Attending()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model, train(model, IDS, KINDS, batch_size=BATCH, epochs=2, verbose=0).history

    check(make)


@pytest.mark.rotates
def test_ragged_rows_of_few_examples():
    rows = tf.ragged.constant([[1, 2], [3], [], [4, 5, 6], [7], [8, 8], [1], [2, 3], [9, 9, 9, 9]], dtype=tf.int32)

    def make(train):
        layer = tf_keras.layers.Embedding(12, 3, embeddings_initializer=tf_keras.initializers.RandomUniform(seed=3))
        inputs = tf_keras.Input((None,), dtype=tf.int32, ragged=True)
        mean = tf_keras.layers.Lambda(lambda one: tf.reduce_sum(one.to_tensor(), 1))(layer(inputs))
        out = tf_keras.layers.Dense(1, kernel_initializer="ones")(mean)
        model = tf_keras.Model(inputs, out)
        model.compile("sgd", "mse", metrics=["mae"])
        data = tf.data.Dataset.from_tensor_slices((rows, drawn())).batch(BATCH)
        history = train(model, data, epochs=2, verbose=0).history
        return model, (history, [weight.numpy() for weight in model.weights])

    check(make, plain=lambda model, *a, **k: plain_fit_of(model)(model, *a, **k))


def within_batch(labels, rows):
    """Each example against all of its batch, itself left out."""
    near = ops.matmul(rows, ops.transpose(rows)) - 1e9 * ops.eye(ops.shape(rows)[0])
    return ops.logsumexp(near, axis=1) + 0 * ops.cast(labels, "float32")


@pytest.mark.rotates
@pytest.mark.parametrize(("examples", "batch"), [(21, 11), (10, 8), (3, 2)])
def test_a_shorter_batch_of_which_some_workers_have_as_many_rows_as_of_a_full_one(examples, batch):
    x = np.random.RandomState(4).rand(examples, 4).astype("float32")

    def make(train):
        model = keras.Sequential([keras.Input([4]), layers.Dense(3, "tanh")])
        model.compile("sgd", within_batch)
        return model, train(model, x, np.zeros(examples), batch_size=batch, epochs=2, verbose=0, shuffle=False).history

    check(make, (2, 3))
