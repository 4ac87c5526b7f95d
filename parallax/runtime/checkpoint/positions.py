"""Stores the positions of random streams and input pipelines in checkpoints, under keys that a plain Saver ignores.

`parallax/positions/workers` is int64 `[workers, things, 4]`, with a row for each worker, and `parallax/positions/names`
`[things]` identifies the things by digests of their names. The first of the four numbers is the kind. The others are,
for the job: batches consumed, seed, shards of its datasets; for a random op: count, seed2, seed; for an iterator: the
number of the next element, a digest of the op that initialized it, 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.types import Array, Comm, Operation, Session, Tensor
from parallax.graph.ownership import Ownership
from parallax.report.text import list_first
from parallax.runtime.checkpoint.format.chain import States, state_of
from parallax.runtime.checkpoint.format.folder import absolute, file_errors
from parallax.runtime.checkpoint.format.folder_watch import FolderWatch
from parallax.runtime.checkpoint.format.sorted_string_table import DamagedCheckpoint
from parallax.runtime.checkpoint.format.stored_rows import Readable
from parallax.runtime.checkpoint.format.stored_tensors import OWN_KEYS, CheckpointEntry
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.variable_rows import StoredVariable
from parallax.runtime.worker.session.positions import InputPositions, IteratorPosition
from parallax.transform.passes.inputs import Maker
from parallax.transform.pipeline import WorkerGraph

WORKERS, NAMES = f"{OWN_KEYS}positions/workers", f"{OWN_KEYS}positions/names"
_OF_JOB, _OF_STREAM, _OF_OWN, _OF_SHARES = range(4)
"""Kinds: the job, a random op, an iterator over a dataset of the worker's own, and one over a sharded dataset."""
_JOB = "the job"
_NOT_SHARDED = "The dataset of {name} is not sharded: each worker continues in its own order."
_UNEVEN = "Workers had consumed different numbers of elements of {name}: some are repeated."


@dataclass(frozen=True, slots=True)
class StoredPositions:
    """The positions stored in a checkpoint.

    Attributes:
        values: digest of a name -> int64 `[workers, 4]`.
    """

    values: dict[int, Array]

    @property
    def workers(self) -> int:
        """The number of workers that wrote it."""
        return len(self.of(_JOB))

    @property
    def seed(self) -> int:
        """The seed of the job's random numbers."""
        return int(self.of(_JOB)[0][2])

    @property
    def shares(self) -> int:
        """The number of shards of the job's datasets: its workers when it first began."""
        return int(self.of(_JOB)[0][3])

    @property
    def consumed(self) -> int:
        """The number of batches that training had consumed."""
        return int(self.of(_JOB)[0][1])

    def of(self, name: str) -> Any:
        """The values `[workers, 4]` of one stream or iterator; None if the checkpoint does not have it."""
        return self.values.get(_digest(name))

    def is_in_shares(self, size: int) -> bool:
        """Whether each of `size` workers resumes in the shard with its own number, in all sharded datasets."""
        sharded = [value for value in self.values.values() if value[0][0] == _OF_SHARES and value[0][2]]
        is_in_rank_order = all(int(value[rank][1]) % size == rank for value in sharded for rank in range(len(value)))
        return size == self.workers == self.shares and is_in_rank_order


def stored_positions(folder: str, comm: Comm, timeout_s: float = float("inf")) -> StoredPositions | None:
    """Reads the positions in a folder's latest checkpoint, if any; every worker must call it, worker 0 has the folder.

    Args:
        folder: with checkpoints.
        comm: communicator of the workers.
        timeout_s: seconds that the folder may fail to respond.

    Raises:
        CheckpointError: on all workers, when the folder cannot be read.
    """

    def read() -> StoredPositions | None:
        with FolderWatch(absolute(folder), timeout_s).doing("Training cannot begin"):
            return _first_whole(States(absolute(folder)))

    return _from_worker_0(comm, folder, read)


def _from_worker_0(comm: Comm, name: str, read: Callable[[], StoredPositions | None]) -> StoredPositions | None:
    """Broadcasts worker 0's result or exception of a read to all workers."""
    positions: StoredPositions | CheckpointError | None = None
    if comm.Get_rank() == 0:
        try:
            with file_errors(f"Cannot read {name} on the host of worker 0", "Name another folder."):
                positions = read()
        except CheckpointError as error:
            positions = error
    received: StoredPositions | CheckpointError | None = comm.bcast(positions)
    if isinstance(received, CheckpointError):
        raise received
    return received


def _first_whole(states: States) -> StoredPositions | None:
    while states.following() is not None:
        try:
            return read_positions(states.open_chain())
        except DamagedCheckpoint as error:  # reported when the variables are read
            states.is_damaged(error)
    return None


def read_positions(reader: Readable) -> StoredPositions | None:
    """Reads the positions in a checkpoint; None for one written by an older version, or a Saver.

    Raises:
        DamagedCheckpoint: when its files are corrupted.
    """
    if WORKERS not in reader.tensors or NAMES not in reader.tensors:
        return None
    names, workers = (reader.read(k, (0,) * len(s), s) for k in (NAMES, WORKERS) for s in [reader.tensors[k].shape])
    return StoredPositions({int(name): workers[:, place] for place, name in enumerate(names)})


@dataclass(frozen=True, slots=True)
class SavedPositions:
    """The variables of a worker's graph in which checkpoints store its positions.

    Attributes:
        positions: of this worker's runs.
        variables: the variables written into checkpoints.
        streams: the random ops.
        comm: communicator of the workers.
        seed: the seed of the job's random numbers.
        shares: the number of shards of its datasets.
        counted: the feeds of `update`: the job's values, and those of iterators.
        update: brings the variables up to date.
        drawn: reads the streams, int64 `[streams, 3]`: count, seed2, seed.
        go_to: the feed of `move`: the streams.
        move: sets the streams to these positions.
    """

    positions: InputPositions
    variables: tuple[StoredVariable, ...]
    streams: tuple[str, ...]
    comm: Comm
    seed: int
    shares: int
    counted: Tensor
    update: Operation
    drawn: Tensor
    go_to: Tensor
    move: Operation

    def put(self, session: Session) -> None:
        """Writes this worker's positions into its variables; before a checkpoint, on all workers."""
        rows = [[_OF_JOB, self.positions.consumed, self.seed, self.shares]]
        for name, one in self.positions.inputs.items():
            position = self.positions.taken[name]
            number = position.next if position.pending is None else position.pending
            maker = next((one for one in one.makers if one.op == position.maker), None)
            kind = _OF_SHARES if maker is not None and maker.is_sharded else _OF_OWN
            rows.append([kind, number, 0 if maker is None else _digest(maker.op), 0])
        session.run(self.update, {self.counted: np.array(rows, np.int64)})

    def begin(self, session: Session) -> None:
        """Initializes the iterators that no op of the user's initializes."""
        for name, one in self.positions.inputs.items():
            if one.begins_by_itself:
                begins = ((name, one.makers[0].op),)
                session.run(one.makers[0].op, self.positions.start_feeds(begins))
                self.positions.record_begin(begins)

    def begin_again(self, session: Session) -> None:
        """Restores positions of iterators that TensorFlow has initialized with the tables, before elements are read."""
        at_start = {op.name for op in session.graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)}
        for name, one in self.positions.inputs.items():
            for maker in one.makers:
                begins = ((name, maker.op),)
                if maker.op not in at_start:
                    continue
                if feeds := self.positions.start_feeds(begins):
                    session.run(maker.op, feeds)
                self.positions.record_begin(begins)

    def resume(self, session: Session, prefix: str) -> tuple[str, ...]:
        """Resumes from a checkpoint's positions, as `continue_from` does; every worker must call it."""
        positions = _from_worker_0(self.comm, prefix, lambda: read_positions(state_of(prefix)))
        return self.continue_from(session, positions, prefix)

    def continue_from(self, session: Session, positions: StoredPositions | None, prefix: str) -> tuple[str, ...]:
        """Resumes from the positions of a state.

        Args:
            session: TensorFlow's session on the worker's graph.
            positions: the positions in the state.
            prefix: its name.

        Returns:
            Messages about streams that do not resume there, a sentence each.

        Raises:
            CheckpointError: on all workers, when its datasets are sharded differently than this start expects.
        """
        if positions is None:
            return ("It has no positions of random streams and inputs: these restart.",)
        self.positions.consumed = positions.consumed
        notes = [*self._resume_streams(session, positions), *self._resume_inputs(positions, prefix)]
        return tuple(notes)

    def _resume_streams(self, session: Session, positions: StoredPositions) -> list[str]:
        rank, anew = self.comm.Get_rank(), []
        if not self.streams:
            return []
        numbers = session.run(self.drawn)
        for place, name in enumerate(self.streams):
            stored = positions.of(name)
            if stored is None:
                anew.append(name)
            elif rank < positions.workers:
                numbers[place] = stored[rank][1:]
            else:  # a worker that did not exist has its own seeds, and has not drawn these numbers before either
                numbers[place][0] = stored[0][1]
        session.run(self.move, {self.go_to: numbers})
        return [f"Random ops whose positions it lacks restart: {list_first(anew)}."] if anew else []

    def _resume_inputs(self, positions: StoredPositions, prefix: str) -> list[str]:
        size, notes = self.comm.Get_size(), []
        for name, one in self.positions.inputs.items():
            stored = positions.of(name)
            began = 0 if stored is None else int(stored[0][2])
            maker = next((maker for maker in one.makers if _digest(maker.op) == began), None)
            if stored is None or maker is None:
                continue
            if maker.is_local_shard and not positions.is_in_shares(size):
                raise CheckpointError(
                    f"The checkpoint {prefix} shards its datasets differently from a later one, which is damaged. "
                    "Name it in the first line of the file `checkpoint`, and start the job again."
                )
            number, note = _number(name, maker, [int(row[1]) for row in stored], self.comm.Get_rank(), size)
            notes += [note] if note else []
            self.positions.taken[name] = IteratorPosition(maker.op, number, number)
        return notes


def _number(name: str, maker: Maker, numbers: Sequence[int], rank: int, size: int) -> tuple[int, str]:
    """The number of the element that a worker reads next, and a message about it."""
    if len(numbers) == size:
        return numbers[rank], ""
    if not maker.is_sharded:
        return numbers[rank] if rank < len(numbers) else numbers[0], _NOT_SHARDED.format(name=name)
    first = min(numbers)
    is_even = all(number - first == place for place, number in enumerate(numbers))
    return first + rank, "" if is_even else _UNEVEN.format(name=name)


def build_positions(
    worker_graph: WorkerGraph, positions: InputPositions, comm: Comm, seed: int, shares: int
) -> SavedPositions:
    """Builds the variables in the default graph, a worker's.

    Args:
        worker_graph: of this worker.
        positions: of its runs.
        comm: communicator of the workers.
        seed: of the job's random numbers.
        shares: the number of shards of its datasets.
    """
    graph, streams = tf.compat.v1.get_default_graph(), worker_graph.streams.saved
    names = [_JOB, *positions.inputs, *(one.op for one in streams)]
    digests = np.array([_digest(name) for name in names], np.int64)
    size, count = comm.Get_size(), len(names)
    with tf.name_scope("parallax/positions/"):
        handles = [graph.get_tensor_by_name(f"{one.variable}:0") for one in streams]
        read = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64) for handle in handles]
        stream_values = tf.reshape(tf.stack(read) if read else tf.zeros([0, 3], tf.int64), [-1, 3])
        go_to = tf.compat.v1.placeholder(tf.int64, [len(streams), 3])
        move = tf.group(*(tf.raw_ops.AssignVariableOp(resource=one, value=go_to[n]) for n, one in enumerate(handles)))
        counted = tf.compat.v1.placeholder(tf.int64, [1 + len(positions.inputs), 4])
        kinds = tf.fill([len(streams), 1], np.int64(_OF_STREAM))
        rows = tf.concat([counted, tf.concat([kinds, stream_values], 1)], 0)
        values = {WORKERS: rows[None], NAMES: tf.constant(digests)}
    update = tf.group(*(_assign(name, value) for name, value in values.items()))
    shapes = {WORKERS: (size, count, 4), NAMES: (count,)}
    stored = tuple(
        CheckpointEntry(k, k, "int64", 8, shape, shape, (0,) * len(shape), False) for k, shape in shapes.items()
    )
    variables = build_access(stored, Places(spread={WORKERS: Ownership.even(size)}), comm)
    ops = tuple(one.op for one in streams)
    return SavedPositions(positions, variables, ops, comm, seed, shares, counted, update, stream_values, go_to, move)


def _assign(name: str, value: Tensor) -> Operation:
    """Creates a variable of this name and returns the op that writes it."""
    with tf.name_scope(""):
        handle = tf.raw_ops.VarHandleOp(dtype=value.dtype, shape=value.shape, shared_name=name, name=name)
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _digest(name: str) -> int:
    """A 63-bit digest of a name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1
