"""Traces a step of the script for batches of any length, and names each variable that the step reads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from parallax.base.errors import GraphError
from parallax.base.types import ConcreteFunction, Handle, Nest, Tensor, TypeSpec, Variable
from parallax.functions.tracing.arguments import Arguments, with_tensors
from parallax.functions.tracing.batch_norm_setting import fused_normalizations
from parallax.functions.tracing.open_reads import record_open_reads
from parallax.functions.tracing.results import mark_means
from parallax.functions.tracing.step_graph import StepVariable, unique_name
from parallax.functions.tracing.summaries import StepSummaries, record_summaries
from parallax.functions.tracing.traced_values import handle_of
from parallax.functions.tracing.written_variables import check_returned, find_sums


@dataclass(frozen=True, slots=True)
class Tracing:
    """The options of a trace; see `tf.function`.

    Attributes:
        input_signature: specs of the arguments; None for those of the first call, with an open batch.
        autograph: whether Python control flow on tensors is converted to TensorFlow's.
        autograph_options: options of that conversion.
    """

    input_signature: Sequence[TypeSpec] | None = None
    autograph: bool = True
    autograph_options: object = None


@dataclass(frozen=True, slots=True)
class LibraryVariable:
    """Keras's information on a tf.Variable.

    Attributes:
        name: its name for users of Keras.
        trainable: whether it is trained.
        is_made: whether it was created while the step was traced, and not by an optimizer.
        is_new: whether it was created while the step was traced.
    """

    name: str
    trainable: bool
    is_made: bool = False
    is_new: bool = False


AS_TENSORFLOW = Tracing()
_OF_NONE = ("None values not supported", "NoneType", "a value (None)")
"""Texts by which TensorFlow and Python report a None in place of a number."""
_Spec = TypeVar("_Spec")
_Trace = TypeVar("_Trace")
_ERRORS_OF_NONE = (TypeError, ValueError, IndexError, NotImplementedError)
_OPEN_LENGTH = (
    "parallax: A step is traced for batches of any length, so x.shape[0] is None. Where the step needs the length, "
    "use tf.shape(x)[0] or keras.ops.shape(x)[0]."
)
_MADE_ANEW = (
    "A step creates {names} each time it is called, as when it creates a layer that nothing keeps: such variables are "
    "never trained. Create them once, outside of the step, or in the model's __init__ or build."
)


@dataclass(frozen=True, slots=True)
class StepTrace:
    """A step as traced by TensorFlow.

    Attributes:
        concrete: has the flat tensors of the arguments as inputs; returns (results, values of the variables of
            metrics, values of summaries).
        variables: the variables that it reads, each with a unique name.
        metrics: the tf.Variables whose values add up over replicas (`aggregation` SUM), as those of metrics, in order.
        summaries: those that it writes.
    """

    concrete: ConcreteFunction
    variables: tuple[StepVariable, ...]
    metrics: tuple[Variable, ...]
    summaries: StepSummaries


def trace_step(
    step: Callable[..., Nest],
    arguments: Arguments,
    merges_rows: bool = False,
    returns: Nest = None,
    tracing: Tracing = AS_TENSORFLOW,
) -> StepTrace:
    """Traces a step.

    Args:
        step: a Python function.
        arguments: of its first call.
        merges_rows: whether equal rows of sparse gradients are summed before an optimizer sees them.
        returns: the script's rules for its results (results.py).
        tracing: the options of the trace.

    Raises:
        GraphError: it returns a value computed from a metric's variable that adds up, or creates variables in every
            call.
    """
    parts: list[Variable] = []
    written: list[StepSummaries] = []
    as_it_is = tf.autograph.experimental.do_not_convert(_read_parts)

    def call(*tensors: Tensor) -> Nest:
        args, kwargs = with_tensors(arguments.structure, tensors)
        with fused_normalizations(), record_summaries() as summaries:
            results = mark_means(step(*args, **kwargs), returns)
        written[:] = [summaries]
        return results, as_it_is(parts, by_handle), summaries.tensors

    def trace() -> ConcreteFunction:
        options = tracing.autograph_options
        traced = tf.function(call, autograph=tracing.autograph, experimental_autograph_options=options)
        with explain_open_lengths():
            return traced.get_concrete_function(*arguments.specs)

    with _recording_keras(merges_rows) as seen, record_handles() as by_handle:
        concrete = trace()
        captured, known = captured_variables(concrete, by_handle), seen()
        if any(one.is_new for one in known.values()):  # again, as TensorFlow does: the step may depend on what is built
            made = [one for one in captured if id(one) in known and known[id(one)].is_made]
            concrete = trace()
            captured, known = captured_variables(concrete, by_handle), seen()
            check_variables_reused(made, captured)
        results, _, values = concrete.structured_outputs
        check_returned(concrete, parts, [one for one in tf.nest.flatten([results, values]) if tf.is_tensor(one)])
        return StepTrace(concrete, tuple(_name_variables(captured, known)), tuple(parts), written[0])


@contextmanager
def _recording_keras(merges_rows: bool) -> Iterator[Callable[[], dict[int, LibraryVariable]]]:
    """The context of `keras_steps.record_use` if the script has imported Keras; else one without variables of Keras."""
    if "keras" not in sys.modules:
        yield dict
        return
    from parallax.functions.tracing.keras_steps import record_use

    with record_use(merges_rows) as seen:
        yield seen


def _read_parts(parts: list[Variable], by_handle: Mapping[int, Variable]) -> list[Tensor]:
    """The values of variables that add up over replicas, for those captured by the function being traced.

    Args:
        parts: a list to which these variables are added.
        by_handle: as for `captured_variables`.
    """
    graph = tf.compat.v1.get_default_graph()
    captured = [by_handle[id(outer)] for outer, _ in graph.captures if id(outer) in by_handle]
    parts[:] = find_sums(graph, [one for one in captured if one.aggregation == tf.VariableAggregation.SUM])
    return [tf.identity(one) for one in parts]


def trace_by_length(trace: Callable[[_Spec], _Trace], spec: _Spec, declared: _Spec | None) -> tuple[_Trace, bool]:
    """(a step traced for batches of any length, False); or for the declared one, True, if the script reads the length.

    Python code that reads an open length gets None, with which it may compute something else without an error.

    Args:
        trace: traces the step.
        spec: of batches of any length.
        declared: the same with the length of the global batch; None if it is unknown.
    """
    try:
        with record_open_reads() as reads:
            traced = trace(spec)
        if declared is None or not reads:
            return traced, False
    except _ERRORS_OF_NONE:
        if declared is None:
            raise
    return trace(declared), True


@contextmanager
def explain_open_lengths() -> Iterator[None]:
    """A context for the trace of a step; errors that a batch's open length may have caused get a note that says so."""
    try:
        yield
    except _ERRORS_OF_NONE as error:
        if any(words in str(error) for words in _OF_NONE):
            error.args = (f"{str(error).strip()}\n{_OPEN_LENGTH}", *error.args[1:])
        raise


def check_variables_reused(first: Sequence[Variable], second: Sequence[Variable]) -> None:
    """Refuses a step that reads other variables each time it is traced, as TensorFlow does.

    Args:
        first: the tf.Variables that it reads.
        second: those of another trace.

    Raises:
        GraphError: names the new variables.
    """
    second_ids = set(map(id, second))
    names = [getattr(one, "path", one.name.split(":")[0]) for one in first if id(one) not in second_ids]
    if names:
        raise GraphError(_MADE_ANEW.format(names=", ".join(names)))


@contextmanager
def record_handles() -> Iterator[dict[int, Variable]]:
    """A context that records variables by the id of their handle when it is accessed.

    TensorFlow's trace lists variables that are read, but not those that an op of an optimizer updates in place.
    """
    variable_by_handle: dict[int, Variable] = {}
    original = BaseResourceVariable.handle

    def handle(self: Variable) -> Handle:
        tensor = original.fget(self)
        variable_by_handle[id(tensor)] = self
        return tensor

    BaseResourceVariable.handle = property(handle)
    try:
        yield variable_by_handle
    finally:
        BaseResourceVariable.handle = original


def captured_variables(concrete: ConcreteFunction, by_handle: Mapping[int, Variable]) -> list[Variable]:
    """The variables that a traced function captures, in the order of first capture.

    TensorFlow's own list of them is a set, whose order differs in each process.

    Args:
        concrete: the traced function.
        by_handle: id of a handle -> variable, of `record_handles` around the trace.
    """
    by_handle = {**by_handle, **{id(handle_of(variable)): variable for variable in concrete.graph.variables}}
    return [by_handle[id(outer)] for outer, _ in concrete.graph.captures if id(outer) in by_handle]


def _name_variables(variables: Sequence[Variable], seen: dict[int, LibraryVariable]) -> list[StepVariable]:
    named: list[StepVariable] = []
    used_names: set[str] = set()
    for one in variables:
        known = seen.get(id(one), LibraryVariable(one.name.split(":")[0], bool(one.trainable)))
        name = unique_name(known.name, used_names)  # variables of nested models, and unnamed ones, may share one
        used_names.add(name)
        named.append(StepVariable(one, name, known.trainable))
    return named
