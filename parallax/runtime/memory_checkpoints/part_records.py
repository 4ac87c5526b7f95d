"""Formats of a part's files: the head and the records, each with a version and checksums."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import numpy as np
from msgspec import Meta

from parallax.base.errors import CheckpointError
from parallax.base.strict import Count, Text, checked_value, shown
from parallax.base.types import Array, Buffer
from parallax.runtime.supervisor.control import DamagedMessage, checksum, read_sealed, seal

RECORD = "record-"
"""Prefix of the name of a record's file; its number follows."""

_LENGTH = struct.Struct("<Q")
_LARGEST_HEAD_BYTES = 1 << 26  # of a record
_Crc = Annotated[int, Meta(ge=0, lt=2**32)]
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class PartVariable:
    """A part's data of one variable.

    Attributes:
        op: the variable op in the user's graph.
        rows: the number of rows in the part; 1 for a value without rows.
        row_bytes: bytes of a row; 0 for a value without rows.
        by_row: whether records have its touched rows; else all of it.
        pattern: the owner of each row, as in `Ownership`; empty if the part has all rows.
    """

    op: Text
    rows: Count
    row_bytes: Count
    by_row: bool = False
    pattern: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PartHead:
    """Identifies a part.

    Attributes:
        generation: how often the job's state was stored from scratch in the memory of hosts, including this time.
        owner: the rank of the worker whose rows it has, `lone` of it, or COMMON.
        workers: the number of workers then.
        variables: its data.
    """

    generation: Count
    owner: int
    workers: Count
    variables: tuple[PartVariable, ...]


@dataclass(frozen=True, slots=True)
class RecordHead:
    """The header of a record.

    Attributes:
        number, step: as in `SetRecord`.
        rows: (variable's place, how many rows, checksum of the row numbers and the rows) in the order of the bytes.
        wholes: (variable's place, bytes, checksum) of values stored in full, after the rows.
    """

    number: Count
    step: int
    rows: tuple[tuple[Count, Count, _Crc], ...]
    wholes: tuple[tuple[Count, Count, _Crc], ...]


@dataclass(frozen=True, slots=True)
class SetRecord:
    """One set of a part.

    Attributes:
        number: of the set.
        step: the global step.
        rows: variable's place in the part -> (row numbers int64 `[n]`, rows uint8 `[n, row_bytes]`).
        wholes: variable's place -> its bytes.
    """

    number: int
    step: int
    rows: Mapping[int, tuple[Array, Any]] = field(default_factory=dict)
    wholes: Mapping[int, Buffer] = field(default_factory=dict)

    def pieces(self) -> Iterator[Buffer]:
        """Its bytes, in pieces."""
        rows = tuple(
            (at, len(numbers), _checksum_of_rows(np.asarray(numbers, np.int64), rows))
            for at, (numbers, rows) in self.rows.items()
        )
        wholes = tuple((at, memoryview(data).nbytes, checksum(data)) for at, data in self.wholes.items())
        head = seal(json.dumps(asdict(RecordHead(self.number, self.step, rows, wholes))).encode())
        yield _LENGTH.pack(len(head)) + head
        for numbers, values in self.rows.values():
            yield bytes_of_array(np.asarray(numbers, np.int64))
            yield bytes_of_array(values)
        for data in self.wholes.values():
            yield memoryview(data).cast("B")


def read_record(path: Path, head: PartHead) -> SetRecord:
    """Opens a record; its rows are read from the file again when they are used.

    Raises:
        CheckpointError: it is damaged, or another part's.
    """
    with path.open("rb") as file:
        record_head = read_record_head(file)
        place = file.tell()
    mapped: Any = np.memmap(path, np.uint8, "r")
    known = range(len(head.variables))
    if path.name != f"{RECORD}{record_head.number}" or any(
        at not in known for at, _, _ in (*record_head.rows, *record_head.wholes)
    ):
        raise damaged_file(path, "it is a record of another part or set")
    size = sum(count * (8 + head.variables[at].row_bytes) for at, count, _ in record_head.rows)
    if place + size + sum(count for _, count, _ in record_head.wholes) != len(mapped):
        raise damaged_file(path, f"it has {len(mapped)} bytes and not those that it names")
    rows, wholes = {}, {}
    for at, count, crc in record_head.rows:
        row_bytes = head.variables[at].row_bytes
        numbers = mapped[place : place + 8 * count].view(np.int64)
        place += 8 * count
        rows[at] = numbers, mapped[place : place + row_bytes * count].reshape(count, row_bytes)
        place += row_bytes * count
        if _checksum_of_rows(*rows[at]) != crc:
            raise damaged_file(path, f"its rows of {head.variables[at].op} have another checksum than it names")
    for at, size, crc in record_head.wholes:
        wholes[at] = mapped[place : place + size].data
        place += size
        if checksum(wholes[at]) != crc:
            raise damaged_file(path, f"its value of {head.variables[at].op} has another checksum than it names")
    return SetRecord(record_head.number, record_head.step, rows, wholes)


def read_record_head(file: BinaryIO) -> RecordHead:
    """Reads the header at the beginning of a record's file, and leaves the position at the first byte after it.

    Raises:
        CheckpointError: it is damaged.
    """
    path, length = Path(file.name), file.read(_LENGTH.size)
    size = _LENGTH.unpack(length)[0] if len(length) == _LENGTH.size else 0
    if not 0 < size <= _LARGEST_HEAD_BYTES:
        raise damaged_file(path, "it does not begin with the length of its head")
    return read_value(path, file.read(size), RecordHead)


def read_value(path: Path, data: bytes, kind: type[_Value]) -> _Value:
    """The value of a sealed line of a file.

    Raises:
        CheckpointError: it is damaged, or of another version.
    """
    try:
        raw = read_sealed(data)
        return checked_value(raw if isinstance(raw, dict) else {}, kind)
    except (DamagedMessage, ValueError) as error:
        raise damaged_file(path, str(error)) from error


def damaged_file(path: Path, how: str) -> CheckpointError:
    """The error about a corrupted file."""
    return CheckpointError(f"{path}, a part of an in-memory checkpoint, is missing or damaged: {shown(how)}.")


def _checksum_of_rows(numbers: Array, rows: Array) -> int:
    return checksum(b"".join(checksum(bytes_of_array(one)).to_bytes(4, "little") for one in (numbers, rows)))


def bytes_of_array(array: Array) -> memoryview:
    """The bytes of an array; copied only if they are not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
