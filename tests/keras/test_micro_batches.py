"""Fits whose steps are cut into micro-batches (accumulate_steps), by one to three workers: what plain Keras comes to.

22 or 17 examples in batches of 8: the last batch has 6 or 1, fewer than there are micro-batches on a worker.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from parallax import Config
from parallax.analysis.graph_to_plan import analyse_for, plan_for
from parallax.base.errors import GraphError
from parallax.graph.batches import locate_part
from parallax.plans.plan import Layout
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.test_layouts import (
    IDS,
    MOST,
    Y,
    dense,
    in_batch_softmax,
    normalized,
    positions,
    recurrent,
    recurrent_twice,
)
from tests.keras.test_layouts import X as FEATURES
from tests.keras.two_here import fit_by, plain_fit_of, read

pytestmark = pytest.mark.rotates(days=3)

layers, ops = keras.layers, keras.ops
WEIGHTS = np.random.RandomState(2).rand(22).astype("f")


class OwnStep(keras.Model):
    """Logs what its step computes: a mean, a sum, a number without a batch, and a metric of a loss as it is."""

    def __init__(self):
        super().__init__()
        self.first, self.last = layers.Dense(6, "tanh"), layers.Dense(1)
        self.first.build((None, 5))
        self.last.build((None, 6))
        self.mean_of_losses = keras.metrics.Mean(name="mean_of_losses")

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.mean_of_losses.update_state(loss)
        size = tf.linalg.global_norm(gradients)
        return {"loss": loss, "size": size, "rate": self.optimizer.learning_rate, "mean": self.mean_of_losses.result()}

    def test_step(self, data):
        return {"loss": tf.reduce_mean(tf.square(self(data[0]) - data[1]))}


def regularized():
    l2 = keras.regularizers.L2(0.3)
    first = layers.Dense(6, "tanh", kernel_regularizer=l2, activity_regularizer=keras.regularizers.L2(0.1))
    return keras.Sequential([keras.Input((5,)), first, layers.Dense(1, kernel_regularizer=keras.regularizers.L1(0.2))])


def penalized():
    """Penalties beside what may be a sum over the batch, of a table and of a product of weights too."""
    first = layers.Embedding(40, 4, embeddings_regularizer=keras.regularizers.L2(0.2))
    last = layers.Dense(1, kernel_regularizer=lambda w: 0.1 * ops.sum(ops.square(ops.matmul(ops.transpose(w), w))))
    return keras.Sequential([keras.Input((5,), dtype="int32"), first, layers.Flatten(), last])


def transformer():
    ids = keras.Input((5,), dtype="int32")
    x = layers.Embedding(40, 8)(ids)
    attended = layers.MultiHeadAttention(2, 4)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(8)(layers.Dense(16, "relu")(x))]))
    return keras.Model(ids, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


SUM = functools.partial(keras.losses.MeanSquaredError, reduction="sum")
MODELS = {
    "dense": (dense, "mse", FEATURES, {}),
    "own step": (OwnStep, "mse", FEATURES, {}),
    "Adam": (positions, "mse", IDS, {"optimizer": keras.optimizers.Adam}),
    "LSTM": (recurrent_twice, "mse", IDS, {}),
    "mask": (recurrent, "mse", IDS, {}),
    "transformer": (transformer, "mse", IDS, {}),
    "clipped": (positions, "mse", IDS, {"optimizer": functools.partial(keras.optimizers.SGD, global_clipnorm=0.05)}),
    "clipped one by one": (
        dense,
        "mse",
        FEATURES,
        {"optimizer": functools.partial(keras.optimizers.SGD, clipnorm=0.1)},
    ),
    "regularized": (regularized, "mse", FEATURES, {}),
    "weighed": (dense, "mse", FEATURES, {"sample_weight": WEIGHTS}),
    "sum": (dense, SUM, FEATURES, {"rate": 0.01}),
    "sum, regularized": (penalized, SUM, IDS, {"rate": 0.01}),
    "sum, Adam": (positions, SUM, IDS, {"optimizer": keras.optimizers.Adam}),
}


def fitted(name, examples=22, **more):
    model, loss, x, options = MODELS[name]

    def make(train):
        made = model()
        optimizer = options.get("optimizer", keras.optimizers.SGD)(options.get("rate", 0.1))
        metrics = None if model is OwnStep else ["mae"]
        made.compile(optimizer, loss if isinstance(loss, str) else loss(), metrics=metrics)
        weights = options["sample_weight"][:examples] if "sample_weight" in options else None
        given = dict(batch_size=8, epochs=2, shuffle=False, verbose=0, sample_weight=weights, **more)
        return made, train(made, x[:examples], Y[:examples], **given).history

    return make


@functools.cache
def plain_of(name, examples):
    """What plain Keras comes to, once for all tests of a model."""
    return outcome(fit_plainly, fitted(name, examples))


def check(make, size, count, plain=None, **options):
    plain = plain or outcome(fit_plainly, make)
    train = functools.partial(fit_by, size, settings={"accumulate_steps": count}, **options)
    found = outcome(train, make)
    parts = {name: difference(found[name], plain[name]) for name in plain}
    assert max(parts.values()) <= MOST, (parts, found["found"], plain["found"])


@pytest.mark.rotates
@pytest.mark.parametrize("size, count", [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 2), (3, 4)])
@pytest.mark.parametrize(
    "name, examples",
    [
        pytest.param(name, examples, marks=pytest.mark.rotates(group=f"{name}, {examples} examples"))
        for name in MODELS
        for examples in (22, 17)
    ],
)
def test_a_step_that_is_cut_is_the_step(name, examples, size, count):
    check(fitted(name, examples), size, count, plain_of(name, examples))


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["Adam", "sum, Adam"])
@pytest.mark.parametrize(
    "options",
    [{"servers": 2, "run_option": "PS"}, {"servers": 1, "run_option": "HYBRID"}, "allgather", "allreduce"],
)
def test_by_every_route(name, options):
    settings = {"accumulate_steps": 2}
    if isinstance(options, str):
        settings["routes"] = {"sequential/positions/embedding/embeddings": options}
    plain = plain_of(name, 22)
    places = {} if isinstance(options, str) else options
    found = outcome(functools.partial(fit_by, 2, settings=settings, **places), fitted(name))
    assert max(difference(found[part], plain[part]) for part in plain) <= MOST


@pytest.mark.rotates
def test_validation_is_not_cut():
    """A step that does not train is run as it is."""
    check(fitted("dense", validation_data=(FEATURES[:9], Y[:9])), 2, 4)
    check(fitted("own step", validation_data=(FEATURES[:9], Y[:9])), 2, 4)


def micro_batches(rows, size, count):
    """The examples of each micro-batch: of every worker its part."""
    places = [locate_part(rows, rank, size) for rank in range(size)]
    for number in range(count):
        parts = [(first, locate_part(end - first, number, count)) for first, end in places]
        yield np.concatenate([np.arange(first + begin, first + end) for first, (begin, end) in parts])


def one_process(model, loss, size, count):
    """One process on the same micro-batches: their gradients are added up by their shares of the batch's examples."""
    keras.utils.set_random_seed(3)
    made, rule = model(), keras.optimizers.SGD(0.1)
    for batch in np.split(np.r_[0:16, 0:16], 4):
        total = [0.0 for _ in made.trainable_variables]
        for part in micro_batches(len(batch), size, count):
            x, y = FEATURES[batch[part]], Y[batch[part]]
            with tf.GradientTape() as tape:
                value = loss(tf.constant(y), made(x, training=True))
            gradients = tape.gradient(value, made.trainable_variables)
            total = [one + g * (len(part) / len(batch)) for one, g in zip(total, gradients, strict=True)]
        rule.apply(total, made.trainable_variables)
    return [v.numpy() for v in made.variables]


def mean_squares(y, p):
    return tf.reduce_mean(tf.square(p - y))


def root(y, p):
    return tf.sqrt(tf.reduce_mean(tf.square(p - y)))


def mean_of_chosen(y, p):
    return tf.reduce_mean(tf.boolean_mask(tf.square(p - y), y[:, 0] > 0))


@pytest.mark.rotates
@pytest.mark.parametrize("size, count", [(1, 2), (2, 2)])
@pytest.mark.parametrize(
    "model, loss, told",
    [
        (normalized, mean_squares, ["SquaredDifference", "moving_mean"]),
        (dense, in_batch_softmax, ["MatMul"]),
        (dense, root, ["Sqrt"]),
        (dense, mean_of_chosen, ["Mean"]),
    ],
)
def test_what_examples_have_together_is_of_each_micro_batch(model, loss, told, size, count):
    def make(train):
        made = model()
        made.compile(keras.optimizers.SGD(0.1), loss)
        train(made, FEATURES[:16], Y[:16], batch_size=8, epochs=2, shuffle=False, verbose=0)
        return made, None

    found = outcome(functools.partial(fit_by, size, settings={"accumulate_steps": count}), make)["weights"]
    expected = one_process(model, loss, size, count)
    assert difference(found[: len(expected)], expected) <= MOST
    notes = notes_of(model(), loss, count)
    assert len(notes) == len(told)
    assert all(word in note.split(" process")[0] for word, note in zip(told, notes, strict=True)), notes


def notes_of(made, loss, count):
    made.compile("sgd", loss)
    config = Config(accumulate_steps=count)
    analysed = analyse_for(read(made, FEATURES, Y, batch_size=4).graph.graph, config)
    notes = plan_for(analysed, Layout((2,)), config).notes
    assert f"each worker's part of a step's batch is cut into {count} micro-batches" in notes
    return [note for note in notes if f"each of a step's {count} micro-batches by itself" in note]


@pytest.mark.rotates
def test_nothing_is_said_where_examples_do_not_meet():
    assert notes_of(dense(), "mse", 2) == notes_of(regularized(), "mse", 2) == []


class OddStep(OwnStep):
    """A step of which some of what it computes does not add up."""

    def __init__(self, odd):
        super().__init__()
        self.odd = odd

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            squares = tf.square(self(x) - y)
            loss = tf.reduce_mean(squares)
            if self.odd == "loss":
                loss += tf.reduce_sum(squares)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        if self.odd == "metric":
            self.mean_of_losses.update_state(tf.exp(tf.reduce_sum(squares)))
        if self.odd == "late metric":
            self.mean_of_losses.update_state(self(x))
        logs = {
            "late": lambda: {"late": tf.reduce_mean(self(x))},
            "both": lambda: {"both": loss + tf.linalg.global_norm(gradients)},
            "columns": lambda: {"columns": tf.transpose(squares)},
        }
        return logs.get(self.odd, lambda: {"loss": loss})()


@pytest.mark.rotates
@pytest.mark.parametrize(
    "odd, message",
    [
        (
            "loss",
            "gradients of a step's micro-batches must add up.*cannot be determined whether .* a sum or a mean "
            ".*because of AddV2",
        ),
        ("metric", "additions to variables of a step's micro-batches must add up.*because of Exp"),
        ("late metric", "what AssignVariableOp .* writes is computed from the batch after the update"),
        ("late", "the result .* is computed from the batch after the update.*Compute it before"),
        ("both", "is computed from the gradients and .*. Return the two separately"),
        ("columns", "must return values of the whole batch, or one row per example"),
    ],
)
def test_what_does_not_add_up_is_refused(odd, message):
    made = OddStep(odd)
    made.compile("sgd", "mse")
    graph = read(made, FEATURES, Y, batch_size=4).graph.graph
    plan_for(analyse_for(graph, Config()), Layout((2,)), Config())
    with pytest.raises(GraphError, match=message):
        config = Config(accumulate_steps=2)
        plan_for(analyse_for(graph, config), Layout((2,)), config)


METRICS = {
    "areas": lambda: [keras.metrics.AUC(), keras.metrics.Precision()],
    "scores": lambda: [keras.metrics.F1Score(average="micro"), keras.metrics.R2Score()],
    "others": lambda: [keras.metrics.RootMeanSquaredError(), keras.metrics.MeanIoU(2)],
}


@pytest.mark.rotates
@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_of_the_step(name):
    def make(train):
        made = keras.Sequential([keras.Input((5,)), layers.Dense(1, activation="sigmoid")])
        weighted = [keras.metrics.BinaryAccuracy()]
        kinds = dict(metrics=METRICS[name](), weighted_metrics=weighted)
        made.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", **kinds)
        options = dict(batch_size=8, epochs=2, shuffle=False, verbose=0, sample_weight=WEIGHTS)
        return made, train(made, FEATURES, (Y > 0).astype("f"), **options).history

    check(make, 2, 3)


@pytest.mark.rotates
def test_losses_of_two_outputs_are_weighed():
    def make(train):
        x = keras.Input((5,))
        made = keras.Model(x, {"a": layers.Dense(1, name="a")(x), "b": layers.Dense(1, name="b")(x)})
        made.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 0.3, "b": 2.0}, metrics={"b": ["mse"]})
        options = dict(batch_size=8, epochs=2, shuffle=False, verbose=0, sample_weight={"a": WEIGHTS, "b": WEIGHTS**2})
        return made, train(made, FEATURES, {"a": Y, "b": Y**2}, **options).history

    check(make, 3, 2)


@pytest.mark.rotates
def test_a_model_of_tf_keras():
    def fitted_by(train):
        tf_keras.utils.set_random_seed(3)
        first = tf_keras.layers.Dense(6, "tanh", kernel_regularizer="l2")
        made = tf_keras.Sequential([tf_keras.Input((5,)), first, tf_keras.layers.Dense(1)])
        made.compile(tf_keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
        history = train(made, FEATURES, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        return history, [one.copy() for one in made.get_weights()]

    plain = fitted_by(lambda model, *args, **options: plain_fit_of(model)(model, *args, **options))
    found = fitted_by(functools.partial(fit_by, 2, settings={"accumulate_steps": 4}))
    assert difference(found, plain) <= MOST
