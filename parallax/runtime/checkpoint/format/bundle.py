"""Reads ranges of rows from a TensorFlow checkpoint and verifies every byte it returns.

RestoreV2 can read a slice, but it reads the whole stored piece that contains the slice: the entire table, if
tf.train.Saver wrote it. So the data files are read directly, at the offsets that the index file records. A piece that
is read whole is compared with its checksum; for ranges of a piece see checksum.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import tensor_bundle_pb2

from parallax.base.types import Array, BundleEntry, DType
from parallax.runtime.checkpoint.format.checksum import BLOCK_BYTES, crc32c, join_checksums, mask
from parallax.runtime.checkpoint.format.sorted_string_table import make_damage_error, table, varint
from parallax.runtime.checkpoint.format.stored_tensors import chunks

_FULL = -1  # TensorFlow's length of a slice that covers a full dimension
_STRING, _UNREAD = "string", ("variant", "resource")


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """A stored piece: the box from `start` of `shape`, in `size` bytes at `position` of data file `file`.

    `crc` is the stored, masked CRC-32C of these bytes (for a string tensor, see `_strings`).
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    position: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[StoredSlice, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the pieces cover the tensor."""
        return math.prod(self.shape) == sum(math.prod(piece.shape) for piece in self.pieces)


@dataclass
class Bundle:
    """A checkpoint that is open for reading.

    Attributes:
        prefix: the checkpoint's name.
        tensors: its tensors, by key.

    Raises:
        DamagedCheckpoint: when the index is corrupted, or a data file is shorter than the index says.
    """

    prefix: str
    tensors: dict[str, Tensor] = field(init=False)
    _crcs: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = f"{self.prefix}.index"
        _check_there(path)
        with tf.io.gfile.GFile(path, "rb") as file:
            entries = table(file.read(), path)
        try:
            self.tensors = _tensors(self.prefix, entries)
        except (DecodeError, KeyError, TypeError, ValueError) as error:
            raise make_damage_error(path, f"an entry has {error!r}") from error
        ends: dict[str, int] = {}
        for piece in (piece for tensor in self.tensors.values() for piece in tensor.pieces):
            ends[piece.file] = max(ends.get(piece.file, 0), piece.position + piece.size)
        for data_file, end in ends.items():
            _check_there(data_file)
            length = tf.io.gfile.stat(data_file).length
            if length < end:
                raise make_damage_error(data_file, f"it is truncated at byte {length} of {end}")

    def ranges(self, key: str, first: int, rows: int, row_bytes: int, chunk_bytes: int) -> list[tuple[int, int]]:
        """Splits rows into ranges (from row 0 of the requested rows, number) that each lie in one piece by rows.

        Args:
            key: the tensor.
            first: first requested row in the tensor.
            rows: number of requested rows.
            row_bytes: bytes of one such row.
            chunk_bytes: the maximum of bytes in a range, unless one row has more.
        """
        ends = {row for p in self.tensors[key].pieces for row in (p.start[0], p.start[0] + p.shape[0])}
        cuts = sorted({0, rows, *(row - first for row in ends if first < row < first + rows)})
        row_ranges = []
        for low, high in zip(cuts, cuts[1:], strict=False):
            row_ranges += [(low + start, count) for start, count in chunks(high - low, row_bytes, chunk_bytes)]
        return row_ranges

    def read(self, key: str, start: tuple[int, ...], shape: tuple[int, ...]) -> Array:
        """Reads the box from `start` of `shape`; strings as an array of bytes objects.

        Raises:
            DamagedCheckpoint: when bytes of it fail their checksum, or a part of it is missing.
        """
        tensor = self.tensors[key]
        box = np.empty(shape, object if tensor.dtype == _STRING else tf.as_dtype(tensor.dtype).as_numpy_dtype)
        filled = 0
        for piece in tensor.pieces:
            low = [max(a, b) for a, b in zip(start, piece.start, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(start, shape, piece.start, piece.shape, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            if not shape:
                return self._whole(tensor, piece).reshape(())
            rows = self._rows(tensor, piece, low[0] - piece.start[0], high[0] - low[0])
            put = _cut(low, high, start)
            taken_columns = (slice(None), *_cut(low, high, piece.start)[1:])
            box[put] = rows[taken_columns]
            filled += box[put].size
        if filled != box.size:
            raise make_damage_error(f"{self.prefix}.index", f"a part of {key} is missing")
        return box

    def verify(self) -> list[str]:
        """Reads and checks the full checkpoint, in bounded memory; returns the keys that cannot be checked.

        Raises:
            DamagedCheckpoint: at the first piece that is corrupted.
        """
        for tensor in self.tensors.values():
            for piece in tensor.pieces:
                if tensor.dtype == _STRING:
                    _strings(piece)
                elif tensor.dtype not in _UNREAD:
                    self._block_crcs(piece)
        return [tensor.key for tensor in self.tensors.values() if tensor.dtype in _UNREAD]

    def _rows(self, tensor: Tensor, piece: StoredSlice, first: int, count: int) -> Array:
        """Rows of one piece, as wide as the piece."""
        if count == piece.shape[0] or tensor.dtype == _STRING:
            return self._whole(tensor, piece)[first : first + count]
        dtype = np.dtype(tf.as_dtype(tensor.dtype).as_numpy_dtype)
        row_bytes = math.prod(piece.shape[1:]) * dtype.itemsize
        values = np.frombuffer(self._range(piece, first * row_bytes, count * row_bytes), dtype)
        return values.reshape(count, *piece.shape[1:])

    def _whole(self, tensor: Tensor, piece: StoredSlice) -> Array:
        """All of one piece."""
        if tensor.dtype == _STRING:
            values = np.empty(piece.shape, object)
            values.reshape(-1)[:] = _strings(piece)
            return values
        content = _bytes_at(piece.file, piece.position, piece.size)
        if mask(crc32c(content)) != piece.crc:
            raise _other_checksum(piece)
        return np.frombuffer(content, tf.as_dtype(tensor.dtype).as_numpy_dtype).reshape(piece.shape)

    def _range(self, piece: StoredSlice, first: int, count: int) -> memoryview:
        """Bytes of a piece, read in full blocks."""
        crcs = self._block_crcs(piece)
        block, end = first // BLOCK_BYTES, min(piece.size, -(-(first + count) // BLOCK_BYTES) * BLOCK_BYTES)
        start = block * BLOCK_BYTES
        content = _bytes_at(piece.file, piece.position + start, end - start)
        _, block_crcs = join_checksums(content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES))
        if block_crcs != crcs[block : block + len(block_crcs)]:
            raise _other_checksum(piece)
        return memoryview(content)[first - start : first - start + count]

    def _block_crcs(self, piece: StoredSlice) -> list[int]:
        """The checksums of a piece's blocks, which must combine to its own; the piece is read through once."""
        place = (piece.file, piece.position)
        if place not in self._crcs:
            whole, crcs = join_checksums(_blocks(piece))
            if mask(whole) != piece.crc:
                raise _other_checksum(piece)
            self._crcs[place] = crcs
        return self._crcs[place]


def _check_there(path: str) -> None:
    if not tf.io.gfile.exists(path):
        raise make_damage_error(path, "it does not exist")


def _other_checksum(piece: StoredSlice) -> Exception:
    return make_damage_error(piece.file, f"the {piece.size} bytes at byte {piece.position} have a wrong checksum")


def _cut(low: list[int], high: list[int], start: tuple[int, ...]) -> tuple[slice, ...]:
    """The slices of a box from `low` to `high` in an array that begins at `start`."""
    return tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))


def _tensors(prefix: str, entries: dict[bytes, bytes]) -> dict[str, Tensor]:
    """Parses the tensors of an index; the slices of a tensor have their own entries.

    Slices need not cover a tensor: an optimizer that is applied inside a variable scope gives the slots of each part of
    a partitioned variable their own tensor, as large as the slots of all parts.

    Raises:
        KeyError, TypeError, ValueError, DecodeError: when the entries are inconsistent.
    """
    header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries[b""])
    if header.endianness != header.LITTLE:
        raise ValueError("a byte order other than little-endian")
    tensor_by_key = {}
    for name, value in entries.items():
        if not name or name.startswith(b"\0"):
            continue
        entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
        shape, dtype = tuple(int(d.size) for d in entry.shape.dim), tf.as_dtype(entry.dtype)
        boxes = [((0,) * len(shape), shape, entry)]
        if entry.slices:
            stored = [tensor_bundle_pb2.BundleEntryProto.FromString(entries[k]) for k in _slice_keys(entries, name)]
            # Keys of slices begin with the name, followed by the slices' numbers in order.
            extents = sorted([_extent(e) for e in s.extent] for s in entry.slices)
            boxes = [(*_box(e, shape), own) for e, own in zip(extents, stored, strict=True)]
        pieces = tuple(_piece(prefix, header.num_shards, start, size, own, dtype) for start, size, own in boxes)
        if math.prod(shape) < sum(math.prod(piece.shape) for piece in pieces):
            raise ValueError(f"parts that exceed {name!r}")
        tensor_by_key[name.decode()] = Tensor(name.decode(), dtype.name, shape, pieces)
    return tensor_by_key


def _piece(
    prefix: str, shards: int, start: tuple[int, ...], shape: tuple[int, ...], own: BundleEntry, dtype: DType
) -> StoredSlice:
    """The location of one piece, after checks."""
    if not 0 <= own.shard_id < shards or own.offset < 0 or own.size < 0 or any(d < 0 for d in shape):
        raise ValueError("an impossible location")
    if dtype.name not in (_STRING, *_UNREAD):
        expected_bytes = math.prod(shape) * np.dtype(dtype.as_numpy_dtype).itemsize
        if own.size != expected_bytes or own.dtype != dtype.as_datatype_enum:
            raise ValueError(f"{own.size} bytes for {expected_bytes} of {dtype.name}")
    file = f"{prefix}.data-{own.shard_id:05d}-of-{shards:05d}"
    return StoredSlice(start, shape, file, int(own.offset), int(own.size), int(own.crc32c))


def _extent(extent: Any) -> tuple[int, int]:
    return int(extent.start), int(extent.length) if extent.HasField("length") else _FULL


def _box(extents: list[tuple[int, int]], whole: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    start = tuple(s for s, _ in extents)
    return start, tuple(d if n == _FULL else n for (_, n), d in zip(extents, whole, strict=True))


def _slice_keys(entries: dict[bytes, bytes], name: bytes) -> list[bytes]:
    """The keys of a tensor's slices: a zero, the name (in which TensorFlow allows no zero), an end mark, numbers."""
    return sorted(k for k in entries if k.startswith(b"\0" + name + b"\0\1"))


def _strings(piece: StoredSlice) -> list[bytes]:
    """Reads the strings of a piece: their lengths, a checksum of these, and then the strings one after the other.

    The piece's own checksum covers the lengths as four-byte integers (eight-byte where one needs them), the checksum of
    the lengths, and the strings (TensorFlow's tensor_bundle.cc, WriteStringTensor).
    """
    content, at, lengths = _bytes_at(piece.file, piece.position, piece.size), 0, []
    for _ in range(math.prod(piece.shape)):
        length, at = varint(content, at, piece.file)
        lengths.append(length)
    if at + 4 + sum(lengths) != piece.size:
        raise make_damage_error(piece.file, f"the strings at byte {piece.position} have other lengths")
    numbers = b"".join(n.to_bytes(4 if n < 2**32 else 8, "little") for n in lengths)
    stored, body = content[at : at + 4], content[at + 4 :]
    if stored != mask(crc32c(numbers)).to_bytes(4, "little") or mask(crc32c(numbers, stored, body)) != piece.crc:
        raise _other_checksum(piece)
    ends = np.cumsum(lengths).tolist()
    return [body[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _blocks(piece: StoredSlice) -> Iterator[bytes]:
    """The bytes of a piece, BLOCK_BYTES at a time."""
    with tf.io.gfile.GFile(piece.file, "rb") as file:
        file.seek(piece.position)
        for start in range(0, piece.size, BLOCK_BYTES):
            yield file.read(min(BLOCK_BYTES, piece.size - start))


def _bytes_at(path: str, position: int, length: int) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            file.seek(position)
            content = file.read(length)
        except tf.errors.OutOfRangeError:
            content = b""
    if len(content) != length:
        raise make_damage_error(path, f"it is truncated before byte {position + length}")
    return bytes(content)
