"""Sends this process's heartbeats, and reports to the launcher what a long run waits for.

A separate thread sends a heartbeat every second, whatever TensorFlow and MPI do in other threads: while they compile,
compute or wait, they release Python's lock. The launcher compares the workers (stall.py) and ends a job whose workers
wait for one that does not arrive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from parallax.base.errors import SessionError
from parallax.report.text import first_line
from parallax.runtime.supervisor.control import BEAT, send
from parallax.runtime.supervisor.limits import LIMITS

_FIRST_REPORT_S = 2.0  # well above a step, well below any stall timeout
_FAILURE_WIDTH = 140

Places = Callable[[], Mapping[str, Sequence[str]]]
"""Returns for each fetch the places where workers synchronize for it (`Names.for_all`)."""


class _Running(NamedTuple):
    """The run in progress; compared by identity."""

    fetch: str
    collectives: str
    patient: bool
    began_s: float
    for_all: Places
    failures: tuple[str, ...]


class Heartbeat:
    """Sends heartbeats and reports the run in progress, from its own thread, and reports the end of the loop.

    Args:
        serves: whether this process is a server, which has no runs.
    """

    def __init__(self, serves: bool = False) -> None:
        self._serves = serves
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._runs = 0
        self._failures: tuple[str, ...] = ()  # of runs with collectives, since the last that succeeded
        self._opened = self._has_more = False
        self._finished = False

    def open(self) -> None:
        """Records that a session is opened.

        Raises:
            SessionError: when this process has opened one before.
        """
        if self._opened and not self._has_more:
            raise SessionError(
                "A script may call parallel_run only once, since the launcher has started the workers for the first "
                "call. Build one graph for everything that the script trains, or write two scripts."
            )
        self._opened = True

    def expect_sessions(self) -> None:
        """Permits consecutive sessions in this process, until `finish`."""
        self._has_more = True

    def close(self) -> None:
        """Records that a session has ended, and with it this worker's loop, unless another session follows."""
        if not self._has_more:
            self.finish()

    @contextmanager
    def run(self, fetch: str = "", collectives: str = "", patient: bool = False) -> Iterator[None]:
        """Context that watches a run or a part of one; an enclosing watch continues afterwards.

        Args:
            fetch: the fetches, for messages.
            collectives: digest of the collectives it takes part in; empty for none, which is not watched, until `begin`
                says otherwise.
            patient: whether it waits while the others are busy, and waits in vain only when one has ended.
        """
        before = self._running
        self.begin(fetch, collectives, patient)
        try:
            yield
        except BaseException as error:  # an exit leaves the run too: it is recorded, and raised again
            if self._running is not None and self._running is not before:  # others may be in its collectives
                line = first_line(str(error), _FAILURE_WIDTH)
                self._failures += (f"run {self._runs + 1}: {type(error).__name__}: {line}",)
            raise
        else:
            if self._running is not None and self._running is not before:
                self._failures = ()
        finally:
            self._set(before)

    def begin(self, fetch: str, collectives: str, patient: bool = False, for_all: Places = dict) -> None:
        """Sets the run that this process waits for from now on.

        Args:
            fetch: as for `run`.
            collectives: as for `run`.
            patient: as for `run`.
            for_all: where workers synchronize for each fetch (`Names.for_all`); called for a long run, from another
                thread.
        """
        running = _Running(fetch, collectives, patient, time.monotonic(), for_all, self._failures)
        self._set(running if collectives else None)

    def start(self) -> None:
        """Starts sending heartbeats; without it only the loop's end is reported."""
        threading.Thread(target=self._report, name="parallax-watch", daemon=True).start()

    def count(self) -> None:
        """Counts a completed run of the user's loop."""
        self._runs += 1

    def finish(self) -> None:
        """Reports that this worker's loop has ended; heartbeats continue. A second call has no effect."""
        with self._lock:
            if not self._finished:
                self._finished = True
                self._running = None
                send({"kind": "finished", "runs": self._runs})

    def _set(self, running: _Running | None) -> None:
        # No notification: waking the thread at every step would cost more than its next poll, which comes soon.
        with self._lock:
            self._running = running

    def _report(self) -> None:
        reported: _Running | None = None
        looked_up: _Running | None = None
        places: Mapping[str, Sequence[str]] = {}
        while True:
            running = self._running
            if running is not None and running is not looked_up and _is_long(running):
                places, looked_up = running.for_all(), running  # may take long
            with self._lock:  # so that no report is older than that of `finish`
                running = self._running
                send(self._beat(running))
                if reported is not None and running is not reported:
                    reported = None
                    if not self._finished:
                        send({"kind": "run_done"})
                if running is not None and running is looked_up and not self._finished:
                    reported = running
                    send(_in_run(running, places))
            time.sleep(LIMITS.beat_s)

    def _beat(self, running: _Running | None) -> dict[str, object]:
        """This process's current activity."""
        if self._serves:
            return {"kind": BEAT, "serves": True}
        fetch, seconds = (running.fetch, time.monotonic() - running.began_s) if running is not None else ("", 0.0)
        return {"kind": BEAT, "runs": self._runs, "fetch": fetch, "seconds": round(seconds, 1)}


def _is_long(running: _Running) -> bool:
    return time.monotonic() - running.began_s >= _FIRST_REPORT_S


def _in_run(running: _Running, places: Mapping[str, Sequence[str]]) -> dict[str, object]:
    return {
        "kind": "in_run",
        "fetch": running.fetch,
        "collectives": running.collectives,
        "patient": running.patient,
        "for_all": places,
        "failures": running.failures,
        "seconds": time.monotonic() - running.began_s,
    }


_of_this_process: ContextVar[Heartbeat | None] = ContextVar("watch", default=None)


@contextmanager
def watching(serves: bool = False) -> Iterator[Heartbeat]:
    """Context of the heartbeat of a script or server, which starts here; a script's session uses it."""
    watch = Heartbeat(serves)
    watch.start()
    token = _of_this_process.set(watch)
    try:
        yield watch
    finally:
        _of_this_process.reset(token)


def current_heartbeat() -> Heartbeat:
    """The heartbeat of this process, or a new one outside a worker."""
    return _of_this_process.get() or Heartbeat()
