"""Trains a Keras model on all workers: what `fit` of Keras calls for a batch, and what keeps the workers in step.

Keras's own `fit` runs in the script's process, which drives workers (functions/remote_steps.py): to it they are one. Or
it runs on every worker, over the same input, with the same decisions: a batch is one step of the session for all of
them, each with its share of the rows, and worker 0 reports, and runs the callbacks (callbacks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import tensorflow as tf

from parallax.errors import SessionError
from parallax.functions.mirrors import Mirrors
from parallax.functions.numbered_rows import NumberedArrays, NumberedRows
from parallax.functions.remote_steps import RemoteSteps
from parallax.functions.running import RunningSteps
from parallax.functions.shares import Share, digest_of, share_of
from parallax.functions.step_graph import GraphStep
from parallax.functions.traced import InFile
from parallax.keras.arrays import numbers_of
from parallax.keras.callbacks import decisions_of
from parallax.keras.inputs import parts_of
from parallax.keras.libraries import library_of
from parallax.keras.logs import has_rows, nested_logs
from parallax.keras.metrics import LogsOfSums, MetricSums
from parallax.keras.progress import FitProgress
from parallax.keras.randomness import have_parted, random_states, take_random_states
from parallax.keras.steps import ModelStep
from parallax.runtime.driver_channel import ChannelClosed
from parallax.runtime.worker.barrier import barrier
from parallax.types import (
    Argument,
    KerasModel,
    Logs,
    Nest,
    Operation,
    Picklable,
    PortableValue,
    TensorLike,
    Value,
)

_trainings: WeakValueDictionary[int, ModelTraining] = WeakValueDictionary()
"""By a model's id, what trains it in this process."""


def training_of(model: KerasModel) -> ModelTraining | None:
    """What trains a model in this process at this time, if anything does."""
    return _trainings.get(id(model))


class ModelTraining:
    """A model whose steps run in this worker's session.

    Attributes:
        rank: this worker.
        is_leading: whether worker 0 acts alone, while the others serve it.
        mirrors: the model's variables, kept in agreement with the session's.
        progress: how far a `fit` with checkpoints is; None without.
    """

    progress: FitProgress | None = None

    def __init__(
        self,
        model: KerasModel,
        running: RunningSteps | RemoteSteps,
        steps: Mapping[str, GraphStep],
        traced: Mapping[str, ModelStep],
        names: Mapping[int, str],
        reset: Operation,
        reports_everywhere: bool = False,
    ) -> None:
        """Gives the session the model's values, and mirrors its variables.

        Args:
            model: a keras.Model.
            running: the steps that run.
            steps: "train" and "test" in its graph; "test" may be missing.
            traced: the same as they were traced.
            names: id of a tf.Variable -> its name in the graph.
            reset: op of the graph that sets this worker's own parts of metrics to zero.
            reports_everywhere: whether all workers want logs; else worker 0 alone.
        """
        self._model, self._running, self._steps, self._traced = model, running, steps, traced
        self._reset, self._reports = reset, reports_everywhere or running.rank == 0
        self._reports_everywhere = reports_everywhere
        self.rank, self.is_leading = running.rank, False
        self._arrays: dict[str, NumberedArrays] = {}
        self._is_compared = False
        metrics = {id(v): v for one in traced.values() for v in one.metrics}
        self._sums = MetricSums(list(metrics.values()), running.comm)
        self._logs = {
            name: LogsOfSums(one.concrete, one.concrete.structured_outputs[0], self._sums.variables)
            for name, one in traced.items()
        }
        taken = running.variables()
        self._number_of = {names.get(key, f"metric {number}"): number for number, key in enumerate(metrics)}
        name_of = dict(zip(metrics, self._number_of, strict=True))
        running.begin({step: [name_of[id(v)] for v in one.metrics] for step, one in traced.items()})
        self._trained = [name for name in taken if name not in self._number_of]
        counted = {name: self._sums.variables[number] for name, number in self._number_of.items()}
        self.mirrors = Mirrors({**taken, **counted}.items(), self._fetched)
        if running.resumed_step is not None:
            self.mirrors.outdate(self._trained)
            running.reset(reset)  # a checkpoint has what one worker had of the metrics of an epoch
        _trainings[id(model)] = self

    def take_arrays(self, arrays: Mapping[str, NumberedArrays]) -> None:
        """Says of which arrays Keras's batches are row numbers, by step (arrays.py)."""
        self._arrays = dict(arrays)

    def train_function(self, iterator: Iterator[Nest]) -> Logs | None:
        """What `Model.train_function` gives for the next batches of an iterator."""
        return self._on_batches("train", iterator)

    def test_function(self, evaluate: Callable[[Argument], Logs]) -> Callable[[Iterator[Nest]], Logs | None]:
        """What `Model.test_function` is: workers evaluate; who drives them evaluates here what they have no step for.

        Args:
            evaluate: Keras's own.
        """

        def evaluating(iterator: Iterator[Nest]) -> Logs | None:
            if "test" in self._steps or not isinstance(self._running, RemoteSteps):
                return self._on_batches("test", iterator)
            self.mirrors.refresh_all()
            return evaluate(iterator)

        return evaluating

    def predict_function(self, predict: Callable[[Argument], Nest]) -> Callable[[Argument], Nest]:
        """Keras's own predict function, which finds the trained values."""

        def predicting(data: Argument) -> Nest:
            self.mirrors.refresh_all()
            return predict(data)

        return predicting

    @contextmanager
    def lead(self) -> Iterator[None]:
        """Within it worker 0 acts alone; then the others hear what came of it."""
        if self.is_leading or self._running.size == 1:
            yield
            return
        self.is_leading, before = True, random_states()
        try:
            yield
            self._flush()
        finally:
            self.is_leading = False
        after = random_states()
        drawn = after if have_parted(before, after) else None
        self._tell(("go", (decisions_of(self._model), drawn)))

    def follow(self) -> None:
        """Serves worker 0 until it says that it goes on."""
        while True:
            kind, what = self._tell(None)
            if kind == "read":
                self._running.read([what])
            elif kind == "write":
                self._write(*what)
            elif kind == "store":
                folder, step = what
                self._running.store(folder, self._trained, step)
            elif kind == "step":
                self._step(what, self._running.comm.scatter(None), 0)
            else:
                decisions, drawn = what
                for name, value in decisions.items():
                    setattr(self._model, name, value)
                if drawn is not None:
                    take_random_states(drawn)
                return

    def within(self, hook: str, *args: Argument) -> AbstractContextManager[None]:
        """What surrounds a hook of the callbacks, on every worker."""
        return nullcontext() if self.progress is None else self.progress.within(hook, *args)

    def agree(self, what: Picklable) -> Picklable:
        """Worker 0's value, on all workers."""
        return self._tell(what)

    def values(self, but: Collection[str] = ()) -> dict[str, PortableValue]:
        """The values of variables by name, on worker 0 (elsewhere empty); every worker must call it.

        Args:
            but: names of those that are left out.
        """
        self._flush()
        self._sums.latest.arrive()
        found = self._running.read([name for name in self._trained if name not in but])
        if self.rank:
            return {}
        found.update({name: self._sums.sums[number] for name, number in self._number_of.items()})
        return found

    def store(self, folder: Path, step: int | None = None) -> dict[str, InFile]:
        """Writes a checkpoint of the model, not of its metrics; every worker must call it, or worker 0 that leads.

        Args:
            folder: on worker 0's machine.
            step: its number; None for the one that comes after those of the folder.

        Returns:
            Where each variable is, by name.

        Raises:
            CheckpointError: on all workers, when it cannot be written.
        """
        self._flush()
        if self.is_leading:
            self._tell(("store", (folder, step)))
        return self._running.store(folder, self._trained, step)

    def abandon(self) -> None:
        """Ends it after an exception; the process that drives workers gives its model the values that they have."""
        with suppress(ChannelClosed):
            if isinstance(self._running, RemoteSteps):
                self.mirrors.refresh_all()
        self.release()

    def release(self) -> None:
        """Ends it; the model keeps the values that it has."""
        self.mirrors.release()
        _trainings.pop(id(self._model), None)

    def _on_batches(self, which: str, iterator: Iterator[Nest]) -> Logs | None:
        """Steps over as many batches as Keras asks for at once; logs of the last."""
        logs = None
        for _ in range(library_of(self._model).steps_at_once(self._model)):
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if logs is None:
                    raise StopIteration from None
                break
            numbers = numbers_of(batch, which)
            if numbers is None:
                parts = parts_of(batch)
                logs = self._on_batch(which, parts, partial(digest_of, parts))
            else:
                arrays = self._arrays[which]
                logs = self._on_batch(which, arrays.batch(numbers), partial(arrays.digest, numbers))
        return logs

    def _on_batch(self, which: str, batch: list[TensorLike] | list[NumberedRows], digest: Callable[[], int]) -> Logs:
        size = self._running.size
        if which not in self._steps:
            raise SessionError(
                "A session has the steps that it was opened with, and this one has no evaluation. Give `fit` "
                "validation_data, or evaluate after `fit`."
            )
        self._flush()
        if self.is_leading:
            self._tell(("step", which))
            share = self._running.comm.scatter([share_of(batch, one, size) for one in range(size)])
            return self._step(which, share, 0)
        return self._step(which, self._running.share_of(batch), digest() if size > 1 else 0)

    def _step(self, which: str, share: Share, digest: int) -> Logs:
        logs = self._logs[which]
        results, parts = self._steps[which].fetches
        values = self._running.start(self._steps[which], share, [results[name] for name in logs.others], parts)
        if self._running.size == 1:
            self._sums.follow(lambda: self._results_of(which, values(), share.rows))
        else:
            mine, others = self._results_of(which, values(), share.rows)
            rows = {name: others.pop(name) for name, tensor in logs.others.items() if has_rows(tensor)}
            self._sums.send(mine, others, digest, rows)
        if not self._is_compared:  # of the first batch it is said at once that it differs
            self._sums.latest.arrive()
            self._is_compared = True
        self.mirrors.outdate(self._number_of)
        library_of(self._model).has_trained(self._model, which)
        if which == "train":
            self.mirrors.outdate(self._trained)
        return self._reported(results, logs)

    def _results_of(self, which: str, found: Sequence[Value], rows: int) -> tuple[list[Value], dict[str, Value]]:
        """The sums of all metrics, and the logs that are made of something else, of what a step has given."""
        traced, others = self._traced[which], self._logs[which].others
        number = len(traced.metrics)
        ordered = dict(zip((id(v) for v in traced.metrics), found[:number], strict=True))
        sums = [ordered.get(id(v), zero) for v, zero in zip(self._sums.variables, self._sums.zeros, strict=True)]
        values = zip(others.items(), found[number:], strict=True)
        return sums, {name: value[:rows] if has_rows(tensor) else value for (name, tensor), value in values}

    def _reported(self, names: Iterable[str], logs: LogsOfSums) -> Logs:
        """The logs of the last step, as its metrics are now: computed at once where all workers want them."""
        nothing, latest = nested_logs(dict.fromkeys(names, 0.0)), self._sums.latest
        if not self._reports:
            return nothing

        def compute() -> Logs:
            return nested_logs(logs.logs(latest.sums, latest.others))

        return compute() if self._reports_everywhere else library_of(self._model).late_logs(nothing, compute)

    def _fetched(self, name: str) -> Value:
        """The value of a variable that is read here: by all workers, or by worker 0 alone."""
        if name in self._number_of:
            return self._sums.sums[self._number_of[name]]
        if self.is_leading:
            self._tell(("read", name))
            return self._running.read([name])[name]
        return self._running.read_everywhere(name)

    def _flush(self) -> None:
        """Gives the session what was written to the model's variables."""
        written, self.mirrors.written = sorted(self.mirrors.written), set()
        metrics = {
            self._number_of[name]: self.mirrors.variable(name).numpy() for name in written if name in self._number_of
        }
        trained = [name for name in written if name not in self._number_of]
        if not written:
            return
        if self.is_leading:
            self._tell(("write", (trained, metrics)))
        self._write(trained, metrics)

    def _write(self, trained: list[str], metrics: dict[int, Value]) -> None:
        self._running.write({n: self.mirrors.variable(n).numpy() if self.rank == 0 else None for n in trained})
        if metrics:
            self._running.reset(self._reset)
            self._sums.begin_at(metrics)

    def _tell(self, what: Picklable) -> Picklable:
        """Worker 0's message, on all workers; who waits for it leaves its core to others."""
        if self._running.size == 1:
            return what
        barrier(self._running.comm)
        return self._running.comm.bcast(what)
