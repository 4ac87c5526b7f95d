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
"""TensorFlow takes an array that begins at such an address without a copy."""
_PIECE_BYTES = 1 << 30
"""MPI counts to 2**31."""


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """What is known of an array without its values.

    Attributes:
        shape: of it.
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
        """Of its values."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """Where other processes of the machine find a file of memory.

    Attributes:
        process: that has it open.
        descriptor: its number there.
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
        bytes: of all of them, and what is between two.
        arrays: the arrays; those of `open` cannot be written.
        place: where other processes find them, as long as whoever has allocated them has not sealed them.
    """

    def __init__(self, descriptor: int, kinds: Sequence[ArrayKind], place: MemoryPlace | None = None) -> None:
        """Maps a file of memory; `allocate` and `open` are the ways to one.

        Args:
            descriptor: of the file.
            kinds: of the arrays in it.
            place: of another process that has it, which alone writes it; None for this process.
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
        """Makes arrays of these kinds, of zeros.

        Raises:
            OSError: this process cannot have so much memory.
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
        """Copies arrays, which are converted to other types where these are given."""
        types = [one.dtype for one in arrays] if dtypes is None else dtypes
        kinds = [ArrayKind(one.shape, np.dtype(own).str) for one, own in zip(arrays, types, strict=True)]
        shared = SharedArrays.allocate(kinds)
        for copy, array in zip(shared.arrays, arrays, strict=True):
            copy[...] = array
        return shared

    @staticmethod
    def open(place: MemoryPlace, kinds: Sequence[ArrayKind]) -> SharedArrays:
        """Maps the arrays that another process of this machine has.

        Raises:
            OSError: that process is gone, or is none of this machine's and user's.
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
        """Lets no other process open them from now on; who has them mapped keeps them, this process too."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # it was never mapped
            self.seal()


def can_open(place: MemoryPlace, kinds: Sequence[ArrayKind]) -> bool:
    """Whether this process can map what another one has."""
    try:
        SharedArrays.open(place, kinds)
    except OSError:
        return False
    return True


def share_among_workers(kinds: Sequence[ArrayKind], own: SharedArrays | None, workers: Comm, host: str) -> SharedArrays:
    """Brings worker 0's arrays to all workers, once to each host; all workers call it.

    Args:
        kinds: of the arrays.
        own: the arrays; None on other workers than worker 0.
        workers: communicator of the workers.
        host: that this worker runs on.

    Raises:
        OSError: this worker cannot have so much memory.
    """
    rank = workers.Get_rank()
    hosts = workers.allgather(host)
    leader = hosts.index(host)
    own = _broadcast(own, kinds, rank == leader, workers)
    places = workers.allgather(own.place if own is not None else None)
    if own is None:
        with suppress(OSError):
            own = SharedArrays.open(places[leader], kinds)
    shared = _broadcast(own, kinds, own is None, workers)  # to workers that see no process of their host's leader
    assert shared is not None, "a worker either maps the arrays or gets them"
    if rank == leader:
        shared.seal()  # all that wanted to open it have
    return shared


def _broadcast(
    own: SharedArrays | None, kinds: Sequence[ArrayKind], is_taken: bool, workers: Comm
) -> SharedArrays | None:
    """Brings worker 0's arrays to the workers that take them, and gives each worker what it has then."""
    takes = is_taken or workers.Get_rank() == 0
    takers = workers.Split(int(not takes), workers.Get_rank())
    if takes and takers.Get_size() > 1:
        own = SharedArrays.allocate(kinds) if own is None else own
        for first in range(0, _length_of(kinds), _PIECE_BYTES):
            takers.Bcast(own.bytes[first : first + _PIECE_BYTES])
    takers.Free()
    return own


def _place_of(descriptor: int) -> MemoryPlace:
    """Where other processes find a file that this one has open."""
    status = os.fstat(descriptor)
    return MemoryPlace(os.getpid(), descriptor, status.st_dev, status.st_ino)


def _beginnings(kinds: Sequence[ArrayKind]) -> Iterator[int]:
    """Where each array begins, in bytes."""
    first = 0
    for kind in kinds:
        yield first
        first += -(-kind.num_bytes // _ALIGNMENT) * _ALIGNMENT


def _length_of(kinds: Sequence[ArrayKind]) -> int:
    """Of the file, in bytes; no file is empty, as none such can be mapped."""
    return max(sum(-(-kind.num_bytes // _ALIGNMENT) * _ALIGNMENT for kind in kinds), _ALIGNMENT)
