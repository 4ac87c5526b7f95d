"""Arrays that processes of one host share: each process maps them, and the host stores them once.

They are in an anonymous memory file (memfd_create), which disappears with the last process that has it open, and to
which no limit of /dev/shm applies. Another process opens it by the pid and the descriptor of a process that has it
open.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from parallax.base.types import Array, Comm

_ALIGNMENT = 64
"""The alignment at which TensorFlow uses an array without a copy."""
_PIECE_BYTES = 1 << 30
"""Largest message; MPI counts are limited to 2**31."""


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """The shape and type of an array.

    Attributes:
        shape: of the array.
        dtype: NumPy's name of its type.
    """

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(array: Array) -> ArrayKind:
        """The kind of an array."""
        return ArrayKind(array.shape, array.dtype.str)

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """The place where other processes of the host find a memory file.

    Attributes:
        process: the pid of a process that has it open.
        descriptor: its descriptor there. 52.device, inode| of the file, which identify it.
        device, inode: of the file, by which it is known.
    """

    process: int
    descriptor: int
    device: int
    inode: int


class SharedArrays:
    """Arrays in memory that processes share.

    Attributes:
        kinds: of the arrays.
        bytes: of all of them, including padding.
        arrays: the arrays; those of `open` are read-only.
        place: where other processes find them, until the allocating process seals them.
    """

    def __init__(self, descriptor: int, kinds: Sequence[ArrayKind], place: MemoryPlace | None = None) -> None:
        """Maps a memory file; call `allocate` or `open` instead.

        Args:
            descriptor: of the file.
            kinds: of the arrays in it.
            place: of another process that has it and alone writes it; None for this process.
        """
        self.kinds = tuple(kinds)
        self.place = _place_of(descriptor) if place is None else place
        self._descriptor = descriptor if place is None else None
        access = mmap.ACCESS_WRITE if place is None else mmap.ACCESS_READ
        self.bytes = np.frombuffer(mmap.mmap(descriptor, _length_of(self.kinds), access=access), np.uint8)
        self.arrays = [
            self.bytes[first : first + kind.num_bytes].view(kind.dtype).reshape(kind.shape)
            for first, kind in zip(_beginnings(self.kinds), self.kinds, strict=True)
        ]

    @staticmethod
    def allocate(kinds: Sequence[ArrayKind]) -> SharedArrays:
        """Allocates arrays of these kinds, filled with zeros.

        Raises:
            OSError: this process cannot allocate that much memory.
        """
        descriptor = os.memfd_create("parallax-arrays", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, _length_of(kinds))
            return SharedArrays(descriptor, kinds)
        except BaseException:
            os.close(descriptor)
            raise

    @staticmethod
    def copy_of(arrays: Sequence[Array], dtypes: Sequence[np.dtype] | None = None) -> SharedArrays:
        """Copies arrays, converted to other types where these are passed."""
        types = [one.dtype for one in arrays] if dtypes is None else dtypes
        kinds = [ArrayKind(one.shape, np.dtype(dtype).str) for one, dtype in zip(arrays, types, strict=True)]
        shared = SharedArrays.allocate(kinds)
        for copy, array in zip(shared.arrays, arrays, strict=True):
            copy[...] = array
        return shared

    @staticmethod
    def open(place: MemoryPlace, kinds: Sequence[ArrayKind]) -> SharedArrays:
        """Maps the arrays of another process on this host.

        Raises:
            OSError: that process has ended, or belongs to another host or user.
        """
        descriptor = os.open(f"/proc/{place.process}/fd/{place.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != (place.device, place.inode):
                raise FileNotFoundError(errno.ENOENT, "process numbers are those of another container", str(place))
            return SharedArrays(descriptor, kinds, place)
        finally:
            os.close(descriptor)

    def seal(self) -> None:
        """Prevents other processes from opening them from now on; existing mappings remain, also in this process."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # it was never mapped
            self.seal()


def can_open(place: MemoryPlace, kinds: Sequence[ArrayKind]) -> bool:
    """Whether this process can map the arrays of another one."""
    try:
        SharedArrays.open(place, kinds)
    except OSError:
        return False
    return True


def share_among_workers(
    kinds: Sequence[ArrayKind], local: SharedArrays | None, workers: Comm, host: str
) -> SharedArrays:
    """Distributes worker 0's arrays to all workers, once to each host; all workers call it.

    Args:
        kinds: of the arrays.
        local: the arrays; None on other workers than worker 0.
        workers: communicator of the workers.
        host: the host of this worker.

    Raises:
        OSError: this worker cannot allocate that much memory.
    """
    rank = workers.Get_rank()
    hosts = workers.allgather(host)
    leader = hosts.index(host)
    local = _broadcast(local, kinds, rank == leader, workers)
    places = workers.allgather(local.place if local is not None else None)
    if local is None:
        with suppress(OSError):
            local = SharedArrays.open(places[leader], kinds)
    shared = _broadcast(local, kinds, local is None, workers)  # to workers that cannot see their host's leader process
    assert shared is not None, "a worker either maps the arrays or gets them"
    if rank == leader:
        shared.seal()  # all processes that need it have opened it
    return shared


def _broadcast(
    local: SharedArrays | None, kinds: Sequence[ArrayKind], is_shared: bool, workers: Comm
) -> SharedArrays | None:
    """Broadcasts worker 0's arrays to the workers that need them, and returns each worker's arrays."""
    takes = is_shared or workers.Get_rank() == 0
    takers = workers.Split(int(not takes), workers.Get_rank())
    if takes and takers.Get_size() > 1:
        local = SharedArrays.allocate(kinds) if local is None else local
        for first in range(0, _length_of(kinds), _PIECE_BYTES):
            takers.Bcast(local.bytes[first : first + _PIECE_BYTES])
    takers.Free()
    return local


def _place_of(descriptor: int) -> MemoryPlace:
    """The place where other processes find a file that this one has open."""
    status = os.fstat(descriptor)
    return MemoryPlace(os.getpid(), descriptor, status.st_dev, status.st_ino)


def _beginnings(kinds: Sequence[ArrayKind]) -> Iterator[int]:
    """The offset of each array, in bytes."""
    first = 0
    for kind in kinds:
        yield first
        first += -(-kind.num_bytes // _ALIGNMENT) * _ALIGNMENT


def _length_of(kinds: Sequence[ArrayKind]) -> int:
    """Bytes of the file, which is never empty, as empty files cannot be mapped."""
    return max(sum(-(-kind.num_bytes // _ALIGNMENT) * _ALIGNMENT for kind in kinds), _ALIGNMENT)
