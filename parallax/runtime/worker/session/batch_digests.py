"""Digests of the batches that a worker trains on, and which workers train on the same ones.

That two workers have equal batches says nothing where batches hardly differ: a constant, one batch that comes again in
each step, ids of which there are few. So batches count when they change from step to step, and when it is most
unlikely (2**-BITS) that workers which draw from the rows that were seen draw all the same.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from parallax.types import Array, Value

BITS = 20.0
"""How unlikely equal batches must be before they count as the same: about one in a million."""
_ROWS = 1 << 15  # of a batch whose frequencies are counted: more say nothing more
_HASHED_BYTES = 64 * 2**20  # of one array of a batch; what comes after them is taken for equal


@dataclass(frozen=True, slots=True)
class BatchHistory:
    """What is known of a worker's first batches from one source.

    Attributes:
        digests: of each batch, 64 bits.
        bits: of evidence that another worker with these digests has the same batches; 0 when they do not change.
    """

    digests: tuple[int, ...]
    bits: float


@dataclass(slots=True)
class BatchRecorder:
    """Takes the batches of one source as they come, and keeps numbers of them."""

    _digests: list[int] = field(default_factory=list)
    _contents: list[int] = field(default_factory=list)
    _rows: list[list[list[bytes]]] = field(default_factory=list)

    def add(self, arrays: Sequence[Value]) -> None:
        """Takes in the arrays of a batch; scalars are no part of one."""
        batch = [array for array in map(np.asarray, arrays) if array.ndim]
        if not batch:
            return
        rows = [_row_digests(array) for array in batch]
        self._digests.append(_number([_whole_digest(array) for array in batch]))
        self._contents.append(_number([b"".join(sorted(of_array)) for of_array in rows]))
        self._rows.append(rows)

    def history(self) -> BatchHistory:
        """What the batches so far say."""
        return BatchHistory(tuple(self._digests), self._bits())

    def _bits(self) -> float:
        """Of the array of the batches that says most; batches of the same rows, in whatever order, count once."""
        first = {content: number for number, content in reversed(list(enumerate(self._contents)))}
        if len(first) < 2:
            return 0.0
        batches = [self._rows[number] for number in sorted(first.values())]
        columns = min(map(len, batches))
        return max(_surprise([batch[column] for batch in batches]) for column in range(columns))


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


def _surprise(batches: Iterable[list[bytes]]) -> float:
    """Bits that the distinct rows of some batches have, by how often each row is among all."""
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
