"""`fit` on workers: the steps of the model are traced for the specs of the batches, and become one graph.

Keras's own `fit` iterates over the batches in this process, with steps of that graph, which workers execute.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import GeneratorType, ModuleType
from typing import NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf

from parallax.base.errors import ParallaxError
from parallax.base.types import Argument, KerasHistory, KerasModel, Nest, Operation, PortableValue
from parallax.functions.batches.numbered_rows import NumberedArrays
from parallax.functions.batches.row_pipeline import RowPipeline
from parallax.functions.remote.remote_steps import RemoteSteps
from parallax.functions.tracing.step_graph import GraphStep, StepGraph
from parallax.functions.tracing.traced_values import take_values
from parallax.functions.variables import TrainedVariables
from parallax.keras.arrays import index_input, index_validation
from parallax.keras.batch_summaries import summaries_of_callbacks
from parallax.keras.callbacks import callback_list_for
from parallax.keras.datasets import find_unsplit_parts, record_batches, split_dataset
from parallax.keras.epochs import PeekedDataset, PeekedDatasets
from parallax.keras.inputs import batch_length, open_spec
from parallax.keras.libraries import library_of
from parallax.keras.model_steps import NOT_KNOWN, ModelStep, step_graph, trace_evaluation, trace_training
from parallax.keras.progress import FitProgress
from parallax.keras.refusals import check_model, check_step
from parallax.keras.train_function import ModelTraining
from parallax.runtime.driver_channel import ChannelClosed
from parallax.settings.parts import TableConfig

_LOOKED_AT_BATCHES = 2
"""The number of batches of a generator from which Keras infers the shapes of all."""
_NO_LARGE_ONES = TableConfig(whole_bytes=sys.maxsize)


@dataclass(frozen=True, slots=True)
class FitCall:
    """A parsed call of `fit`, `evaluate` or `predict`.

    Attributes:
        model: the model of the call.
        arguments: of the call by name; an iterator can still be read from its beginning.
        traced: by name: "train", "test" for evaluation, "predict", and for other batches "test_1" and so on.
        graph: of the traced steps.
        steps: the steps in the graph.
        names: id of a tf.Variable -> its name in the graph.
        reset: op of the graph that resets a worker's parts of metrics to zero.
        full: by step, the usual length of the global batch, where it is known.
        examples: the number of examples of a batch's share for byte counts; 0 if unknown.
        begun: datasets of the arguments whose first batch was read.
    """

    model: KerasModel
    arguments: Mapping[str, Argument]
    traced: Mapping[str, ModelStep]
    graph: StepGraph
    steps: Mapping[str, GraphStep]
    names: Mapping[int, str]
    reset: Operation
    full: Mapping[str, int]
    examples: int
    begun: tuple[PeekedDataset, ...] = ()

    @property
    def is_validated(self) -> bool:
        """Whether it is a `fit` with validation data."""
        return self.arguments.get("validation_data") is not None


def is_step_of(which: str, name: str) -> bool:
    """Whether a step of a call belongs to "train", "test" or "predict"."""
    return name.split("_")[0] == which


def read_fit(
    model: KerasModel,
    arguments: dict[str, Argument],
    parts: int = 1,
    merge_rows: bool = False,
    has_checkpoints: bool = False,
    before: FitCall | None = None,
) -> FitCall:
    """Traces the steps of a call of `fit`, and builds one graph of them.

    Args:
        model: a compiled keras.Model.
        arguments: of the call by name.
        parts: the number of parts into which a batch is split.
        merge_rows: whether optimizers see equal rows of a sparse gradient summed.
        has_checkpoints: whether workers write checkpoints, named by the number of steps.
        before: the model's preceding call, if it was not compiled since. As in Keras, its steps are not traced again.

    Raises:
        ConfigError: they do, and this Keras cannot resume within an epoch.
        GraphError: a step or its input cannot be in a graph.
    """
    library = library_of(model)
    library.check_compiled(model, "fit")
    check_model(model)
    if has_checkpoints:
        library.check_resumable()
    arguments = _with_validation_split(library, dict(arguments))
    peeked = peek(arguments, "x")
    batches = {"train": batches_of(model, arguments, peeked, arguments.get("batch_size"))}
    full = {"train": batch_length(arguments.get("x"), arguments.get("batch_size"))}
    if arguments.get("validation_data") is not None:
        x, y, weights = library.unpacked(arguments["validation_data"])
        validation = {"x": x, "y": y, "sample_weight": weights}
        length = arguments.get("validation_batch_size") or arguments.get("batch_size")
        peeked = peek(validation, "x")
        batches["test"] = batches_of(model, validation, peeked, length)
        if validation["x"] is not x:
            arguments["validation_data"] = validation["x"]
        full["test"] = batch_length(validation["x"], length)
    examples = -(-full["train"] // parts)
    call = read_steps(model, arguments, batches, examples, merge_rows, full, has_checkpoints, before)
    return replace(call, begun=tuple(one.begun for one in batches.values() if one.begun is not None))


def read_steps(
    model: KerasModel,
    arguments: dict[str, Argument],
    batches: Mapping[str, BatchKind],
    examples: int = 0,
    merge_rows: bool = False,
    full: Mapping[str, int] = NOT_KNOWN,
    is_counted: bool = False,
    before: FitCall | None = None,
) -> FitCall:
    """Traces the steps of a model and builds one graph of them.

    Args:
        model: a compiled keras.Model.
        arguments: of the call, by name.
        batches: "train", and "test" if there is validation: the kind of batches.
        examples: a worker's number of examples of a batch, for byte counts; 0 if unknown.
        merge_rows: whether optimizers see equal rows of a sparse gradient summed.
        full: by step, the usual length of the global batch, where it is known.
        is_counted: whether the graph's global step counts steps of training.
        before: as in `read_fit`.

    Raises:
        GraphError: a step cannot be in a graph.
    """
    steps = {} if before is None else before.traced
    # Keras traces a step again for batches that are declared otherwise.
    traced = {
        name: steps[name] for name, one in batches.items() if name in steps and steps[name].declared == one.declared
    }
    if "train" not in traced:
        train = batches["train"]
        with summaries_of_callbacks(arguments, "train"):
            traced = {"train": trace_training(model, train.spec, merge_rows, train.declared)}
    if "test" in batches and "test" not in traced:
        test = batches["test"]
        with summaries_of_callbacks(arguments, "test"):
            traced["test"] = trace_evaluation(model, test.spec, traced["train"].replicated, test.declared)
    for name, one in batches.items():
        traced[name] = replace(traced[name], whole=one.whole, declared=one.declared)
    if before is not None and not is_counted:  # a graph with checkpoints has the steps of its own call alone
        traced = {**traced, **{name: one for name, one in steps.items() if name not in traced}}
        full = {**before.full, **full}
    return make_call(model, arguments, traced, examples, full, is_counted)


def make_call(
    model: KerasModel,
    arguments: Mapping[str, Argument],
    traced: dict[str, ModelStep],
    examples: int = 0,
    full: Mapping[str, int] = NOT_KNOWN,
    is_counted: bool = False,
) -> FitCall:
    """Builds one graph of traced steps; arguments are those of `read_steps`, with the steps by their names.

    Raises:
        GraphError: workers cannot execute a step.
    """
    for name, one in traced.items():
        check_step(name, one.concrete)
    graph, steps = step_graph(model, traced, examples, full, is_counted)
    names = {id(one.variable): one.name for one in graph.list_variables()}
    metrics = [names[id(v)] for one in traced.values() for v in one.metrics if id(v) in names]
    return FitCall(model, arguments, traced, graph, steps, names, graph.reset(dict.fromkeys(metrics)), full, examples)


def run_fit(
    fit: FitCall, original: Callable[..., KerasHistory], running: RemoteSteps, tables: TableConfig = _NO_LARGE_ONES
) -> tuple[KerasHistory, dict[str, PortableValue]]:
    """Executes a call of `fit` by steps that workers run.

    Args:
        fit: the call.
        original: Keras's `fit`, bound to the model.
        running: the steps.
        tables: the settings for large variables.

    Returns:
        The result of Keras, and the values of all variables by name; for those that the workers have written to files,
        their place.
    """
    metrics = {step: one.metrics for step, one in fit.traced.items()}
    variables = TrainedVariables(running, metrics, fit.names, fit.reset)
    try:
        history = _fit_by(fit, original, running, variables)
        return history, variables.values(tables)
    except BaseException:
        try:
            with suppress(ParallaxError):  # the model has the workers' values, where they can be fetched
                variables.mirrors.refresh_all()
        except ChannelClosed:
            variables.fall_back()
        raise
    finally:
        variables.release()


def _fit_by(
    fit: FitCall, original: Callable[..., KerasHistory], running: RemoteSteps, variables: TrainedVariables
) -> KerasHistory:
    """The result of Keras's `fit` over batches that workers train on."""
    model = fit.model
    step_names = ["train", *(["test"] if fit.is_validated else [])]
    steps, traced = {name: fit.steps[name] for name in step_names}, {name: fit.traced[name] for name in step_names}
    training = ModelTraining(model, running, variables, steps, traced)
    arguments = dict(fit.arguments)
    training.take_arrays(_index_arrays(fit, arguments))
    training.take_pipelines(_split_datasets(arguments, fit.begun) if running.is_spread else {})
    if fit.graph.loop is not None:
        first, last = arguments.get("initial_epoch", 0), arguments.get("epochs", 1)
        training.progress = FitProgress(model, running, first, last)
    with driving(model, training, fit.begun):
        return original(**arguments)


@contextmanager
def driving(model: KerasModel, training: ModelTraining, begun: PeekedDatasets) -> Iterator[None]:
    """A context in which the functions that Keras calls for a model's batches and callbacks drive the workers."""
    library = library_of(model)
    lists = mock.patch(library.CALLBACK_LIST_IN_FIT, callback_list_for(model, training.within))
    with _functions_of(model, training), lists, library.numbered_epochs(training.progress, begun):
        yield


def restore_state(fit: FitCall, values: dict[str, PortableValue]) -> None:
    """Assigns values to a model's variables by name."""
    take_values({one.name: one.variable for one in fit.graph.variables}, values)


def _index_arrays(fit: FitCall, arguments: dict[str, Argument]) -> dict[str, NumberedArrays]:
    """The arrays that row numbers replace from now on, by step."""
    arrays_by_step = {"train": index_input(fit.model, arguments, fit.traced["train"].spec)}
    if fit.is_validated:
        arrays_by_step["test"] = index_validation(fit.model, arguments, fit.traced["test"].spec)
    return {which: arrays for which, arrays in arrays_by_step.items() if arrays is not None}


def _split_datasets(arguments: dict[str, Argument], begun: PeekedDatasets) -> dict[str, RowPipeline]:
    """The row functions that are split off each step's dataset from now on."""
    pipelines = {}
    for which, name in (("train", "x"), ("test", "validation_data")):
        if which == "test" or not arguments.get("class_weight"):
            pipelines.update(split_input(arguments, name, which, begun))
    return pipelines


def split_input(arguments: dict[str, Argument], name: str, which: str, begun: PeekedDatasets) -> dict[str, RowPipeline]:
    """Splits off the row functions of a dataset argument whose first batch has not been read; `which` is its step."""
    dataset = arguments.get(name)
    is_begun = any(one.dataset is dataset for one in begun)
    split = split_dataset(dataset, which) if isinstance(dataset, tf.data.Dataset) and not is_begun else None
    if split is None:
        return {}
    arguments[name] = split.elements
    return {which: split.pipeline}


@contextmanager
def _functions_of(model: KerasModel, training: ModelTraining) -> Iterator[None]:
    """A context in which Keras steps through a session."""
    model.make_test_function()
    model.make_predict_function()
    before = model.train_function, model.test_function, model.predict_function
    model.train_function, model.test_function = training.train_function, training.test_function(model.test_function)
    model.predict_function = training.predict_function(model.predict_function)
    try:
        yield
    finally:
        model.train_function, model.test_function, model.predict_function = before


def _with_validation_split(library: ModuleType, arguments: dict[str, Argument]) -> dict[str, Argument]:
    """The arguments with validation data split off as Keras does."""
    split = arguments.pop("validation_split", 0.0)
    if split and arguments.get("validation_data") is None:
        names = ("x", "y", "sample_weight")
        parts, validation = library.validation_split(
            tuple(arguments.get(name) for name in names), validation_split=split
        )
        arguments.update(zip(names, parts, strict=True))
        arguments["validation_data"] = validation
    return arguments


class BatchKind(NamedTuple):
    """Properties of batches that are known before a step is traced.

    Attributes:
        spec: of a batch of any length.
        declared: of a batch as the dataset declares it, also its length if it is known.
        whole: as in `ModelStep`.
        begun: a dataset whose first batch had to be read for that; else None.
    """

    spec: Nest
    declared: Nest
    whole: frozenset[int]
    begun: PeekedDataset | None


def batches_of(
    model: KerasModel, arguments: dict[str, Argument], peeked: list[Nest], batch_size: int | None
) -> BatchKind:
    """The kind of the batches that Keras makes of arguments; for a generator, from its first batches."""
    library = library_of(model)
    data = _chain_peeked(peeked, iter(())) if peeked else arguments.get("x")
    y, weights, classes = (arguments.get(name) for name in ("y", "sample_weight", "class_weight"))
    with record_batches(data, library.INDEXED) as indexed:
        dataset = library.dataset_of(model, data, y, weights, batch_size, classes)
    if indexed:
        x, y, weights = library.unpacked(indexed[0])
        weights = library.weights_of_classes(y, classes) if classes and weights is None else weights
        peeked = [(x, y, weights)]
    spec, whole, begun = open_spec(dataset.element_spec), find_unsplit_parts(dataset, peeked), None
    if whole is None and isinstance(data, tf.data.Dataset):
        begun = library.begin(data, dataset)
        whole = None if begun is None or begun.first is None else find_unsplit_parts(dataset, [begun.first])
    return BatchKind(spec, dataset.element_spec, whole or frozenset(), begun)


def peek(arguments: dict[str, Argument], name: str) -> list[Nest]:
    """The first batches of an argument that is a generator, which is restored; else empty."""
    data = arguments.get(name)
    if not isinstance(data, GeneratorType):
        return []
    peeked = list(itertools.islice(data, _LOOKED_AT_BATCHES))
    arguments[name] = _chain_peeked(peeked, data)
    return peeked


def _chain_peeked(peeked: list[Nest], rest: Iterator[Nest]) -> Iterator[Nest]:
    """A generator of the batches read from another one, and then of the rest.

    It returns copies: TensorFlow reads ahead, and shares arrays without a copy, which some generators overwrite.
    """
    for batch in itertools.chain(peeked, rest):
        yield tf.nest.map_structure(lambda one: one.copy() if isinstance(one, np.ndarray) else one, batch)
