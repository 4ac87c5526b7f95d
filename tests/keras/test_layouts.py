"""Fits in which examples interact, on two and three workers by layouts: the history and weights of plain Keras.

22 examples in batches of 8: the last batch has unequal shares. Tolerance 1e-5: sums over workers are rounded otherwise.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from parallax.base.errors import GraphError, PlanError
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by, plain_fit_of, plan_of_fit

pytestmark = pytest.mark.rotates(days=3)

layers = keras.layers
_random = np.random.RandomState(0)
X, Y = _random.randn(22, 5).astype("f"), _random.randn(22, 1).astype("f")
IDS, CLASSES = _random.randint(0, 40, (22, 5)).astype("int32"), _random.randint(0, 3, 22).astype("int32")
IMAGES = _random.rand(22, 8, 8, 3).astype("f")
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
MOST = 1e-5


def check(make, size=2):
    """A script comes to the same by layouts, on so many workers, as in plain Keras."""
    plain = outcome(fit_plainly, make)
    found = outcome(functools.partial(fit_by, size), make)
    parts = {name: difference(found[name], plain[name]) for name in plain}
    assert max(parts.values()) <= MOST, (parts, found["found"], plain["found"])


def fitted(model, loss, x=X, y=Y, rate=0.1, **kwargs):
    """A script that fits a model, as `check` takes it."""

    def make(train):
        made = model()
        made.compile(kwargs.get("optimizer", keras.optimizers.SGD)(rate), loss, metrics=kwargs.get("metrics"))
        held_out = (x[:9], y[:9]) if kwargs.get("held_out") else None
        options = dict(batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=held_out)
        return made, train(made, x, y, **options).history

    return make


def dense(width=4):
    return keras.Sequential([keras.Input((5,)), layers.Dense(width)])


def normalized():
    return keras.Sequential([keras.Input((5,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)])


def synchronized():
    """As one process computes, in which there is nothing to synchronize."""
    normalization = layers.BatchNormalization(synchronized=True)
    return keras.Sequential([keras.Input((5,)), layers.Dense(4, use_bias=False), normalization, layers.Dense(1)])


def normalized_table():
    first = [keras.Input((5,), dtype="int32"), layers.Embedding(40, 4), layers.GlobalAveragePooling1D()]
    return keras.Sequential([*first, layers.BatchNormalization(), layers.Dense(1, activation="sigmoid")])


def normalized_images():
    convolved = [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential([*convolved, layers.MaxPooling2D(), layers.Flatten(), layers.Dense(3)])


class Positions(layers.Layer):
    """Two tables, one of them looked up by ids that all examples have alike."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = layers.Embedding(40, 4), layers.Embedding(16, 4)

    def call(self, ids):
        return self.tokens(ids) + self.positions(keras.ops.arange(0, keras.ops.shape(ids)[-1], 1))


def positions():
    return keras.Sequential([keras.Input((5,), dtype="int32"), Positions(), layers.Flatten(), layers.Dense(1)])


def recurrent_twice():
    first = [keras.Input((None,), dtype="int32"), layers.Embedding(40, 4)]
    inner = layers.Bidirectional(layers.LSTM(3, return_sequences=True))
    return keras.Sequential([*first, inner, layers.Bidirectional(layers.LSTM(3)), layers.Dense(1)])


def recurrent():
    first = [keras.Input((5,), dtype="int32"), layers.Embedding(40, 4, mask_zero=True)]
    return keras.Sequential([*first, layers.GRU(3), layers.Dense(1)])


def in_batch_softmax(y, p):
    labels = tf.range(tf.shape(p)[0])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, p @ tf.transpose(p)))


def triplets(y, p):
    """Of all pairs."""
    far = tf.reduce_sum(tf.square(p[:, None] - p[None]), -1)
    alike = tf.cast(tf.equal(y, tf.transpose(y)), tf.float32)
    found = tf.nn.relu(far[:, :, None] - far[:, None] + 0.1) * alike[:, :, None] * (1 - alike[:, None])
    return tf.reduce_sum(found) / (tf.reduce_sum(tf.cast(found > 1e-16, tf.float32)) + 1e-16)


def beside_sorted(y, p):
    """Columns of whole tensors beside a worker's: the gradient of joining them takes the shapes of both."""
    ordered = tf.gather(p, tf.argsort(p[:, 0]))
    return tf.reduce_mean(tf.square(tf.concat([p, ordered], 1) - y) * tf.square(tf.concat([ordered, p], 1)))


def both_ways(y, p):
    """Each example against all, by rows and by columns: a shape has the batch's length twice."""
    logits, alike = p @ tf.transpose(p), tf.one_hot(tf.range(tf.shape(p)[0]), tf.shape(p)[0])
    losses = [tf.nn.softmax_cross_entropy_with_logits(alike, one) for one in (logits, tf.transpose(logits))]
    return tf.reduce_mean(losses[0]) + tf.reduce_mean(losses[1])


LOSSES = {
    "in-batch softmax": (dense, in_batch_softmax),
    "log-sum-exp over the batch": (
        dense,
        lambda y, p: keras.ops.logsumexp(p @ keras.ops.transpose(p), axis=1),
    ),
    "sum of the largest": (lambda: dense(1), lambda y, p: tf.reduce_sum(tf.math.top_k(tf.square(y - p)[:, 0], 2)[0])),
    "cumulative sum": (lambda: dense(1), lambda y, p: tf.reduce_mean(tf.square(tf.cumsum(p) - y))),
    "root over deviation": (
        lambda: dense(1),
        lambda y, p: tf.sqrt(tf.reduce_mean(tf.square(p - y))) / tf.math.reduce_std(y),
    ),
    "mean of chosen examples": (
        lambda: dense(1),
        lambda y, p: tf.reduce_mean(tf.boolean_mask(tf.square(p - y), y[:, 0] > 0)),
    ),
    "branch and length": (
        lambda: dense(1),
        lambda y, p: (
            tf.cond(tf.reduce_mean(p) > 0, lambda: tf.reduce_mean(p - y), lambda: tf.reduce_mean(y - p) * 2)
            * tf.cast(tf.shape(p)[0], tf.float32)
        ),
    ),
    "sorted beside unsorted": (lambda: dense(2), beside_sorted),
    "pairs both ways": (dense, both_ways),
    "spectrum along the batch": (
        dense,
        lambda y, p: tf.reduce_mean(tf.square(tf.abs(tf.signal.fft(tf.cast(tf.transpose(p), tf.complex64))))),
    ),
    "op without a rule": (lambda: dense(5), lambda y, p: tf.reduce_mean(tf.linalg.svd(p, compute_uv=False))),
}


@pytest.mark.rotates
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_the_global_batch_is_the_one_process_s(name):
    model, loss = LOSSES[name]
    check(fitted(model, loss, rate=0.01))


def test_triplets_of_all_pairs_are_those_of_the_global_batch():
    check(fitted(dense, triplets, y=CLASSES[:, None].astype("f")), size=3)


@pytest.mark.rotates
@pytest.mark.parametrize("size", [2, 3])
def test_batch_statistics_and_moving_averages_are_those_of_the_global_batch(size):
    check(fitted(normalized, "mse", metrics=["mae"], held_out=True), size)
    y, adam = (Y > 0).astype("f"), keras.optimizers.Adam
    check(fitted(normalized_table, "binary_crossentropy", IDS, y, 0.01, optimizer=adam, metrics=["AUC"]), size)


@pytest.mark.rotates
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "model, loss, x",
    [(normalized, "mse", X), (positions, "mse", IDS), (normalized_images, CROSS_ENTROPY, IMAGES), (dense, None, X)],
)
def test_workers_without_examples_count_for_nothing(model, loss, x, size):
    y = CLASSES if model is normalized_images else Y
    made = fitted(model, loss or in_batch_softmax, x[:17], y[:17], metrics=["mae"] if loss == "mse" else None)
    check(made, size)


@pytest.mark.parametrize(("size", "is_synchronized"), [(2, False), (3, False), (2, True)])
def test_a_normalization_of_the_older_keras_is_over_the_global_batch(size, is_synchronized):
    old = tf_keras.layers
    normalization = functools.partial(old.BatchNormalization, synchronized=is_synchronized)

    def make(train):
        tf_keras.utils.set_random_seed(3)
        model = tf_keras.Sequential([old.Input((8, 8, 3)), old.Conv2D(4, 3), normalization(), old.Flatten()])
        model.add(old.Dense(3))
        model.compile(tf_keras.optimizers.SGD(0.1), tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model, train(model, IMAGES, CLASSES, batch_size=8, epochs=2, shuffle=False, verbose=0).history

    plain = outcome(lambda model, *args, **kwargs: plain_fit_of(model)(model, *args, **kwargs), make)
    found = outcome(functools.partial(fit_by, size), make)
    assert max(difference(found[name], plain[name]) for name in plain) <= MOST


def test_synchronized_normalizations_are_those_of_one_process():
    check(fitted(synchronized, "mse", held_out=True))


def test_convolutions_are_normalized_over_the_global_batch():
    check(fitted(normalized_images, CROSS_ENTROPY, IMAGES, CLASSES, metrics=["accuracy"]))


@pytest.mark.rotates
@pytest.mark.parametrize("model", [positions, recurrent, recurrent_twice])
def test_tables_take_the_sum_of_the_global_batch(model):
    check(fitted(model, "mse", IDS))


class Trained(keras.Model):
    """A model with a step of its own; `loss_of` is its loss, over the variables of the whole model."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(4, activation="tanh"), layers.Dense(1)
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean]

    def call(self, x):
        return self.out(self.hidden(x))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


class Penalized(Trained):
    """A penalty of the critic's gradient, as of WGAN-GP."""

    def loss_of(self, x, _):
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = self(x)
        length = tf.sqrt(tf.reduce_sum(tf.square(tape.gradient(score, x)), 1) + 1e-6)
        return tf.reduce_mean(score) + 10 * tf.reduce_mean(tf.square(length - 1))


class Adapted(Trained):
    """A step within the step, as of MAML."""

    def loss_of(self, x, y):
        w = self.out.kernel.value
        h = self.hidden(x) if self.built else self(x)
        with tf.GradientTape() as tape:
            tape.watch(w)
            inner = tf.reduce_mean(tf.square(h @ w - y))
        return tf.reduce_mean(tf.square(h @ (w - 0.1 * tape.gradient(inner, w)) + self.out.bias - y))


class Contrasted(Trained):
    """Two views of each example one behind the other, as of SimCLR."""

    def loss_of(self, x, _):
        z = tf.math.l2_normalize(tf.concat([self.hidden(x), self.hidden(x * 1.1 + 0.1)], 0), 1)
        rows = tf.shape(x)[0]
        alike = z @ tf.transpose(z) / 0.5 - 1e9 * tf.eye(2 * rows)
        labels = tf.concat([tf.range(rows) + rows, tf.range(rows)], 0)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, alike))
        return loss + 0.0 * tf.reduce_mean(self(x))


class Discriminated(Trained):
    """Generated and real examples one behind the other, as of a GAN's discriminator."""

    def loss_of(self, x, _):
        rows = tf.shape(x)[0]
        scores = self(tf.concat([x * 0.5 + 0.3, x], 0))
        labels = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], 0)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, scores))


@pytest.mark.parametrize("kind", [Penalized, Adapted, Contrasted, Discriminated])
def test_a_step_of_its_own_is_the_one_process_s(kind):
    def model():
        made = kind()
        made(X)
        return made

    check(fitted(model, None))


class Centers(layers.Layer):
    """Centers of classes that move to the batch's examples, without a gradient."""

    def __init__(self):
        super().__init__()
        self.centers = self.add_weight(shape=(4, 3), initializer="random_normal", trainable=False, name="centers")

    def call(self, x, y, training=False):
        y = tf.reshape(y, [-1])
        center = tf.gather(tf.convert_to_tensor(self.centers), y)
        self.add_loss(0.1 * tf.reduce_mean(tf.reduce_sum(tf.square(x - tf.stop_gradient(center)), 1)))
        if training:
            _, places, counts = tf.unique_with_counts(y)
            times = tf.cast(1 + tf.gather(counts, places), tf.float32)[:, None]
            self.centers.value.scatter_sub(tf.IndexedSlices(0.5 * (center - x) / times, y))
        return x


def test_state_that_training_reads_is_written_from_the_global_batch():
    def make(train):
        inputs, labels = keras.Input((5,)), keras.Input((), dtype="int32")
        model = keras.Model([inputs, labels], layers.Dense(4)(Centers()(layers.Dense(3)(inputs), labels)))
        model.compile(keras.optimizers.SGD(0.05), CROSS_ENTROPY)
        return model, train(model, [X, CLASSES], CLASSES, batch_size=8, epochs=2, shuffle=False, verbose=0).history

    check(make)


def test_the_plan_names_what_is_gathered_and_nothing_else():
    def notes(model, loss, *args):
        made = model()
        made.compile("sgd", loss)
        return plan_of_fit(made, *args, batch_size=8).notes

    [note] = notes(normalized, "mse", X, Y)
    assert note.startswith("batch normalization uses statistics of the global batch: 2 all-reduces totalling 32 B")
    for model in (positions, recurrent, recurrent_twice):
        assert notes(model, "mse", IDS, Y) == ()
    [note] = notes(dense, in_batch_softmax, X, Y)
    assert note.startswith("MatMul") and "(128 B)" in note and "all-gathered" in note


def test_gathers_above_a_limit_are_refused_by_the_op():
    def plan(limit):
        model = dense()
        model.compile("sgd", in_batch_softmax)
        return plan_of_fit(model, X, Y, batch_size=8, gather_limit=limit)

    limit = 8 * 4 * 4  # the predictions of 8 examples
    assert plan(limit).notes == plan(None).notes
    with pytest.raises(
        PlanError, match=r"gather_limit is 127 bytes, .* 128 bytes .* MatMul .* \(128 B\).* gather_limit"
    ):
        plan(limit - 1)


def test_workers_that_train_apart_are_refused():
    model = dense(1)
    model.compile("sgd", "mse")
    with pytest.raises(GraphError, match="Leave sync at True"):
        plan_of_fit(model, X, Y, layouts=True, run_option="PS", synchronous=False)
