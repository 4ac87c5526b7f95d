"""Calls of `fit` carried out in the tests' own process by several workers, whose graphs run in one session.

Keras's own `fit` runs once, as on worker 0, with the global batches; a step is that of all workers, each with its share
of the rows, and their results are combined as in a job.
"""

from __future__ import annotations

import functools
import inspect
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession, as_written
from ops.exactness.transport import combine_workers
from parallax import Config
from parallax.analysis.cut.plan_stages import count_stages
from parallax.analysis.graph_to_plan import analyse, analyse_for, plan_for, rewrites_of
from parallax.analysis.reading.capture import initialization_phases
from parallax.functions.batches.micro_batches import StepCut
from parallax.functions.batches.split_batch import BatchPart, ReplicatedPart, check_lengths, take_part
from parallax.functions.tracing.results import default_rule
from parallax.keras import keras3
from parallax.keras.fitting import read_fit, restore_state, run_fit
from parallax.plans.plan import Layout, one_host
from parallax.runtime.worker.session.accumulation import MicroBatchRun
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform
from tests.keras.here import Alone, StepsHere, outcome

v1 = tf.compat.v1
SIZE, SEED = 2, 7
LAST = WeakKeyDictionary()
"""Model -> (its last call, what `compile` had made then), as in a script."""


def plain_fit_of(model):
    """Keras's own `fit` of the model's Keras."""
    return inspect.unwrap(type(model).fit)


def read(model, *args, merge_rows=False, size=SIZE, **kwargs):
    """A call of `fit`, read for so many workers."""
    bound = inspect.signature(plain_fit_of(model)).bind(model, *args, **kwargs)
    arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
    before, compilation = LAST.get(model, (None, None))
    is_compiled_alike = before is not None and compilation is keras3.compilation_of(model)
    return read_fit(model, arguments, size, merge_rows, before=before if is_compiled_alike else None)


def plan_of_fit(model, *args, layouts=None, run_option=None, servers=1, synchronous=True, gather_limit=None, **kwargs):
    """The plan of a call of `fit` for two workers and some servers; the other options are those of Config."""
    analysed = analyse(read(model, *args, **kwargs).graph.graph, layouts=layouts)
    config = Config(run_option=run_option, gather_limit=gather_limit)
    return plan_for(analysed, _layout(SIZE, servers, run_option), config, synchronous)


def fit_by_two(model, *args, **kwargs):
    """What `fit` gives under `parallax run --workers 2`; `merge_rows` is that of `parallax.keras.use`."""
    return fit_by(SIZE, model, *args, **kwargs)


def fit_by(size, model, *args, layouts=None, run_option=None, servers=0, settings=None, options=None, **kwargs):
    """What `fit` gives by so many workers, and servers.

    `layouts`, `run_option` and `settings` are those of Config, and `options` those of the session. Of a model in stages
    there are so many replicas.
    """
    fit = read(model, *args, size=size, **kwargs)
    session = WorkersSession(fit.graph, size, layouts, run_option, servers, settings, options)
    original = functools.partial(plain_fit_of(model), model)
    history, values = run_fit(fit, original, _All(fit.graph, session, 1, 0))
    restore_state(fit, values)
    if isinstance(model, keras.Model):
        LAST[model] = fit, keras3.compilation_of(model)
    return history


class WorkersSession:
    """All workers' graphs in one session.

    Args:
        graph: a StepGraph, with its steps.
        size: how many workers.
        layouts: that of Config.
        run_option: that of Config.
        servers: how many servers; by HYBRID on a host of their own, where tables are put on them.
        settings: others of Config.
        options: of TensorFlow's session, a ConfigProto.
    """

    resumed_step = None

    def __init__(self, graph, size, layouts=None, run_option=None, servers=0, settings=None, options=None):
        native_ops()
        self.writes = {}
        with graph.graph.as_default():
            for name, variable in graph.made.items():
                given = v1.placeholder(variable.dtype, variable.shape)
                self.writes[name] = v1.assign(variable, given).op.name, given.name
        config = Config(run_option=run_option, layouts=layouts, **settings or {})
        count = count_stages(config)
        analysed = analyse_for(graph.graph, config)
        self.plan = plan = plan_for(analysed, _layout(size * count, servers, run_option), config)
        rewrites = rewrites_of(analysed, plan, False)
        self.whole = {name for one in rewrites.layouts for name in one.global_results}
        self.cut = StepCut.of(plan.accumulate_steps, rewrites.micro_batches)
        of = [
            Worker(replica, size, SEED, False, servers=plan.servers, stage=stage)
            for replica in range(size)
            for stage in range(count)
        ]
        made = [transform(analysed.captured.view, rewrites_of(analysed, plan, False), worker) for worker in of]
        runs = [op.name for op in graph.graph.get_operations() if op.name.endswith("/run")]
        runs += [op for op, _ in self.writes.values()]
        tables = [op.name for op in graph.graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)]
        graph_def = combine_workers([one.graph_def for one in made], [*runs, *tables], count)
        session = NamedSession(graph_def, as_written(options))
        self.workers, self.size, self.stages, self.made = Alone(), size, count, made
        self.job = JobInMemory(session, analysed, made)
        for phase in initialization_phases(analysed.captured):
            self.job.run_ops([phase] * size * count)
        self.job.run_ops([list(one.counter_initializers) for one in made])
        self.job.run_ops([tables] * size * count)


class _All(StepsHere):
    """What worker 0 asks of its session, of all workers."""

    def pack_part(self, batch, whole=()):
        """The shares of all workers, as one."""
        batch = [ReplicatedPart(one) if number in whole else one for number, one in enumerate(batch)]
        check_lengths(batch)
        shares = tuple(take_part(batch, one, self._session.size) for one in range(self._session.size))
        return BatchPart(shares, shares[0].total, shares[0].total)

    def start(self, step, share, fetches, parts=(), rules=None):
        """The values of all workers' micro-batches, put together as in a job."""
        job, cut, size, stages = self._session.job, self._session.cut, self._session.size, self._session.stages
        flat, counted = [*parts, *fetches], {tensor.name for tensor in parts}
        cuts = [cut.micro_batches(step, one, size) for one in share.arrays]
        runs = []
        for own in zip(*cuts, strict=True):
            which = MicroBatchRun(len(cuts[0]), own[0].weight_in(share.total)) if cut.count > 1 else None
            given = [{t.name: np.asarray(value) for t, (value,) in self._feeds(step, one).items()} for one in own]
            given = [one for one in given for _ in range(stages)]  # all stages of a replica are fed alike
            found = job.run([step.run.name, *(tensor.name for tensor in flat)], given, micro_batch=which)
            runs.append(found[::stages])
        joined = []
        for number, tensor in enumerate(flat, 1):
            values = [[run[rank][number] for run in runs] for rank in range(size)]
            if default_rule(tensor) == "rows" and tensor.name not in self._session.whole:
                shares = [one for own in cuts for one in own]
                pairs = zip((value for own in values for value in own), shares, strict=True)
                joined.append(np.concatenate([value[: one.rows] for value, one in pairs]))
                continue
            values = [cut.combine_results(tensor.name, own) for own in values]
            if tensor.name in counted:
                joined.append(_sum(values))
            elif tensor.name in self._session.whole or default_rule(tensor) == "whole":
                for other in values[1:]:
                    np.testing.assert_array_equal(values[0], other, err_msg=tensor.name)
                joined.append(values[0])
            else:
                joined.append(np.asarray(np.mean(values, dtype=np.float64), np.asarray(values[0]).dtype))
        return lambda: joined

    def reset(self, op):
        self._session.job.run_ops([[op.name]] * self._session.size * self._session.stages)

    def read(self, names):
        read = [f"{name}/Read/ReadVariableOp:0" for name in names]
        workers = self._session.size * self._session.stages
        return dict(zip(names, self._session.job.run(read, [{}] * workers)[0], strict=True))

    def write(self, values):
        ops = [self._session.writes[name] for name in values]
        given = {fed: np.asarray(value) for (_, fed), value in zip(ops, values.values(), strict=True)}
        self._session.job.run([op for op, _ in ops], [given] * self._session.size * self._session.stages)


def _layout(size, servers, run_option):
    return Layout((size, 0), (1,) * servers) if run_option == "HYBRID" else one_host(size, servers)


def _sum(values):
    return np.sum(np.asarray(values, np.float64), axis=0).astype(np.asarray(values[0]).dtype)


def outcome_of_two(make, seed=3):
    """What a script comes to with two workers (tests/keras/here.py)."""
    return outcome(fit_by_two, make, seed)
