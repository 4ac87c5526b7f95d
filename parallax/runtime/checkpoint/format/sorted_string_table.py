"""Reads a sorted string table: LevelDB's format, in which TensorFlow writes a checkpoint's index, uncompressed.

The table consists of blocks of prefix-compressed keys, each with a checksum, an index block, and a footer that locates
the index block. Every byte of the file is checked: blocks must follow each other without a gap, and every checksum must
match.
"""

from __future__ import annotations

from collections.abc import Iterator

from parallax.base.errors import CheckpointError
from parallax.base.strict import shown
from parallax.runtime.checkpoint.format.checksum import crc32c, mask

_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_TRAILER_BYTES = 5  # one for the compression, four for the checksum
_MOST_VARINT_BYTES = 10


class DamagedCheckpoint(CheckpointError):
    """Files of a checkpoint are corrupted: an earlier checkpoint may be intact."""


def make_damage_error(path: str, what: str) -> DamagedCheckpoint:
    """Returns the error about a corrupted file."""
    return DamagedCheckpoint(f"{shown(path)}: cannot read the checkpoint file: {shown(what)}")


def table(content: bytes, path: str) -> dict[bytes, bytes]:
    """Reads all keys and values of a sorted string table.

    Args:
        content: of the entire file.
        path: for messages.

    Raises:
        DamagedCheckpoint: when a byte of it is corrupted.
    """
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise make_damage_error(path, "its footer is invalid, as of a truncated file")
    meta, at = _handle(footer, 0, path)
    index, at = _handle(footer, at, path)
    if any(footer[at:-8]):
        raise make_damage_error(path, "its footer is invalid, as of a truncated file")
    handles = [_whole_handle(handle, path) for _, handle in _entries(_block(content, index, path), path)]
    free = 0
    for start, size in [*handles, meta, index]:
        if start != free:
            raise make_damage_error(path, f"a block must begin at byte {free}, and one begins at {start}")
        free = start + size + _TRAILER_BYTES
    if free != len(content) - _FOOTER_BYTES:
        raise make_damage_error(path, f"its blocks end at byte {free} of {len(content) - _FOOTER_BYTES}")
    _block(content, meta, path)
    value_by_key: dict[bytes, bytes] = {}
    last = None
    for handle in handles:
        for key, value in _entries(_block(content, handle, path), path):
            if last is not None and key <= last:
                raise make_damage_error(path, "its keys are not in order")
            value_by_key[key] = value
            last = key
    return value_by_key


def varint(data: bytes, at: int, path: str) -> tuple[int, int]:
    """Returns (an integer in LevelDB's variable-length encoding, the position after it).

    Raises:
        DamagedCheckpoint: when there is none, or its encoding is longer than necessary.
    """
    value = 0
    for place in range(_MOST_VARINT_BYTES):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            if place and not byte:
                break
            return value, at + place + 1
    raise make_damage_error(path, f"there is no number at byte {at} of a part of it")


def _block(content: bytes, place: tuple[int, int], path: str) -> bytes:
    """Returns one block, which is followed by its checksum."""
    start, size = place
    block, trailer = content[start : start + size], content[start + size : start + size + _TRAILER_BYTES]
    if len(trailer) < _TRAILER_BYTES or start + size + _TRAILER_BYTES > len(content) - _FOOTER_BYTES:
        raise make_damage_error(path, f"the block at byte {start} extends beyond its end")
    if mask(crc32c(block, trailer[:1])) != int.from_bytes(trailer[1:], "little"):
        raise make_damage_error(path, f"the block at byte {start} has a wrong checksum")
    if trailer[0]:
        raise make_damage_error(path, f"the block at byte {start} is compressed")
    return block


def _entries(block: bytes, path: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of one block."""
    restarts = int.from_bytes(block[-4:], "little")
    end, at, key = len(block) - 4 * (restarts + 1), 0, b""
    while at < end:
        shared, at = varint(block, at, path)
        own_length, at = varint(block, at, path)
        length, at = varint(block, at, path)
        if shared > len(key) or at + own_length + length > end:
            break
        key = key[:shared] + block[at : at + own_length]
        yield key, block[at + own_length : at + own_length + length]
        at += own_length + length
    if at != end:
        raise make_damage_error(path, "the entries of a block do not end at its end")


def _handle(data: bytes, at: int, path: str) -> tuple[tuple[int, int], int]:
    """Returns ((offset, size) of a block, the position after it)."""
    offset, at = varint(data, at, path)
    size, at = varint(data, at, path)
    return (offset, size), at


def _whole_handle(data: bytes, path: str) -> tuple[int, int]:
    """Returns a handle that must be followed by nothing."""
    handle, at = _handle(data, 0, path)
    if at != len(data):
        raise make_damage_error(path, "the location of a block is followed by other data")
    return handle
