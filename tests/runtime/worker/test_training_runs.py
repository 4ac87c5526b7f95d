"""Which runs are steps: those alone that every worker must make equally often, for workers compare by count."""

from dataclasses import dataclass, field

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.analysis.reading.construction import record
from parallax.analysis.reading.gradients import training_updates
from parallax.functions.tracing.arguments import arguments_of
from parallax.functions.tracing.step_graph import StepGraph
from parallax.functions.tracing.trace_step import trace_step
from parallax.plans.plan import one_host
from parallax.runtime.worker.heartbeat import Heartbeat
from parallax.runtime.worker.session.names import Names
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.settings.config import Config
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform

v1 = tf.compat.v1
record.install()


def training_runs(graph, size=2):
    """What worker 0 of some takes for a step."""
    analysed = analyse(graph)
    rewrites = rewrites_of(analysed, plan_for(analysed, one_host(size), Config()))
    names = Names(analysed.captured.view, transform(analysed.captured.view, rewrites, Worker(0, size, 7)))
    worker = WorkerContext(graph, names, Heartbeat(), analysed)
    return TrainingRuns(worker, training_updates(analysed.captured, analysed.sources))


def net(name):
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((5,), dtype="int32"), layers.Embedding(40, 4), layers.Flatten(), layers.Dense(3)], name=name
    )


def critic():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


@dataclass
class Follower:
    """A second model follows the trained one by an average, and the loss that a metric counts is of both."""

    student: keras.Model = field(default_factory=lambda: net("student"))
    teacher: keras.Model = field(default_factory=lambda: net("teacher"))
    metric: keras.Metric = field(default_factory=lambda: keras.metrics.Mean(name="loss"))
    optimizer: keras.Optimizer = field(default_factory=lambda: keras.optimizers.SGD(0.2))

    def loss(self, x, y):
        s = self.student(x, training=True)
        return tf.reduce_mean(tf.square(s - y)) + tf.reduce_mean(tf.square(s - self.teacher(x)))

    def train(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(x, y)
        trained = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        for t, s in zip(self.teacher.weights, self.student.weights, strict=True):
            t.assign(0.9 * t + 0.1 * s)
        self.metric.update_state(loss)

    def test(self, x, y):
        self.metric.update_state(self.loss(x, y))


@dataclass
class Gan:
    """Two optimizers; the second loss, which a metric counts, is computed of what the first has updated."""

    generator: keras.Model = field(default_factory=lambda: net("generator"))
    discriminator: keras.Model = field(default_factory=critic)
    metric: keras.Metric = field(default_factory=lambda: keras.metrics.Mean(name="g_loss"))
    optimizers: tuple = field(default_factory=lambda: (keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.2)))

    def train(self, x, y):
        for optimizer, model in zip(self.optimizers, (self.discriminator, self.generator), strict=True):
            with tf.GradientTape() as tape:
                made = self.discriminator(self.generator(x))
                loss = tf.reduce_mean(made)
                if model is self.discriminator:
                    loss -= tf.reduce_mean(self.discriminator(y))
            trained = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        self.metric.update_state(loss)

    def test(self, x, y):
        self.metric.update_state(tf.reduce_mean(self.discriminator(self.generator(x))))


@pytest.mark.parametrize("program", [Follower, Gan])
def test_resetting_a_metric_of_an_updated_model_is_no_step(program):
    made = program()
    arguments = arguments_of((np.zeros((4, 5), np.int32), np.zeros((4, 3), np.float32)), {})
    traced = {name: trace_step(getattr(made, name), arguments) for name in ("train", "test")}
    graph = StepGraph(traced["train"].variables, sums=[one for step in traced.values() for one in step.metrics])
    for name, one in traced.items():
        graph.add(name, one.concrete, is_uneven=True)
    graph.reset([one.name for one in graph.list_variables() if one.variable.aggregation == tf.VariableAggregation.SUM])
    training = training_runs(graph.graph)
    assert training.trains(("train/run",))
    assert not training.trains(("reset/run",)), "workers reset their own parts unequally often"
    assert not training.trains(("test/run",)), "nothing is updated"


def accumulating():
    """Gradients are added up by the script's own ops, applied by a run of their own, and set to zero by another."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [4, 3], name="x")
        w = v1.get_variable("w", [3, 1], use_resource=True)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        ((gradient, _),) = optimizer.compute_gradients(tf.reduce_mean(tf.square(x @ w)), [w])
        sums = v1.get_variable("sums", [3, 1], trainable=False, use_resource=True)
        sums.assign_add(gradient, name="accumulate", read_value=False)
        optimizer.apply_gradients([(sums.read_value(), w)], name="apply")
        sums.assign(tf.zeros([3, 1]), name="clear", read_value=False)
        saved = v1.get_variable("saved", [3, 1], trainable=False, use_resource=True)
        saved.assign(sums.read_value(), name="save", read_value=False)
    return graph


def steps(training):
    return [one for one in ("accumulate", "apply", "clear", "save") if training.trains((one,))]


def test_a_step_is_a_run_in_which_workers_meet():
    assert steps(training_runs(accumulating())) == ["accumulate"]


def test_one_worker_meets_nobody_and_trains_wherever_it_updates():
    assert steps(training_runs(accumulating(), size=1)) == ["accumulate", "apply"]
