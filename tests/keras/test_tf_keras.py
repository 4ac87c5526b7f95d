"""Models of tf_keras on two workers with uneven batches: layers that AutoGraph converts, losses that are vectors."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from parallax.base.errors import ConfigError
from parallax.keras.fitting import read_fit
from tests.keras.here import difference
from tests.keras.two_here import fit_by_two, plain_fit_of, plan_of_fit

pytestmark = pytest.mark.rotates(days=3)

layers = tf_keras.layers
ROWS = 13  # batches of five, cut into two and three, and a last one of three
X = np.random.RandomState(1).rand(ROWS, 4).astype("float32")
Y = np.random.RandomState(2).randn(ROWS, 2).astype("float32")
WEIGHTS = np.random.RandomState(3).rand(ROWS).astype("float32")
OPTIONS = {"batch_size": 5, "epochs": 2, "verbose": 0, "shuffle": False}


def plain_fit(model, *args, **kwargs):
    return plain_fit_of(model)(model, *args, **kwargs)


def outcome_of(fit, build, *data, **options):
    tf_keras.backend.clear_session()
    tf_keras.utils.set_random_seed(3)
    model = build()
    history = fit(model, *data, **OPTIONS, **options).history
    return history, model.get_weights()


def check(build, *data, **options):
    here, plain = (outcome_of(fit, build, *data, **options) for fit in (fit_by_two, plain_fit))
    assert difference(here, plain) <= 1e-6


class Conditional(layers.Layer):
    """Has conditions and loops on tensors, in Python."""

    def __init__(self):
        super().__init__()
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=None):
        if self.calls < 2.0:
            x = 0.5 * x
        else:
            x = x + 0.1
        for number in tf.range(tf.shape(x)[1]):
            x = x + 0.01 * tf.cast(number, tf.float32)
        if training:
            self.calls.assign_add(1.0)
        return x


class Task(tf_keras.Model):
    """Computes its loss in a layer, as tasks of recommenders do."""

    class Loss(layers.Layer):
        def call(self, out, y, weights=None):
            total = tf.constant(0.0)
            for column in tf.range(2):
                each = tf.square(out[:, column] - y[:, column])
                if weights is not None:
                    each = each * weights
                total = total + tf.reduce_mean(each)
            return total

    def __init__(self):
        super().__init__()
        self.hidden, self.conditional, self.dense = layers.Dense(3), Conditional(), layers.Dense(2)
        self.task = self.Loss()

    def call(self, x, training=None):
        return self.dense(self.conditional(self.hidden(x), training=training))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.task(self(x, training=True), y)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"loss": loss}


class Traced(Task):
    """Has conditions in a step that is a tf.function, which AutoGraph converts wherever it is called."""

    @tf.function
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.task(self(x, training=True), y)
            if self.conditional.calls > 1.0:
                loss = 0.5 * loss
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"loss": loss}


def conditional():
    return compiled(tf_keras.Sequential([layers.Dense(3), Conditional(), layers.Dense(2)]))


def task(kind):
    return compiled(kind())


def compiled(model, **options):
    model.compile(tf_keras.optimizers.SGD(0.1), **{"loss": "mse", **options})
    return model


@pytest.mark.rotates
@pytest.mark.parametrize(
    "build", [conditional, lambda: task(Task), lambda: task(Traced)], ids=["a layer", "a task", "a step"]
)
def test_conditions_and_loops_on_tensors_are_converted_as_tf_keras_does(build):
    check(build, X, Y)


@pytest.mark.rotates
def test_evaluation_converts_layers_too():
    check(conditional, X, Y, validation_data=(X[:7], Y[:7]))


def of_vectors(reduction="none"):
    inputs = tf_keras.Input((4,))
    outputs = {name: layers.Dense(2, name=name)(inputs) for name in ("a", "b")}
    losses = {"a": tf_keras.losses.MeanSquaredError(reduction="none"), "b": tf_keras.losses.Huber(reduction=reduction)}
    return compiled(tf_keras.Model(inputs, outputs), loss=losses, loss_weights={"a": 0.3, "b": 2.0})


def of_vector():
    loss = tf_keras.losses.MeanSquaredError(reduction="none")
    return compiled(tf_keras.Sequential([layers.Dense(2)]), loss=loss, metrics=["mae"])


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("build", "data"),
    [(of_vector, (X, Y)), (of_vectors, (X, {"a": Y, "b": 2 * Y}))],
    ids=["a loss", "losses of several outputs"],
)
@pytest.mark.parametrize("options", [{}, {"sample_weight": WEIGHTS}], ids=["", "weighted"])
def test_losses_with_an_entry_for_each_example_train_as_in_tf_keras(build, data, options):
    if options and isinstance(data[1], dict):
        options = {"sample_weight": {"a": WEIGHTS, "b": WEIGHTS}}
    check(build, *data, **options)


class Batches(tf_keras.utils.Sequence):
    def __len__(self):
        return 3

    def __getitem__(self, number):
        return X[5 * number :][:5], Y[5 * number :][:5]


@pytest.mark.parametrize("make", [Batches, lambda: (batch for _ in range(2) for batch in Batches())])
def test_a_batch_of_a_generator_builds_the_model_that_declares_no_input(make):
    def build():
        model = tf_keras.Sequential([layers.Dense(3, activation="tanh"), layers.Dense(2)])
        model.compile("sgd", "mse")
        return model

    def outcome(fit):
        tf_keras.utils.set_random_seed(3)
        model = build()
        history = fit(model, make(), epochs=2, steps_per_epoch=3, verbose=0, shuffle=False).history
        return history, model.get_weights()

    assert difference(outcome(fit_by_two), outcome(plain_fit)) <= 1e-6


def test_checkpoints_of_steps_are_refused_with_what_saves_instead():
    model = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    arguments = {"x": np.ones((8, 4), "float32"), "y": np.ones((8, 1), "float32")}
    with pytest.raises(
        ConfigError, match=r"CheckPointConfig supports only Keras 3.*tf_keras.callbacks.BackupAndRestore"
    ):
        read_fit(model, arguments, has_checkpoints=True)


def build_normalized():
    images = tf_keras.Input((6, 6, 2))
    convolved = layers.Conv2D(3, 3, use_bias=False)(images)
    normalized = layers.BatchNormalization()(convolved)
    return tf_keras.Model(images, layers.Dense(2)(layers.Flatten()(layers.ReLU()(normalized))))


def test_fused_batch_normalizations_have_the_statistics_of_the_global_batch():
    images = np.random.RandomState(4).rand(ROWS, 6, 6, 2).astype("float32")

    def found_by(fit):
        tf_keras.backend.clear_session()
        tf_keras.utils.set_random_seed(3)
        model = build_normalized()
        model.compile(tf_keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        history = fit(model, images, Y, validation_data=(images[:7], Y[:7]), **OPTIONS).history
        return {"history": history, "weights": model.get_weights()}

    plain, found = found_by(plain_fit), found_by(fit_by_two)
    assert max(difference(found[part], plain[part]) for part in plain) <= 1e-5, (found["history"], plain["history"])


class NormalizedCell(layers.Layer):
    """Normalizes its state, in a loop."""

    def __init__(self):
        super().__init__()
        self.state_size = 3
        self.cell, self.normalization = layers.SimpleRNNCell(3), layers.LayerNormalization()

    def call(self, x, states):
        state = self.normalization(self.cell(x, states)[0])
        return state, [state]


class NormalizedImages(layers.Layer):
    """Normalizes images by channel in each turn of a loop."""

    def call(self, x):
        ones = tf.ones([3])
        for _ in tf.range(2):
            x = x + tf.tanh(tf.compat.v1.nn.fused_batch_norm(x, ones, ones)[0])
        return x


NORMALIZATIONS = {
    "examples": ((4, 3), layers.LayerNormalization),
    "states": ((4, 3), lambda: layers.RNN(NormalizedCell(), return_sequences=True)),
    "images in a loop": ((4, 4, 3), NormalizedImages),
    "channels first": ((3, 4, 4), lambda: layers.BatchNormalization(axis=1)),
    "volumes": ((2, 2, 4, 3), layers.BatchNormalization),
}


@pytest.mark.parametrize("shape, normalization", NORMALIZATIONS.values(), ids=NORMALIZATIONS)
def test_fused_normalizations_gather_nothing(shape, normalization):
    data = np.random.RandomState(4).rand(ROWS, *shape).astype("float32"), Y

    def build():
        model = tf_keras.Sequential([tf_keras.Input(shape), normalization(), layers.Flatten(), layers.Dense(2)])
        model.compile(tf_keras.optimizers.SGD(0.1), "mse")
        return model

    here, plain = (outcome_of(fit, build, *data) for fit in (fit_by_two, plain_fit))
    assert difference(here, plain) <= 1e-5
    assert not any("all-gathered" in note for note in plan_of_fit(build(), *data, **OPTIONS).notes)
