"""`train_on_batch` in a script's own loop: the workers execute the steps of the models that it trains."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from parallax.base.types import Argument, KerasModel, Logs, Nest, TensorLike, TypeSpec
from parallax.entry import call as calls
from parallax.functions.batches.split_batch import find_replicated_parts
from parallax.functions.loop import LoopStep, OpenLoop, ScriptLoop, loop_for
from parallax.functions.tracing.batch_norm_setting import statistics_of
from parallax.keras.inputs import batch_length, is_compatible, open_spec
from parallax.keras.libraries import library_of
from parallax.keras.model_steps import ModelStep, rules_of_logs, trace_training, variables_of
from parallax.keras.refusals import check_model, check_step
from parallax.keras.train_function import ModelTraining
from parallax.settings.config import Config


class LoopModel:
    """A model that a script trains by train_on_batch, for one kind of batches.

    Args:
        model: a compiled keras.Model.
        loop: the script's loop.
        step: the model's step in it.
        traced: the traced step.
        others: those for the model's other kinds of batches, including this one.
    """

    def __init__(
        self, model: KerasModel, loop: ScriptLoop, step: LoopStep, traced: ModelStep, others: list[LoopModel]
    ) -> None:
        self._model, self._loop, self.step, self._traced, self.others = model, loop, step, traced, others
        others.append(self)
        self._opened: OpenLoop | None = None
        self._training: ModelTraining

    def is_of(self, model: KerasModel) -> bool:
        """Whether it belongs to a model, and not to one of which this one is a copy."""
        return self._model is model

    def takes(self, spec: Nest) -> bool:
        """Whether batches of a spec are of its kind."""
        return is_compatible(spec, self._traced.spec)

    def train_function(self, iterator: Iterator[Nest]) -> Logs | None:
        """The result of `Model.train_function` for the next batch of an iterator."""
        opened = self._loop.session()
        if opened is not self._opened:
            steps, traced = {"train": opened.steps[self.step]}, {"train": self._traced}
            self._training = ModelTraining(
                self._model, opened.running, opened.variables, steps, traced, has_late_logs=False
            )
            self._opened = opened
        with self._loop.guard():
            return self._training.train_function(iterator)


_steps: WeakKeyDictionary[KerasModel, list[LoopStep]] = WeakKeyDictionary()
"""The latest steps of each model, which are replaced by those traced after it is compiled again."""


def prepare_model(
    model: KerasModel,
    arguments: Mapping[str, Argument],
    config: Config,
    resource: str | Path | None,
    merge_rows: bool = False,
) -> None:
    """Makes Keras's own `train_on_batch` train a model on workers.

    Args:
        model: a compiled keras.Model.
        arguments: of the call by name.
        config: settings.
        resource: a resource file; None for workers on this host.
        merge_rows: whether optimizers see equal rows of a sparse gradient summed.

    Raises:
        JobEnded: in a process with a purpose other than training, such as `parallax plan`.
        ParallaxError: as `parallel_run`.
    """
    declared, known = _spec_of(model, arguments), getattr(model.train_function, "__self__", None)
    others: list[LoopModel] = []
    if isinstance(known, LoopModel) and known.is_of(model):
        others = known.others
        fitting = next((one for one in others if one.takes(declared)), None)
        if fitting is not None:
            model.train_function = fitting.train_function
            return
    loop = loop_for(config, resource)
    traced_steps: list[ModelStep] = []

    def trace() -> LoopStep:
        library_of(model).check_compiled(model, "train_on_batch")
        check_model(model)
        with statistics_of(config.batch_norm):
            traced = trace_training(model, open_spec(declared), merge_rows, declared)
        traced = replace(traced, whole=find_replicated_parts(_arrays_of(model, arguments)))
        check_step("train", traced.concrete)
        traced_steps.append(traced)
        full = batch_length(arguments.get("x"), sys.maxsize)
        examples = -(-full // calls.count_batch_parts(config, resource))
        variables = variables_of(model, traced.captured)
        rules, whole, summaries = rules_of_logs(traced), traced.whole, traced.summaries
        return LoopStep(
            "train",
            traced.concrete,
            variables,
            traced.metrics,
            examples,
            full,
            rules,
            summaries,
            whole,
            traced.has_length,
        )

    before = [] if others else _steps.get(model, [])  # it was compiled again
    step = loop.add(trace, instead_of=before)
    _steps[model] = [one.step for one in others] + [step]
    model.train_function = LoopModel(model, loop, step, traced_steps[0], others).train_function


def _arrays_of(model: KerasModel, arguments: Mapping[str, Argument]) -> list[TensorLike]:
    """The flat parts of the batch that `train_on_batch` forms from its arguments."""
    parts = [one for one in tf.nest.flatten(_batch_of(model, arguments)) if one is not None]
    return [one if isinstance(one, tf.RaggedTensor | tf.Tensor) else np.asarray(one) for one in parts]


def _batch_of(model: KerasModel, arguments: Mapping[str, Argument]) -> Nest:
    """The batch that `train_on_batch` forms from its arguments."""
    weights = arguments.get("sample_weight")
    if arguments.get("class_weight") is not None and weights is None:
        weights = library_of(model).weights_of_classes(arguments.get("y"), arguments["class_weight"])
    return arguments.get("x"), arguments.get("y"), weights


def _spec_of(model: KerasModel, arguments: Mapping[str, Argument]) -> Nest:
    """The spec of the batch that `train_on_batch` forms from its arguments, with its length."""

    def spec(one: TensorLike | None) -> TypeSpec | None:
        if one is None or isinstance(one, tf.RaggedTensor):
            return None if one is None else tf.type_spec_from_value(one)
        array = one if isinstance(one, tf.Tensor) else np.asarray(one)
        return tf.TensorSpec(array.shape, tf.as_dtype(array.dtype))

    return tf.nest.map_structure(spec, _batch_of(model, arguments))
