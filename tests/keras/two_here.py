"""Calls of `fit` carried out in the tests' own process by two workers, whose graphs run in one session.

Keras's own `fit` runs once, as on worker 0, with the whole batches; a step is that of both workers, each with its share
of the rows, and of what they have is put together what a job puts together.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from unittest import mock

import numpy as np
import tensorflow as tf

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession
from ops.exactness.transport import together
from parallax import Config
from parallax.analysis.reading.capture import initialization_phases
from parallax.analysis.stages import analyse, plan_for, rewrites_of
from parallax.functions.running import RunningSteps
from parallax.functions.shares import share_of
from parallax.keras import fitting
from parallax.keras.fitting import history_of, read_fit, result_of, run_fit, take_state
from parallax.plans.plan import one_host
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform
from tests.keras.here import Alone, outcome

v1 = tf.compat.v1
SIZE, SEED = 2, 7


def plain_fit_of(model):
    """Keras's own `fit` of the model's Keras."""
    return inspect.unwrap(type(model).fit)


def read(model, *args, merge_rows=True, **kwargs):
    """A call of `fit`, read for two workers."""
    bound = inspect.signature(plain_fit_of(model)).bind(model, *args, **kwargs)
    arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
    return read_fit(model, arguments, SIZE, merge_rows)


def plan_of_fit(model, *args, **kwargs):
    """The plan of a call of `fit` for two workers."""
    return plan_for(analyse(read(model, *args, **kwargs).graph.graph), one_host(SIZE), Config())


def fit_by_two(model, *args, **kwargs):
    """What `fit` gives under `parallax run --workers 2`; `merge_rows` is that of `parallax.keras.use`."""
    fit = read(model, *args, **kwargs)
    session, original = TwoWorkersSession(fit.graph), functools.partial(plain_fit_of(model), model)
    with mock.patch.object(fitting, "RunningSteps", _Both), mock.patch("parallax.keras.training.share_of", _shares):
        history, values = run_fit(fit, original, session, 1, 0)
    result = pickle.loads(pickle.dumps(result_of(fit, history, values)))
    take_state(fit, result.pop("values"))
    return history_of(model, result, fit.arguments)


class TwoWorkersSession:
    """Both workers' graphs in one session.

    Args:
        graph: a StepGraph, with its steps.
    """

    def __init__(self, graph):
        native_ops()
        self.writes = {}
        with graph.graph.as_default():
            for name, variable in graph.made.items():
                given = v1.placeholder(variable.dtype, variable.shape)
                self.writes[name] = v1.assign(variable, given).op.name, given.name
        analysed = analyse(graph.graph)
        rewrites = rewrites_of(analysed, plan_for(analysed, one_host(SIZE), Config()), False)
        made = [transform(analysed.captured.view, rewrites, Worker(rank, SIZE, SEED, False)) for rank in range(SIZE)]
        runs = [op.name for op in graph.graph.get_operations() if op.name.endswith("/run")]
        runs += [op for op, _ in self.writes.values()]
        session = NamedSession(together([one.graph_def for one in made], runs), v1.ConfigProto())
        self.workers, self.job = Alone(), JobInMemory(session, analysed, made)
        for phase in initialization_phases(analysed.captured):
            self.job.run_ops([phase] * SIZE)
        self.job.run_ops([list(one.counter_initializers) for one in made])


class _Both(RunningSteps):
    """What worker 0 asks of its session, of both."""

    def run(self, step, feeds, fetches, *_):
        flat, counted = tf.nest.flatten(fetches), {tensor.name for tensor in step.fetches[1]}
        given = [{p.name: np.asarray(v) for p, v in zip(step.feeds, one, strict=True)} for one in feeds]
        found = self._session.job.run([step.run.name, *(tensor.name for tensor in flat)], given)
        pairs = zip(flat, *(one[1:] for one in found), strict=True)
        return tf.nest.pack_sequence_as(fetches, [(_sum if t.name in counted else _log)(*pair) for t, *pair in pairs])

    def run_op(self, op):
        self._session.job.run_ops([[op.name]] * SIZE)

    def read(self, name):
        return self._session.job.run([f"{name}/Read/ReadVariableOp:0"], [{}] * SIZE)[0][0]

    def write(self, name, value):
        op, given = self._session.writes[name]
        self._session.job.run([op], [{given: np.asarray(value)}] * SIZE)


def _sum(one, other):
    return (np.asarray(one, np.float64) + other).astype(np.asarray(one).dtype)


def _log(one, other):
    """Rows one after the other, and of numbers the mean, as training on several workers does."""
    return np.concatenate([one, other]) if np.ndim(one) else np.asarray(_sum(one, other) / 2, np.asarray(one).dtype)


def _shares(batch, rank, size):
    return [share_of(batch, one, SIZE) for one in range(SIZE)]


def outcome_of_two(make, seed=3):
    """What a script comes to with two workers (tests/keras/here.py)."""
    return outcome(fit_by_two, make, seed)
