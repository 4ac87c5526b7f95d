"""Stores a worker's part of the job's state in the memory of its host, and the part of another host's worker.

Each worker stores the part of the rows that it owns, and the parts of its senders in the ring. The first worker of each
host stores the replicated state, which is not sent. A set is written in three steps:

1. it waits for the barrier of the previous set: that set is then on all hosts, and earlier sets are discarded;
2. local and received records are written;
3. it starts a barrier, which completes when all workers have written their records. No worker waits for it now.

Whenever a process is killed, one of two consecutive sets is on all hosts that had a part in it. A start of the job has
its own generation, and discards earlier ones when its set 0 is on all hosts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax.base.errors import CheckpointError
from parallax.base.types import Array, Buffer, Comm, MpiRequest
from parallax.report.logger import log
from parallax.runtime.memory_checkpoints.choose_set import PartFound
from parallax.runtime.memory_checkpoints.exchange import PIECE_BYTES, Ring, cut, exchange
from parallax.runtime.memory_checkpoints.part_files import (
    COMMON,
    PartFiles,
    UnfinishedSet,
    is_part,
    lone,
    memory_bytes,
    read_head,
    remove,
    sets_of,
)
from parallax.runtime.memory_checkpoints.part_records import PartHead, SetRecord
from parallax.runtime.worker.barrier import barrier, wait_for

_PLACE = struct.Struct("<qq")
BaseRows = Iterable[tuple[int, int, Array]]
"""Rows of set 0: variable's place in the part, first row, rows uint8 `[n, row_bytes]`; each of at most PIECE_BYTES."""


def part_folder(folder: Path, generation: int, owner: int) -> Path:
    """The folder of a part, inside its host's folder."""
    name = "common" if owner == COMMON else f"worker-{owner}" if owner >= 0 else f"lone-{lone(owner)}"
    return folder / f"{generation}" / name


def parts_in(folder: Path) -> list[PartFound]:
    """The parts that a host has; a damaged one is left out, because another host may have its rows."""
    parts = []
    for part in sorted(folder.glob("*/*")):
        if not is_part(part):
            continue
        try:
            head = read_head(part)
            parts.append(PartFound(head.generation, head.owner, head.workers, sets_of(part)))
        except CheckpointError as error:
            log.warning(f"A part of the state in the memory of this host is left out. {error}")
    return parts


@dataclass
class PeerStore:
    """The parts that one worker stores.

    Attributes:
        folder: of its host.
        comm: communicator of the workers, for this alone.
        place: in the ring.
        is_first: whether this worker is the first of its host.
        generation: of this start; 0 before `begin`.
        number: of the last set.
        sent_bytes: total, to the other host.
    """

    folder: Path
    comm: Comm
    place: Ring
    is_first: bool
    generation: int = 0
    number: int = -1
    sent_bytes: int = 0
    _files: dict[int, PartFiles] = field(default_factory=dict)
    _ended: MpiRequest | None = None

    def begin(self, generation: int, part_heads: Mapping[int, PartHead], bases: Mapping[int, BaseRows]) -> None:
        """Creates the parts of a generation, and fills variables that are updated by row; every worker must call it."""
        self.settle()
        rank = self.comm.Get_rank()
        of_all: list[PartHead] = self.comm.allgather(part_heads[rank])
        head_by_owner = {**part_heads, **{sender: of_all[sender] for sender in self.place.senders}}

        def of_sender(sender: int, piece: Array) -> None:
            at, low = _PLACE.unpack(piece[: _PLACE.size].tobytes())
            self._files[sender].write_base(at, low, piece[_PLACE.size :])

        with self._room():
            self._files = {
                o: PartFiles(part_folder(self.folder, generation, o), head) for o, head in head_by_owner.items()
            }
            barrier(self.comm)  # no worker sends to one that has no files yet
            for owner in part_heads.keys() - {rank}:
                for at, low, rows in bases[owner]:
                    self._files[owner].write_base(at, low, rows)
            own_rows = self._write(rank, bases[rank])
            exchange(self.comm, self.place, own_rows if self.place.target is not None else list(own_rows), of_sender)
        self.generation, self.number = generation, -1

    def add(self, records: Mapping[int, SetRecord]) -> None:
        """Writes the next set; every worker must call it, and returns when its own and received parts are written."""
        self.settle()
        incoming: dict[int, UnfinishedSet] = {}

        def of_sender(sender: int, piece: Any) -> None:
            if sender not in incoming:
                incoming[sender] = self._files[sender].begin()
            incoming[sender].write(piece)

        with self._room():
            for owner, record in records.items():
                self._files[owner].add(record)
            local_record = records[self.comm.Get_rank()]
            self.sent_bytes += exchange(self.comm, self.place, cut(local_record.pieces()), of_sender)
            for unfinished in incoming.values():
                unfinished.finish()
        self.number = local_record.number
        self._ended = self.comm.Ibarrier()

    def settle(self) -> None:
        """Waits until the last set is on all hosts, and discards earlier ones; every worker must call it."""
        if self._ended is None:
            return
        wait_for(self._ended)
        self._ended = None
        with self._room():
            for files in self._files.values():
                files.merge_into_base(self.number)
        if self.is_first and not self.number:
            for before in self.folder.iterdir():
                if before.name != str(self.generation):
                    remove(before)

    def memory_bytes(self) -> int:
        """The memory that this host's parts currently use."""
        return memory_bytes([self.folder])

    def _write(self, owner: int, rows: BaseRows) -> Iterator[Buffer]:
        """Writes this worker's rows of set 0 here, and yields them to be sent."""
        for at, low, values in rows:
            self._files[owner].write_base(at, low, values)
            if self.place.target is not None:
                yield _PLACE.pack(at, low) + values.tobytes()

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"{self.folder.parent} must take the rows of two hosts, and worker {self.comm.Get_rank()} cannot write "
                f"there: {error.strerror or error}. Free memory, name another file system in "
                "CheckPointConfig.memory_dir, or leave CheckPointConfig.memory_steps out."
            ) from error


BASE_BYTES = PIECE_BYTES - _PLACE.size
"""The maximum of bytes of `BaseRows` at once."""
