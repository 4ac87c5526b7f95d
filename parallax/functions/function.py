"""Training steps of custom loops: a function that one process calls with whole batches is carried out by all workers.

`function` gives a step that is called like the original. At its first call the launching process plans the traced step,
starts workers that run the whole script, and ends with the job's exit status, as at `parallel_run`. In a worker the
first call opens the session on the step's graph; from then on calls run it, each worker on its rows of the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from parallax import call as calls
from parallax.errors import ConfigError, SessionError
from parallax.functions.attachments import attached, attachment_with
from parallax.functions.called_functions import watch_calls
from parallax.functions.results import joined, rules_of
from parallax.functions.running import RunningSteps
from parallax.functions.shares import digest_of, rows_of, share_of
from parallax.functions.step_graph import GraphStep, StepGraph
from parallax.functions.traced import is_loaded, portable_values, take_values
from parallax.functions.tracing import Arguments, arguments_of, check_same, traced_step
from parallax.functions.variables import SessionVariables
from parallax.graph.batches import place_of_share
from parallax.runtime.worker.ranks import current_process_group
from parallax.settings.config import Config
from parallax.types import Argument, Nest, TensorLike

_ONE_STEP = (
    "A script has one step that all workers carry out, and this is a second one: {second}, after {first}. Do what both "
    "do in one step, or call this one as it is, a tf.function: every worker then computes all of it, with all rows."
)


def function(
    step: Callable[..., Nest] | None = None,
    resource_info: str | Path | None = None,
    parallax_config: Config | None = None,
    *,
    returns: Nest = None,
    merge_rows: bool = True,
) -> Any:
    """A training step of a custom loop, carried out by all workers; also usable as a decorator.

    It takes the batch of one process, tensors or arrays whose first dimension is the batch; each worker takes its rows
    of every one of them. Scalar tensors go to all, and other Python values are constants of the step. All workers must
    call it with the same arguments.

    Of what it returns, a scalar of a floating type is that of the whole batch (a mean over it, where the plan says
    nothing else), and a tensor whose first dimension is that of the batch has the rows of all, in order. What is
    neither needs `returns`. Keras's metrics that it updates have the sums of all workers when they are asked outside.

    Variables of the script have the trained values when they are read; all workers must read them.

    Args:
        step: a function, or a `tf.function`, that trains variables: with a tape, and an optimizer of Keras or TF1.
        resource_info: a resource file; None for workers on this machine.
        parallax_config: settings.
        returns: "mean", "sum", "rows" or "same", or a structure of them like that of what the step returns.
        merge_rows: whether Keras's optimizers see equal rows of a sparse gradient added up, and so do what they do with
            a dense gradient.

    Raises:
        ConfigError: an argument has the wrong type.
    """
    if parallax_config is not None and not isinstance(parallax_config, Config):
        raise ConfigError(f"parallax_config must be a parallax.Config, and {parallax_config!r} was given.")
    if step is None:
        return functools.partial(
            function,
            resource_info=resource_info,
            parallax_config=parallax_config,
            returns=returns,
            merge_rows=merge_rows,
        )
    if not callable(step):
        raise ConfigError(f"parallax.function takes a function that makes one training step, and {step!r} was given.")
    have_input_alike()
    return DistributedStep(step, resource_info, parallax_config or Config(), returns, merge_rows)


def have_input_alike() -> None:
    """In a worker, has the script draw the same numbers on all workers, for each takes its part of the same input."""
    if calls.is_worker():
        members = current_process_group()
        members.when_built.clear()
        if context.global_seed() is None:
            tf.random.set_seed(members.parcel.seed)


class DistributedStep:
    """What `function` gives; calls are those of the original step."""

    def __init__(
        self,
        step: Callable[..., Nest],
        resource_info: str | Path | None,
        config: Config,
        returns: Nest,
        merges_rows: bool,
    ) -> None:
        self._step, self._resource_info, self._config = step, resource_info, config
        self._returns, self._merges_rows = returns, merges_rows
        self._running: _OpenStep | None = None
        name = getattr(step, "__name__", getattr(getattr(step, "python_function", None), "__name__", "step"))
        self._name = str(name) if str(name).isidentifier() else "step"

    @property
    def worker_id(self) -> int:
        """This worker's number, from 0; before the first call 0."""
        return 0 if self._running is None else self._running.rank

    def graph_of(self, *args: Argument, **kwargs: Argument) -> tf.Graph:
        """The graph that a call with these arguments trains, for `parallax.plan`; nothing is started."""
        return self._read(args, kwargs)[1].graph

    def __call__(self, *args: Argument, **kwargs: Argument) -> Nest:
        """Carries out a step.

        Raises:
            JobEnded: at the first call, in the launching process, with the job's exit status.
            ParallaxError: as `parallel_run`.
        """
        if self._running is None:
            self._running = self._begun(args, kwargs)
        return self._running.run(args, kwargs)

    def _read(
        self, args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> tuple[Arguments, StepGraph, GraphStep, tuple[str, ...]]:
        arguments = arguments_of(args, kwargs, getattr(self._step, "input_signature", None))
        traced = traced_step(self._step, arguments, self._merges_rows, self._returns)
        graph = StepGraph(traced.variables)
        with_rows = [one for one in arguments.tensors if len(one.shape)]
        full = rows_of(with_rows) if with_rows else 0
        step = graph.add(self._name, traced.concrete, is_uneven=True, full=full)
        return arguments, graph, step, rules_of(step.fetches, self._returns)

    def _begun(self, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> _OpenStep:
        _count_step(self._name)
        arguments, graph, step, rules = self._read(args, kwargs)
        parts = SessionVariables(graph)
        number = calls.next_call()
        taken = {one.name: one.variable for one in graph.taken()}
        state = portable_values(taken) if calls.jobs_run() or is_loaded() else None
        session, size, rank, given = calls.run_to_the_end(
            number, graph.graph, attachment_with(state), self._config, self._resource_info
        )
        take_values(taken, attached(given).state or {})
        running = RunningSteps(graph, session, size, rank)
        watch_calls(parts.begin(running))
        return _OpenStep(running, parts, step, arguments, rules)


class _OpenStep:
    """A step that runs in this worker's session.

    Attributes:
        rank: of this worker.
    """

    def __init__(
        self,
        running: RunningSteps,
        variables: SessionVariables,
        step: GraphStep,
        arguments: Arguments,
        rules: tuple[str, ...],
    ) -> None:
        self.rank = running.rank
        self._running, self._variables, self._step = running, variables, step
        self._arguments, self._rules = arguments, rules

    def run(self, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Nest:
        rank, size = self._running.rank, self._running.size
        given = arguments_of(args, kwargs)
        check_same(self._arguments, given)
        batch = list(given.tensors)
        rows, every = _rows(batch, rank, size)
        self._variables.flush()
        feeds = share_of(batch, rank, size) if every else [one for one in batch]
        flat = [one for one in tf.nest.flatten(self._step.fetches) if one is not None]
        values = self._running.run(self._step, feeds, flat, every)
        self._variables.outdate()
        digest = digest_of(batch) if size > 1 else 0
        found = iter(joined(values, self._rules, rows if every else 1, digest, self._running.comm))
        return tf.nest.map_structure(
            lambda one: None if one is None else tf.convert_to_tensor(next(found)), self._step.fetches
        )


def _rows(batch: list[TensorLike], rank: int, size: int) -> tuple[int, int]:
    """(this worker's rows, all); zeros where no argument has any."""
    with_rows = [one for one in batch if len(one.shape)]
    if not with_rows:
        return 0, 0
    lengths = sorted({rows_of([one]) for one in with_rows})
    if len(lengths) > 1:
        raise SessionError(
            f"All arguments of a step that have a first dimension have that of the batch, and there are {lengths}. "
            "What is not of the batch, give the step in a variable, or take it from around it."
        )
    first, end = place_of_share(lengths[0], rank, size)
    return end - first, lengths[0]


_steps: list[str] = []
"""The steps that this process has begun, by name: one."""


def _count_step(name: str) -> None:
    if _steps:
        raise SessionError(_ONE_STEP.format(first=_steps[0], second=name))
    _steps.append(name)
