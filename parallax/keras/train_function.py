"""Trains a Keras model on workers: the functions that Keras's `fit` and `train_on_batch` call for a batch.

Keras's own loop runs in the script's process, which drives the workers (functions/remote/remote_steps.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf

from parallax.base.types import Argument, KerasModel, Logs, Nest, TensorLike
from parallax.functions.batches.numbered_rows import NumberedArrays, NumberedRows
from parallax.functions.batches.row_pipeline import RawRows, RowPipeline
from parallax.functions.metric_sums import StepValues
from parallax.functions.remote.remote_steps import RemoteSteps
from parallax.functions.tracing.results import add_summaries, default_rule
from parallax.functions.tracing.step_graph import GraphStep
from parallax.functions.tracing.traced_values import InFile
from parallax.functions.tracing.written_variables import find_written
from parallax.functions.variables import TrainedVariables
from parallax.keras.arrays import find_row_numbers
from parallax.keras.datasets import ELEMENTS, elements_of
from parallax.keras.inputs import ROW_NUMBERS, is_compatible, open_spec, parts_of
from parallax.keras.libraries import library_of
from parallax.keras.metrics import LogsOfSums
from parallax.keras.model_steps import ModelStep
from parallax.keras.progress import FitProgress
from parallax.keras.step_logs import nested_logs

_trainings: WeakValueDictionary[int, ModelTraining] = WeakValueDictionary()
"""The objects that train models in this process, by the model's id."""


def training_of(model: KerasModel) -> ModelTraining | None:
    """The object that currently trains a model in this process, if there is one."""
    training = _trainings.get(id(model))
    return None if training is None or training.variables.is_released else training


class ModelTraining:
    """A model whose steps workers execute.

    Attributes:
        variables: of the script.
        progress: the progress of a `fit` with checkpoints; None without.
    """

    progress: FitProgress | None = None

    def __init__(
        self,
        model: KerasModel,
        running: RemoteSteps,
        variables: TrainedVariables,
        steps: Mapping[str, GraphStep],
        traced: Mapping[str, ModelStep],
        has_late_logs: bool = True,
    ) -> None:
        """Makes a model's functions use the workers.

        Args:
            model: a keras.Model.
            running: the steps that run.
            variables: of the session.
            steps: "train" and "test" in its graph; "test" may be missing.
            traced: the traced steps.
            has_late_logs: whether logs are computed when one is first read, else after each step.
        """
        self._model, self._running, self._steps, self._traced = model, running, steps, traced
        self.variables, self._has_late_logs = variables, has_late_logs
        self._arrays: dict[str, NumberedArrays] = {}
        self._pipelines: dict[str, RowPipeline] = {}
        self._known: tuple[Iterator[Nest], bool] | None = None  # whether a step accepts the batches of an iterator
        self._logs = {
            name: LogsOfSums(one.concrete, one.concrete.structured_outputs[0], variables.sums.variables)
            for name, one in traced.items()
            if one.outputs is None
        }
        self._written = {name: self._find_written(name) for name in traced}
        _trainings[id(model)] = self

    def take_arrays(self, arrays: Mapping[str, NumberedArrays]) -> None:
        """Registers the arrays behind row numbers in Keras's batches, by step (arrays.py)."""
        self._arrays = dict(arrays)

    def take_pipelines(self, pipelines: Mapping[str, RowPipeline]) -> None:
        """Registers the row functions for elements in Keras's batches, by step (datasets.py)."""
        self._pipelines = dict(pipelines)
        self.variables.sums.ahead = 2 if pipelines else 1  # workers compute the rows of one while they run another

    def train_function(self, iterator: Iterator[Nest]) -> Logs | None:
        """The result of `Model.train_function` for the next batches of an iterator."""
        return self._on_batches("train", iterator)

    def test_function(self, evaluate: Callable[[Argument], Logs]) -> Callable[[Iterator[Nest]], Logs | None]:
        """The value of `Model.test_function`: workers evaluate, or this process where they have no step for it.

        Args:
            evaluate: Keras's own.
        """

        def evaluating(iterator: Iterator[Nest]) -> Logs | None:
            if self._has_step_for("test", iterator):
                return self._on_batches("test", iterator)
            self.variables.mirrors.refresh_all()
            return evaluate(iterator)

        return evaluating

    def predict_function(self, predict: Callable[[Argument], Nest]) -> Callable[[Argument], Nest]:
        """The value of `Model.predict_function`: workers predict, or this process where they have no step for it.

        Args:
            predict: Keras's own.
        """

        def predicting(data: Argument) -> Nest:
            if "predict" in self._steps:  # only this, as no callback runs
                return self._predict(data)
            self.variables.mirrors.refresh_all()
            return predict(data)

        return predicting

    def _has_step_for(self, which: str, iterator: Iterator[Nest]) -> bool:
        """Whether workers have a step that accepts the batches of an iterator of Keras's."""
        if which not in self._steps:
            return False
        spec = getattr(iterator, "element_spec", None)
        names = spec.keys() if isinstance(spec, dict) else ()
        if spec is None or any(str(name).startswith((ROW_NUMBERS, ELEMENTS)) for name in names):
            return True  # created for it
        if self._known is None or self._known[0] is not iterator:
            self._known = iterator, is_compatible(open_spec(spec), self._traced[which].spec)
        return self._known[1]

    def within(self, hook: str, *args: Argument) -> AbstractContextManager[None]:
        """The context of a callback hook."""
        if hook == "on_epoch_end":
            self._running.back_up()
        return nullcontext() if self.progress is None else self.progress.within(hook, *args)

    def store(self, folder: Path, step: int | None = None) -> dict[str, InFile]:
        """Writes a checkpoint of the model; see `TrainedVariables.store`."""
        return self.variables.store(folder, step)

    def _on_batches(self, which: str, iterator: Iterator[Nest]) -> Logs | None:
        """Runs steps over as many batches as Keras requests at once; returns the logs of the last."""
        logs = None
        for _ in range(library_of(self._model).steps_at_once(self._model)):
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if logs is None:
                    raise StopIteration from None
                break
            logs = self._step(which, self._parts_of(which, batch))
        return logs

    def _parts_of(self, which: str, batch: Nest) -> Sequence[TensorLike | NumberedRows | RawRows]:
        """The flat tensors of a batch; or the rows that it names, or that workers compute from it."""
        numbers, elements = find_row_numbers(batch, which), elements_of(batch, which)
        if numbers is not None:
            return self._arrays[which].batch(numbers)
        if elements is not None:
            return [RawRows(one, self._pipelines[which]) for one in elements]
        return parts_of(batch)

    def _predict(self, batches: Sequence[Nest]) -> Nest:
        """The model's results for batches, in their own structure."""
        step, running = self._steps["predict"], self._running
        self.variables.flush()
        results, _, summaries = step.fetches
        fetches = [*results.values(), *summaries]
        rules = add_summaries(map(default_rule, results.values()), summaries)
        waits = []
        for batch in batches:
            share = running.pack_part(self._parts_of("predict", batch), step.whole)
            waits.append(running.start(step, share, fetches, rules=rules))
            self.variables.invalidate(self._written["predict"])
        outputs = []
        for wait in waits:
            values = wait()
            outputs.append(values[: len(results)])
            self._traced["predict"].summaries.write(values[len(results) :])
        rows = [tf.convert_to_tensor(np.concatenate(parts)) for parts in zip(*outputs, strict=True)]
        return tf.nest.pack_sequence_as(self._traced["predict"].outputs, rows)

    def _step(self, which: str, batch: Sequence[TensorLike | NumberedRows | RawRows]) -> Logs:
        self.variables.flush()
        logs, step, written = self._logs[which], self._steps[which], self._traced[which].summaries
        results, parts, summaries = step.fetches
        others = [results[name] for name in logs.others]
        rules = add_summaries(map(default_rule, others), summaries)
        share = self._running.pack_part(batch, step.whole)
        wait = self._running.start(step, share, [*others, *summaries], parts, rules)
        self.variables.invalidate(self._written[which])

        def wait_for_values() -> StepValues:
            values = wait()
            first = len(values) - len(summaries)
            written.write(values[first:])
            return values[: len(parts)], dict(zip(logs.others, values[len(parts) : first], strict=True))

        self.variables.sums.follow(self.variables.numbers[step.name], wait_for_values)
        library_of(self._model).has_trained(self._model, which)
        return self._report(results, logs)

    def _find_written(self, which: str) -> set[str] | None:
        """The names of variables that a step may change, without those that add up; None: of all."""
        if which == "train":
            return None
        step = self._traced[which]
        written = {id(one) for one in find_written(step.concrete.graph, step.captured)}
        return {name for name, one in self.variables.by_name.items() if id(one) in written}

    def _report(self, names: Iterable[str], logs: LogsOfSums) -> Logs:
        """The logs of the last step, from the current values of its metrics."""
        nothing, latest = nested_logs(dict.fromkeys(names, 0.0)), self.variables.sums.latest

        def compute() -> Logs:
            return nested_logs(logs.logs(latest.sums, latest.others))

        return library_of(self._model).late_logs(nothing, compute) if self._has_late_logs else compute()
