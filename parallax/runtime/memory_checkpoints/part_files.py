"""The files of one part of a job's state in the memory of a host; they outlive the process that writes them.

A part is the state that one worker owns, or the replicated state. It is stored as sets with the numbers 0, 1, 2, ...:
of variables that are updated by row, the rows of set 0 and then, in a record of each set, the rows that were touched
since the set before; of all other variables, the whole value in each record.

    head.json         the start of the job that the part belongs to, and the part's variables
    base-V            rows of variable V: those of set `folded`, or between that and set `folding`
    progress          the two numbers
    record-NUMBER     one set

A record is renamed to its final name when it is complete. Records are folded into the base in place, which may be
interrupted: until `folded` says that folding is done the records still exist, and folding them again gives the same
result. So whenever a process is killed, a set can be read that is at `folding` or later and whose records since
`folded` all exist. The caller must ensure that `folding` is on all hosts.

The head, the two numbers and each record have a version and checksums; data that does not match them is not read. The
base has none: it changes in place at each set, as the variables in the worker's own memory do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from parallax.base.errors import CheckpointError
from parallax.base.types import Array, Buffer
from parallax.report.logger import log
from parallax.runtime.memory_checkpoints.part_records import (
    RECORD,
    PartHead,
    PartVariable,
    SetRecord,
    bytes_of_array,
    damaged_file,
    read_record,
    read_record_head,
    read_value,
)
from parallax.runtime.supervisor.control import checksum, seal

COMMON = -1
"""The number of the replicated part; other parts have the rank of their owner, or `lone` of it."""


def lone(rank: int) -> int:
    """The number of the part with the rows that a worker has on its own host alone; the function is its own inverse."""
    return -2 - rank


_HEAD, _PROGRESS, _UNFINISHED = "head.json", "progress", ".unfinished"
_FOLDED_AND_FOLDING = struct.Struct("<qqI")  # the two numbers, and their checksum


class PartFiles:
    """Writes the files of one part.

    Args:
        folder: of this part alone; must not exist.
        head: identifies the part.

    Raises:
        OSError: there is no space.
    """

    def __init__(self, folder: Path, head: PartHead) -> None:
        self._folder = folder
        self._head = head
        self._bases: dict[int, Array] = {}  # stay mapped: a page is then looked up once, and not for each set
        folder.mkdir(parents=True)
        for at, one in enumerate(head.variables):
            if one.by_row:
                with (folder / f"base-{at}").open("wb") as file:
                    if one.rows * one.row_bytes:
                        os.posix_fallocate(file.fileno(), 0, one.rows * one.row_bytes)
        (folder / _PROGRESS).write_bytes(_packed_progress(0, 0))
        _write(folder / _HEAD, [seal(json.dumps(asdict(head)).encode())])

    def write_base(self, at: int, low: int, rows: Array) -> None:
        """Writes rows of set 0 from row `low` on; before its record."""
        with (self._folder / f"base-{at}").open("r+b") as file:
            file.seek(low * self._head.variables[at].row_bytes)
            file.write(bytes_of_array(rows))

    def begin(self) -> UnfinishedSet:
        """Returns a record that is written in pieces."""
        return UnfinishedSet(self._folder)

    def add(self, record: SetRecord) -> None:
        """Writes a record, which is complete when this returns."""
        unfinished = self.begin()
        for piece in record.pieces():
            unfinished.write(piece)
        unfinished.finish()

    def merge_into_base(self, number: int) -> None:
        """Merges the sets up to `number` into the base, and deletes those before it; once that set is on all hosts."""
        records = records_of(self._folder)
        folded, _ = _progress(self._folder)
        if number <= folded:
            return
        self._write_progress(folded, number)
        for between in range(folded + 1, number + 1):
            record = read_record(records[between], self._head)
            for at, (numbers, rows) in record.rows.items():
                if len(numbers) and at not in self._bases:
                    self._bases[at] = _base(self._folder, at, self._head.variables[at], "r+")
                if len(numbers):
                    self._bases[at][numbers] = rows
        self._write_progress(number, number)
        for before, path in records.items():
            if before < number:
                path.unlink()

    def _write_progress(self, folded: int, folding: int) -> None:
        with (self._folder / _PROGRESS).open("r+b") as file:
            file.write(_packed_progress(folded, folding))


class UnfinishedSet:
    """A record whose bytes arrive in sequence."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / f"record{_UNFINISHED}").open("w+b")

    def write(self, piece: Buffer) -> None:
        """Adds bytes."""
        self._file.write(piece)

    def finish(self) -> None:
        """Renames it to its final name, from the number that it contains."""
        self._file.flush()
        self._file.seek(0)
        number = read_record_head(self._file).number
        self._file.close()
        Path(self._file.name).rename(self._folder / f"{RECORD}{number}")


class PartView:
    """Reads one set of a part.

    Args:
        folder: of the part.
        number: of the set.

    Raises:
        CheckpointError: a file of the part is missing or damaged.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self.head = read_head(folder)
        self._places = {one.op: at for at, one in enumerate(self.head.variables)}
        records, (folded, _) = records_of(folder), _progress(folder)
        self._later = [read_record(records[later], self.head) for later in range(folded + 1, number + 1)]
        self._set = read_record(records[number], self.head)

    def has(self, op: str) -> bool:
        """Whether the part has data of a variable."""
        return op in self._places

    def variable(self, op: str) -> PartVariable:
        """The part's data of a variable."""
        return self.head.variables[self._places[op]]

    def value(self, op: str) -> Buffer:
        """The bytes of a value without rows."""
        return self._set.wholes[self._places[op]]

    def read(self, op: str, low: int, high: int) -> Any:
        """Rows `low` up to `high`, uint8 `[high - low, row_bytes]`."""
        at, one = self._places[op], self.variable(op)
        if not one.by_row:
            whole = np.frombuffer(self._set.wholes[at], np.uint8)
            return whole.reshape(one.rows, one.row_bytes)[low:high].copy()
        if low >= high:
            return np.empty((0, one.row_bytes), np.uint8)
        content = np.array(_base(self._folder, at, one, "r")[low:high])
        for record in self._later:
            numbers, rows = record.rows.get(at, (np.empty(0, np.int64), None))
            first, last = np.searchsorted(numbers, [low, high])
            if first < last:
                content[numbers[first:last] - low] = rows[first:last]
        return content


def read_head(folder: Path) -> PartHead:
    """The head of a part.

    Raises:
        CheckpointError: it is damaged.
    """
    return read_value(folder / _HEAD, (folder / _HEAD).read_bytes(), PartHead)


def is_part(folder: Path) -> bool:
    """Whether a folder is that of a part; its writer may have been killed before it became one."""
    return (folder / _HEAD).exists()


def sets_of(folder: Path) -> dict[int, int]:
    """The readable sets of a part: number -> global step. A damaged record counts as missing.

    Raises:
        CheckpointError: the head, the numbers or a base is damaged, without which no set can be read.
    """
    head, (folded, folding) = read_head(folder), _progress(folder)
    for at, one in enumerate(head.variables):
        _check_base(folder, at, one)
    step_by_number = {}
    for number, path in sorted(records_of(folder).items()):
        try:
            step_by_number[number] = read_record(path, head).step
        except CheckpointError as error:
            log.warning(f"A set in the memory of this host is left out. {error}")
    return {
        number: step
        for number, step in step_by_number.items()
        if number >= folding and all(between in step_by_number for between in range(folded + 1, number))
    }


def records_of(folder: Path) -> dict[int, Path]:
    """The records of a part: number -> file."""
    named = ((re.fullmatch(rf"{RECORD}(\d{{1,18}})", path.name), path) for path in folder.iterdir())
    return {int(match[1]): path for match, path in named if match}


def memory_bytes(folders: Iterable[Path]) -> int:
    """The memory that files of parts currently use."""
    return sum(path.stat().st_blocks * 512 for folder in folders for path in folder.rglob("*") if path.is_file())


def remove(folder: Path) -> None:
    """Removes a part, or several."""
    shutil.rmtree(folder, ignore_errors=True)


def _base(folder: Path, at: int, one: PartVariable, mode: Any) -> Array:
    return np.memmap(folder / f"base-{at}", np.uint8, mode, shape=(one.rows, one.row_bytes))


def _check_base(folder: Path, at: int, one: PartVariable) -> None:
    path = folder / f"base-{at}"
    if one.by_row and (not path.is_file() or path.stat().st_size != one.rows * one.row_bytes):
        raise damaged_file(path, f"it must have {one.rows} rows of {one.row_bytes} bytes")


def _packed_progress(folded: int, folding: int) -> bytes:
    numbers = _FOLDED_AND_FOLDING.pack(folded, folding, 0)[:-4]
    return numbers + checksum(numbers).to_bytes(4, "little")


def _progress(folder: Path) -> tuple[int, int]:
    data = (folder / _PROGRESS).read_bytes()
    if len(data) == _FOLDED_AND_FOLDING.size:
        folded, folding, _ = _FOLDED_AND_FOLDING.unpack(data)
        if data == _packed_progress(folded, folding):
            return folded, folding
    raise damaged_file(folder / _PROGRESS, f"its {len(data)} bytes are not two numbers with their checksum")


def _write(path: Path, pieces: Iterable[Buffer]) -> None:
    """Writes a file atomically: it is complete or absent."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    with unfinished.open("wb") as file:
        for piece in pieces:
            file.write(piece)
    unfinished.rename(path)
