"""Calls of `fit` carried out in the tests' own process by one worker, and the same by plain Keras."""

from __future__ import annotations

import functools
import inspect

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from ops.exactness.session import as_written
from parallax.functions.batches.split_batch import take_part
from parallax.functions.remote.step_runner import RunningSteps, place_of_value
from parallax.functions.tracing.keras_optimizers import merging_rows
from parallax.keras.fitting import read_fit, restore_state, run_fit

v1 = tf.compat.v1
PLAIN_FIT = inspect.unwrap(TensorFlowTrainer.fit)


class Alone:
    """The communicator of a single worker."""

    def Get_size(self):
        return 1

    def Get_rank(self):
        return 0

    def bcast(self, value, root=0):
        return value


class OneWorkerSession:
    """A session of TensorFlow's own in the place of a worker's: values in lists, variables by their ops' names."""

    def __init__(self, graph):
        self.workers = self.comm = Alone()
        self.values, self.resumed_step = self, None
        self._session = v1.Session(graph=graph.graph, config=as_written())
        self._variables = {variable.handle.op.name: variable for variable in graph.made.values()}
        self._session.run([variable.initializer for variable in graph.made.values()])

    def run(self, fetches, feeds=None):
        given = {placeholder: value for placeholder, (value,) in (feeds or {}).items()}
        if not isinstance(fetches, list):
            return self._session.run(fetches, given)
        return [[value] for value in self._session.run(fetches, given)]

    def run_parts(self, fetches, fed, micro_batches):
        return [self.run(fetches, feeds) for feeds in fed]

    def read(self, ops):
        return self._session.run({op: self._variables[op] for op in ops})

    def write(self, values):
        initializers = {op: self._variables[op].initializer for op in values}
        self._session.run(list(initializers.values()), {initializers[op].inputs[1]: values[op] for op in values})

    def close(self):
        self._session.close()


class StepsHere(RunningSteps):
    """The steps of a worker of this process, as the script drives them."""

    is_spread = False

    def back_up(self):
        """Nothing: this worker fails with the script."""

    def variables(self):
        return {one.name: one.variable for one in self._graph.list_variables()}

    def begin(self, parts):
        if self.resumed_step is not None:
            return
        local = {name for names in parts.values() for name in names}
        taken = {name: variable for name, variable in self.variables().items() if name not in local}
        self.write({name: one.numpy() for name, one in taken.items() if place_of_value(one) is None})

    def pack_part(self, batch, whole=()):
        return take_part(batch, 0, 1)

    def start(self, step, share, fetches, parts=(), rules=None):
        found = self.run(step, share, [*parts, *fetches])[0]
        return lambda: found


def fit_here(model, *args, **kwargs):
    """What `fit` gives under `parallax run`, with one worker, in this process."""
    bound = inspect.signature(PLAIN_FIT).bind(model, *args, **kwargs)
    fit = read_fit(model, {name: value for name, value in bound.arguments.items() if name != "self"})
    session = OneWorkerSession(fit.graph)
    history, values = run_fit(fit, functools.partial(PLAIN_FIT, model), StepsHere(fit.graph, session, 1, 0))
    session.close()
    restore_state(fit, values)
    return history


def fit_plainly(model, *args, **kwargs):
    """Keras's own `fit`."""
    return PLAIN_FIT(model, *args, **kwargs)


def fit_merged(model, *args, **kwargs):
    """Keras's own `fit`, with equal rows of a gradient merged."""
    with merging_rows(model.optimizer):
        return PLAIN_FIT(model, *args, **kwargs)


def outcome(train, make, seed=3):
    """What a script comes to: its own results, and all that its model then holds.

    Args:
        train: `fit_here` or `fit_plainly`.
        make: the script: takes `train`, gives (model, a structure of numbers).
        seed: of everything.
    """
    keras.backend.clear_session(free_memory=False)  # Python collects garbage by itself when there is much
    keras.utils.set_random_seed(seed)
    model, found = make(train)
    optimizer = model.optimizer
    return {
        "found": found,
        "weights": [v.numpy() for v in model.variables],
        "optimizer": [v.numpy() for v in optimizer.variables],
        "rate": float(np.asarray(optimizer.learning_rate)),
        "seed": np.random.rand(),  # nothing more and nothing less was drawn
    }


def difference(first, second):
    """The largest difference of two structures of numbers: absolute below 1, relative above."""
    tf.nest.assert_same_structure(first, second)
    worst = 0.0
    for one, other in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        if isinstance(one, str) or one is None:
            assert one == other
            continue
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert one.shape == other.shape, (one, other)
        assert np.array_equal(np.isnan(one), np.isnan(other)), (one, other)
        if one.size:
            worst = max(worst, float(np.nanmax(np.abs(one - other) / np.maximum(1, np.abs(other)), initial=0)))
    return worst


def check(make, most=1e-6, seed=3):
    """A script comes to the same here as in plain Keras."""
    here, plain = outcome(fit_here, make, seed), outcome(fit_plainly, make, seed)
    parts = {name: difference(here[name], plain[name]) for name in plain}
    assert max(parts.values()) <= most, (parts, here["found"], plain["found"])
    return here
