"""Training steps of custom loops: a function that one process calls with whole batches is carried out by all workers.

`function` gives a step that is called like the original. At its first call the launching process plans the traced step,
starts workers that run the whole script, and ends with the job's exit status, as at `parallel_run`. In a worker the
first call opens the session on the step's graph; from then on calls run it, each worker on its rows of the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function as PolymorphicFunction

from parallax import call as calls
from parallax.errors import ConfigError, GraphError, SessionError
from parallax.functions.arguments import Arguments, arguments_of, bound_arguments, check_same, check_signature
from parallax.functions.attachments import attached, attachment_with
from parallax.functions.batch_statistics import statistics_of
from parallax.functions.input_digests import check_input
from parallax.functions.input_order import iterate_in_order
from parallax.functions.results import joined, mark_sums, rules_of
from parallax.functions.running import RunningSteps
from parallax.functions.shares import Share, digest_of, examples_of, rows_of, share_of
from parallax.functions.step_graph import GraphStep, StepGraph
from parallax.functions.traced import is_loaded, portable_values, take_values
from parallax.functions.tracing import AS_TENSORFLOW, Tracing, traced_step
from parallax.functions.variables import SessionVariables
from parallax.logger import log
from parallax.runtime.worker.ranks import current_process_group
from parallax.settings.config import Config
from parallax.types import Argument, Nest, TensorLike, TypeSpec

_ONE_STEP = (
    "A script has one step that all workers carry out, and this is a second one: {second}, after {first}. Do what both "
    "do in one step, or call this one as it is, a tf.function: every worker then computes all of it, with all rows."
)
_NO_FUNCTION = "parallax.function takes a function that makes one training step, and {given!r} was given."
_ONE_OBJECT = (
    "A step that is a method runs in a graph that was made at its first call, for one object, and {name} is now called "
    "for another one. Train both in one step, or write a script for each."
)
_IN_A_FUNCTION = (
    "The script calls a step of parallax.function itself, for each batch, and {name} is called within another function "
    "that TensorFlow traces (a tf.function, or a model's train_step). Call it in a Python loop, or decorate the outer "
    "function with parallax.function and this one with tf.function."
)
_UNKNOWN_KEYWORD = (
    "parallax.function takes resource_info, parallax_config, returns and merge_rows, and of tf.function's keywords "
    "input_signature, autograph, experimental_autograph_options, jit_compile, reduce_retracing and name; {names} was "
    "given. Leave it out."
)
_NO_CONCRETE_FUNCTION = (
    "The workers of {name} carry out graphs of their own, with collectives, and there is no ConcreteFunction of them. "
    "Trace one process's step, tf.function({name}.python_function).get_concrete_function(...), or look at the graph "
    "that is planned: {name}.graph_of(...)."
)
_NOT_COMPILED = (
    "jit_compile=True is left out: workers carry out the step as a graph with collectives, which XLA does not compile. "
    "The results are those of the step without it."
)


def function(
    step: Callable[..., Nest] | None = None,
    resource_info: str | Path | None = None,
    parallax_config: Config | None = None,
    *,
    returns: Nest = None,
    merge_rows: bool = False,
    input_signature: Sequence[TypeSpec] | None = None,
    autograph: bool = True,
    experimental_autograph_options: object = None,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    name: str | None = None,
    **others: object,
) -> Any:
    """A training step of a custom loop, carried out by all workers; also usable as a decorator, of a method too.

    It takes the batch of one process, tensors or arrays whose first dimension is the batch; each worker takes its rows
    of every one of them. Scalar tensors go to all, and other Python values are constants of the step. All workers must
    call it with the same arguments.

    Of what it returns, a scalar of a floating type is that of the whole batch (a mean over it, where the plan says
    nothing else), and a tensor whose first dimension is that of the batch has the rows of all, in order. What is
    neither needs `returns`. Keras's metrics that it updates have the sums of all workers when they are asked outside.

    Variables of the script have the trained values when they are read; all workers must read them.

    Args:
        step: a function, or a `tf.function`, that trains variables: with a tape, and an optimizer of Keras or TF1. A
            `tf.function` brings its own settings of those below.
        resource_info: a resource file; None for workers on this machine.
        parallax_config: settings.
        returns: "mean", "sum", "rows" or "same", or a structure of them like that of what the step returns.
        merge_rows: whether Keras's optimizers see equal rows of a sparse gradient added up, and so do what they do with
            a dense gradient; without it they do what they do in plain Keras.
        input_signature: specs of the arguments, as for `tf.function`; the first dimension of a batch is open anyway.
        autograph: whether Python's control flow on tensors becomes TensorFlow's.
        experimental_autograph_options: for that.
        jit_compile: left out, with a warning where it is True: the step has collectives.
        reduce_retracing: accepted; a step is traced once, for batches of any length.
        name: of the step in its graph; None for the function's own.
        others: refused.

    Raises:
        ConfigError: an argument has the wrong type, or is unknown.
    """
    if others:
        raise ConfigError(_UNKNOWN_KEYWORD.format(names=", ".join(f"{key}={value!r}" for key, value in others.items())))
    if parallax_config is not None and not isinstance(parallax_config, Config):
        raise ConfigError(f"parallax_config must be a parallax.Config, and {parallax_config!r} was given.")
    check_signature(input_signature)
    tracing = Tracing(input_signature, autograph, experimental_autograph_options)

    def distributed(one: Callable[..., Nest]) -> DistributedStep:
        if not callable(one):
            raise ConfigError(_NO_FUNCTION.format(given=one))
        have_input_alike()
        whole = _settings_of(one, tracing)
        if jit_compile or getattr(one, "_jit_compile", None):
            log.warning(_NOT_COMPILED)
        return DistributedStep(one, resource_info, parallax_config or Config(), returns, merge_rows, whole, name)

    return distributed if step is None else distributed(step)


def _settings_of(step: Callable[..., Nest], tracing: Tracing) -> Tracing:
    """How a step is traced: a `tf.function` as it says itself, where nothing else is said."""
    if not isinstance(step, PolymorphicFunction):
        return tracing
    return Tracing(
        tracing.input_signature if tracing.input_signature is not None else step.input_signature,
        tracing.autograph and step._autograph,
        tracing.autograph_options or step._experimental_autograph_options,
    )


def have_input_alike() -> None:
    """In a worker, has the script draw the same numbers on all workers, for each takes its part of the same input."""
    if calls.is_worker():
        members = current_process_group()
        members.when_built.clear()
        iterate_in_order()
        if context.global_seed() is None:
            tf.random.set_seed(members.parcel.seed)


class DistributedStep:
    """What `function` gives; calls are those of the original step.

    Attributes:
        python_function: the original step.
        input_signature: specs of its arguments; None where there is none.
    """

    def __init__(
        self,
        step: Callable[..., Nest],
        resource_info: str | Path | None,
        config: Config,
        returns: Nest,
        merges_rows: bool,
        tracing: Tracing = AS_TENSORFLOW,
        name: str | None = None,
    ) -> None:
        self.python_function: Callable[..., Nest] = getattr(step, "python_function", step)
        self.input_signature = tracing.input_signature
        self._resource_info, self._config, self._tracing = resource_info, config, tracing
        self._returns, self._merges_rows = returns, merges_rows
        self._running: _OpenStep | None = None
        self._owner: tuple[object, ...] = ()
        functools.update_wrapper(self, self.python_function, updated=())
        found = str(name or getattr(self.python_function, "__name__", "step"))
        self._name = found if found.isidentifier() else "step"

    def __get__(self, instance: object, owner: type | None = None) -> DistributedStep | MethodStep:
        """The step as a method of an object; of the class, the step itself."""
        return self if instance is None else MethodStep(self, instance)

    @property
    def worker_id(self) -> int:
        """This worker's number, from 0; before the first call 0."""
        return 0 if self._running is None else self._running.rank

    def graph_of(self, *args: Argument, **kwargs: Argument) -> tf.Graph:
        """The graph that a call with these arguments trains, for `parallax.plan`; nothing is started."""
        return self.read((), args, kwargs)[1].graph

    def refresh_variables(self) -> None:
        """Gives this process the trained values of all variables; every worker must call it.

        Until the next step a worker may then read variables alone, as a checkpoint that worker 0 writes does. Before
        the first call nothing is to be done.
        """
        if self._running is not None:
            self._running.refresh_variables()

    def get_concrete_function(self, *args: Argument, **kwargs: Argument) -> NoReturn:
        """Refused: there is none.

        Raises:
            GraphError: always.
        """
        raise GraphError(_NO_CONCRETE_FUNCTION.format(name=self._name))

    def __call__(self, *args: Argument, **kwargs: Argument) -> Nest:
        """Carries out a step.

        Raises:
            JobEnded: at the first call, in the launching process, with the job's exit status.
            ParallaxError: as `parallel_run`.
        """
        return self.call((), args, kwargs)

    def call(self, owner: tuple[object, ...], args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Nest:
        """Carries out a step, as `__call__`.

        Args:
            owner: the object whose method it is, alone; empty for a function.
            args: by position, without it.
            kwargs: by name.
        """
        if not tf.executing_eagerly():
            raise GraphError(_IN_A_FUNCTION.format(name=self._name))
        if self._running is None:
            self._running, self._owner = self._begun(owner, args, kwargs), owner
        if [id(one) for one in owner] != [id(one) for one in self._owner]:
            raise SessionError(_ONE_OBJECT.format(name=self._name))
        return self._running.run(self._arguments(owner, args, kwargs))

    def read(
        self, owner: tuple[object, ...], args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> tuple[Arguments, StepGraph, GraphStep, tuple[str, ...]]:
        """Traces the step for a call's arguments; see `call`.

        Returns:
            The arguments, the graph, the step in it, and how each of its results is put together.
        """
        arguments = self._arguments(owner, args, kwargs)
        step = functools.partial(self.python_function, *owner) if owner else self.python_function
        with statistics_of(self._config.batch_norm):
            traced = traced_step(step, arguments, self._merges_rows, self._returns, self._tracing)
        graph = StepGraph(traced.variables)
        with_rows = [one for one in arguments.tensors if len(one.shape)]
        full = rows_of(with_rows) if with_rows else 0
        workers = calls.number_of_workers(self._config, self._resource_info)
        examples = examples_of(arguments.tensors, workers)
        found = graph.add(self._name, traced.concrete, is_uneven=True, examples=examples, full=full)
        rules = rules_of(found.fetches, self._returns)
        fetches, rules = mark_sums(graph.graph, found.fetches, rules)
        return arguments, graph, replace(found, fetches=fetches), rules

    def _arguments(
        self, owner: tuple[object, ...], args: tuple[Argument, ...], kwargs: dict[str, Argument]
    ) -> Arguments:
        given, named = bound_arguments(self.python_function, (*owner, *args), kwargs)
        return arguments_of(given[len(owner) :], named, self.input_signature)

    def _begun(self, owner: tuple[object, ...], args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> _OpenStep:
        _count_step(self._name)
        arguments, graph, step, rules = self.read(owner, args, kwargs)
        parts = SessionVariables(graph)
        number = calls.next_call()
        taken = {one.name: one.variable for one in graph.taken()}
        state = portable_values(taken) if calls.jobs_run() or is_loaded() else None
        session, size, rank, given = calls.run_to_the_end(
            number, graph.graph, attachment_with(state, arguments.tensors), self._config, self._resource_info
        )
        launched = attached(given)
        check_input(number, arguments.tensors, launched.digest)
        take_values(taken, launched.state or {})
        running = RunningSteps(graph, session, size, rank)
        parts.begin(running)
        return _OpenStep(running, parts, step, arguments, rules)


@dataclass(frozen=True, slots=True)
class MethodStep:
    """A step as a method of an object.

    Attributes:
        step: the step.
        owner: the object.
    """

    step: DistributedStep
    owner: object

    @property
    def worker_id(self) -> int:
        """See `DistributedStep`."""
        return self.step.worker_id

    @property
    def input_signature(self) -> Sequence[TypeSpec] | None:
        """See `DistributedStep`."""
        return self.step.input_signature

    @property
    def python_function(self) -> Callable[..., Nest]:
        """The original method, of the object."""
        return functools.partial(self.step.python_function, self.owner)

    def graph_of(self, *args: Argument, **kwargs: Argument) -> tf.Graph:
        """See `DistributedStep`."""
        return self.step.read((self.owner,), args, kwargs)[1].graph

    def refresh_variables(self) -> None:
        """See `DistributedStep`."""
        self.step.refresh_variables()

    def get_concrete_function(self, *args: Argument, **kwargs: Argument) -> NoReturn:
        """See `DistributedStep`."""
        self.step.get_concrete_function(*args, **kwargs)

    def __call__(self, *args: Argument, **kwargs: Argument) -> Nest:
        """See `DistributedStep`."""
        return self.step.call((self.owner,), args, kwargs)


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

    def refresh_variables(self) -> None:
        """Gives this process the values of all variables."""
        self._variables.refresh_all()

    def run(self, given: Arguments) -> Nest:
        rank, size = self._running.rank, self._running.size
        check_same(self._arguments, given)
        batch = list(given.tensors)
        every = _checked_rows(batch)
        self._variables.flush()
        share = share_of(batch, rank, size) if every else Share(tuple(batch), rows=1)
        flat = [one for one in tf.nest.flatten(self._step.fetches) if one is not None]
        values = self._running.run(self._step, share, flat)
        self._variables.outdate()
        digest = digest_of(batch) if size > 1 else 0
        found = iter(joined(values, self._rules, share, digest, self._running.comm))
        return tf.nest.map_structure(
            lambda one: None if one is None else tf.convert_to_tensor(next(found)), self._step.fetches
        )


def _checked_rows(batch: list[TensorLike]) -> int:
    """How many rows the arguments of a call have; 0 where none has any."""
    with_rows = [one for one in batch if len(one.shape)]
    if not with_rows:
        return 0
    lengths = sorted({rows_of([one]) for one in with_rows})
    if len(lengths) > 1:
        raise SessionError(
            f"All arguments of a step that have a first dimension have that of the batch, and there are {lengths}. "
            "What is not of the batch, give the step in a variable, or take it from around it."
        )
    return lengths[0]


_steps: list[str] = []
"""The steps that this process has begun, by name: one."""


def _count_step(name: str) -> None:
    if _steps:
        raise SessionError(_ONE_STEP.format(first=_steps[0], second=name))
    _steps.append(name)
