"""Verifies the CRC-32C of checkpoint entries, as TensorFlow stores it: masked, one per entry.

A range of an entry has no checksum of its own. So an entry of which only ranges are needed is first read through once,
in bounded memory: the checksums of its blocks are kept, and combined they must equal the entry's. Later reads are
compared with the blocks' checksums, so every byte used is covered by the stored checksum.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import google_crc32c

BLOCK_BYTES = 2**20
"""Size of the unit with its own checksum in memory: small compared with a chunk of rows, large compared with a call."""

_MASK_DELTA = 0xA282EAD8  # TensorFlow's tsl/lib/hash/crc32c.h


def crc32c(*parts: bytes) -> int:
    """CRC-32C of the concatenated parts."""
    return functools.reduce(google_crc32c.extend, parts, 0)


def mask(crc: int) -> int:
    """Masks a checksum, as it is stored."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def join_checksums(blocks: Iterable[bytes]) -> tuple[int, list[int]]:
    """Returns (CRC-32C of all blocks together, that of each); all but the last must have BLOCK_BYTES.

    Each byte is processed once: CRC is linear in the preceding checksum, so the effect of a full block of zeros on each
    of its bits determines the combined checksum.
    """
    whole, of_blocks = 0, []
    for block in blocks:
        of_blocks.append(google_crc32c.value(block))
        if len(block) == BLOCK_BYTES:
            whole = of_blocks[-1] ^ functools.reduce(
                int.__xor__, (column for bit, column in enumerate(_columns()) if whole >> bit & 1), 0
            )
        else:
            whole = google_crc32c.extend(whole, block)
    return whole, of_blocks


@functools.cache
def _columns() -> tuple[int, ...]:
    """The effect of BLOCK_BYTES zeros on each bit of the preceding checksum."""
    zeros = bytes(BLOCK_BYTES)
    return tuple(google_crc32c.extend(1 << bit, zeros) ^ google_crc32c.value(zeros) for bit in range(32))
