"""A worker that serves the process that drives it: it receives the graph of the steps, and never runs a script.

A session is opened for each graph; between two calls the worker waits with the last one. Worker 0 receives the driver's
requests and broadcasts them. All workers execute each request, each on its share of a batch, and worker 0 answers with
the result that one process would have computed.
"""

from __future__ import annotations

import gc
import pickle
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tensorflow.errors import OpError

from parallax.base.errors import SessionError
from parallax.base.types import Array, Comm, Picklable, Tensor
from parallax.entry import call as calls
from parallax.entry.background_job import PlannedMessage
from parallax.functions.batches.micro_batches import StepCut
from parallax.functions.batches.numbered_rows import NumberedArrays
from parallax.functions.batches.row_pipeline import RowPipeline, RunningPipeline
from parallax.functions.batches.shared_arrays import ArrayKind, MemoryPlace, SharedArrays, can_open, share_among_workers
from parallax.functions.batches.split_batch import BatchPart, RaggedRows, take_part
from parallax.functions.remote.request_receiver import END, DriverRequest, RequestReceiver
from parallax.functions.remote.step_runner import RunningSteps
from parallax.functions.tracing.served_graph import ServedGraph
from parallax.functions.tracing.step_graph import GraphStep
from parallax.runtime.driver_channel import DriverAddress, DriverConnection, connect
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.heartbeat import current_heartbeat
from parallax.runtime.worker.ranks import ProcessGroup, current_process_group
from parallax.runtime.worker.without_keras import leaving_out_keras
from parallax.settings.config import Config

_NOT_THE_SAME = (
    "A value that the step returns as 'same' differs between workers. Declare it as a 'mean' over the batch, a 'sum' "
    "over it, or 'rows' of it: parallax.function(step, returns={...})."
)
_OTHER_ROWS = (
    "The step returns a tensor of shape {shape} for {rows} rows of the batch. Declare it as a 'mean' over the batch, "
    "a 'sum' over it, or the 'same' on all workers: parallax.function(step, returns={{...}})."
)


class ServedDriver(NamedTuple):
    """The driver, as workers know it before they receive a graph.

    Attributes:
        address: the address on which it listens.
        has_teams: whether there are stages or islands: the teams of workers are then known with the plan.
    """

    address: DriverAddress
    has_teams: bool


class ReadyWorkers(NamedTuple):
    """The first message of worker 0.

    Attributes:
        resumed_step: as in `RunningSteps`.
    """

    resumed_step: int | None


class RequestedResults(NamedTuple):
    """Names of the tensors that a step returns.

    Attributes:
        sums: tensors of which each worker has a part; the parts are added.
        means: scalars, of which the mean over the workers is returned.
        rows: tensors with a row for each example, concatenated.
        same: tensors that are equal on all workers.
        whole: tensors that the step itself replicates.
    """

    sums: tuple[str, ...] = ()
    means: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


class StepResults(NamedTuple):
    """Values of `RequestedResults`, of the global batch.

    Attributes:
        sums, means, rows, same, whole: as there.
        saved_step: the counted step of the session's latest checkpoint; None while there is none.
    """

    sums: list[Array]
    means: list[Array]
    rows: list[Array]
    same: list[Array]
    whole: list[Array]
    saved_step: int | None = None


def serve() -> None:
    """The main function of a worker (runtime/worker/call_function.py): serves the driver's requests until that ends."""
    driver: ServedDriver = pickle.loads(calls.get_attachment())
    members = current_process_group()
    current_heartbeat().expect_sessions()
    with leaving_out_keras():
        import_module("parallax.runtime.open_session")  # before a graph comes, which is planned meanwhile
        if not driver.has_teams:
            members.start()
    _Service(members, connect(driver.address) if members.rank == 0 else None).run()


class _Service:
    """Executes requests; all workers execute the same in the same order."""

    def __init__(self, members: ProcessGroup, channel: DriverConnection | None) -> None:
        self._members, self._channel = members, channel
        self._comm = members.workers.Dup()
        self._running: RunningSteps
        self._steps: dict[str, GraphStep] = {}
        self._is_of_one_call = False
        self._whole: frozenset[str] = frozenset()
        self._requested: dict[int, RequestedResults] = {}
        self._requested_by_step: dict[int, tuple[GraphStep, list[Tensor], list[Tensor]]] = {}
        self._arrays: dict[int, NumberedArrays] = {}
        self._pipelines: dict[int, RunningPipeline] = {}
        self._requests = RequestReceiver(channel, self._comm, self._prepare)

    def run(self) -> None:
        """Serves until the driver ends or disappears."""
        while True:
            request, prepared = self._requests.receive()
            if request.kind == END.kind:
                return
            serves: Callable[..., Picklable] = getattr(self, f"serve_{request.kind}")
            serves(*request.arguments, prepared)

    def _prepare(self, request: DriverRequest, payload: Picklable) -> Picklable:
        """Starts to compute the rows of a batch as soon as its elements arrive."""
        if request.kind != "elements":
            return payload
        return self._pipelines[request.arguments[1]].start(self._scatter_parts(payload))

    def _answer(self, value: Picklable) -> None:
        if self._channel is not None:
            self._channel.send(value)

    def serve_list_hosts(self, _: None) -> None:
        """Answers with the addresses of the job's hosts."""
        self._answer(self._members.parcel.addresses)

    def serve_barrier(self, _: None) -> None:
        """Answers that all workers are present."""
        barrier(self._comm)
        self._answer(None)

    def serve_open(self, planned: PlannedMessage, served: ServedGraph, settings: bytes, _: None) -> None:
        """Opens a session on a graph, and answers when it is open."""
        self._members.parcel = planned.message
        rewrites = planned.decisions.rewrites
        self._whole = frozenset(one for layouts in rewrites.layouts for one in layouts.global_results)
        config: Config = pickle.loads(settings)
        graph, self._steps = served.import_graph()
        cut = StepCut.of(rewrites.terms.accumulate_steps, rewrites.micro_batches)
        session, size, rank = calls.worker_session(graph.graph, config, planned.decisions)
        self._running = RunningSteps(graph, session, size, rank, cut, self._members.islands)
        self._is_of_one_call = config.ckpt_config.keeps_state or bool(config.hooks or config.chief_only_hooks)
        self._answer(ReadyWorkers(self._running.resumed_step))

    def serve_resume(self, _: None) -> None:
        """Continues with the session of the preceding call."""
        self._answer(ReadyWorkers(None))

    def serve_settle(self, _: None) -> None:
        """Ends a call, and answers, after all of its work is done, whether another call can use its session."""
        is_kept = self._running.settle() and not self._is_of_one_call  # the last checkpoint is written when it closes
        if is_kept:
            self._finish()
        else:
            self._close()
        self._answer(is_kept)

    def serve_close(self, _: None) -> None:
        """Ends the session of the preceding call."""
        self._close()

    def _close(self) -> None:
        self._running.close()
        self._finish()
        for last in self._members.at_close:
            last()
        self._members.at_end.clear()
        self._members.at_close.clear()
        self._steps.clear()
        del self._running
        gc.unfreeze()  # the graphs of the session
        gc.collect()

    def _finish(self) -> None:
        """The workers' common work at the end of steps."""
        for last in self._members.at_end:
            last()
        for pipeline in self._pipelines.values():
            pipeline.close()
        for of_call in (self._requested, self._requested_by_step, self._arrays, self._pipelines):
            of_call.clear()

    def serve_name_results(self, number: int, name: str, requested: RequestedResults, _: None) -> None:
        """Assigns a number to a step with particular results."""
        step = self._steps[name]
        self._requested[number] = requested
        find = step.run.graph.get_tensor_by_name
        others = [find(name) for names in requested._replace(rows=()) for name in names]
        self._requested_by_step[number] = step, others, [find(name) for name in requested.rows]

    def serve_can_open(self, place: MemoryPlace, kinds: Sequence[ArrayKind], _: None) -> None:
        """Answers whether worker 0 can map arrays of the driver's."""
        self._answer(can_open(place, kinds))

    def serve_arrays(
        self, number: int, kinds: Sequence[ArrayKind], place: MemoryPlace | None, sent: list[Array] | None
    ) -> None:
        """Receives arrays, of which steps then get row numbers.

        Args:
            number: by which these steps refer to them.
            kinds: of the arrays.
            place: where worker 0 maps them; None where they are sent.
            sent: the arrays, on worker 0.
        """
        shared = None
        if self._members.rank == 0:
            shared = SharedArrays.copy_of(sent or []) if place is None else SharedArrays.open(place, kinds)
        host = self._members.parcel.hosts[self._members.rank]
        self._arrays[number] = NumberedArrays(share_among_workers(kinds, shared, self._comm, host))

    def serve_rows(self, requested: int, number: int, numbers: Array, _: None) -> None:
        """Runs a step on rows of arrays."""
        batch = self._arrays[number].batch(numbers)
        self._run(requested, take_part(batch, self._running.rank, self._running.size, self._members.islands))

    def serve_pipeline(self, number: int, pipeline: RowPipeline, _: None) -> None:
        """Receives a pipeline, of whose elements steps then get batches."""
        self._pipelines[number] = RunningPipeline(pipeline, self._members.rank)

    def serve_try_pipeline(self, number: int, pipeline: RowPipeline, expected: list[Array], own: Picklable) -> None:
        """Answers whether all workers compute from given elements the rows that the driver computes."""
        elements = self._comm.bcast(own)
        try:
            is_like = pipeline.is_like(self._pipelines[number].make(elements), expected)
        except OpError:  # for example, a file that does not exist on this host
            is_like = False
        self._answer(all(self._comm.allgather(is_like)))

    def serve_elements(self, requested: int, _: int, rows: Future[BatchPart]) -> None:
        """Runs a step on rows computed from elements; those of the next step are computed concurrently."""
        self._requests.prefetch()
        self._run(requested, rows.result())

    def serve_batch(self, requested: int, own: list[Array | RaggedRows] | None) -> None:
        """Runs a step on a batch that worker 0 splits."""
        self._run(requested, self._scatter_parts(own))

    def _scatter_parts(self, batch: list[Array | RaggedRows] | None) -> BatchPart:
        """This worker's share of a batch that worker 0 has: that of its replica, where the model is in stages."""
        size, (_, replicas, _), islands = self._members.size, self._members.in_script, self._members.islands
        parts = [] if batch is None else [take_part(batch, replica, replicas, islands) for replica in range(replicas)]
        shares = [parts[self._members.grid.place(rank)[0]] for rank in range(size)] if parts else None
        share: BatchPart = self._comm.scatter(shares) if size > 1 else shares[0] if shares else BatchPart(())
        return share

    def serve_read(self, names: Sequence[str], _: None) -> None:
        """Answers with values of variables, by name."""
        self._answer(self._running.read(names))

    def serve_write(self, names: Sequence[str], own: Sequence[Array] | None) -> None:
        """Writes values of variables."""
        self._running.write(dict.fromkeys(names) if own is None else dict(zip(names, own, strict=True)))

    def serve_load(self, prefix: str, names: Sequence[str], _: None) -> None:
        """Loads values of variables from a checkpoint."""
        self._running.load(prefix, names)

    def serve_store(self, folder: Path, names: Sequence[str], step: int | None, _: None) -> None:
        """Writes a checkpoint, and answers with the place of each variable."""
        self._answer(self._running.store(folder, names, step))

    def serve_read_epoch(self, _: None) -> None:
        """Answers with the graph's record of the loop."""
        self._answer(self._running.read_epoch())

    def serve_note_epoch(self, epoch: int, step: int, batches: int | None, _: None) -> None:
        """Records the start of an epoch for checkpoints."""
        self._running.note_epoch(epoch, step, batches)

    def serve_reset(self, op: str, _: None) -> None:
        """Resets each worker's parts of metrics to zero."""
        self._running.reset(op)

    def _run(self, number: int, share: BatchPart) -> None:
        """Runs a step, and answers with the results of one process."""
        requested, (step, others, of_examples) = self._requested[number], self._requested_by_step[number]
        returned, by_part = self._running.run(step, share, others, of_examples)
        if self._members.stage:
            return  # the first stage of the replica has all values
        values = iter([np.asarray(value) for value in returned])
        sums, means, _, same, whole = ([next(values) for _ in names] for names in requested._replace(rows=()))
        rows = [
            np.concatenate([self._rows_of(name, np.asarray(value), part) for value, part in parts])
            for name, parts in zip(requested.rows, by_part, strict=True)
        ]
        local = StepResults(sums, means, rows, same, whole)
        results = _of_all(local, self._running.comm, self._running.size, self._members.islands)
        if results is not None:
            self._answer(results._replace(saved_step=self._running.saved_step))

    def _rows_of(self, name: str, value: Array, share: BatchPart) -> Array:
        """The rows of a result that this worker contributes: for replicated ones, an island's first contributes all."""
        if self._running.size == 1:
            return value
        if name in self._whole:
            return value if self._members.replica == 0 else value[:0]
        return _checked_rows(value, share)


def _of_all(local: StepResults, comm: Comm, size: int, islands: int = 1) -> StepResults | None:
    """The results of all workers, on worker 0.

    Islands have equal results for no two batches: their mean is taken for real numbers, else the first island's.

    Args:
        local: this worker's.
        comm: of the workers.
        size: their number.
        islands: into how many they are cut.

    Raises:
        SessionError: on worker 0, when results that must be equal on all workers differ.
    """
    if size == 1:
        return local
    if islands > 1:
        return _of_islands(local, comm, size)
    marks = np.array([_mark_of(one) for one in local.same], np.float64)
    numbers = [*local.sums, *local.means]
    flat = np.concatenate([marks, marks * marks, *map(np.ravel, numbers)], dtype=np.float64)
    whole = np.empty_like(flat) if comm.Get_rank() == 0 else None
    comm.Reduce(flat, whole)
    gathered = [comm.gather(one) for one in local.rows]
    if whole is None:
        return None
    if not np.array_equal(size * whole[len(marks) : 2 * len(marks)], whole[: len(marks)] ** 2):
        raise SessionError(_NOT_THE_SAME)
    values, place = [], 2 * len(marks)
    for number, value in enumerate(numbers):
        part = whole[place : place + value.size].reshape(value.shape)
        values.append((part if number < len(local.sums) else part / size).astype(value.dtype))
        place += value.size
    sums, means = values[: len(local.sums)], values[len(local.sums) :]
    return StepResults(sums, means, [np.concatenate(pieces) for pieces in gathered], local.same, local.whole)


def _of_islands(local: StepResults, comm: Comm, size: int) -> StepResults | None:
    """The results of all workers in islands, on worker 0."""
    alike = [*local.same, *local.whole]
    real = [number for number, one in enumerate(alike) if np.issubdtype(one.dtype, np.floating)]
    joined = local._replace(means=[*local.means, *(alike[number] for number in real)], same=[])
    found = _of_all(joined, comm, size)
    if found is None:
        return None
    for number, mean in zip(real, found.means[len(local.means) :], strict=True):
        alike[number] = mean
    same, whole = alike[: len(local.same)], alike[len(local.same) :]
    return found._replace(means=found.means[: len(local.means)], same=same, whole=whole)


def _mark_of(value: Array) -> int:
    """A hash below 2**16 of a value."""
    data = repr(value.tolist()).encode() if value.dtype == object else np.ascontiguousarray(value).tobytes()
    return zlib.crc32(data) & 0xFFFF


def _checked_rows(value: Array, share: BatchPart) -> Array:
    """The rows of a result that belong to the worker's own examples.

    Raises:
        SessionError: the result has other rows.
    """
    rows = 1 if share.is_stand_in else share.rows
    if not value.ndim or len(value) != rows:
        raise SessionError(_OTHER_ROWS.format(shape=list(value.shape), rows=rows))
    return value[: share.rows]
