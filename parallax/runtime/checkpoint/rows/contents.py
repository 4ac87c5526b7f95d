"""Selects the contents of one checkpoint: all variables or, for tables whose touched rows are tracked, only these rows.

All workers supply their rows in one order. Rows that are sharded over several processes are distributed in ranges to
all workers that write. Worker 0 writes everything else, and the touched rows of increments, which are few. Worker 0
collects the touched rows of a table from the processes that track them and broadcasts them: a byte per row, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from parallax.base.types import Array, Comm, Session, Value
from parallax.runtime.checkpoint.format.links import HEADER, ROWS, VALUES, Header, RowsWritten
from parallax.runtime.checkpoint.format.stored_tensors import chunks, slice_text
from parallax.runtime.checkpoint.rows.redistribute_rows import DistributedRows, run_of, send_rows, split_into_rounds
from parallax.runtime.checkpoint.rows.variable_rows import ReadableRows, ReadableVariable, RowsOnServers, ShardedRows
from parallax.runtime.worker.barrier import barrier

_SPREAD = (ShardedRows, RowsOnServers)


class Content(NamedTuple):
    """A tensor of a checkpoint or a slice of one, in the form of `Writer.add`.

    `value` is None on workers that do not write it. If `is_distributed`, each writer has its own slice.
    """

    key: str
    slice_spec: str
    dtype: str
    value: Value | None
    is_distributed: bool = False


@dataclass(frozen=True, slots=True)
class TouchedTable:
    """Variables of which some rows are written, and the record of these rows."""

    marks: ReadableVariable
    members: tuple[ReadableRows, ...]


@dataclass
class Contents:
    """The contents of one checkpoint.

    Attributes:
        variables: the variables that are written in full, in the same order on all workers.
        tables: those of which the touched rows are written.
        header: the checkpoint's header; None without one.
    """

    variables: Sequence[ReadableVariable]
    tables: Sequence[TouchedTable] = ()
    header: Header | None = None
    _written: list[RowsWritten] = field(default_factory=list)

    @property
    def has_spread_rows(self) -> bool:
        """Whether several workers have rows to write."""
        return any(isinstance(one, _SPREAD) for one in self.variables)

    def pieces(self, comm: Comm, session: Session, chunk_bytes: int, writers: Sequence[int]) -> Iterator[Content]:
        """Yields all contents in chunks; every worker must iterate over them.

        Args:
            comm: communicator of the workers.
            session: to read with.
            chunk_bytes: the maximum of a piece, unless a row has more.
            writers: the workers that write, ascending; worker 0 is one of them.
        """
        for one in self.variables:
            if isinstance(one, _SPREAD):
                yield from _distribute(one, session, chunk_bytes, writers)
                continue
            for first, count in chunks(one.stored.rows, one.stored.row_bytes, chunk_bytes):
                rows = one.read(session, first, count)
                yield Content(one.stored.key, one.stored.slice_spec(first, count), one.stored.dtype, rows)
        for table in self.tables:
            yield from self._list_touched(table, comm, session, chunk_bytes)
        if self.header is not None:
            header = replace(self.header, tables=tuple(self._written))
            yield Content(HEADER, "", "string", header.to_text() if comm.Get_rank() == 0 else None)

    def _list_touched(self, table: TouchedTable, comm: Comm, session: Session, chunk_bytes: int) -> Iterator[Content]:
        """Yields the numbers of the touched rows, and these rows of all variables of a table."""
        marked = _read_marks(table.marks, comm, session, chunk_bytes)
        total, is_first = int(np.count_nonzero(marked)), comm.Get_rank() == 0
        if not total:
            return
        rows_key = f"{ROWS}{len(self._written)}"
        numbers = np.flatnonzero(marked) + table.members[0].stored.offset[0]
        for first, count in chunks(total, numbers.itemsize, chunk_bytes):
            spec = _spec((total,), first, count)
            yield Content(rows_key, spec, "int64", numbers[first : first + count] if is_first else None)
        for one in table.members:
            stored, at = one.stored, 0
            values_key = f"{VALUES}{len(self._written)}"
            self._written.append(RowsWritten(stored.key, rows_key, values_key, stored.offset[1:]))
            for first, count in chunks(stored.rows, stored.row_bytes, chunk_bytes):
                here = marked[first : first + count]
                if not (number := int(np.count_nonzero(here))):
                    continue
                spec = _spec((total, *(stored.shape or ())[1:]), at, number)
                yield Content(values_key, spec, stored.dtype, one.read_marked(session, first, here))
                at += number


def _distribute(one: DistributedRows, session: Session, chunk_bytes: int, writers: Sequence[int]) -> Iterator[Content]:
    """Yields a variable in ranges of rows, one for each writing worker in each round."""
    stored, rank = one.stored, one.comm.Get_rank()
    for first, counts in split_into_rounds(one, writers, chunk_bytes):
        rows = send_rows(one, session, first, counts)
        spec = stored.slice_spec(*run_of(rank, first, counts))
        yield Content(stored.key, spec, stored.dtype, rows if rank in counts else None, is_distributed=True)


def _read_marks(marks: ReadableVariable, comm: Comm, session: Session, chunk_bytes: int) -> Array:
    """Reads the marked rows, `[rows]`, on all workers."""
    marked = np.zeros(marks.stored.rows, bool)
    for first, count in chunks(marks.stored.rows, marks.stored.row_bytes, chunk_bytes):
        piece = marks.read(session, first, count)
        if piece is not None:
            marked[first : first + count] = piece
    barrier(comm)
    comm.Bcast(marked.view(np.uint8))
    return marked


def _spec(shape: tuple[int, ...], first: int, count: int) -> str:
    """The slice specification of rows of a tensor; empty if they are all of it."""
    if count == shape[0]:
        return ""
    return slice_text(shape, (first, *(0 for _ in shape[1:])), (count, *shape[1:]))
