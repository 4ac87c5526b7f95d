"""Trains a Keras model's traced steps on workers in memory, and plain Keras eagerly on the global batches.

Where equal rows are to be merged, plain Keras is given every gradient as a dense tensor.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession
from ops.exactness.transport import combine_workers
from parallax.analysis.graph_to_plan import analyse, rewrites_of
from parallax.analysis.reading.capture import initialization_phases
from parallax.analysis.reading.construction import record
from parallax.keras.model_steps import step_graph, trace_training, variables_of
from parallax.runtime.verify import difference
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform
from tests.equality.training import plan_of, routes_in

record.install()
STEPS, EXAMPLES, IDS, ROWS, WIDTH, SEED = 6, 4, 3, 13, 4, 7
"""Of each worker's batch: examples, ids in each; of the table: rows and their width. Some rows are never touched."""


class Trained(NamedTuple):
    """What came of training.

    Attributes:
        differences: variable -> the largest relative difference of any worker from plain Keras.
        routes: variable -> its class and route.
        reason: why the table cannot be spread; empty where it is.
        members: the names of the table's slots, below its own.
    """

    differences: dict[str, float]
    routes: dict[str, str]
    reason: str
    members: tuple[str, ...]


def model(make_optimizer: Any, policy: Any = None) -> Any:
    """An embedding and two dense layers, with the same names and initial values at each call."""
    keras.backend.clear_session(free_memory=False)
    optimizer = make_optimizer()
    keras.utils.set_random_seed(3)
    layers = keras.layers
    ids = keras.Input((IDS,), dtype="int32")
    rows = layers.Flatten()(layers.Embedding(ROWS, WIDTH, name="emb", dtype=policy)(ids))
    hidden = layers.Dense(5, activation="tanh", name="hidden", dtype=policy)(rows)
    made = keras.Model(ids, layers.Dense(1, name="out", dtype="float32")(hidden))
    made.compile(optimizer, loss="mse")
    optimizer.build(made.trainable_variables)
    return made


def batches(size: int) -> list[list[tuple[Any, Any]]]:
    """For each step each worker's ids and labels; ids come twice in a batch and on several workers."""
    rng = np.random.RandomState(0)
    return [
        [
            (rng.randint(0, ROWS - 3, (EXAMPLES, IDS)).astype(np.int32), rng.rand(EXAMPLES, 1).astype(np.float32))
            for _ in range(size)
        ]
        for _ in range(STEPS)
    ]


def spec() -> Any:
    """What a step of the model takes."""
    return tf.TensorSpec([None, IDS], tf.int32, name="ids"), tf.TensorSpec([None, 1], tf.float32, name="y")


class Workers:
    """A model on workers in memory, by any route; traced and analysed once.

    Args:
        optimizer: makes a Keras optimizer, anew at each call.
        size: number of workers.
        policy: the dtype policy of the layers.
        merges: whether optimizers see equal rows of a gradient added up.
    """

    def __init__(self, optimizer: Any, size: int = 2, policy: Any = None, merges: bool = False) -> None:
        native_ops()
        self._size, self._batches = size, batches(size)
        made = model(optimizer, policy)
        concrete = trace_training(made, spec(), merges)
        self._steps, found = step_graph(made, {"train": concrete})
        self._step = found["train"]
        self._load()
        self.analysed = analyse(self._steps.graph)
        names = [one.name for one in self._steps.list_variables()]
        self._expect = lambda policy: _plain(optimizer, policy, self._batches, names, merges)
        self._expected = self._expect(policy)

    def distances_from(self, policy: Any) -> dict[str, float]:
        """How far plain Keras ends from plain Keras with another dtype policy, for each variable."""
        other = self._expect(policy)
        return {name: difference(value, other[name]) for name, value in self._expected.items()}

    def result(self, route: str, servers: int = 0) -> Trained:
        """Trains by a route, as far as each variable can take that."""
        plan = plan_of(self.analysed, route, self._size, servers)
        found = self._trained(rewrites_of(self.analysed, plan, equal_randomness=True), plan)
        differences = {
            name: max(difference(worker[name], value) for worker in found)
            for name, value in self._expected.items()
            if not name.startswith("loss/")  # a metric: each worker adds up its own
        }
        table = next(v for v in self.analysed.spec.variables if v.name == "emb/embeddings")
        members = tuple(slot.name.removeprefix("emb/embeddings/") for slot in table.slots)
        return Trained(differences, routes_in(plan), table.reason, members)

    def _load(self) -> None:
        """Puts an op into the graph that gives variables their values."""
        values = [(self._steps.made[one.name], one.variable.numpy()) for one in self._steps.list_variables()]
        with self._steps.graph.as_default():
            tf.group(*[tf.compat.v1.assign(variable, tf.constant(value)) for variable, value in values], name="load")

    def _trained(self, rewrites: Any, plan: Any) -> list[dict[str, Any]]:
        ranks = range(self._size)
        of = [Worker(rank, self._size, SEED, equal_randomness=True, servers=plan.servers) for rank in ranks]
        made = [transform(self.analysed.captured.view, rewrites, worker) for worker in of]
        run = self._step.run.name
        graph_def = combine_workers([one.graph_def for one in made], ["load", run])
        feeds = [tensor.name for tensor in self._step.feeds]
        names = [one.name for one in self._steps.list_variables()]
        reads = [self._steps.graph.as_graph_element(self._steps.made[name]).name for name in names]
        with NamedSession(graph_def, tf.compat.v1.ConfigProto()) as session:
            job = JobInMemory(session, self.analysed, made)
            for phase in initialization_phases(self.analysed.captured):
                job.run_ops([phase] * self._size)
            job.run_ops([list(one.counter_initializers) for one in made])
            job.run(["load"], [{}] * self._size)
            for given in self._batches:
                job.run([run], [dict(zip(feeds, batch, strict=True)) for batch in given])
            values = job.run(reads, [{}] * self._size)
        return [dict(zip(names, own, strict=True)) for own in values]


def _plain(
    optimizer: Any, policy: Any, every: list[list[tuple[Any, Any]]], names: list[str], merges: bool
) -> dict[str, Any]:
    """The values of variables after plain Keras has trained on the global batches."""
    made = model(optimizer, policy)
    updating = getattr(made.optimizer, "inner_optimizer", made.optimizer)
    by_row = hasattr(updating, "update_rows")  # it takes what is sparse as such
    dense = _gradients(made.optimizer, _merged if by_row else tf.convert_to_tensor)
    with dense if merges else contextlib.nullcontext():
        step = tf.function(made.train_step, autograph=False)
        for given in every:
            step(tuple(tf.constant(np.concatenate(part)) for part in zip(*given, strict=True)))
    by_name = {one.name: one.variable for one in variables_of(made, [])}
    return {name: by_name[name].numpy() for name in names}


@contextlib.contextmanager
def _gradients(optimizer: Any, made: Any) -> Any:
    """Has an optimizer take what is made of each gradient."""
    apply = optimizer.apply

    def other(gradients: Any, trainable_variables: Any = None) -> Any:
        return apply([made(gradient) for gradient in gradients], trainable_variables)

    object.__setattr__(optimizer, "apply", other)
    yield
    object.__delattr__(optimizer, "apply")


def _merged(gradient: Any) -> Any:
    """A gradient without equal rows."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
