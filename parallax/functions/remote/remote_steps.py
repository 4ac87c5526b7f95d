"""The steps of a graph from the view of the process that drives workers: like those of a single local worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallax.base.types import Array, ArrayOnWorker0, Operation, Picklable, Tensor, TensorLike, Value, Variable
from parallax.functions.batches.numbered_rows import NumberedRows
from parallax.functions.batches.row_pipeline import RawRows, RowPipeline, RunningPipeline
from parallax.functions.batches.shared_arrays import SharedArrays
from parallax.functions.batches.split_batch import (
    BatchPart,
    RaggedRows,
    ReplicatedPart,
    check_lengths,
    count_rows,
    pack_batch,
)
from parallax.functions.remote.carried_sums import CarriedSums, RunSums
from parallax.functions.remote.request_queue import RequestQueue, Resend, SentRequest
from parallax.functions.remote.serve_driver import ReadyWorkers, RequestedResults, StepResults
from parallax.functions.remote.step_runner import place_of_value
from parallax.functions.tracing.results import default_rule
from parallax.functions.tracing.step_graph import GraphStep, StepGraph
from parallax.functions.tracing.traced_values import InFile, bytes_of
from parallax.report.logger import log
from parallax.report.text import bytes_text
from parallax.runtime.checkpoint.format.stored_tensors import groups

_RULES = ("mean", "rows", "same", "whole")
"""The combination rules, in the order of `RequestedResults`."""
_KEPT_BYTES = 1 << 30
"""Limit for the bytes of requests, and of values, that are stored for workers that replace failed ones."""
_BASE_S, _BASE_COSTS = 10.0, 50
"""Minimum seconds of compute between two reads of all values, and the minimum ratio to the time of one read."""
_COSTS_AT_END = 200
"""The same ratio where no workers replace failed ones, and a failure ends the training."""
_READ_PER_S = 5e8
"""Bytes a second from which the first read of all values is estimated."""
_TOO_MUCH = (
    "More than {size} of {what} would be kept for workers that replace failed ones, so a failure will end the "
    "training. {remedy}, or leave max_restarts out."
)
_OTHER_ROWS = (
    "The functions that the dataset maps return other rows on another machine than on this one, or fail there, as "
    "with files that only this machine has. So this process runs them, and sends every worker its rows."
)
_SAVE, _SAVE_MORE_OFTEN = "Write checkpoints (CheckPointConfig)", "Write checkpoints more often"


class _SentPipeline(NamedTuple):
    """A pipeline that the workers have.

    Attributes:
        number: its number on the workers.
        pipeline: the pipeline, referenced so that its id is not reused.
        here: the pipeline in this process, where some worker computes other rows or none.
    """

    number: int
    pipeline: RowPipeline
    here: RunningPipeline | None


class ValueBackup(NamedTuple):
    """The values of all variables except those of metrics, at one time.

    Attributes:
        values: by name.
        runs: the number of steps that the session had run.
        read_s: the time of the read, by the monotonic clock.
    """

    values: Mapping[str, Value]
    runs: int
    read_s: float


class RemoteSteps:
    """Steps that workers run for this process.

    Attributes:
        is_spread: whether a worker is on another host.
        resumed_step: as in `RunningSteps`.
        steps: as in `RunningSteps`.
        backup: the values of the variables when all were last read; None before.
    """

    def __init__(
        self,
        graph: StepGraph,
        requests: RequestQueue,
        ready: ReadyWorkers,
        whole: Collection[str] | None = None,
        is_spread: bool = False,
    ) -> None:
        """Takes over workers that have opened the graph.

        Args:
            graph: with its steps.
            requests: to the workers.
            ready: their answer.
            whole: the results that layouts replicate to every worker; None where there is one worker.
            is_spread: whether a worker is on another host.
        """
        self._whole, self.is_spread = whole, is_spread
        self._graph, self._requests = graph, requests
        self.resumed_step = ready.resumed_step
        self.steps = self.resumed_step or 0
        requests.begin_at(self.steps)
        self._sums = CarriedSums()
        requests.watcher = self._sums
        self._number_by_results: dict[tuple[str, RequestedResults], int] = {}
        self._sent: dict[int, tuple[int, SharedArrays]] = {}  # by id
        self._pipelines: dict[int, _SentPipeline] = {}  # by id
        self._has_logged_bytes = False
        self.backup: ValueBackup | None = None
        self._base_s = self._began_s = time.monotonic()
        self._runs = self._examples = 0
        self._base_cost_s = sum(map(bytes_of, self.variables().values())) / _READ_PER_S
        self._saved_step: int | None = None  # of the latest checkpoint that the workers have written

    @property
    def examples_per_s(self) -> float:
        """Examples of batches per second since the session was opened."""
        return max(self._examples, 1) / (time.monotonic() - self._began_s)

    def variables(self) -> dict[str, Variable]:
        """The script's variables that the graph's steps read, by name."""
        return {one.name: one.variable for one in self._graph.list_variables()}

    def begin(self, parts: Mapping[str, Sequence[str]]) -> None:
        """Sends the script's values to the workers, unless they have those of a checkpoint.

        Variables that start at their traced initial value already have it, and values in files are read by their
        owners.

        Args:
            parts: by step, the names of the variables of which each worker has its own part of a sum, starting at zero.
        """
        self._sums.names = parts
        if self.resumed_step is not None:
            return
        in_files: dict[str, list[str]] = {}
        here: dict[str, Value] = {}
        for name in self._shared_names():
            variable = self.variables()[name]
            place = place_of_value(variable)
            if place is None:
                here[name] = variable.numpy()
            elif isinstance(place, InFile):
                in_files.setdefault(place.prefix, []).append(name)
        self.write(here)
        for prefix, names in in_files.items():
            self._requests.notify("load", prefix, names)
        if self._requests.is_restorable:
            self._requests.rebase()

    def pack_part(self, batch: Sequence[TensorLike], whole: Collection[int] = ()) -> BatchPart:
        """The whole batch as a share, which is split when it is sent.

        Args:
            batch: its parts, flat.
            whole: indices of the parts that all workers get in full.

        Raises:
            SessionError: the others have unequal numbers of rows.
        """
        parts: list[Any] = [ReplicatedPart(one) if number in whole else one for number, one in enumerate(batch)]
        check_lengths(parts)
        rows = count_rows(parts)
        return BatchPart(tuple(parts), rows or 1, rows)

    def start(
        self,
        step: GraphStep,
        share: BatchPart,
        fetches: Sequence[Tensor],
        parts: Sequence[Tensor] = (),
        rules: Sequence[str] | None = None,
    ) -> Callable[[], list[Value]]:
        """Runs a step on a batch, on the workers.

        Args:
            step: one of the graph's.
            share: the global batch.
            fetches: the requested results, tensors of the graph.
            parts: results that precede these: tensors of which each worker has a part of a sum.
            rules: the rules by which `fetches` are combined: "mean", "rows", "same" or "whole"; None for the default
                rules (tracing/results.py).

        Returns:
            A function that waits for the values of parts and fetches, of the global batch.
        """
        rules = list(map(default_rule, fetches)) if rules is None else rules
        rules = [self._checked_rule(rule, one.name) for rule, one in zip(rules, fetches, strict=True)]
        names_by = {rule: [one.name for one, own in zip(fetches, rules, strict=True) if own == rule] for rule in _RULES}
        requested = RequestedResults(tuple(one.name for one in parts), *(tuple(names_by[rule]) for rule in _RULES))
        key = step.name, requested
        if key not in self._number_by_results:
            self._number_by_results[key] = len(self._number_by_results)
            self._requests.notify("name_results", self._number_by_results[key], *key, resend=Resend.ALWAYS)
        self._limit_requests()
        run, names = self._sums.note_run(step.name), self._sums.names.get(step.name, ())
        answer = self._send_batch(self._number_by_results[key], share, run, step.is_counted)
        self.steps += step.is_counted
        self._runs += 1
        self._examples += share.total

        def wait() -> list[Value]:
            results: StepResults = answer()
            self._saved_step = results.saved_step
            waiting = dict(
                zip(_RULES, map(iter, (results.means, results.rows, results.same, results.whole)), strict=True)
            )
            return [*(run.totals[name] for name in names), *(next(waiting[rule]) for rule in rules)]

        return wait

    def read_epoch(self) -> tuple[int, int, int]:
        """See `RunningSteps`."""
        epoch_and_batches: tuple[int, int, int] = self._requests.call("read_epoch")()
        return epoch_and_batches

    def note_epoch(self, epoch: int, step: int, batches: int | None) -> None:
        """See `RunningSteps`."""
        self._requests.notify("note_epoch", epoch, step, batches)

    def read(self, names: Sequence[str]) -> dict[str, ArrayOnWorker0]:
        """The values of variables by name."""
        variables, value_by_name = self.variables(), {}
        for group in groups({name: bytes_of(variables[name]) for name in names}):
            value_by_name.update(self._requests.call("read", group)())
        return value_by_name

    def write(self, values: Mapping[str, ArrayOnWorker0]) -> None:
        """Writes values of variables, by name."""
        arrays = {name: np.asarray(value) for name, value in values.items()}
        for group in groups({name: array.nbytes for name, array in arrays.items()}):
            self._requests.notify("write", group, payload=[arrays[name] for name in group])

    def store(self, folder: Path, names: Sequence[str], step: int | None = None) -> dict[str, InFile]:
        """See `RunningSteps`."""
        file_by_name: dict[str, InFile] = self._requests.call("store", folder, list(names), step)()
        return file_by_name

    def reset(self, op: Operation) -> None:
        """See `RunningSteps`."""
        self._requests.notify("reset", op.name, note=self._sums.note_reset())

    def _checked_rule(self, rule: str, name: str) -> str:
        """The rule, or one that checks equality, for a result without a layout, which must be equal on all workers."""
        return "same" if rule == "whole" and self._whole is not None and name not in self._whole else rule

    def _shared_names(self) -> list[str]:
        """The names of variables of which workers have no parts."""
        parts = {name for names in self._sums.names.values() for name in names}
        return [name for name in self.variables() if name not in parts]

    def back_up(self, least_s: float = 0.0) -> None:
        """Reads all variables, if the time since the last read is long compared to the cost of one.

        Args:
            least_s: minimum seconds since the last read.
        """
        costs = _BASE_COSTS if self._begins_at_backup else _COSTS_AT_END
        if time.monotonic() - self._base_s > max(least_s, costs * self._base_cost_s):
            self._take_backup()

    @property
    def _begins_at_backup(self) -> bool:
        """Whether workers that replace failed ones begin with the values of the last read."""
        return self._requests.is_restorable and self._graph.loop is None  # else with a checkpoint's

    def _limit_requests(self) -> None:
        """Bounds the requests that are stored for workers that replace failed ones, and the work to repeat."""
        requests = self._requests
        if self._begins_at_backup and requests.stored_bytes > _KEPT_BYTES:
            self._take_backup()
        else:
            self.back_up(_BASE_S)
        if not requests.is_restorable:
            return
        if not self._begins_at_backup:
            requests.forget_until(self._saved_step or 0)
        if requests.stored_bytes > _KEPT_BYTES:
            self._give_up("batches", _SAVE if self._begins_at_backup else _SAVE_MORE_OFTEN)

    def _take_backup(self) -> None:
        """Reads all variables, if this process may store them; from now on restored workers begin with these values."""
        began_s, variables = time.monotonic(), self.variables()
        names = self._shared_names()
        if sum(bytes_of(variables[name]) for name in names) > _KEPT_BYTES:
            if self._begins_at_backup:
                self._give_up("variables", _SAVE)
            return
        values = self.read(names)
        self._base_s = time.monotonic()
        self._base_cost_s = self._base_s - began_s
        self.backup = ValueBackup(values, self._runs, self._base_s)
        if self._begins_at_backup:
            sizes = {name: np.asarray(value).nbytes for name, value in values.items()}
            writes = [(group, [values[name] for name in group]) for group in groups(sizes)]
            self._requests.rebase(
                SentRequest.of("write", (names,), content, resend=Resend.ALWAYS) for names, content in writes
            )

    def _give_up(self, what: str, remedy: str) -> None:
        self._requests.give_up()
        log.warning(_TOO_MUCH.format(size=bytes_text(_KEPT_BYTES), what=what, remedy=remedy))

    def _send_batch(
        self, results_number: int, batch: BatchPart, run: RunSums, counts: bool
    ) -> Callable[..., Picklable]:
        """Sends row numbers of arrays, which are sent once, or shares of a batch; returns a function that waits."""
        ask = partial(self._requests.call, resend=Resend.SINCE_BASE, note=run, counts=counts)
        raw = [part for part in batch.arrays if isinstance(part, RawRows)]
        if raw:
            elements = [np.asarray(part.array) for part in raw]
            sent = self._send_pipeline(raw[0].pipeline, elements)
            if sent.here is None:
                self._log_sent_bytes(elements, "elements, of which workers make rows,")
                return ask("elements", results_number, sent.number, payload=elements)
            rows: Sequence[Array | RaggedRows | ReplicatedPart] = sent.here.make(elements)
            self._log_sent_bytes(rows, "rows")
            return ask("batch", results_number, payload=rows)
        numbered = [part for part in batch.arrays if isinstance(part, NumberedRows)]
        if not numbered or len(numbered) < len(batch.arrays):
            rows = pack_batch(batch.arrays)
            self._log_sent_bytes(rows, "rows")
            return ask("batch", results_number, payload=rows)
        shared = numbered[0].source
        if id(shared) not in self._sent:
            self._sent[id(shared)] = len(self._sent), shared  # referenced, so that its id is not reused
            self._send_arrays(self._sent[id(shared)][0], shared)
        return ask("rows", results_number, self._sent[id(shared)][0], numbered[0].numbers)

    def _send_arrays(self, number: int, shared: SharedArrays) -> None:
        """Passes arrays to the workers: mapped on this host, if worker 0 is never on another one, else sent."""
        requests = self._requests
        is_mapped = requests.is_on_this_machine and requests.call("can_open", shared.place, shared.kinds)()
        place, payload = (shared.place, None) if is_mapped else (None, shared.arrays)
        requests.notify("arrays", number, shared.kinds, place, payload=payload, resend=Resend.ALWAYS)

    def _log_sent_bytes(self, parts: Sequence[Array | RaggedRows | ReplicatedPart], what: str) -> None:
        """Logs once the bytes that a batch sends to other hosts."""
        if self.is_spread and not self._has_logged_bytes:
            self._has_logged_bytes = True
            size = sum(array.nbytes for one in parts for array in _arrays_of(one))
            log.info(f"This process reads the input and sends {bytes_text(size)} of {what} per batch to worker 0.")

    def _send_pipeline(self, pipeline: RowPipeline, elements: Sequence[Array]) -> _SentPipeline:
        """Sends the workers a pipeline, once, if all compute from a first row what this process computes."""
        if id(pipeline) in self._pipelines:
            return self._pipelines[id(pipeline)]
        number, here, first = len(self._pipelines), RunningPipeline(pipeline), [one[:1] for one in elements]
        self._requests.notify("pipeline", number, pipeline, resend=Resend.ALWAYS)
        is_like = self._requests.call("try_pipeline", number, pipeline, here.make(first), payload=first)()
        if is_like:
            here.close()
        else:
            log.warning(_OTHER_ROWS)
        self._pipelines[id(pipeline)] = _SentPipeline(number, pipeline, None if is_like else here)
        return self._pipelines[id(pipeline)]


def _arrays_of(part: Array | RaggedRows | ReplicatedPart) -> list[Array]:
    """The arrays that are sent for a part of a batch."""
    if isinstance(part, RaggedRows):
        return part.parts()
    return [part.array if isinstance(part, ReplicatedPart) else part]
