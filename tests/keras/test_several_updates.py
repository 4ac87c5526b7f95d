"""Steps of Keras models that update variables several times, in a loop: on two workers as plain Keras does."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax import Config
from parallax.analysis.graph_to_plan import analyse_for, plan_for
from parallax.base.errors import GraphError
from parallax.plans.plan import Layout
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.test_two_workers import IDS, OPTIONS, X, Y, check
from tests.keras.two_here import fit_by, read

layers = keras.layers


class Critics(keras.Model):
    """Updates a critic three times, with a penalty on its slopes, and then a generator once."""

    def __init__(self, normalizes):
        super().__init__()
        normalized = [layers.BatchNormalization()] if normalizes else []
        self.makes = keras.Sequential([layers.Dense(4, use_bias=False), *normalized])
        self.judges = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(1)])
        self.seen = [keras.metrics.Mean(name="made"), keras.metrics.Mean(name="judged")]
        self.rules = [keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01)]
        for model, width, rule in zip([self.makes, self.judges], [3, 4], self.rules, strict=True):
            model.build((None, width))
            rule.build(model.trainable_variables)

    @property
    def metrics(self):
        return self.seen

    @tf.function
    def train_step(self, data):
        real, noise = data
        judged = tf.constant(0.0)
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                made = self.makes(noise, training=True)
                judged = tf.reduce_mean(self.judges(made)) - tf.reduce_mean(self.judges(real))
                judged += 10.0 * self.penalize(0.3 * real + 0.7 * made)
            self.update(1, self.judges, tape, judged)
            self.seen[1].update_state(judged)
        with tf.GradientTape() as tape:
            made = -tf.reduce_mean(self.judges(self.makes(noise, training=True)))
        self.update(0, self.makes, tape, made)
        self.seen[0].update_state(made)
        return {metric.name: metric.result() for metric in self.metrics}

    def penalize(self, between):
        with tf.GradientTape() as tape:
            tape.watch(between)
            judged = self.judges(between)
        slopes = tape.gradient(judged, between)
        return tf.reduce_mean(tf.square(tf.sqrt(tf.reduce_sum(slopes * slopes, 1) + 1e-6) - 1.0))

    def update(self, number, model, tape, loss):
        variables = model.trainable_variables
        self.rules[number].apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@pytest.mark.rotates
@pytest.mark.parametrize("normalizes", [False, True])
def test_a_critic_is_updated_several_times_in_a_step(normalizes):
    def make(train):
        model = Critics(normalizes)
        model.compile()
        history = train(model, X, Y * X[:, :3], **OPTIONS).history
        return model, (history, [v.numpy() for rule in model.rules for v in rule.variables])

    check(make)


class Repeats(keras.Model):
    """Updates an embedding twice by the same examples."""

    def __init__(self):
        super().__init__()
        self.rows, self.dense = layers.Embedding(12, 3), layers.Dense(1)
        self.rows.build((None, 4))
        self.dense.build((None, 3))
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, ids):
        return self.dense(tf.reduce_mean(self.rows(ids), 1))

    @tf.function
    def train_step(self, data):
        ids, y = data
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(ids) - y))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            self.seen.update_state(loss)
        return {"seen": self.seen.result()}


def test_rows_are_updated_several_times_in_a_step():
    def make(train):
        model = Repeats()
        model.compile(keras.optimizers.Adam(0.05))
        model.optimizer.build(model.trainable_variables)
        history = train(model, IDS, Y, **OPTIONS).history
        return model, (history, np.asarray(model.rows.embeddings))

    check(make)


class Refined(keras.Model):
    """Updates its last layer twice by the features of the others, and then these."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = [layers.Dense(6, "tanh") for _ in range(4)], layers.Dense(1)
        for layer, width in zip(self.hidden, [4, 6, 6, 6], strict=True):
            layer.build((None, width))
        self.last.build((None, 6))
        self.seen = keras.metrics.Mean(name="seen")

    def features(self, x):
        for layer in self.hidden:
            x = layer(x)
        return x

    def call(self, x):
        return self.last(self.features(x))

    @tf.function
    def train_step(self, data):
        x, y = data
        features, variables = self.features(x), self.last.trainable_variables
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.last(features) - y))
            for variable, slope in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * slope)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        variables = [one for layer in self.hidden for one in layer.trainable_variables]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}


def test_a_loop_of_updates_is_on_one_of_several_stages():
    def make(train):
        model = Refined()
        model.compile("sgd")
        return model, train(model, X, Y, **OPTIONS).history

    staged = functools.partial(fit_by, 2, settings={"stages": 2})
    here, expected = outcome(staged, make), outcome(fit_plainly, make)
    assert max(difference(here[name], expected[name]) for name in expected) <= 1e-6


def test_several_updates_of_a_step_cannot_be_cut_into_micro_batches():
    model = Critics(False)
    model.compile()
    graph = read(model, X, Y * X[:, :3], batch_size=4).graph.graph
    config = Config(accumulate_steps=2)
    with pytest.raises(GraphError, match=r"in a loop, from a single batch\. Leave accumulate_steps at 1"):
        plan_for(analyse_for(graph, config), Layout((2,)), config)
