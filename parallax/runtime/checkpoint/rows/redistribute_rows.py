"""Redistributes ranges of rows from the workers that read them to those that write them: worker 0, or several workers.

Rows of a table are stored round-robin over its owners, while a checkpoint's files contain contiguous ranges. So the
workers exchange them in rounds: in each round every worker reads its local rows of a range, and each writer receives a
contiguous part of that range. A round is as large as possible without any worker reading or receiving more than a
chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from parallax.base.types import Array, Comm, Session
from parallax.graph.ownership import Ownership
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.worker.barrier import barrier

_SMALL = 16  # variables of at most this part of a chunk are not split: each slice costs an entry, and a read later


class DistributedRows(Protocol):
    """A variable whose rows are sharded: over the workers, or over servers that workers read."""

    @property
    def stored(self) -> CheckpointEntry:
        """The variable's place in the checkpoint."""

    @property
    def comm(self) -> Comm:
        """Communicator of the workers."""

    @property
    def ownership(self) -> Ownership:
        """The owner of each row."""

    def readers(self, takers: Sequence[int]) -> Sequence[int]:
        """By holder, the worker that reads its rows for these receivers."""

    def read_holder_rows(self, session: Session, holder: int, low: int, high: int) -> Array:
        """Local rows `[high - low, ...]` of a holder, on the worker that reads them."""


def split_into_rounds(
    one: DistributedRows, takers: Sequence[int], chunk_bytes: int
) -> Iterator[tuple[int, dict[int, int]]]:
    """Splits the rows of a variable into rounds.

    Args:
        one: the variable.
        takers: the workers that receive rows, ascending.
        chunk_bytes: the maximum that a worker reads, and receives, in a round; at least a row.

    Yields:
        The first row of a round, and how many rows from there on each worker receives, as `send_rows` expects them.
    """
    stored, readers, shares = one.stored, one.readers(takers), one.ownership.shares
    step = max(1, chunk_bytes // max(1, stored.row_bytes))
    busiest = max(sum(n for n, reader in zip(shares, readers, strict=True) if reader == rank) for rank in readers)
    length = min(max(step // busiest * one.ownership.slots, step), step * len(takers))
    for first in range(0, max(1, stored.rows), length):
        count = min(length, stored.rows - first)
        if count * stored.row_bytes <= chunk_bytes // _SMALL:
            yield first, {takers[0]: count}
            continue
        each, more = divmod(count, len(takers))
        counts = {rank: each + (number < more) for number, rank in enumerate(takers)}
        yield first, {rank: rows for rank, rows in counts.items() if rows}


def run_of(rank: int, first: int, counts: Mapping[int, int]) -> tuple[int, int]:
    """The range of rows that a worker receives in a round: (first row, number); `counts` as in `send_rows`."""
    return first + sum(rows for other, rows in counts.items() if other < rank), counts.get(rank, 0)


def send_rows(one: DistributedRows, session: Session, first: int, counts: Mapping[int, int]) -> Array:
    """Sends rows from `first` on to the workers that receive them; every worker must call it.

    Args:
        one: the variable.
        session: to read it with.
        first: the first row.
        counts: worker -> number of rows it receives; the worker of the lowest rank receives the first ones, and so on.

    Returns:
        The rows that this worker receives, `[n, ...]`, in order.
    """
    comm, ownership, stored = one.comm, one.ownership, one.stored
    size, readers = comm.Get_size(), one.readers(sorted(counts))
    sent, sizes = _send(one, session, first, counts, readers)
    start, count = run_of(comm.Get_rank(), first, counts)
    lengths = [high - low for low, high in (ownership.local_range(h, start, count) for h in range(ownership.holders))]
    from_readers = [0] * size
    for reader, length in zip(readers, lengths, strict=True):
        from_readers[reader] += length * stored.row_bytes
    barrier(comm)
    by_holder, rows, at = empty(stored, count), empty(stored, count), 0
    comm.Alltoallv([bytes_of(sent), sizes], [bytes_of(by_holder), from_readers])
    for holder in sorted(range(ownership.holders), key=lambda holder: (readers[holder], holder)):
        theirs = by_holder[at : at + lengths[holder]]
        for here, there in ownership.pieces(holder, start):
            rows[here] = theirs[there]
        at += len(theirs)
    return rows


def _send(
    one: DistributedRows, session: Session, first: int, counts: Mapping[int, int], readers: Sequence[int]
) -> tuple[Array, list[int]]:
    """This worker's reads of a round: the rows for each receiver in sequence, and the number of bytes for each."""
    stored, rank, total = one.stored, one.comm.Get_rank(), sum(counts.values())
    local_holders = [holder for holder, reader in enumerate(readers) if reader == rank]
    starts = [one.ownership.local_range(holder, first, total) for holder in local_holders]
    read = [
        one.read_holder_rows(session, holder, low, high) if low < high else empty(stored, 0)
        for holder, (low, high) in zip(local_holders, starts, strict=True)
    ]
    parts, sizes = [], []
    for taker in range(one.comm.Get_size()):
        runs = [one.ownership.local_range(holder, *run_of(taker, first, counts)) for holder in local_holders]
        parts += [rows[a - low : b - low] for rows, (low, _), (a, b) in zip(read, starts, runs, strict=True)]
        sizes.append(sum(b - a for a, b in runs) * stored.row_bytes)
    # The rows of one holder are in order already.
    return read[0] if len(local_holders) == 1 else np.concatenate([empty(stored, 0), *parts]), sizes


def empty(stored: CheckpointEntry, count: int) -> Array:
    """An uninitialized array for `count` rows of a variable."""
    return np.empty((count, *(stored.shape or ())[1:]), tf.as_dtype(stored.dtype).as_numpy_dtype)


def bytes_of(rows: Array) -> Array:
    """The bytes of an array, which MPI sends whatever their type; a contiguous array is not copied."""
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
