"""Feeds rank 0's standard input through mpirun: the whole message, and no end of file while the job runs.

mpirun of Open MPI 4.1 may crash at the end of its input (SIGSEGV in orte_iof_hnp_read_local_handler): while pieces for
rank 0 are still queued in mpirun, it reads that end again and again, and once rank 0 has received the first one it
follows a null pointer. Of jobs whose input is more than a pipe holds (64 KB) about one in fifty ended so. So readers
rely on lengths, and mpirun sees the end of file only when no process reads any more.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from typing import BinaryIO

from parallax.base.types import Buffer


class JobInput:
    """A pipe that mpirun reads at its own pace, filled by a separate thread."""

    def __init__(self) -> None:
        read_fd, written_fd = os.pipe()
        self.read_end: BinaryIO = os.fdopen(read_fd, "rb")
        self._written = os.fdopen(written_fd, "wb", 0)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, pieces: Iterable[Buffer]) -> None:
        """Starts to write `pieces`, once; nothing is written to a job that has ended."""
        with self._lock:
            if not self._written.closed:
                self._thread = threading.Thread(target=self._write, args=(pieces,), name="parallax-input", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Closes the pipe, when mpirun has ended or was not started: unwritten pieces have no reader."""
        self.read_end.close()
        with self._lock:
            if self._thread is not None:
                self._thread.join()
            self._written.close()

    def _write(self, pieces: Iterable[Buffer]) -> None:
        with contextlib.suppress(BrokenPipeError):
            for piece in pieces:
                left = memoryview(piece).cast("B")
                while left:
                    left = left[self._written.write(left) :]
