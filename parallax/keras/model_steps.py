"""The steps of a Keras model as one graph: training, evaluation and prediction, on the same variables.

Keras's own `train_step`, `test_step` and `predict_step` are traced unchanged, including those of the user's model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import tensorflow as tf

from parallax.base.types import ConcreteFunction, KerasModel, Log, Logs, Nest, Tensor, Variable
from parallax.functions.tracing.batch_norm_setting import fused_normalizations
from parallax.functions.tracing.results import add_summaries, default_rule, mark_results, reported_value
from parallax.functions.tracing.step_graph import GraphStep, StepGraph, StepVariable, unique_name
from parallax.functions.tracing.summaries import StepSummaries, record_summaries
from parallax.functions.tracing.trace_step import (
    captured_variables,
    check_variables_reused,
    explain_open_lengths,
    record_handles,
    trace_by_length,
)
from parallax.functions.tracing.written_variables import check_sums, find_sums
from parallax.keras.libraries import library_of
from parallax.keras.metrics import is_of_metrics
from parallax.keras.step_logs import flat_logs

NOT_KNOWN: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ModelStep:
    """A step of a model as traced by TensorFlow.

    Attributes:
        concrete: returns (logs, values of the metrics' variables, values of summaries).
        metrics: the tf.Variables of metrics that add up over workers, in order.
        replicated: the other tf.Variables of metrics.
        spec: of its input.
        captured: the tf.Variables that it reads, in the order of first use.
        summaries: those that it writes.
        whole: flat indices of the parts of a batch whose length differs from the batch's, and which are passed in full.
        outputs: for a prediction: the structure of the model's result; the logs are its flat form.
        declared: the structure of its batches as the dataset of a call of `fit` declares it.
        has_length: whether it may compute with a number for the length of the global batch.
    """

    concrete: ConcreteFunction
    metrics: tuple[Variable, ...]
    spec: Nest
    captured: tuple[Variable, ...]
    summaries: StepSummaries
    whole: frozenset[int] = frozenset()
    outputs: Nest = None
    replicated: tuple[Variable, ...] = ()
    declared: Nest = None
    has_length: bool = False


def trace_training(model: KerasModel, spec: Nest, merges_rows: bool = False, declared: Nest = None) -> ModelStep:
    """The traced `train_step` of a compiled model; the trace creates the variables that the model lacks.

    Args:
        model: a keras.Model.
        spec: the structure of the input of `train_step`, of tf.TensorSpec; the first dimension is that of the batch.
        merges_rows: whether equal rows of sparse gradients are summed before the optimizer sees them.
        declared: the structure of its batches with their length, if all have one.
    """
    library = library_of(model)
    with library.tracing(model, merges_rows):
        library.build_optimizer(model)
        return _trace_by_length(model, model.train_step, spec, declared)


def trace_evaluation(
    model: KerasModel, spec: Nest, replicated: Sequence[Variable] = (), declared: Nest = None
) -> ModelStep:
    """The traced `test_step`; see `trace_training`.

    Args:
        model: a keras.Model.
        spec: as in `trace_training`.
        replicated: the tf.Variables of metrics that do not add up, by steps that were traced before.
        declared: as in `trace_training`.
    """
    return _trace_by_length(model, model.test_step, spec, declared, replicated)


def trace_prediction(model: KerasModel, spec: Nest) -> ModelStep:
    """The traced `predict_step`, whose logs are its flat results; see `trace_training`."""
    structures: list[Nest] = []

    def predict(data: Nest) -> Logs:
        outputs = model.predict_step(data)
        structures.append(tf.nest.map_structure(lambda _: 0, outputs))
        return {str(number): one for number, one in enumerate(tf.nest.flatten(outputs))}

    return replace(_trace(model, predict, spec, has_metrics=False), outputs=structures[-1])


def step_graph(
    model: KerasModel,
    traced: dict[str, ModelStep],
    examples: int = 0,
    full: Mapping[str, int] = NOT_KNOWN,
    is_counted: bool = False,
) -> tuple[StepGraph, dict[str, GraphStep]]:
    """One graph of a model's traced steps.

    Args:
        model: a keras.Model.
        traced: scope -> traced step.
        examples: a worker's number of examples of a batch, as far as it is known, for byte counts.
        full: scope -> the usual length of the global batch, where it is known.
        is_counted: whether the graph's global step counts runs of the step "train".

    Returns:
        The graph, and the steps in it by their scope. Where the batch's dimension is open, workers may have unequal
        numbers of examples, including none (parallax/graph/batches.py).
    """
    sums = [variable for one in traced.values() for variable in one.metrics]
    check_sums([one.concrete.graph for one in traced.values()], sums)
    captured = [variable for one in traced.values() for variable in one.captured]
    graph = StepGraph(variables_of(model, captured), sums=sums)
    lengths = {name: full.get(name, 0) for name in traced}
    steps = {}
    for name, one in traced.items():
        counts = is_counted and name == "train"
        graph_step = graph.add(name, one.concrete, True, examples, lengths[name], counts, one.whole, one.has_length)
        logs, parts, summaries = graph_step.fetches
        rules = add_summaries(rules_of_logs(one), summaries)
        (logs, summaries), _ = mark_results(graph.graph, (logs, summaries), rules)
        steps[name] = replace(graph_step, fetches=(logs, parts, summaries))
    return graph, steps


def rules_of_logs(traced: ModelStep) -> tuple[str, ...]:
    """The rule by which each log of a step is combined, flat; empty for logs that are computed from metrics."""
    logs: Logs = traced.concrete.structured_outputs[0]
    of = {name: "" if is_of_metrics(log, traced.metrics) else default_rule(log) for name, log in logs.items()}
    return tuple(tf.nest.flatten(of))


def variables_of(model: KerasModel, captured: Sequence[Variable] = ()) -> list[StepVariable]:
    """The variables of a model, its optimizer and its metrics, and others that its steps read, with a name for each.

    A slot of an optimizer is named below its variable, as TF1's optimizers do: `emb/embeddings/adam/momentum`.

    Args:
        model: a keras.Model.
        captured: the tf.Variables that its traced steps read, in order.
    """
    library = library_of(model)
    trained = {id(library.value(v)) for v in model.trainable_variables}
    named = [(library.value(v), library.path(v)) for v in model.variables]
    named += [(library.value(v), library.slot_path(model, v)) for v in library.optimizer_variables(model)]
    named += [(library.value(v), library.path(v)) for metric in model.metrics for v in metric.variables]
    named += [(v, v.name.split(":")[0]) for v in captured]
    variable_by_id: dict[int, StepVariable] = {}
    used_names: set[str] = set()
    for value, name in named:
        if id(value) not in variable_by_id:
            unique = unique_name(name, used_names)  # layers of nested models may share one
            used_names.add(unique)
            variable_by_id[id(value)] = StepVariable(value, unique, id(value) in trained)
    return list(variable_by_id.values())


def _trace_by_length(
    model: KerasModel, step: Callable[[Nest], Logs], spec: Nest, declared: Nest, replicated: Sequence[Variable] = ()
) -> ModelStep:
    """The step traced for batches of any length; or for their declared one, if it needs a number."""
    specs = [one for one in tf.nest.flatten(declared) if one is not None]
    has_lengths = all(isinstance(one, tf.TensorSpec) and one.shape.rank and one.shape[0] for one in specs)
    traced, needs_number = trace_by_length(
        lambda one: _trace(model, step, one, replicated), spec, declared if specs and has_lengths else None
    )
    inputs = tf.nest.flatten(getattr(model, "inputs", None) or [])
    is_fixed = any(len(one.shape) and one.shape[0] is not None for one in inputs)
    return replace(traced, has_length=needs_number or is_fixed)


def _trace(
    model: KerasModel,
    step: Callable[[Nest], Logs],
    spec: Nest,
    replicated: Sequence[Variable] = (),
    has_metrics: bool = True,
) -> ModelStep:
    metrics: list[Variable] = []
    others: list[Variable] = []
    written: list[StepSummaries] = []

    def trace_step(data: Nest) -> tuple[Logs, list[Tensor], list[Tensor]]:
        with library_of(model).converting_layers(), fused_normalizations(), record_summaries() as summaries:
            logs = step(data)
        written[:] = [summaries]
        found = _metric_variables(model) if has_metrics else []
        candidates = [one for one in found if not any(one is other for other in replicated)]
        metrics[:] = find_sums(tf.compat.v1.get_default_graph(), candidates)
        others[:] = [one for one in found if not any(one is other for other in metrics)]
        logs = {name: _mark_mean(value, metrics) for name, value in flat_logs(logs).items()}
        return logs, [tf.identity(variable) for variable in metrics], summaries.tensors

    def trace() -> tuple[ConcreteFunction, list[Variable]]:
        with record_handles() as by_handle, explain_open_lengths():
            concrete = tf.function(trace_step, autograph=False).get_concrete_function(spec)
            return concrete, captured_variables(concrete, by_handle)

    before = _trained_and_slots(model)
    concrete, captured = trace()
    known = {id(one.variable) for one in variables_of(model)}
    unknown = [variable for variable in captured if id(variable) not in known]
    if unknown or _trained_and_slots(model) != before:  # again, as TensorFlow does: it may depend on what is built
        concrete, captured = trace()
        check_variables_reused(
            unknown, captured
        )  # the script has them elsewhere, or the step creates them in every call
    return ModelStep(concrete, tuple(metrics), spec, tuple(captured), written[0], replicated=tuple(others))


def _trained_and_slots(model: KerasModel) -> set[int]:
    """The existing variables of a model's layers and of its optimizers."""
    library = library_of(model)
    weights = model.weights if model.built else ()
    return {id(library.value(one)) for one in (*weights, *library.optimizer_variables(model))}


def _mark_mean(log: Log, metrics: list[Variable]) -> Log:
    """A log of a step, marked if it is computed from the batch itself and not from metrics, like a returned loss."""
    tensor = tf.convert_to_tensor(log)
    is_mean = not is_of_metrics(tensor, metrics) and default_rule(tensor) == "mean"
    return reported_value(tensor) if is_mean else log


def _metric_variables(model: KerasModel) -> list[Variable]:
    """The distinct tf.Variables of a model's metrics, and those of its layers that add up over workers."""
    value = library_of(model).value
    variables = [value(v) for metric in model.metrics for v in metric.variables]
    variables += [one for v in model.variables if (one := value(v)).aggregation == tf.VariableAggregation.SUM]
    return list({id(v): v for v in variables}.values())
