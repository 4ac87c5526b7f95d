"""Reads and writes the values of single variables in a running session, wherever the plan stores their rows.

All workers make the same calls in the same order. Values travel in chunks of rows, like those of checkpoints, and only
worker 0 ever holds more of a table than a chunk in addition to its local rows.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from parallax.base.types import ArrayOnWorker0, Comm, Graph
from parallax.runtime.checkpoint.checkpoint_io import Storage
from parallax.runtime.checkpoint.format.folder import absolute
from parallax.runtime.checkpoint.format.folder_owner import claim_of
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES, chunks, groups, stored_variables
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.variable_rows import StoredVariable, WholeVariable, whole_of
from parallax.runtime.worker.session.run_context import WorkerContext


@dataclass(frozen=True, slots=True)
class VariableValues:
    """Reads and writes the global variables of a user's graph.

    Attributes:
        rows_by_variable: variable op -> the reader and writer of its rows.
        comm: communicator of the workers (mpi4py).
        worker: the worker of the session.
    """

    rows_by_variable: dict[str, StoredVariable]
    comm: Comm
    worker: WorkerContext

    def read(self, ops: Sequence[str]) -> dict[str, ArrayOnWorker0]:
        """Reads values on worker 0, by variable op, arrays in the user's row order; None elsewhere.

        Every worker must call it.
        """
        small, session = self._small(ops), self.worker.raw
        value_by_op = {op: self._read_in_chunks(op) for op in ops if op not in small}
        for group in _groups(small):
            value_by_name = session.run({op: small[op].access.value for op in group if small[op].is_read()})
            value_by_op |= {op: small[op].collect(value_by_name.get(op)) for op in group}
        return value_by_op

    def write(self, values: Mapping[str, ArrayOnWorker0]) -> None:
        """Writes worker 0's values (None elsewhere), by variable op, to all processes that store rows of them.

        Every worker must call it.
        """
        small, session = self._small(values), self.worker.raw
        for op, value in values.items():
            if op not in small:
                self._write_in_chunks(op, value)
        for group in _groups(small):
            fed = {small[op].access.new_value: small[op].spread(values[op]) for op in group}
            session.run([small[op].access.update for op in group], fed)

    def _small(self, ops: Iterable[str]) -> dict[str, WholeVariable]:
        """The variables that are small enough to be read and written whole, several in one run."""
        access_by_op = {op: whole_of(self.rows_by_variable[op]) for op in ops}
        return {op: one for op, one in access_by_op.items() if one is not None and _bytes_of(one) <= CHUNK_BYTES}

    def _read_in_chunks(self, op: str) -> ArrayOnWorker0:
        one, session = self.rows_by_variable[op], self.worker.raw
        stored = one.stored
        if not stored.has_rows:
            return one.read(session, 0, 1)
        pieces = [one.read(session, *piece) for piece in chunks(stored.rows, stored.row_bytes, CHUNK_BYTES)]
        if self.comm.Get_rank():
            return None
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _write_in_chunks(self, op: str, value: ArrayOnWorker0) -> None:
        one, session = self.rows_by_variable[op], self.worker.raw
        stored = one.stored
        if not stored.has_rows:
            one.write(session, 0, 1, value)
            return
        for first, count in chunks(stored.rows, stored.row_bytes, CHUNK_BYTES):
            one.write(session, first, count, None if value is None else value[first : first + count])

    def save(self, folder: str, ops: Sequence[str], step: int | None = None) -> str:
        """Writes a checkpoint, once no other job writes to the folder; every worker must call it.

        Args:
            folder: on the machine of worker 0; existing files stay.
            ops: of the variables that are written.
            step: its number; None for the one that follows those in the folder.

        Returns:
            Its prefix.

        Raises:
            CheckpointError: on all workers, when the folder cannot be written.
        """
        claim = claim_of(absolute(folder)) if self.comm.Get_rank() == 0 else None
        storage = replace(self._storage(folder, ops), claim=claim)
        storage.acquire_folder(waits=True)
        try:
            return storage.save(self.worker.raw, storage.next_step() if step is None else step).prefix
        finally:
            storage.release_folder()

    def load(self, prefix: str, ops: Sequence[str]) -> None:
        """Reads variables from a checkpoint, in chunks of rows; every worker must call it.

        Args:
            prefix: of the checkpoint, on the machine of worker 0.
            ops: of the variables.

        Raises:
            CheckpointError: on all workers, when it cannot be read or does not fit.
        """
        self._storage(posixpath.dirname(prefix), ops).read(self.worker.raw, prefix)

    def _storage(self, folder: str, ops: Sequence[str]) -> Storage:
        return Storage(folder, tuple(one for op, one in self.rows_by_variable.items() if op in ops), self.comm)


def values_of(graph: Graph, places: Places, comm: Comm, worker: WorkerContext) -> VariableValues:
    """Adds the ops that read and write variables to the default graph, a worker's.

    Args:
        graph: the user's graph.
        places: the placement of its variables' rows.
        comm: communicator of the workers.
        worker: the worker of the session.
    """
    with tf.name_scope("parallax/values/"):
        variables = build_access(stored_variables(graph), places, comm)
    return VariableValues({one.stored.op: one for one in variables}, comm, worker)


def _bytes_of(one: StoredVariable) -> int:
    return one.stored.rows * one.stored.row_bytes


def _groups(small: Mapping[str, WholeVariable]) -> Iterator[list[str]]:
    """Groups variables into few runs, because TensorFlow traverses the full graph to prepare each run."""
    return groups({op: _bytes_of(one) for op, one in small.items()})
