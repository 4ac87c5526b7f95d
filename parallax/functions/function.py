"""Training steps of custom loops: a function that one process calls with global batches is executed by all workers.

`function` returns a step that is called like the original. Its first call traces it, and has workers open a session on
its graph (loop.py). In later calls the workers execute it, each on its rows of the batch. Other arguments or another
object trace it again, as with a `tf.function`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from weakref import ref

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function as PolymorphicFunction

from parallax.base.errors import ConfigError, GraphError
from parallax.base.types import Argument, Nest, TypeSpec
from parallax.entry import call as calls
from parallax.functions.batches.split_batch import count_rows, examples_of, find_replicated_parts, lengths_of
from parallax.functions.loop import LoopStep, ScriptLoop, graph_of, loop_for
from parallax.functions.remote.driven_workers import leave_gpus_to_workers
from parallax.functions.tracing.arguments import (
    Arguments,
    are_alike,
    arguments_of,
    arguments_text,
    bind_arguments,
    check_signature,
    with_lengths,
    without_values,
)
from parallax.functions.tracing.batch_norm_setting import statistics_of
from parallax.functions.tracing.results import rules_of
from parallax.functions.tracing.trace_step import AS_TENSORFLOW, Tracing, trace_by_length, trace_step
from parallax.report.logger import log
from parallax.settings import checks
from parallax.settings.config import Config
from parallax.settings.environment import Role, settings

_TOO_MANY = (
    "{name} was traced for {count} different calls, and for each the workers open a new session: {last}. Pass what "
    "changes from call to call as a tensor, and leave dimensions that vary open: parallax.function(step, "
    "input_signature=[tf.TensorSpec([None, None], tf.int64), ...])."
)
_MOST_VARIANTS = 16
_NO_FUNCTION = "parallax.function needs a function that makes one training step, got {given!r}."
_IN_A_FUNCTION = (
    "{name} is called within another function that TensorFlow traces (a tf.function, or a model's train_step), but "
    "the script must call a step of parallax.function itself, once per batch. Call it in a Python loop, or decorate "
    "the outer function with parallax.function and this one with tf.function."
)
_UNKNOWN_KEYWORD = (
    "parallax.function takes resource_info, parallax_config, returns and merge_rows, and of tf.function's keywords "
    "input_signature, autograph, experimental_autograph_options, jit_compile, reduce_retracing and name, got {names}. "
    "Remove it."
)
_NO_CONCRETE_FUNCTION = (
    "{name} has no ConcreteFunction, since its workers run graphs of their own, with collectives. Trace the step of "
    "one process with tf.function({name}.python_function).get_concrete_function(...), or look at the graph that is "
    "planned: {name}.graph_of(...)."
)
_NOT_COMPILED = (
    "jit_compile=True is ignored: workers run the step as a graph with collectives, which XLA does not compile. The "
    "results are those of the step without it."
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
    """A training step of a custom loop that all workers execute; also usable as a decorator, including of methods.

    It reads the global batch, as one process does: tensors or arrays whose first dimension is the batch. Each worker
    uses its rows of every one of them. Scalar tensors go to all workers, and other Python values are constants of the
    step.

    It returns the results of one process for the global batch; `returns` sets another combination of the workers'
    values. Keras metrics that the step updates have the sums of all workers when they are read outside the step.

    Variables of the script have the trained values when they are read.

    Args:
        step: a function, or a `tf.function`, that trains variables: with a tape, and an optimizer of Keras or TF1. A
            `tf.function` has its own settings for those below.
        resource_info: a resource file; None for workers on this host.
        parallax_config: settings.
        returns: "mean", "sum", "rows" or "same", or a structure of them like that of what the step returns.
        merge_rows: whether Keras's optimizers see equal rows of a sparse gradient summed, so that results equal those
            for a dense gradient; without it the results are those of plain Keras.
        input_signature: specs of the arguments, as for `tf.function`; the first dimension of a batch is open anyway.
        autograph: whether Python control flow on tensors is converted to TensorFlow's.
        experimental_autograph_options: options of that conversion.
        jit_compile: ignored, with a warning where it is True: the step has collectives.
        reduce_retracing: accepted; one trace serves batches of any length.
        name: of the step in its graph; None for the function's own.
        others: refused.

    Raises:
        ConfigError: an argument has the wrong type, or is unknown.
    """
    if others:
        raise ConfigError(_UNKNOWN_KEYWORD.format(names=", ".join(f"{key}={value!r}" for key, value in others.items())))
    config = checks.instance_of("parallax_config", parallax_config, Config)
    check_signature(input_signature)
    tracing = Tracing(input_signature, autograph, experimental_autograph_options)

    def distribute(one: Callable[..., Nest]) -> DistributedStep:
        if not callable(one):
            raise ConfigError(_NO_FUNCTION.format(given=one))
        whole = _settings_of(one, tracing)
        if jit_compile or getattr(one, "_jit_compile", None):
            log.warning(_NOT_COMPILED)
        if settings().role == Role.LAUNCH:
            leave_gpus_to_workers(config, resource_info)
        return DistributedStep(one, resource_info, config, returns, merge_rows, whole, name)

    return distribute if step is None else distribute(step)


def _settings_of(step: Callable[..., Nest], tracing: Tracing) -> Tracing:
    """The trace settings of a step: those of a `tf.function`, unless others are passed."""
    if not isinstance(step, PolymorphicFunction):
        return tracing
    return Tracing(
        tracing.input_signature if tracing.input_signature is not None else step.input_signature,
        tracing.autograph and step._autograph,
        tracing.autograph_options or step._experimental_autograph_options,
    )


@dataclass(frozen=True, slots=True)
class _Variant:
    """A step traced for particular arguments.

    Attributes:
        owner: returns the object whose method it is, None once that is gone; None for a function.
        arguments: of its first call.
        step: the step in the script's loop.
    """

    owner: Callable[[], object] | None
    arguments: Arguments
    step: LoopStep

    @property
    def can_be_called(self) -> bool:
        """Whether it is a function, or the object whose method it is still exists."""
        return self.owner is None or self.owner() is not None

    def takes(self, arguments: Arguments) -> bool:
        """Whether it was traced for such arguments, with equal lengths of all batches except those passed in full."""
        parts = [one for number, one in enumerate(arguments.tensors) if number not in self.step.whole]
        lengths = set(lengths_of(parts))
        is_of_length = lengths == {self.step.full} if self.step.has_length else len(lengths) <= 1
        return is_of_length and are_alike(self.arguments, arguments)

    def is_of(self, owner: tuple[object, ...]) -> bool:
        """Whether it is a method of the given object or, if none is given, a function."""
        return not owner if self.owner is None else bool(owner) and self.owner() is owner[0]


def _reference(owner: tuple[object, ...]) -> Callable[[], object] | None:
    """Returns a function that returns a method's object while it exists."""
    if not owner:
        return None
    try:
        return ref(owner[0])
    except TypeError:  # of a class without weak references
        return lambda: owner[0]


class DistributedStep:
    """The result of `function`; it is called like the original step.

    Attributes:
        python_function: the original step; of a method, bound to its object.
        input_signature: specs of its arguments; None without a signature.
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
        self._unbound = self.python_function
        self._owner: tuple[object, ...] = ()  # the object of a bound method, which `_unbound` gets first
        self.input_signature = tracing.input_signature
        self._resource_info, self._config, self._tracing = resource_info, config, tracing
        self._returns, self._merges_rows = returns, merges_rows
        self._variants: list[_Variant] = []  # shared by all bound methods
        functools.update_wrapper(self, self.python_function, updated=())
        # No scope's name begins with an underscore.
        step_name = str(name or getattr(self.python_function, "__name__", "step")).strip("_")
        self._name = step_name if step_name.isidentifier() and step_name.isascii() else "step"

    def __get__(self, instance: object, owner: type | None = None) -> DistributedStep:
        """The step as a method of an object; accessed through the class, the step itself."""
        if instance is None:
            return self
        bound = copy.copy(self)
        bound._owner = (instance,)
        bound.python_function = functools.partial(self._unbound, instance)
        return bound

    @property
    def worker_id(self) -> int:
        """The index of this process among those that run the script: 0, as workers do not run it."""
        return 0

    def graph_of(self, *args: Argument, **kwargs: Argument) -> tf.Graph:
        """The graph that a call with these arguments trains, for `parallax.plan`; no job is started."""
        return graph_of([self._trace(args, kwargs)]).graph

    def refresh_variables(self) -> None:
        """Copies the trained values of all variables to this process; reads refresh variables without it."""
        if self._variants:
            self._loop().refresh_variables()

    def get_concrete_function(self, *args: Argument, **kwargs: Argument) -> NoReturn:
        """Always raises: a distributed step has no concrete function.

        Raises:
            GraphError: always.
        """
        raise GraphError(_NO_CONCRETE_FUNCTION.format(name=self._name))

    def __call__(self, *args: Argument, **kwargs: Argument) -> Nest:
        """Executes a step.

        Raises:
            JobEnded: at the first call, in a process with a purpose other than training, such as `parallax plan`.
            JobFailed: the workers have failed, and have reported why.
            ParallaxError: as `parallel_run`.
        """
        if not tf.executing_eagerly():
            raise GraphError(_IN_A_FUNCTION.format(name=self._name))
        arguments = self._arguments(args, kwargs)
        self._variants[:] = [one for one in self._variants if one.can_be_called]
        variants = [one for one in self._variants if one.is_of(self._owner)]
        variant = next((one for one in variants if one.takes(arguments)), None)
        if variant is None:
            if len(variants) >= _MOST_VARIANTS:
                raise GraphError(
                    _TOO_MANY.format(name=self._name, count=_MOST_VARIANTS, last=arguments_text(arguments))
                )
            step = self._loop().add(lambda: self._trace(args, kwargs))
            variant = _Variant(_reference(self._owner), without_values(arguments), step)
            self._variants.append(variant)
        batch = list(arguments.tensors)
        results, values = self._loop().run(variant.step, batch)
        waiting = iter(values)
        return tf.nest.map_structure(lambda one: None if one is None else tf.convert_to_tensor(next(waiting)), results)

    def _loop(self) -> ScriptLoop:
        return loop_for(self._config, self._resource_info)

    def _trace(self, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> LoopStep:
        """Traces the step for a call's arguments."""
        arguments = self._arguments(args, kwargs)
        options = {"merges_rows": self._merges_rows, "returns": self._returns, "tracing": self._tracing}
        trace = functools.partial(trace_step, self.python_function, **options)
        with statistics_of(self._config.batch_norm):
            traced, has_length = trace_by_length(trace, arguments, with_lengths(arguments))
        whole = find_replicated_parts(arguments.tensors)
        with_rows = [one for number, one in enumerate(arguments.tensors) if len(one.shape) and number not in whole]
        full = count_rows(with_rows) if with_rows else 0
        parts = calls.count_batch_parts(self._config, self._resource_info)
        examples = examples_of(arguments.tensors, parts)
        rules = rules_of(traced.concrete.structured_outputs[0], self._returns)
        variables, metrics, summaries = traced.variables, traced.metrics, traced.summaries
        return LoopStep(
            self._name, traced.concrete, variables, metrics, examples, full, rules, summaries, whole, has_length
        )

    def _arguments(self, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Arguments:
        positional, named = bind_arguments(self._unbound, (*self._owner, *args), kwargs)
        return arguments_of(positional[len(self._owner) :], named, self.input_signature)
