"""Tells the launcher what this worker waits for, while one run with collectives lasts longer than usual.

The launcher compares the workers (stall.py) and ends a job whose workers wait for one that does not come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from parallax.errors import SessionError
from parallax.runtime.supervisor.control import send

_FIRST_REPORT_S = 2.0  # well above a step, well below any stall timeout
_EVERY_S = 2.0

Places = Callable[[], Mapping[str, Sequence[str]]]
"""Gives for each fetch where workers meet for it (`Names.for_all`)."""


class _Running(NamedTuple):
    """The run in progress; compared by identity."""

    fetch: str
    collectives: str
    patient: bool
    began_s: float
    for_all: Places


class Heartbeat:
    """Reports the run in progress, from a thread that the first run with collectives starts, and the loop's end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: _Running | None = None
        self._runs = 0
        self._opened = False
        self._finished = False
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """A session is opened.

        Raises:
            SessionError: when this process has opened one before.
        """
        if self._opened:
            raise SessionError(
                "A script may call parallel_run once: the launcher started the workers for the first call. "
                "Build one graph for all that the script trains, or write two scripts."
            )
        self._opened = True

    @contextmanager
    def run(self, fetch: str = "", collectives: str = "", patient: bool = False) -> Iterator[None]:
        """Watches what is inside, a run or a part of one; what was watched before goes on afterwards.

        Args:
            fetch: what is fetched, for messages.
            collectives: digest of the collectives it takes part in; empty for none, which is not watched, until
                `begin` says otherwise.
            patient: whether it waits as long as the others are at anything, and in vain only when one has ended.
        """
        before = self._running
        self.begin(fetch, collectives, patient)
        try:
            yield
        finally:
            self._set(before)

    def begin(self, fetch: str, collectives: str, patient: bool = False, for_all: Places = dict) -> None:
        """From now on this is what is waited for.

        Args:
            fetch: as for `run`.
            collectives: as for `run`.
            patient: as for `run`.
            for_all: where workers meet for each fetch (`Names.for_all`); asked for when it lasts, from another thread.
        """
        if collectives and self._thread is None:
            self._thread = threading.Thread(target=self._report, name="parallax-watch", daemon=True)
            self._thread.start()
        self._set(_Running(fetch, collectives, patient, time.monotonic(), for_all) if collectives else None)

    def count(self) -> None:
        """A run of the user's loop has ended."""
        self._runs += 1

    def finish(self) -> None:
        """Tells that this worker's loop has ended, and ends the thread; a second call changes nothing."""
        with self._changed:
            if self._finished:
                return
            self._finished = True
            self._running = None
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()  # it may be about to tell of a run, which would undo what follows
        send({"kind": "finished", "runs": self._runs})

    def _set(self, running: _Running | None) -> None:
        # No notify: waking the thread at every step would cost more than its next look, which comes soon anyway.
        with self._changed:
            self._running = running

    def _report(self) -> None:
        told: _Running | None = None
        places: Mapping[str, Sequence[str]] = {}
        while True:
            with self._changed:
                if not self._finished:
                    self._changed.wait(_EVERY_S / 2)
                running, finished = self._running, self._finished
            if finished:
                return
            if told is not None and running is not told:
                send({"kind": "run_done"})
                told = None
            if running is not None and time.monotonic() - running.began_s >= _FIRST_REPORT_S:
                if running is not told:
                    places = running.for_all()
                send(
                    {
                        "kind": "in_run",
                        "fetch": running.fetch,
                        "collectives": running.collectives,
                        "patient": running.patient,
                        "for_all": places,
                        "seconds": time.monotonic() - running.began_s,
                    }
                )
                told = running


_of_this_process: ContextVar[Heartbeat | None] = ContextVar("watch", default=None)


@contextmanager
def watching() -> Iterator[Heartbeat]:
    """The watch of the script that runs inside: its session uses it, and its end is told at the latest here."""
    watch = Heartbeat()
    token = _of_this_process.set(watch)
    try:
        yield watch
    finally:
        _of_this_process.reset(token)


def current_heartbeat() -> Heartbeat:
    """The watch of this process, or a new one outside a worker."""
    return _of_this_process.get() or Heartbeat()
