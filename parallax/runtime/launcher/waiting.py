"""The idle job of this process; there is at most one.

It ends after a time, before another job starts, and with this process.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Protocol


class WaitingJob(Protocol):
    """A job that is idle."""

    def close(self) -> None:
        """Ends it, and waits for that."""


class _Waiting:
    """Holds the idle job; several threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._job: WaitingJob | None = None
        self._process = 0
        self._timer: threading.Timer | None = None
        atexit.register(self.end)

    def put(self, job: WaitingJob, seconds: float) -> None:
        with self._lock:
            before = self._pop()
            self._job, self._process = job, os.getpid()
            self._timer = threading.Timer(seconds, self._end_late, [job])
            self._timer.daemon = True
            self._timer.start()
        if before is not None:
            before.close()

    def take(self) -> WaitingJob | None:
        with self._lock:
            return self._pop()

    def end(self) -> None:
        job = self.take()
        if job is not None:
            job.close()

    def _end_late(self, job: WaitingJob) -> None:
        with self._lock:
            late = self._pop() if self._job is job else None
        if late is not None:
            late.close()

    def _pop(self) -> WaitingJob | None:
        """Removes the job, and returns it; in a forked process there is none."""
        job, self._job = self._job, None
        if self._timer is not None:
            self._timer.cancel()
        return job if self._process == os.getpid() else None


_waiting = _Waiting()


def let_wait(job: WaitingJob, seconds: float) -> None:
    """Has a job wait until it is taken, at most for a time; one that waits already is ended."""
    _waiting.put(job, seconds)


def take_waiting() -> WaitingJob | None:
    """The job that waits, if there is one; whoever takes it must end it, or have it wait again."""
    return _waiting.take()


def end_waiting_job() -> None:
    """Ends the job that waits, if there is one, and waits for that."""
    _waiting.end()
