"""Keeps this process's job running between two calls; there is at most one.

The job is idle, and ends after a timeout, before another job starts, and with this process. Or the script still uses
it, from step to step of its own loop, until another call needs the workers.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Protocol


class WaitingJob(Protocol):
    """A job that is idle."""

    def close(self) -> None:
        """Ends it, and waits for its end."""


class JobUser(Protocol):
    """A user of a job from step to step."""

    def end(self, is_last: bool = False) -> None:
        """Ends the use; the job then waits, or has ended.

        Args:
            is_last: whether this process ends.
        """


class _Waiting:
    """Stores the idle job, or its user; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._job: WaitingJob | None = None
        self._user: JobUser | None = None
        self._process = 0
        self._timer: threading.Timer | None = None
        atexit.register(self._end_at_exit)

    def put(self, job: WaitingJob, seconds: float) -> None:
        with self._lock:
            before = self._pop()
            self._job, self._process = job, os.getpid()
            self._timer = threading.Timer(seconds, self._end_late, [job])
            self._timer.daemon = True
            self._timer.start()
        if before is not None:
            before.close()

    def use(self, user: JobUser) -> None:
        with self._lock:
            self._user, self._process = user, os.getpid()

    def take(self) -> WaitingJob | None:
        self.end_use()
        with self._lock:
            return self._pop()

    def end(self, is_last: bool = False) -> None:
        try:
            self.end_use(is_last)
        finally:
            with self._lock:
                job = self._pop()
            if job is not None:
                job.close()

    def end_use(self, is_last: bool = False) -> None:
        user = self._user
        if user is not None and self._process == os.getpid():
            user.end(is_last)  # where that fails, it is ended again later
        self._user = None

    def _end_at_exit(self) -> None:
        try:
            self.end(is_last=True)
        except SystemExit as failed:  # which Python would not take for the status of this process
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(failed.code if isinstance(failed.code, int) else 1)

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


def park_job(job: WaitingJob, seconds: float) -> None:
    """Makes a job wait until it is taken, at most for a time; ends one that already waits."""
    _waiting.put(job, seconds)


def use_until_needed(user: JobUser) -> None:
    """Registers the user of a job until another call needs it."""
    _waiting.use(user)


def take_waiting() -> WaitingJob | None:
    """Returns the waiting job, if there is one; the caller must end it, or make it wait again.

    Raises:
        JobFailed: its use was ended, and the job has failed.
    """
    return _waiting.take()


def end_use() -> None:
    """Makes the user of a job end its use; raises as `take_waiting`."""
    _waiting.end_use()


def end_waiting_job() -> None:
    """Ends the waiting or used job, if there is one, and waits for its end; raises as `take_waiting`."""
    _waiting.end()
