"""Compares the batches of all workers in the first steps, and warns of the same ones, or of unequal widths.

A job on the same batches computes what fewer workers compute: a dataset that is not sharded, or a loop in which every
worker feeds the same. A job on batches of unequal widths, such as batches padded to the longest text of each worker,
does not compute what one process does if the graph averages over the width (analysis/layouts/width_reads.py).

Each worker keeps digests of the values that the steps feed and of those that iterators and queues in the graph
return, which are fetched along with the script's fetches. After STEPS steps the workers exchange the digests without
waiting for each other, and worker 0 reports the result. An input that depends on the index of the worker's shard is
fetched only to compare widths.

Equal batches on two workers prove nothing where batches hardly differ: a constant, one batch that recurs in each step,
ids with few distinct values. So batches count when they change from step to step, and when it is very unlikely
(2**-BITS) that workers which draw from the rows seen so far all draw the same.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from parallax.analysis.reading.batches.batch_sources import BatchSource, batch_sources
from parallax.base.types import Array, Comm, MpiRequest, Value
from parallax.graph.view import GraphView, node_of
from parallax.report.logger import log
from parallax.report.text import name_ranks, pluralize
from parallax.runtime.worker.barrier import wait_for
from parallax.runtime.worker.polling import is_done
from parallax.runtime.worker.session.fetches import Request

STEPS = 8
"""The number of steps that are compared: enough to distinguish data from constants, few enough for an early warning."""

_Exchange = tuple[MpiRequest, Array, Array]  # the pending MPI request, this worker's data, and the receive buffer
_FED = "what is fed"


class BatchComparison:
    """Compares one worker's batches with those of the others; every worker must have one, and call `finish`.

    Args:
        view: the user's graph.
        updates: the ops in it that update variables from gradients.
        trains: whether a run trains that fetches these names.
        place_of: the script's line that made an op, by its name; empty if unknown.
        workers: communicator of the workers, reserved for this.
        width_reads: the ops whose results depend on widths of batches.
    """

    def __init__(
        self,
        view: GraphView,
        updates: frozenset[str],
        trains: Callable[[tuple[str, ...]], bool],
        place_of: Callable[[str], str],
        workers: Comm,
        width_reads: tuple[str, ...] = (),
    ) -> None:
        self._view, self._updates, self._trains = view, updates, trains
        self._place_of, self._workers, self._width_reads = place_of, workers, width_reads
        sources = batch_sources(view, updates)
        self._has_shards = any(one.is_sharded for one in sources)
        self._sources = tuple(one for one in sources if one.tensors and (width_reads or not one.is_sharded))
        self._recorders = {name: BatchRecorder() for name in (*(one.node for one in self._sources), _FED)}
        self._takes: dict[tuple[str, ...], tuple[BatchSource, ...]] = {}
        self._needs: set[str] | None = None
        self._steps = 0
        self._exchange: _Exchange | None = None
        self.finished = False

    def with_sources(self, request: Request) -> Request:
        """Adds fetches of a run's batches at the end of its request."""
        more = tuple(tensor for one in self._sources_of(request.names) for tensor in one.tensors)
        return replace(request, names=(*request.names, *more)) if more else request

    def after_run(self, names: tuple[str, ...], feeds: Mapping[str, Value], fetched: Sequence[Value]) -> None:
        """Processes a run.

        Args:
            names: the script's fetches.
            feeds: its feeds, by tensor of the user's graph.
            fetched: the values of the request of `with_sources`.
        """
        if self._exchange is not None and is_done(self._exchange[0]):
            self._report()
        if not self._is_recorded(names):
            return
        values = iter(fetched[len(names) :])
        for one in self._sources_of(names):
            self._recorders[one.node].add([next(values) for _ in one.tensors])
        self._recorders[_FED].add([value for name, value in sorted(feeds.items()) if self._is_needed(name)])
        self._steps += 1
        if self._steps == STEPS:
            self._begin_exchange()

    def finish(self) -> None:
        """Compares the available batches, when all scripts have ended; a second call has no effect."""
        if self.finished:
            return
        exchange = self._exchange or self._begin_exchange()
        wait_for(exchange[0])  # no barrier: a worker that has all digests already does not get here
        self._report()

    def _is_recorded(self, names: tuple[str, ...]) -> bool:
        return not self.finished and self._exchange is None and self._trains(names)

    def _sources_of(self, names: tuple[str, ...]) -> tuple[BatchSource, ...]:
        """The sources of a run's batches that are compared; none for a run that does not train."""
        if not self._sources or not self._is_recorded(names):
            return ()
        if names not in self._takes:
            runs = self._view.ancestors({name.split(":")[0] for name in names})
            step = self._view.ancestors(runs & self._updates)
            self._takes[names] = tuple(one for one in self._sources if one.node in step)
        return self._takes[names]

    def _is_needed(self, tensor: str) -> bool:
        """Whether an update depends on a tensor that is fed."""
        if self._needs is None:
            self._needs = self._view.ancestors(self._updates)
        return node_of(tensor) in self._needs

    def _begin_exchange(self) -> _Exchange:
        histories = [recorder.history() for recorder in self._recorders.values()]
        local = np.zeros([len(histories), 2 + 2 * STEPS], np.uint64)
        for row, history in zip(local, histories, strict=True):
            steps = len(history.digests)
            row[: 2 + 2 * steps] = [steps, int(history.bits), *history.digests, *history.widths]
        by_worker = np.zeros([self._workers.Get_size(), *local.shape], np.uint64)
        self._exchange = self._workers.Iallgather(local, by_worker), local, by_worker
        return self._exchange

    def _report(self) -> None:
        """Warns of workers that train on the same batches, or on ones of unequal widths, on worker 0."""
        if self.finished or self._exchange is None:
            return
        self.finished = True
        if self._workers.Get_rank():
            return
        by_worker = self._exchange[2]
        by_source = {
            name: [_history(of_worker[number]) for of_worker in by_worker]
            for number, name in enumerate(self._recorders)
        }
        for text in [*self._find_equal_batches(by_source), *self._find_unequal_widths(by_source)]:
            log.warning(text)

    def _find_equal_batches(self, by_source: Mapping[str, Sequence[BatchHistory]]) -> list[str]:
        """Warnings of workers that train on the same batches."""
        warnings = [
            self._source_text(one, ranks, len(by_source[one.node][ranks[0]].digests))
            for one in self._sources
            if not one.is_sharded
            for ranks in equal_workers(by_source[one.node])
        ]
        fed = by_source[_FED]
        for ranks in equal_workers(fed):
            if not self._has_shards and not warnings and not self._differ(by_source, ranks):
                warnings.append(_fed_text(ranks, len(fed[ranks[0]].digests)))
        return warnings

    def _find_unequal_widths(self, by_source: Mapping[str, Sequence[BatchHistory]]) -> list[str]:
        """A warning of batches of unequal widths, if results depend on them."""
        for name, histories in by_source.items() if self._width_reads else ():
            steps = min(len(one.widths) for one in histories)
            unequal = [step for step in range(steps) if len({one.widths[step] for one in histories}) > 1]
            if unequal:
                source = _FED if name == _FED else f"what {self._describe(name)} returns"
                return [_widths_text(source, unequal[0], self._describe(self._width_reads[0]))]
        return []

    def _differ(self, by_source: Mapping[str, Sequence[BatchHistory]], ranks: Sequence[int]) -> bool:
        """Whether some workers have different batches from an iterator or queue."""
        return any(len({by_source[one.node][rank].digests for rank in ranks}) > 1 for one in self._sources)

    def _describe(self, node: str) -> str:
        place = self._place_of(node)
        return f"{self._view.op(node)} {node!r}{f' ({place})' if place else ''}"

    def _source_text(self, one: BatchSource, ranks: Sequence[int], steps: int) -> str:
        remedy = (
            "Shard the dataset before making its iterator: `dataset = parallax.shard.shard(dataset)`."
            if one.is_iterator
            else "Give each worker its own input with parallax.shard.create_num_shards_and_shard_id()."
        )
        return (
            f"{_who(ranks)} train on the same batches: {self._describe(one.node)} gave them the same elements in "
            f"each of the first {pluralize(steps, 'step')}, so together they compute only what one of them computes. "
            f"{remedy}"
        )


def _history(row: Array) -> BatchHistory:
    steps, numbers = int(row[0]), [int(one) for one in row[2:]]
    return BatchHistory(tuple(numbers[:steps]), float(row[1]), tuple(numbers[steps : 2 * steps]))


def _widths_text(source: str, step: int, reader: str) -> str:
    return (
        f"Workers train on batches of unequal widths: arrays of {source} had other shapes beyond their first axis on "
        f"some workers in step {step + 1}, and {reader} computes with the length of such an axis. One process pads the "
        "global batch to one width, so it computes other values. Pad to the same width on all workers, or average over "
        "the entries that are not padding."
    )


def _fed_text(ranks: Sequence[int], steps: int) -> str:
    return (
        f"{_who(ranks)} train on the same batches: they fed the same values in each of the first "
        f"{pluralize(steps, 'step')}, so together they compute only what one of them computes. Feed each worker a "
        "different batch, chosen by the number of workers and the worker's rank that parallel_run returns: "
        "`batches[step * num_workers + worker_id]`."
    )


def _who(ranks: Sequence[int]) -> str:
    text = name_ranks(list(ranks), "worker")
    return f"{text[0].upper()}{text[1:]}"


BITS = 20.0
"""The bits of evidence from which equal batches count as the same: a chance of about one in a million."""
_ROWS = 1 << 15  # the number of a batch's rows whose frequencies are counted: more add no evidence
_HASHED_BYTES = 64 * 2**20  # of one array of a batch; later bytes are assumed to be equal


@dataclass(frozen=True, slots=True)
class BatchHistory:
    """A summary of a worker's first batches from one source.

    Attributes:
        digests: of the arrays of each batch.
        bits: the evidence that equal batches are no coincidence.
        widths: digests of the shapes of each batch's arrays, without their first axes.
    """

    digests: tuple[int, ...]
    bits: float
    widths: tuple[int, ...] = ()


@dataclass(slots=True)
class BatchRecorder:
    """Receives the batches of one source, and keeps their digests."""

    _digests: list[int] = field(default_factory=list)
    _widths: list[int] = field(default_factory=list)
    _contents: list[int] = field(default_factory=list)
    _rows: list[list[list[bytes]]] = field(default_factory=list)

    def add(self, arrays: Sequence[Value]) -> None:
        """Records the arrays of a batch, ignoring scalars."""
        batch = [array for array in map(np.asarray, arrays) if array.ndim]
        if not batch:
            return
        rows = [_row_digests(array) for array in batch]
        self._digests.append(_number([_whole_digest(array) for array in batch]))
        self._widths.append(_number([repr([array.shape[1:] for array in batch]).encode()]))
        self._contents.append(_number([b"".join(sorted(of_array)) for of_array in rows]))
        self._rows.append(rows)

    def history(self) -> BatchHistory:
        """Summarises the batches so far."""
        return BatchHistory(tuple(self._digests), self._bits(), tuple(self._widths))

    def _bits(self) -> float:
        """The bits of the most informative array of the batches; batches of the same rows, in any order, count once."""
        first = {content: number for number, content in reversed(list(enumerate(self._contents)))}
        if len(first) < 2:
            return 0.0
        batches = [self._rows[number] for number in sorted(first.values())]
        columns = min(map(len, batches))
        return max(_evidence_bits([batch[column] for batch in batches]) for column in range(columns))


def equal_workers(histories: Sequence[BatchHistory]) -> list[tuple[int, ...]]:
    """The groups of workers that train on the same batches, by their ranks.

    Args:
        histories: of one source, by worker.
    """
    by_digests: dict[tuple[int, ...], list[int]] = {}
    for rank, one in enumerate(histories):
        if one.bits >= BITS:
            by_digests.setdefault(one.digests, []).append(rank)
    return [tuple(ranks) for ranks in by_digests.values() if len(ranks) > 1]


def _evidence_bits(batches: Iterable[list[bytes]]) -> float:
    """The information in bits of the distinct rows of some batches, from the frequency of each row."""
    every = list(batches)
    counts = Counter(row for batch in every for row in batch)
    total = counts.total()
    return sum(math.log2(total / counts[row]) for batch in every for row in dict.fromkeys(batch))


def _row_digests(array: Array) -> list[bytes]:
    """8 bytes for each of the first rows."""
    rows = array[:_ROWS]
    if array.dtype == object:
        return [_digest(repr(np.ravel(row).tolist()).encode()) for row in rows]
    return [_digest(np.ascontiguousarray(row)) for row in rows]


def _whole_digest(array: Array) -> bytes:
    head = f"{array.dtype} {array.shape}".encode()
    if array.dtype == object:
        return _digest(head + repr(np.ravel(array).tolist()).encode())
    row_bytes = max(1, array.nbytes // max(1, len(array)))
    hashed = np.ascontiguousarray(array[: max(1, _HASHED_BYTES // row_bytes)])
    return _digest(head + _digest(hashed))


def _digest(data: bytes | Array) -> bytes:
    raw = data if isinstance(data, bytes) else data.reshape(-1).view(np.uint8).data
    return hashlib.blake2b(raw, digest_size=8).digest()


def _number(pieces: Sequence[bytes]) -> int:
    return int.from_bytes(_digest(b"".join(pieces)), "big")
