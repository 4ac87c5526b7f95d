"""Puts together what a job gives back: rank 0 writes it to the launcher's memory, or sends it in pieces.

The first goes where rank 0 is on the launcher's machine. A result counts when all of it is there, with the checksum
that rank 0 has told.
"""

from __future__ import annotations

import mmap
import os

from parallax.errors import LaunchError
from parallax.runtime.supervisor.control import checksum
from parallax.runtime.supervisor.frames import ResultPart


class ResultCollector:
    """The result of one job as far as it has come; a gigabyte is kept once.

    Args:
        has_file: whether rank 0 can write to this process's memory.
    """

    def __init__(self, has_file: bool = False) -> None:
        self._file = os.memfd_create("parallax-result") if has_file else None
        self._total_bytes: int | None = None
        self._crc = 0
        self._data = bytearray()
        self._received_bytes = 0

    @property
    def path(self) -> str:
        """Where processes of this user on this machine find the file; empty without one."""
        return "" if self._file is None else f"/proc/{os.getpid()}/fd/{self._file}"

    def take(self, part: ResultPart) -> None:
        """Takes in a piece; pieces come in order. One without bytes tells of a file that is written."""
        self._total_bytes, self._crc = part.total_bytes, part.crc
        if part.data and not self._data:
            self._data = bytearray(part.total_bytes)
        end = self._received_bytes + len(part.data)
        self._data[self._received_bytes : end] = part.data
        self._received_bytes = end

    def close(self) -> memoryview | None:
        """All of it, for reading only; None while bytes are missing, or when nothing is sent. No more is taken in."""
        file, self._file = self._file, None
        found: memoryview | None = None
        if self._received_bytes == self._total_bytes:
            found = memoryview(self._data).toreadonly()
        elif file is not None and self._total_bytes is not None and os.fstat(file).st_size == self._total_bytes:
            found = memoryview(mmap.mmap(file, self._total_bytes, access=mmap.ACCESS_READ))
        if file is not None:
            os.close(file)
        return found

    def check(self, result: memoryview) -> None:
        """Compares what `close` gave with the checksum that rank 0 has told.

        Raises:
            LaunchError: the bytes are not those that rank 0 sent.
        """
        found = checksum(result)
        if found != self._crc:
            raise LaunchError(
                f"The job's result must come as rank 0 sent it, with the checksum {self._crc:08x}, and {result.nbytes} "
                f"bytes came with {found:08x}. Run the job again; if that repeats, test the memory of the hosts."
            )
