"""`fit` by workers: the steps of the model are traced for the specs of the batches, and become one graph.

Keras's own `fit` goes over the batches in this process, by steps of that graph, which workers carry out.
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
from parallax.functions.tracing.counting import check_sums
from parallax.functions.tracing.step_graph import GraphStep, StepGraph
from parallax.functions.tracing.traced_values import take_values
from parallax.functions.variables import TrainedVariables
from parallax.keras.arrays import number_input, number_validation
from parallax.keras.callbacks import callback_list_for
from parallax.keras.datasets import parts_given_whole, split_dataset
from parallax.keras.epochs import BegunDataset, BegunDatasets
from parallax.keras.inputs import batch_length, open_spec
from parallax.keras.libraries import library_of
from parallax.keras.progress import FitProgress
from parallax.keras.refusals import check_model, check_step
from parallax.keras.steps import NOT_KNOWN, ModelStep, step_graph, traced_evaluation, traced_training
from parallax.keras.training import ModelTraining
from parallax.runtime.driver_channel import ChannelClosed
from parallax.settings.parts import TableConfig

_LOOKED_AT_BATCHES = 2
"""Of a generator, from which Keras tells the shapes of all."""
_NO_LARGE_ONES = TableConfig(whole_bytes=sys.maxsize)


@dataclass(frozen=True, slots=True)
class FitCall:
    """A call of `fit`, `evaluate` or `predict`, read.

    Attributes:
        model: whose it is.
        arguments: of the call by name; what is an iterator can still be read from its beginning.
        traced: by name: "train", "test" of what is evaluated, "predict", and for other batches "test_1" and so on.
        graph: of both.
        steps: the same in the graph.
        names: id of a tf.Variable -> its name in the graph.
        reset: op of the graph that sets a worker's own parts of metrics to zero.
        full: of the steps of which it is known, how many examples most batches have, all workers' together.
        examples: how many a part of a batch has, by which the plan counts; 0 if unknown.
        begun: datasets of the arguments whose first batch was taken.
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
    begun: tuple[BegunDataset, ...] = ()

    @property
    def is_validated(self) -> bool:
        """Whether it is a `fit` with validation data."""
        return self.arguments.get("validation_data") is not None


def is_step_of(which: str, name: str) -> bool:
    """Whether a step of a call is for what "train", "test" or "predict" names."""
    return name.split("_")[0] == which


def read_fit(
    model: KerasModel,
    arguments: dict[str, Argument],
    parts: int = 1,
    merge_rows: bool = False,
    has_checkpoints: bool = False,
    before: FitCall | None = None,
) -> FitCall:
    """Traces the steps of a call of `fit`, and makes one graph of them.

    Args:
        model: a compiled keras.Model.
        arguments: of the call by name.
        parts: into how many a batch is cut.
        merge_rows: whether optimizers see equal rows of a sparse gradient added up.
        has_checkpoints: whether workers write checkpoints, named by the number of steps.
        before: the model's call before this one, whose other steps the graph has too.

    Raises:
        ConfigError: they do, and this Keras cannot go on within an epoch.
        GraphError: a step or its input cannot be had in a graph.
    """
    library = library_of(model)
    library.check_compiled(model, "fit")
    check_model(model)
    if has_checkpoints:
        library.check_resumable()
    arguments = _with_validation_split(library, dict(arguments))
    peeked = peek(arguments, "x")
    batches = {"train": batches_of(library, arguments, peeked, arguments.get("batch_size"))}
    full = {"train": batch_length(arguments.get("x"), arguments.get("batch_size"))}
    if arguments.get("validation_data") is not None:
        x, y, weights = library.unpacked(arguments["validation_data"])
        validation = {"x": x, "y": y, "sample_weight": weights}
        length = arguments.get("validation_batch_size") or arguments.get("batch_size")
        peeked = peek(validation, "x")
        batches["test"] = batches_of(library, validation, peeked, length)
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
    """Traces the steps of a model and makes one graph of them.

    Args:
        model: a compiled keras.Model.
        arguments: of the call, by name.
        batches: "train", and "test" where there is validation: the kind of batches.
        examples: how many a worker has of a batch, by which the plan counts; 0 if unknown.
        merge_rows: whether optimizers see equal rows of a sparse gradient added up.
        full: how many examples most batches have, all workers' together, of the steps of which it is known.
        is_counted: whether the graph's global step counts steps of training.
        before: as in `read_fit`.

    Raises:
        GraphError: a step cannot be had in a graph.
    """
    traced = {"train": traced_training(model, batches["train"].spec, merge_rows)}
    if "test" in batches:
        traced["test"] = traced_evaluation(model, batches["test"].spec)
    traced = {name: replace(one, whole=batches[name].whole) for name, one in traced.items()}
    if before is not None:
        traced = {**traced, **{name: one for name, one in before.traced.items() if name not in traced}}
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
    """Makes one graph of traced steps; arguments are those of `read_steps`, with the steps by their names.

    Raises:
        GraphError: workers cannot carry out a step.
    """
    for name, one in traced.items():
        check_traced(name, one)
    graph, steps = step_graph(model, traced, examples, full, is_counted)
    names = {id(one.variable): one.name for one in graph.list_variables()}
    metrics = [names[id(v)] for one in traced.values() for v in one.metrics if id(v) in names]
    return FitCall(model, arguments, traced, graph, steps, names, graph.reset(dict.fromkeys(metrics)), full, examples)


def check_traced(name: str, traced: ModelStep) -> None:
    """Refuses a traced step that workers cannot carry out.

    Args:
        name: "train" or "test".
        traced: the step.

    Raises:
        GraphError: what was found, and what to do.
    """
    check_step(name, traced.concrete)
    check_sums(traced.concrete, traced.metrics)


def run_fit(
    fit: FitCall,
    original: Callable[..., KerasHistory],
    running: RemoteSteps,
    tables: TableConfig = _NO_LARGE_ONES,
) -> tuple[KerasHistory, dict[str, PortableValue]]:
    """Carries out a call of `fit` by steps that workers run.

    Args:
        fit: the call.
        original: Keras's `fit`, bound to the model.
        running: the steps.
        tables: what is done with large variables.

    Returns:
        What Keras returned, and the values of all variables by name; in the place of those that the workers have
        written to files, where they are.
    """
    metrics = {step: one.metrics for step, one in fit.traced.items()}
    variables = TrainedVariables(running, metrics, fit.names, fit.reset)
    try:
        history = _fit_by(fit, original, running, variables)
        return history, variables.values(tables)
    except BaseException:
        try:
            with suppress(ParallaxError):  # the model has the workers' values, where they can be had
                variables.mirrors.refresh_all()
        except ChannelClosed:
            variables.fall_back()
        raise
    finally:
        variables.release()


def _fit_by(
    fit: FitCall, original: Callable[..., KerasHistory], running: RemoteSteps, variables: TrainedVariables
) -> KerasHistory:
    """What Keras's `fit` returns over batches that workers train on."""
    model = fit.model
    own = ["train", *(["test"] if fit.is_validated else [])]
    steps, traced = {name: fit.steps[name] for name in own}, {name: fit.traced[name] for name in own}
    training = ModelTraining(model, running, variables, steps, traced)
    arguments = dict(fit.arguments)
    training.take_arrays(_number_arrays(fit, arguments))
    training.take_pipelines(_split_datasets(arguments, fit.begun) if running.is_spread else {})
    if fit.graph.loop is not None:
        first, last = arguments.get("initial_epoch", 0), arguments.get("epochs", 1)
        training.progress = FitProgress(model, running, first, last)
    with driving(model, training, fit.begun):
        return original(**arguments)


@contextmanager
def driving(model: KerasModel, training: ModelTraining, begun: BegunDatasets) -> Iterator[None]:
    """Within it what Keras calls for a batch of a model, and for callbacks, is what drives workers."""
    library = library_of(model)
    lists = mock.patch(library.CALLBACK_LIST_IN_FIT, callback_list_for(model, training.within))
    with _functions_of(model, training), lists, library.numbered_epochs(training.progress, begun):
        yield


def take_state(fit: FitCall, values: dict[str, PortableValue]) -> None:
    """Gives a model's variables values by name."""
    take_values({one.name: one.variable for one in fit.graph.variables}, values)


def _number_arrays(fit: FitCall, arguments: dict[str, Argument]) -> dict[str, NumberedArrays]:
    """By step, the arrays in whose place Keras has row numbers from now on."""
    found = {"train": number_input(fit.model, arguments, fit.traced["train"].spec)}
    if fit.is_validated:
        found["test"] = number_validation(fit.model, arguments, fit.traced["test"].spec)
    return {which: arrays for which, arrays in found.items() if arrays is not None}


def _split_datasets(arguments: dict[str, Argument], begun: BegunDatasets) -> dict[str, RowPipeline]:
    """By step, what is done to the elements in whose batches Keras has a dataset from now on."""
    found = {}
    for which, name in (("train", "x"), ("test", "validation_data")):
        if which == "test" or not arguments.get("class_weight"):
            found.update(split_input(arguments, name, which, begun))
    return found


def split_input(arguments: dict[str, Argument], name: str, which: str, begun: BegunDatasets) -> dict[str, RowPipeline]:
    """The same of one argument, by its name and that of the step that takes it; not of a dataset that was begun."""
    dataset = arguments.get(name)
    is_begun = any(one.dataset is dataset for one in begun)
    split = split_dataset(dataset, which) if isinstance(dataset, tf.data.Dataset) and not is_begun else None
    if split is None:
        return {}
    arguments[name] = split.elements
    return {which: split.pipeline}


@contextmanager
def _functions_of(model: KerasModel, training: ModelTraining) -> Iterator[None]:
    """Within it Keras steps by a session."""
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
    """The arguments with validation data cut off as Keras cuts them off."""
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
    """What is known of batches before a step is traced.

    Attributes:
        spec: of a batch of any length.
        whole: as in `ModelStep`.
        begun: a dataset whose first batch had to be taken for that; else None.
    """

    spec: Nest
    whole: frozenset[int]
    begun: BegunDataset | None


def batches_of(
    library: ModuleType, arguments: dict[str, Argument], peeked: list[Nest], batch_size: int | None
) -> BatchKind:
    """The kind of the batches that Keras makes of arguments; of a generator, by what was taken of it."""
    data = _again(peeked, iter(())) if peeked else arguments.get("x")
    y, weights, classes = (arguments.get(name) for name in ("y", "sample_weight", "class_weight"))
    dataset = library.dataset_of(data, y, weights, batch_size, classes)
    spec, whole, begun = open_spec(dataset.element_spec), parts_given_whole(dataset, peeked), None
    if whole is None and isinstance(data, tf.data.Dataset):
        begun = library.begin(data, dataset)
        whole = None if begun is None or begun.first is None else parts_given_whole(dataset, [begun.first])
    return BatchKind(spec, whole or frozenset(), begun)


def peek(arguments: dict[str, Argument], name: str) -> list[Nest]:
    """The first batches of an argument that is a generator, which is put together again; else empty."""
    data = arguments.get(name)
    if not isinstance(data, GeneratorType):
        return []
    peeked = list(itertools.islice(data, _LOOKED_AT_BATCHES))
    arguments[name] = _again(peeked, data)
    return peeked


def _again(peeked: list[Nest], rest: Iterator[Nest]) -> Iterator[Nest]:
    """A generator of what was taken from one, and then of the rest.

    It gives copies: TensorFlow reads ahead, and takes arrays as they are, which some generators fill again.
    """
    for batch in itertools.chain(peeked, rest):
        yield tf.nest.map_structure(lambda one: one.copy() if isinstance(one, np.ndarray) else one, batch)
