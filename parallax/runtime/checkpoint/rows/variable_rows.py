"""Locates the rows of a variable, and reads and writes ranges of them through worker 0.

There is one class for each way to store a variable. All have the same two calls, which every worker makes in the same
order: `read` collects rows on worker 0, `write` sends them from worker 0 to the processes that store them. No other
process receives rows that it does not store, and none receives more than the range. Rows that are sharded over several
processes can be distributed to several workers too (redistribute_rows.py).

Between workers, rows travel as bytes through mpi4py, which handles all types and needs no ops of equal names on all
workers; between worker 0 and servers, they travel through TensorFlow. A range of rows is a range of local rows on each
owner, which ops under `parallax/storage/` read and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from parallax.base.types import Array, ArrayOnWorker0, Comm, Session, Value
from parallax.graph.ownership import Ownership
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.checkpoint.rows.redistribute_rows import DistributedRows, bytes_of, empty, send_rows
from parallax.runtime.checkpoint.rows.row_ops import PickedRows, RowOps, RowReader, WholeAccess
from parallax.runtime.worker.barrier import barrier


class ReadableVariable(Protocol):
    """A variable whose rows can be read.

    `first` and `count` name rows of the variable in the user's order. `session` is TensorFlow's session on the graph
    that has the ops: the worker's, or that of an image (freeze.py).
    """

    @property
    def stored(self) -> CheckpointEntry:
        """The variable's place in the checkpoint."""

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Rows `[count, ...]` on worker 0, None elsewhere; every worker must call it."""


class ReadableRows(ReadableVariable, Protocol):
    """A variable of which selected rows can be read."""

    def read_marked(self, session: Session, first: int, marked: Array) -> ArrayOnWorker0:
        """Reads the rows from row `first` on that are true in `marked` `[count]`, which all workers have; as `read`."""


class StoredVariable(ReadableVariable, Protocol):
    """A variable whose rows can be read and written."""

    def write(self, session: Session, first: int, count: int, rows: ArrayOnWorker0) -> None:
        """Writes rows `[count, ...]` from worker 0 (None elsewhere); every worker must call it."""


class WholeVariable(StoredVariable, Protocol):
    """A variable whose local part can be read and written at once on each worker, in one run with other variables."""

    @property
    def access(self) -> WholeAccess:
        """Ops on this worker's part."""

    def is_read(self) -> bool:
        """Whether worker 0 needs this worker to read its part."""

    def collect(self, local: ArrayOnWorker0) -> ArrayOnWorker0:
        """Returns the value on worker 0, given each worker's part (None if it reads nothing); all must call it."""

    def spread(self, value: ArrayOnWorker0) -> Value:
        """Returns this worker's part of worker 0's value (None elsewhere); every worker must call it."""


Rows = TypeVar("Rows", bound=RowReader, covariant=True)


@dataclass(frozen=True, slots=True)
class ShardedRows(Generic[Rows]):
    """Rows sharded over the workers according to `ownership`."""

    stored: CheckpointEntry
    ops: Rows
    ownership: Ownership
    comm: Comm

    def readers(self, takers: Sequence[int]) -> Sequence[int]:
        """Each worker reads its local rows."""
        return range(self.ownership.holders)

    def read_holder_rows(self, session: Session, holder: int, low: int, high: int) -> Array:
        """This worker's local rows."""
        return self.ops.read(session, low, high)

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Gathers each worker's rows of the range on worker 0, in order."""
        return _on_worker_0(self, session, first, count)

    def read_marked(self, session: Session, first: int, marked: Array) -> ArrayOnWorker0:
        """Gathers each worker's marked rows on worker 0, in order."""
        rank = self.comm.Get_rank()
        picks = [PickedRows.of(self.ownership, owner, first, marked) for owner in range(self.ownership.holders)]
        pick = picks[rank]
        mine = self.ops.pick(session, pick.low, pick.numbers) if len(pick.numbers) else self._rows(0)
        barrier(self.comm)
        if rank:
            self.comm.Gatherv(bytes_of(mine), None)
            return None
        total = int(np.count_nonzero(marked))
        by_owner, rows = self._rows(total), self._rows(total)
        lengths = [len(one.numbers) for one in picks]
        self.comm.Gatherv(bytes_of(mine), [bytes_of(by_owner), [n * self.stored.row_bytes for n in lengths]])
        for one, theirs in zip(picks, np.split(by_owner, np.cumsum(lengths)[:-1]), strict=True):
            rows[one.places] = theirs
        return rows

    def write(self: ShardedRows[RowOps], session: Session, first: int, count: int, rows: ArrayOnWorker0) -> None:
        """Scatters the rows of the range from worker 0 to their owners."""
        low, mine = self._scatter(first, count, rows)
        if len(mine):
            self.ops.write(session, low, mine)

    def read_stage_rows(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Gathers rows of all workers on the first."""
        return self.read(session, first, count)

    def write_stage_rows(self: ShardedRows[RowOps], session: Session, first: int, rows: Array) -> None:
        """Writes this worker's part of these rows."""
        self.write(session, first, len(rows), rows)

    @property
    def access(self: ShardedRows[RowOps]) -> WholeAccess:
        """Ops on this worker's local rows."""
        return self.ops.whole

    def is_read(self) -> bool:
        """True: each worker reads its local rows."""
        return True

    def collect(self, local: Array) -> ArrayOnWorker0:
        """Gathers all workers' rows on worker 0, in order."""
        count = self.stored.rows
        lengths = self._lengths(0, count)
        barrier(self.comm)
        if self.comm.Get_rank():
            self.comm.Gatherv(bytes_of(local), None)
            return None
        by_owner, rows = self._rows(count), self._rows(count)
        self.comm.Gatherv(bytes_of(local), [bytes_of(by_owner), [n * self.stored.row_bytes for n in lengths]])
        for owner, theirs in enumerate(np.split(by_owner, np.cumsum(lengths)[:-1])):
            for here, there in self.ownership.pieces(owner, 0):
                rows[here] = theirs[there]
        return rows

    def spread(self, value: ArrayOnWorker0) -> Array:
        """Scatters the rows from worker 0 to their owners."""
        return self._scatter(0, self.stored.rows, value)[1]

    def _scatter(self, first: int, count: int, rows: ArrayOnWorker0) -> tuple[int, Array]:
        """This worker's rows of a range that worker 0 has, and the local number of the first."""
        rank = self.comm.Get_rank()
        low, high = self.ownership.local_range(rank, first, count)
        mine = self._rows(high - low)
        barrier(self.comm)
        if rank:
            self.comm.Scatterv(None, bytes_of(mine))
        else:
            by_owner, lengths = self._rows(count), self._lengths(first, count)
            for owner, theirs in enumerate(np.split(by_owner, np.cumsum(lengths)[:-1])):
                for here, there in self.ownership.pieces(owner, first):
                    theirs[there] = rows[here]
            self.comm.Scatterv([bytes_of(by_owner), [n * self.stored.row_bytes for n in lengths]], bytes_of(mine))
        return low, mine

    def _lengths(self, first: int, count: int) -> list[int]:
        """The number of rows of the range on each worker."""
        ranges = (self.ownership.local_range(rank, first, count) for rank in range(self.ownership.holders))
        return [high - low for low, high in ranges]

    def _rows(self, count: int) -> Array:
        return empty(self.stored, count)


@dataclass(frozen=True, slots=True)
class RowsOnServers(Generic[Rows]):
    """Rows in partitions of equal size on servers. Worker 0 accesses them.

    `copy` writes the copy that every worker has in addition; None if there are no copies.
    """

    stored: CheckpointEntry
    partitions: tuple[Rows, ...]
    copy: ReplicatedRows[RowOps] | None
    comm: Comm

    @property
    def ownership(self) -> Ownership:
        """The ownership of the rows by partitions."""
        return Ownership.even(len(self.partitions))

    def readers(self, takers: Sequence[int]) -> Sequence[int]:
        """Assigns the partitions to the readers in turn; each is read by one worker in a round, in order."""
        return [takers[number % len(takers)] for number in range(len(self.partitions))]

    def read_holder_rows(self, session: Session, holder: int, low: int, high: int) -> Array:
        """Local rows of a partition."""
        return self.partitions[holder].read(session, low, high)

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Worker 0 reads its range of each partition, and orders the rows."""
        return _on_worker_0(self, session, first, count)

    def read_marked(self, session: Session, first: int, marked: Array) -> ArrayOnWorker0:
        """Worker 0 reads the marked rows of each partition, and orders them."""
        if self.comm.Get_rank():
            return None
        rows = empty(self.stored, int(np.count_nonzero(marked)))
        for number, ops in enumerate(self.partitions):
            one = PickedRows.of(self.ownership, number, first, marked)
            if len(one.numbers):
                rows[one.places] = ops.pick(session, one.low, one.numbers)
        return rows

    def write(self: RowsOnServers[RowOps], session: Session, first: int, count: int, rows: ArrayOnWorker0) -> None:
        """Worker 0 writes each partition's rows; the others wait for it."""
        ownership = self.ownership
        for number, ops in enumerate(self.partitions if self.comm.Get_rank() == 0 else ()):
            low, high = ownership.local_range(number, first, count)
            for here, _ in ownership.pieces(number, first) if low < high else ():
                ops.write(session, low, rows[here])
        if self.copy is not None:
            self.copy.write(session, first, count, rows)
        else:
            barrier(self.comm)


@dataclass(frozen=True, slots=True)
class ValueOnServer:
    """A scalar on a server, of which every worker has a copy."""

    stored: CheckpointEntry
    served: ReplicatedValue
    copy: ReplicatedValue
    comm: Comm

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Worker 0 reads the server's value."""
        return self.served.read(session, first, count)

    def write(self, session: Session, first: int, count: int, rows: ArrayOnWorker0) -> None:
        """Broadcasts worker 0's value; all workers write it to the server."""
        self.served.write(session, first, count, rows)
        self.copy.write(session, first, count, rows)


class _ReplicatedRows:
    """Replicated state, of which worker 0 reads its own copy."""

    __slots__ = ()
    comm: Comm

    def is_read(self) -> bool:
        """Whether this is worker 0."""
        return bool(self.comm.Get_rank() == 0)

    def collect(self, local: ArrayOnWorker0) -> ArrayOnWorker0:
        """Worker 0's own value."""
        return local


@dataclass(frozen=True, slots=True)
class ReplicatedRows(_ReplicatedRows, Generic[Rows]):
    """Rows that every worker has; worker 0's are read, and rows that worker 0 writes are broadcast."""

    stored: CheckpointEntry
    ops: Rows
    comm: Comm

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Worker 0's own rows."""
        return self.ops.read(session, first, first + count) if self.comm.Get_rank() == 0 else None

    def read_marked(self, session: Session, first: int, marked: Array) -> ArrayOnWorker0:
        """The marked rows among worker 0's own rows."""
        return self.ops.pick(session, first, np.flatnonzero(marked)) if self.comm.Get_rank() == 0 else None

    def write(self: ReplicatedRows[RowOps], session: Session, first: int, count: int, rows: ArrayOnWorker0) -> None:
        """Broadcasts worker 0's rows."""
        mine = self._broadcast(count, rows)
        if count:
            self.ops.write(session, first, mine)

    def read_stage_rows(self, session: Session, first: int, count: int) -> Array:
        """This worker's rows."""
        return self.ops.read(session, first, first + count)

    def write_stage_rows(self: ReplicatedRows[RowOps], session: Session, first: int, rows: Array) -> None:
        """Writes this worker's rows."""
        self.ops.write(session, first, rows)

    @property
    def access(self: ReplicatedRows[RowOps]) -> WholeAccess:
        """Ops on this worker's copy."""
        return self.ops.whole

    def spread(self, value: ArrayOnWorker0) -> Array:
        """Broadcasts worker 0's rows."""
        return self._broadcast(self.stored.rows, value)

    def _broadcast(self, count: int, rows: ArrayOnWorker0) -> Array:
        mine = np.ascontiguousarray(rows) if self.comm.Get_rank() == 0 else empty(self.stored, count)
        barrier(self.comm)
        self.comm.Bcast(bytes_of(mine))
        return mine


@dataclass(frozen=True, slots=True)
class ReplicatedValue(_ReplicatedRows):
    """A replicated scalar, string or variable of open shape: read and written in one piece."""

    stored: CheckpointEntry
    access: WholeAccess
    comm: Comm

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Worker 0's own value."""
        return session.run(self.access.value) if self.is_read() else None

    def write(self, session: Session, first: int, count: int, rows: ArrayOnWorker0) -> None:
        """Broadcasts worker 0's value."""
        session.run(self.access.update, {self.access.new_value: self.spread(rows)})

    def read_stage_rows(self, session: Session, first: int, count: int) -> Value:
        """This worker's value."""
        return session.run(self.access.value)

    def write_stage_rows(self, session: Session, first: int, rows: Value) -> None:
        """Writes this worker's value."""
        session.run(self.access.update, {self.access.new_value: rows})

    def spread(self, value: ArrayOnWorker0) -> Value:
        """Broadcasts worker 0's value."""
        return self.comm.bcast(value)


def _on_worker_0(one: DistributedRows, session: Session, first: int, count: int) -> ArrayOnWorker0:
    """Rows `[count, ...]` on worker 0, None elsewhere."""
    rows = send_rows(one, session, first, {0: count})
    return rows if one.comm.Get_rank() == 0 else None


def whole_of(one: StoredVariable) -> WholeVariable | None:
    """The variable as one that is read and written at once; None if it is on servers."""
    return one if isinstance(one, ShardedRows | ReplicatedRows | ReplicatedValue) else None
