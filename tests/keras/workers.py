"""Trains Keras models on workers in memory, with batches cut as a test wants, and by plain Keras on whole batches."""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession
from ops.exactness.transport import combine_workers
from parallax import Config
from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.analysis.reading.capture import initialization_phases
from parallax.functions.tracing.step_graph import StepGraph
from parallax.keras.inputs import open_spec
from parallax.keras.model_steps import trace_evaluation, trace_training, variables_of
from parallax.plans.plan import one_host
from parallax.runtime.guard.watched_variables import watched_variables
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform

v1 = tf.compat.v1
SEED = 7


class WithValues(StepGraph):
    """A graph whose variables start at the model's values."""

    def __post_init__(self):
        super().__post_init__()
        self._values = {one.name: one.variable.numpy() for one in self.variables}

    def _initializer(self, one):
        return v1.constant_initializer(self._values[one.name])


class KerasJob:
    """A compiled model, with what workers are to do of it.

    Args:
        model: compiled; it is built by a first call with the data's shapes.
        data: a batch, `(x, y)` or `(x, y, sample_weight)`, of whose shapes and types the steps are traced.
        evaluates: whether there is an evaluation step besides.
    """

    def __init__(self, model, data, evaluates=False):
        native_ops()
        self.model = model
        spec = open_spec(tf.nest.map_structure(tf.type_spec_from_value, data))
        traced = {"train": trace_training(model, spec)}
        traced = {"train": trace_training(model, spec)}  # the first has made what Keras makes late
        if evaluates:
            traced["test"] = trace_evaluation(model, spec)
        self.variables = variables_of(model, [one for step in traced.values() for one in step.captured])
        graph = WithValues(self.variables, sums=[one for step in traced.values() for one in step.metrics])
        self.steps = {name: graph.add(name, one.concrete, is_uneven=True) for name, one in traced.items()}
        self.graph = graph.graph
        self.names = [one.name for one in graph.list_variables()]
        self.analysed = analyse(self.graph)

    def plan(self, size, config=None):
        """The plan for so many workers of one host."""
        return plan_for(self.analysed, one_host(size), config or Config())

    def worker_graphs(self, size, config=None, equal_randomness=False):
        rewrites = rewrites_of(self.analysed, self.plan(size, config), equal_randomness)
        worker = Worker(0, size, SEED, equal_randomness)
        view = self.analysed.captured.view
        return [transform(view, rewrites, replace(worker, rank=rank)) for rank in range(size)]

    def run(self, cuts, batches, step="train", config=None, fetches=(), equal_randomness=False):
        """Runs a step on workers, batch by batch.

        Args:
            cuts: how many rows of a batch each worker has.
            batches: whole ones.
            step: which.
            config: of the plan.
            fetches: tensors of the graph.
            equal_randomness: whether all workers draw the same numbers.

        Returns:
            For each batch a list, by worker, of the values of variables after it, by name, and of the fetches.
        """
        made = self.worker_graphs(len(cuts), config, equal_randomness)
        reads = {
            name: self.graph.get_operation_by_name(f"{name}/Read/ReadVariableOp").outputs[0] for name in self.names
        }
        run, found = self.steps[step].run.name, []
        with NamedSession(combine_workers([one.graph_def for one in made], [run]), v1.ConfigProto()) as session:
            job = JobInMemory(session, self.analysed, made)
            for phase in initialization_phases(self.analysed.captured):
                job.run_ops([phase] * len(cuts))
            job.run_ops([list(one.counter_initializers) for one in made])
            for batch in batches:
                length = {self.steps[step].length.name: np.int64(sum(cuts))}
                given = [self._feeds(step, part) | length for part in cut(batch, cuts)]
                seen = job.run([run, *fetches], given)
                values = job.run([t.name for t in reads.values()], [{}] * len(cuts))
                found.append(
                    [
                        dict(zip(reads, own, strict=True)) | dict(zip(fetches, more[1:], strict=True))
                        for own, more in zip(values, seen, strict=True)
                    ]
                )
        watched = {one.op for one in watched_variables(self.analysed.captured.view, (), made[0])}
        for name in watched & set(self.names):
            for one in found[-1]:
                np.testing.assert_array_equal(one[name], found[-1][0][name], err_msg=name)
        return found

    def _feeds(self, step, data):
        values = [np.asarray(one) for one in tf.nest.flatten(data, expand_composites=True)]
        return {feed.name: value for feed, value in zip(self.steps[step].feeds, values, strict=True)}


def cut(batch, cuts):
    """A whole batch in parts of so many rows, one after the other."""
    ends = np.cumsum(cuts)
    return [
        tf.nest.map_structure(lambda a, end=end, rows=rows: a[end - rows : end], batch)
        for end, rows in zip(ends, cuts, strict=True)
    ]


def means_of(model, found):
    """What the `Mean` metrics of a model give of all workers' states, for each batch: metric's name -> result.

    Args:
        model: whose metrics they are.
        found: for each batch, by worker the values of variables, by path.
    """
    metrics = [one for metric in model.metrics for one in getattr(metric, "metrics", [metric])]
    sums = [{w.path: sum(v[w.path] for v in values) for m in metrics for w in m.variables} for values in found]
    before, results = dict.fromkeys(sums[0], 0.0), []
    for after in sums:
        one = {}
        for metric in metrics:
            total, count = (after[w.path] - before[w.path] for w in metric.variables)
            one[metric.name] = total / count if count else 0.0  # as Keras has it
        results.append(one)
        before = after
    return results


def in_keras(model, batches, step="train"):
    """Plain Keras's (values of all trained variables, results of metrics), after and of each batch.

    Keras 3.12 goes on counting from batch to batch, and later ones begin anew.
    """
    found = []
    run = model.train_on_batch if step == "train" else model.test_on_batch
    for batch in batches:
        model.reset_metrics()
        results = run(*batch, return_dict=True)
        values = {v.path: v.numpy() for v in model.variables}
        found.append((values, {name: float(value) for name, value in results.items()}))
    return found


def difference(found, expected):
    """The largest difference, relative to the norm of what is expected."""
    return float(np.linalg.norm(np.asarray(found, float) - expected) / max(np.linalg.norm(expected), 1e-3))


def seeded(build):
    """A model with the initial values of one seed."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    return build()
