"""Kinds of Keras layers on workers with even and uneven batches: weights and losses are plain Keras's.

Embeddings are by the route that their kind allows. Where N workers are not one process, the plan says so.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.keras.workers import KerasJob, difference, in_keras, means_of, seeded

layers = keras.layers
TOLERANCE = 1e-5
STEPS, ROWS = 3, 6
EVEN, UNEVEN, EMPTY = [3, 3], [4, 2], [0, 6]


def compiled(inputs, outputs, loss="mse"):
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


def after_embedding(make, **options):
    def build():
        inputs = keras.Input((6,), dtype="int32")
        x = layers.Embedding(20, 4, name="emb", **options)(inputs)
        for layer in make():
            x = layer(x)
        return compiled(inputs, layers.Dense(1, name="out")(x))

    return build


def on_images(make):
    def build():
        inputs = x = keras.Input((8, 8, 3))
        for layer in make():
            x = layer(x)
        return compiled(inputs, layers.Dense(1, name="out")(layers.Flatten()(x)))

    return build


def attention():
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 4, name="emb", mask_zero=True)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    return compiled(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


def hashed():
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(10, 4, name="emb")(layers.Hashing(10)(inputs))
    return compiled(inputs, layers.Dense(1)(layers.Flatten()(x)))


def tied():
    inputs = keras.Input((6,), dtype="int32")
    table = layers.ReversibleEmbedding(20, 4, name="emb")
    logits = table(layers.Dense(4)(table(inputs)), reverse=True)
    return compiled(inputs, logits, keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def two_towers():
    ids = [keras.Input((), dtype="int32", name=name) for name in "uv"]
    towers = [layers.Embedding(20, 4, name=name)(one) for one, name in zip(ids, ("emb", "other"), strict=True)]
    return compiled(ids, layers.Dot(1)(towers))


def ids(rng):
    return rng.randint(0, 20, (ROWS, 6)).astype(np.int32)


def numbers(*shape):
    return lambda rng: rng.randn(ROWS, *shape).astype(np.float32)


def two_ids(rng):
    return tuple(rng.randint(0, 20, ROWS).astype(np.int32) for _ in range(2))


Y, ALLTOALL, ALLREDUCE = numbers(1), {"emb/embeddings": "alltoall"}, {"emb/embeddings": "allreduce"}
CASES = {
    "MultiHeadAttention, masked": (attention, ids, Y, ALLTOALL),
    "Hashing": (hashed, ids, Y, ALLTOALL),
    "ReversibleEmbedding, tied": (tied, ids, ids, ALLREDUCE),
    "two towers": (two_towers, two_ids, Y, ALLTOALL),
    "Embedding, regularized": (
        after_embedding(lambda: [layers.Flatten()], embeddings_regularizer="l2"), ids, Y, ALLREDUCE,
    ),
}  # fmt: skip
SLOW = {
    "GRU": (after_embedding(lambda: [layers.GRU(3)]), ids, Y, ALLTOALL),
    "Bidirectional, masked": (
        after_embedding(lambda: [layers.Bidirectional(layers.LSTM(3))], mask_zero=True), ids, Y, ALLTOALL,
    ),
    "SimpleRNN, unrolled": (after_embedding(lambda: [layers.SimpleRNN(3, unroll=True)]), ids, Y, ALLTOALL),
    "norms of an example": (
        after_embedding(lambda: [layers.RMSNormalization(), layers.GroupNormalization(2), layers.Flatten()]),
        ids, Y, ALLTOALL,
    ),
    "MaxNorm": (
        after_embedding(lambda: [layers.Flatten(), layers.Dense(3, kernel_constraint="max_norm")]), ids, Y, ALLTOALL,
    ),
    "a bag's sum": (
        after_embedding(lambda: [layers.Lambda(lambda x: keras.ops.sum(x, axis=1), output_shape=(4,))]),
        ids, Y, ALLTOALL,
    ),
    "a bag's maximum": (after_embedding(lambda: [layers.GlobalMaxPooling1D()]), ids, Y, ALLTOALL),
}  # fmt: skip
NOT_EMPTY = {
    "Conv1D": (after_embedding(lambda: [layers.Conv1D(3, 2), layers.GlobalMaxPooling1D()]), ids, Y, ALLTOALL),
    "Conv2D and pooling": (
        on_images(lambda: [layers.Conv2D(2, 3, activation="relu"), layers.MaxPooling2D()]), numbers(8, 8, 3), Y, {},
    ),
}  # fmt: skip
"""Kernels of TensorFlow for CPUs that fail on, or die of, an empty batch."""


def params():
    slow = pytest.mark.slow
    return [
        *(pytest.param(case, (EVEN, UNEVEN, EMPTY), id=name) for name, case in CASES.items()),
        *(pytest.param(case, (EVEN, UNEVEN, EMPTY), id=name, marks=slow) for name, case in SLOW.items()),
        *(pytest.param(case, (EVEN, UNEVEN), id=name, marks=slow) for name, case in NOT_EMPTY.items()),
    ]


@pytest.mark.rotates
@pytest.mark.parametrize(("case", "cuts"), params())
def test_a_layer_on_workers_is_that_of_one_process(case, cuts) -> None:
    build, x, y, routes = case
    rng = np.random.RandomState(1)
    batches = [(x(rng), y(rng)) for _ in range(STEPS)]
    model = seeded(build)
    job = KerasJob(model, batches[0])
    plan = job.plan(2)
    assert {name: plan.variable(name).route for name in routes} == routes
    found = [job.run(one, batches) for one in cuts]
    expected = in_keras(model, batches)
    for values in found:
        losses = [one["loss"] for one in means_of(model, values)]
        np.testing.assert_allclose(losses, [one["loss"] for _, one in expected], rtol=TOLERANCE)
        for name, value in expected[-1][0].items():
            assert max(difference(one.get(name, value), value) for one in values[-1]) < TOLERANCE, name


def test_moving_statistics_are_those_of_the_global_batch() -> None:
    inputs = keras.Input((3,))
    hidden = layers.Dense(3, use_bias=False, name="hidden")
    norm = layers.BatchNormalization(momentum=0.5, name="norm")
    model = seeded(lambda: compiled(inputs, layers.Dense(1)(norm(hidden(inputs)))))
    rng = np.random.RandomState(1)
    x, y = numbers(3)(rng), Y(rng)
    given = x @ hidden.kernel.numpy()
    job = KerasJob(model, (x, y))
    [note] = job.plan(2).notes
    assert "2 all-reduces totalling 24 B" in note
    for cuts in (EVEN, UNEVEN, EMPTY):
        (values,) = job.run(cuts, [(x, y)])
        for one in values:
            np.testing.assert_allclose(one["norm/moving_mean"], 0.5 * given.mean(0), rtol=1e-4)
            np.testing.assert_allclose(one["norm/moving_variance"], 0.5 + 0.5 * given.var(0), rtol=1e-4)
            assert np.all(np.isfinite(one["norm/gamma"]))
