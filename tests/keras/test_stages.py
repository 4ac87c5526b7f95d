"""Keras models in stages: bit for bit what one worker comes to on the same micro-batches; by replicas to rounding.

Their graphs run in one session, where what a stage receives is what another one sends (ops/exactness/transport.py).
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from ops.exactness.session import as_written
from parallax import Config
from parallax.analysis.graph_to_plan import analyse_for, plan_for
from parallax.base.errors import PlanError
from parallax.plans.plan import Layout, one_host
from tests.analysis.measured import equal_hosts
from tests.analysis.measured import model as measured_model
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by, read

layers, ops = keras.layers, keras.ops
draw = np.random.RandomState(0)
X, Y = draw.rand(22, 5).astype("f"), draw.rand(22, 1).astype("f")
IDS, WORDS = draw.randint(1, 30, (22, 6)).astype("i"), draw.randint(0, 30, (22, 6))
IDS[3:9, 4:] = 0  # masked
WEIGHTS = draw.rand(22).astype("f")
ADAM = functools.partial(keras.optimizers.Adam, 0.01, global_clipnorm=0.5)
MOMENTUM = functools.partial(keras.optimizers.SGD, 0.1, momentum=0.9, global_clipnorm=0.5)


def dense(count=1, **options):
    return [layers.Dense(6, "tanh", **options) for _ in range(count)]


def chain(*parts):
    return keras.Sequential([keras.Input((5,)), *parts, layers.Dense(1)])


def skips():
    inputs = keras.Input((5,))
    first = values = layers.Dense(6, "tanh")(inputs)
    for number in range(4):
        values = layers.Add(name=f"add{number}")([values, layers.Dense(6, "relu")(values)])
    return keras.Model(inputs, layers.Dense(1)(layers.Add()([values, first])))


def normalized():
    return chain(*dense(), layers.BatchNormalization(), *dense(2), layers.BatchNormalization(), *dense())


def dropped():
    return chain(*dense(), layers.Dropout(0.3), *dense(), layers.Dropout(0.3, seed=3), *dense())


def recurrent():
    first = layers.Embedding(30, 4, mask_zero=True)
    lstm = layers.LSTM(5, return_sequences=True), layers.LSTM(5)
    return keras.Sequential([keras.Input((6,), dtype="int32"), first, *lstm, *dense(), layers.Dense(1)])


def transformer():
    inputs = keras.Input((6,), dtype="int32")
    values = layers.Embedding(30, 4)(inputs)
    for _ in range(2):
        values = layers.LayerNormalization()(values + layers.MultiHeadAttention(2, 2)(values, values))
        values = layers.LayerNormalization()(values + layers.Dense(4)(layers.Dense(8, "gelu")(values)))
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(values)))


class Tied(keras.Model):
    """Its last product takes the table of its first lookup."""

    def __init__(self):
        super().__init__()
        self.table, self.first, self.second = layers.Embedding(30, 4), layers.Dense(6, "tanh"), layers.Dense(4, "tanh")

    def call(self, ids):
        return ops.matmul(self.second(self.first(self.table(ids))), ops.transpose(self.table.embeddings))


class OwnStep(keras.Model):
    """Subclassed, with a step of its own that differentiates twice, and layers that differentiate themselves."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.second, self.last = *dense(3), layers.Dense(1)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x):
        values = self.first(x)
        with tf.GradientTape() as tape:
            tape.watch(values)
            energy = tf.reduce_sum(self.inner(values) ** 2, -1)
        return self.last(self.second(values - 0.1 * tape.gradient(energy, values)))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(data[0], training=True) - data[1]))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.mean.update_state(loss)
        return {"loss": loss, "size": tf.linalg.global_norm(gradients), "mean": self.mean.result()}


class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


def assembled():
    """A layer called twice, one that is frozen, losses of layers, models within models."""
    shared, frozen = layers.Dense(5, "tanh"), layers.Dense(6, "tanh", trainable=False)
    inner = keras.Sequential([keras.Input((5,)), *dense(kernel_regularizer="l2"), Penalty(), layers.Dense(5)])
    return chain(shared, inner, shared, frozen, Penalty(), keras.Sequential([*dense(), layers.Dense(4)]))


def two_ends():
    inputs = [keras.Input((5,), name="values"), keras.Input((6,), dtype="int32", name="ids")]
    values = layers.Dense(6, "tanh")(inputs[0])
    joined = layers.Concatenate()([values, layers.Flatten()(layers.Embedding(30, 2)(inputs[1]))])
    return keras.Model(
        inputs, [layers.Dense(1, name="near")(values), layers.Dense(1, name="far")(*map(dense()[0], [joined]))]
    )


def trains(build, x=X, y=Y, optimizer=MOMENTUM, loss="mse", epochs=2, **options):
    """A script, as `outcome` takes it."""

    def make(train):
        model = build()
        model.compile(optimizer(), loss, **{"metrics": ["mae"]} if build not in (OwnStep, two_ends, Tied) else {})
        fit = dict(batch_size=8, epochs=epochs, validation_data=(x, y), shuffle=False, verbose=0)
        history = train(model, x, y, **fit, **options).history
        return model, [history, model.predict(x, verbose=0)]

    return make


def by(replicas, stages, micro_batches, **settings):
    """Trains in stages, without TensorFlow's rewriting of graphs: a part of a graph then rounds as the whole."""
    settings |= dict(micro_batches=micro_batches, stages=None if stages == 1 else stages)
    return functools.partial(fit_by, replicas, settings=settings, options=as_written())


SCHEDULE = lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9)  # noqa: E731
WORD_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
MODELS = {
    "skips": (trains(skips, optimizer=ADAM, sample_weight=WEIGHTS), 1, 3),
    "normalized": (trains(normalized), 2, 4),
    "dropped": (trains(dropped), 1, 2),
    "recurrent": (trains(recurrent, IDS, optimizer=ADAM), 2, 2),
    "transformer": (trains(transformer, IDS, optimizer=SCHEDULE, epochs=1), 2, 1),
    "tied": (trains(Tied, IDS, WORDS, ADAM, WORD_LOSS), 2, 4),
    "own_step": (trains(OwnStep), 1, 4),
    "assembled": (trains(assembled), 2, 2),
    "two_ends": (trains(two_ends, {"values": X, "ids": IDS}, {"near": Y, "far": Y}), 1, 4),
}


@pytest.mark.rotates
@pytest.mark.parametrize("name", MODELS)
def test_stages_change_no_value(name):
    make, replicas, micro_batches = MODELS[name]
    stages = 3 if replicas == 1 else 2
    found, wanted = (outcome(by(replicas, count, micro_batches), make) for count in (stages, 1))
    worst = {part: difference(found[part], wanted[part]) for part in wanted}
    assert max(worst.values()) <= (0.0 if replicas == 1 else 1e-6), worst


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skips", "transformer"])
def test_four_stages_with_eight_micro_batches_change_no_value(name):
    make, _, _ = MODELS[name]
    found, wanted = (outcome(by(1, count, 8), make) for count in (4, 1))
    assert max(difference(found[part], wanted[part]) for part in wanted) == 0.0


@pytest.mark.rotates
def test_many_steps_are_those_of_plain_keras():
    make = trains(skips, epochs=7, sample_weight=WEIGHTS)  # 21 steps
    found, wanted = outcome(by(2, 2, 4), make), outcome(fit_plainly, make)
    worst = {part: difference(found[part], wanted[part]) for part in wanted}
    assert max(worst.values()) <= 1e-5, worst


def plan(stages, workers=2, build=skips, batch=8, micro_batches=1):
    model = build()
    model.compile("sgd", "mse")
    graph = read(model, X, Y, batch_size=batch).graph.graph
    config = Config(stages=stages, micro_batches=micro_batches)
    return plan_for(analyse_for(graph, config), one_host(workers), config)


def test_cuts_are_named_by_layers():
    first, second, last = plan(["add0", "add2"], 3).stages
    assert [len(one.variables) for one in (first, second, last)] == [4, 4, 4]
    assert len(first.ends) == 1 and "functional" in first.ends[0]
    shared, rest = plan(["shared"], build=lambda: chain(*[layers.Dense(5, name="shared")] * 2)).stages
    assert len(shared.ends) == 2 and len(rest.variables) == 2


@pytest.mark.parametrize(
    ("stages", "workers", "said"),
    [
        (["dense_77"], 2, "the last layers are"),
        (["add2", "add0"], 3, "must be in the order of the forward pass"),
        (3, 2, "multiple of the number of stages"),
    ],
)
def test_cuts_that_cannot_be_are_refused(stages, workers, said):
    with pytest.raises(PlanError, match=said):
        plan(stages, workers)


@pytest.mark.slow
def test_resnet50_is_planned_without_stages(tmp_path):
    """Its activations weigh more than its gradients, whether links or accelerators are what limits a step."""
    model = keras.applications.ResNet50(weights=None, input_shape=(224, 224, 3), classes=10)
    model.compile("sgd", "sparse_categorical_crossentropy")
    fed = np.zeros((256, 224, 224, 3), "f"), np.zeros(256, "i")
    graph = read(model, *fed, batch_size=256).graph.graph
    cluster, profile = tmp_path / "cluster.json", tmp_path / "model.json"
    config = Config(stages="auto", micro_batches=8, cluster_profile=cluster, model_profile=profile)
    analysed = analyse_for(graph, config)
    hosts = Layout((1,) * 8, tuple(range(8)))
    for rate in (1.25e8, 1.25e9, 1.25e10):
        cluster.write_text(equal_hosts(8, rate).to_json())
        profile.write_text(measured_model(of=analysed.spec, compute_s=4 / 909).to_json())  # an A100's pace
        found = plan_for(analysed, hosts, config)
        assert not found.stages and any("stages were not chosen" in note for note in found.notes), found.notes


def test_each_micro_batch_must_have_an_example():
    with pytest.raises(PlanError, match="8 examples"):
        plan(2, workers=4, micro_batches=8)
