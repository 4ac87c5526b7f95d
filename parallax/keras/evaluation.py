"""`evaluate` and `predict` on workers, where this process cannot compute them, or workers save time.

They use the graph of the model's last `fit`, with one additional step if it has none for them, so that tables stay
where `fit` placed them. The next `fit` has that step too, so the workers continue with its session. In all other cases
Keras computes in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from parallax.base.types import Argument, KerasModel, Nest
from parallax.functions.remote.remote_steps import RemoteSteps
from parallax.functions.tracing.step_graph import unique_name
from parallax.functions.tracing.traced_values import bytes_of
from parallax.functions.variables import TrainedVariables, find_large_variables
from parallax.keras import keras3
from parallax.keras.arrays import index_input
from parallax.keras.batch_summaries import summaries_of_callbacks
from parallax.keras.fitting import FitCall, batches_of, driving, is_step_of, make_call, peek, split_input
from parallax.keras.inputs import batch_length, count_examples, is_compatible
from parallax.keras.model_steps import trace_evaluation, trace_prediction
from parallax.keras.refusals import check_model
from parallax.keras.train_function import ModelTraining
from parallax.settings.parts import TableConfig

_OF_TRAINING = 3
"""The ratio of the time of a training batch to that of an evaluation batch."""
_OF_GPU = 20
"""The ratio of this process's time without a GPU to that with one; assumed, not measured."""
_OPENING_S, _RESUMING_S = 4.0, 0.5
"""Seconds until workers begin: with a step that must be planned, and with an existing one."""
_VALUES_PER_S = 2.5e8
"""Bytes of variables sent per second."""
_WORTH_S = 5.0
"""The minimum seconds that workers must save."""


@dataclass(frozen=True, slots=True)
class LastFit:
    """The last `fit` of this script.

    Attributes:
        call: the call without its data.
        compilation: the object that `compile` had made of its arguments then.
        workers: the number of workers.
        examples_per_s: examples per second in training, over all workers.
        num_bytes: of the variables.
        is_large: whether they exceed the limit of one process.
    """

    call: FitCall
    compilation: object
    workers: int
    examples_per_s: float
    num_bytes: int
    is_large: bool

    def after(self, call: FitCall) -> LastFit:
        """A copy with the steps of a later call of `evaluate` or `predict`."""
        return replace(self, call=_without_data(call))

    @staticmethod
    def of(call: FitCall, workers: int, examples_per_s: float, tables: TableConfig) -> LastFit:
        """The last `fit`, from a call that has ended.

        Args:
            call: of a Keras 3 model.
            workers: the number of workers.
            examples_per_s: examples per second in training, over all workers.
            tables: the settings for large variables.
        """
        variables = {one.name: one.variable for one in call.graph.list_variables()}
        num_bytes, is_large = sum(map(bytes_of, variables.values())), bool(find_large_variables(variables, tables))
        compilation = keras3.compilation_of(call.model)
        return LastFit(_without_data(call), compilation, workers, examples_per_s, num_bytes, is_large)

    def is_of(self, model: KerasModel) -> bool:
        """Whether it belongs to a model that was not compiled again."""
        return self.call.model is model and self.compilation is keras3.compilation_of(model)

    def is_for_workers(self, which: str, arguments: Mapping[str, Argument], has_left_gpus: bool) -> bool:
        """Whether workers evaluate or predict.

        Args:
            which: "test" or "predict".
            arguments: of the call, by name.
            has_left_gpus: whether workers have GPUs that this process leaves to them.
        """
        if self.is_large:
            return True
        examples = count_examples(arguments.get("x"), arguments.get("batch_size"))
        by_workers_s = examples / (_OF_TRAINING * self.examples_per_s)
        here_s = by_workers_s * self.workers * (_OF_GPU if has_left_gpus else 1)
        is_there = any(is_step_of(which, name) for name in self.call.traced)
        opening_s = _RESUMING_S if is_there else _OPENING_S
        return here_s - by_workers_s > opening_s + self.num_bytes / _VALUES_PER_S + _WORTH_S


def _without_data(call: FitCall) -> FitCall:
    """A call without references to its input or to a dataset that was begun."""
    return replace(call, arguments={}, begun=())


class InferenceCall(NamedTuple):
    """A call of `evaluate` or `predict`.

    Attributes:
        call: with its step, and those of the preceding calls.
        which: "test" or "predict".
        name: the name of its step among them.
    """

    call: FitCall
    which: str
    name: str


def trace_call(model: KerasModel, which: str, arguments: dict[str, Argument], last: LastFit) -> InferenceCall:
    """Traces the step of a call of `evaluate` or `predict`, if the last `fit` has none for its batches.

    Args:
        model: a keras.Model.
        which: "test" or "predict".
        arguments: of the call, by name.
        last: the model's last `fit`.

    Raises:
        GraphError: the step or its input cannot be in a graph.
    """
    check_model(model)
    peeked = peek(arguments, "x")
    spec, declared, whole, begun = batches_of(model, arguments, peeked, arguments.get("batch_size"))
    known, first = last.call, () if begun is None else (begun,)
    taking = (
        name
        for name, one in known.traced.items()
        if is_step_of(which, name)
        and is_compatible(spec, one.spec)
        and one.whole == whole
        and (one.declared == declared or not one.has_length)
    )
    name = next(taking, None)
    if name is not None and known.graph.loop is None:
        return InferenceCall(replace(known, arguments=arguments, begun=first), which, name)
    name = name or unique_name(which, known.traced)
    full = {name: batch_length(arguments.get("x"), arguments.get("batch_size"))}
    replicated = [one for traced in known.traced.values() for one in traced.replicated]
    if which == "predict":
        traced = trace_prediction(model, spec)
    else:
        with summaries_of_callbacks(arguments, "test"):
            traced = trace_evaluation(model, spec, replicated, declared)
    steps = {**known.traced, name: replace(traced, whole=whole, declared=declared)}
    call = make_call(model, arguments, steps, known.examples, {**known.full, **full})
    return InferenceCall(replace(call, begun=first), which, name)


def run_call(inference: InferenceCall, original: Callable[..., Nest], running: RemoteSteps) -> Nest:
    """Executes a call by steps that workers run, and returns the result of Keras.

    Args:
        inference: returned by `trace_call`.
        original: Keras's method, bound to the model.
        running: the steps.
    """
    call, which = inference.call, inference.which
    steps, traced = {which: call.steps[inference.name]}, {which: call.traced[inference.name]}
    metrics = {name: one.metrics for name, one in call.traced.items()}
    variables = TrainedVariables(running, metrics, call.names, call.reset)
    try:
        training = ModelTraining(call.model, running, variables, steps, traced)
        arguments = dict(call.arguments)
        numbered = index_input(call.model, arguments, traced[which].spec, which)
        training.take_arrays({} if numbered is None else {which: numbered})
        training.take_pipelines(split_input(arguments, "x", which, call.begun) if running.is_spread else {})
        with driving(call.model, training, call.begun):
            result = original(**arguments)
        variables.refresh_changed()
        return result
    finally:
        variables.release()
