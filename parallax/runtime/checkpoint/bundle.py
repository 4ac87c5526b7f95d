"""Reads a TensorFlow checkpoint by rows.

RestoreV2 can be asked for a slice, and then reads all of the stored piece that the slice lies in: the whole table,
where tf.train.Saver wrote it. So rows of a larger piece are read from the data file directly, at the place that the
index file names; a piece that is wanted whole comes from RestoreV2, which verifies its checksum.

The index is a sorted string table (LevelDB's format, as TensorFlow writes it: uncompressed): blocks of keys that share
prefixes, an index block, and a footer that says where that is. Its values are BundleEntryProtos.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from parallax.errors import CheckpointError
from parallax.runtime.checkpoint.stored import chunks, slice_text

_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_BLOCK_TRAILER_BYTES = 5  # one for the compression, four for a checksum
_FULL = -1  # TensorFlow's length of a slice that takes all of a dimension


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """What is stored in one place: the box from `start` of `shape`, at byte `position` of data file `file`."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    position: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint; `is_cut` says whether its pieces are slices."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[StoredSlice, ...]
    is_cut: bool


class Bundle:
    """A checkpoint that is open for reading."""

    def __init__(self, prefix: str) -> None:
        """Reads the index.

        Raises:
            CheckpointError: when it is no checkpoint of TensorFlow's present format.
        """
        self._prefix = prefix
        self.tensors = _tensors(prefix, dict(_table(f"{prefix}.index")))

    def ranges(self, key: str, first: int, rows: int, row_bytes: int, chunk_bytes: int) -> list[tuple[int, int]]:
        """Splits rows into ranges (from row 0 of what is asked for, number) that each lie in one piece by rows.

        Args:
            key: the tensor.
            first: first row in the tensor of what is asked for.
            rows: number of rows asked for.
            row_bytes: bytes of one such row.
            chunk_bytes: the most bytes of a range, if a row has no more.
        """
        ends = {row for p in self.tensors[key].pieces for row in (p.start[0], p.start[0] + p.shape[0])}
        cuts = sorted({0, rows, *(row - first for row in ends if first < row < first + rows)})
        found = []
        for low, high in zip(cuts, cuts[1:], strict=False):
            found += [(low + start, count) for start, count in chunks(high - low, row_bytes, chunk_bytes)]
        return found

    def read(self, key: str, start: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        """The box from `start` of `shape`, of a tensor that is neither a scalar nor of strings."""
        tensor = self.tensors[key]
        found = np.empty(shape, tf.as_dtype(tensor.dtype).as_numpy_dtype)
        filled = 0
        for piece in tensor.pieces:
            low = [max(a, b) for a, b in zip(start, piece.start, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(start, shape, piece.start, piece.shape, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            rows = self._rows(tensor, piece, low[0] - piece.start[0], high[0] - low[0])
            put = _cut(low, high, start)
            taken_columns = (slice(None), *_cut(low, high, piece.start)[1:])
            found[put] = rows[taken_columns]
            filled += found[put].size
        if filled != found.size:
            raise CheckpointError(f"{self._prefix}: a checkpoint must hold all of {key}, and a part is missing.")
        return found

    def read_whole(self, key: str, slice_spec: str) -> Any:
        """A tensor, or a slice of it, that is small or strings."""
        return restore(self._prefix, key, slice_spec, self.tensors[key].dtype)

    def _rows(self, tensor: Tensor, piece: StoredSlice, first: int, count: int) -> Any:
        """Rows of one piece, as wide as the piece."""
        if count == piece.shape[0]:
            spec = slice_text(tensor.shape, piece.start, piece.shape) if tensor.is_cut else ""
            return restore(self._prefix, tensor.key, spec, tensor.dtype)
        dtype = np.dtype(tf.as_dtype(tensor.dtype).as_numpy_dtype)
        row_bytes = math.prod(piece.shape[1:]) * dtype.itemsize
        found = np.frombuffer(_bytes_at(piece.file, piece.position + first * row_bytes, count * row_bytes), dtype)
        return found.reshape(count, *piece.shape[1:])


def _cut(low: list[int], high: list[int], start: tuple[int, ...]) -> tuple[slice, ...]:
    """Where a box from `low` to `high` is in an array that begins at `start`."""
    return tuple(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True))


def restore(prefix: str, key: str, spec: str, dtype: str) -> Any:
    """One slice of a tensor by RestoreV2, which reads all of every stored piece that the slice touches."""
    with tf.Graph().as_default():
        [value] = tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=[key], shape_and_slices=[spec], dtypes=[tf.as_dtype(dtype)]
        )
        return run(value)


def run(fetch: Any, feeds: Any = None) -> Any:
    """Runs an op of the default graph in a session of its own, without GPUs."""
    options = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    options.graph_options.rewrite_options.disable_meta_optimizer = True  # one op: nothing to optimize
    with tf.compat.v1.Session(config=options) as session:
        return session.run(fetch, feeds)


def _tensors(prefix: str, entries: dict[bytes, bytes]) -> dict[str, Tensor]:
    """The tensors of an index; the slices of a tensor have entries of their own."""
    header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries.get(b"", b""))
    found = {}
    for name, value in entries.items():
        if not name or name.startswith(b"\0"):
            continue
        key, entry = name.decode(), tensor_bundle_pb2.BundleEntryProto.FromString(value)
        shape = tuple(int(d.size) for d in entry.shape.dim)
        boxes = [((0,) * len(shape), shape, entry)]
        if entry.slices:
            stored = [tensor_bundle_pb2.BundleEntryProto.FromString(entries[k]) for k in _slice_keys(entries, name)]
            # Keys of slices begin with the name and go on in the order of the slices' numbers.
            extents = sorted([_extent(e) for e in s.extent] for s in entry.slices)
            boxes = [(*_box(e, shape), own) for e, own in zip(extents, stored, strict=True)]
        pieces = tuple(
            StoredSlice(start, size, f"{prefix}.data-{own.shard_id:05d}-of-{header.num_shards:05d}", int(own.offset))
            for start, size, own in boxes
        )
        found[key] = Tensor(key, tf.as_dtype(entry.dtype).name, shape, pieces, bool(entry.slices))
    return found


def _slice_keys(entries: dict[bytes, bytes], name: bytes) -> list[bytes]:
    """The keys of a tensor's slices: a zero, the name (in which TensorFlow allows no zero), an end mark, numbers."""
    return sorted(k for k in entries if k.startswith(b"\0" + name + b"\0\1"))


def _extent(extent: Any) -> tuple[int, int]:
    return int(extent.start), int(extent.length) if extent.HasField("length") else _FULL


def _box(extents: list[tuple[int, int]], whole: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    start = tuple(s for s, _ in extents)
    return start, tuple(d if n == _FULL else n for (_, n), d in zip(extents, whole, strict=True))


def _table(path: str) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values of a sorted string table."""
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise CheckpointError(
            f"{path}: a checkpoint's index must be a whole file of TensorFlow's, and this is not. Delete the "
            "checkpoint and name an earlier one in the file `checkpoint` beside it."
        )
    _, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    for _, handle in _block(content, index):
        yield from _block(content, _handle(handle, 0)[0])


def _block(content: bytes, place: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """The entries of one block."""
    start, size = place
    block = content[start : start + size]
    if content[start + size : start + size + _BLOCK_TRAILER_BYTES][:1] != b"\0":
        raise CheckpointError(
            "A checkpoint's index must be uncompressed, as TensorFlow writes it, and this one is not."
        )
    restarts = int.from_bytes(block[-4:], "little")
    end, at, key = size - 4 * (restarts + 1), 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """((offset, size) of a block, where the next thing begins)."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _bytes_at(path: str, position: int, length: int) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        try:
            file.seek(position)
            found = file.read(length)
        except tf.errors.OutOfRangeError:
            found = b""
    if len(found) != length:
        raise CheckpointError(
            f"{path}: a checkpoint's data file must be whole, and it ends early. Delete the checkpoint and name an "
            "earlier one in the file `checkpoint` beside it."
        )
    return bytes(found)
