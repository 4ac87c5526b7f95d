"""Tells the launcher what this worker waits for, while one run with collectives lasts longer than usual.

The launcher compares the workers (stall.py) and ends a job whose workers wait for one that does not come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from parallax.runtime.control import send

_FIRST_REPORT_S = 2.0  # well above a step, well below any stall timeout
_EVERY_S = 2.0


class Watch:
    """A thread that reports the run in progress; started by the first run with collectives."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: tuple[str, str, float] | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def run(self, fetch: str, collectives: str) -> Iterator[None]:
        """Watches one run.

        Args:
            fetch: what is fetched, for messages.
            collectives: digest of the collectives it takes part in; empty for none, which is not watched.
        """
        if not collectives:
            yield
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._report, name="parallax-watch", daemon=True)
            self._thread.start()
        self._set((fetch, collectives, time.monotonic()))
        try:
            yield
        finally:
            self._set(None)

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _set(self, running: tuple[str, str, float] | None) -> None:
        # No notify: waking the thread at every step would cost more than its next look, which comes soon anyway.
        with self._changed:
            self._running = running

    def _report(self) -> None:
        told: tuple[str, str, float] | None = None
        while True:
            with self._changed:
                if self._closed:
                    return
                self._changed.wait(_EVERY_S / 2)
                running, closed = self._running, self._closed
            if closed:
                return
            if told is not None and running is not told:
                send({"kind": "run_done"})
                told = None
            if running is not None and time.monotonic() - running[2] >= _FIRST_REPORT_S:
                fetch, collectives, began = running
                send(
                    {"kind": "in_run", "fetch": fetch, "collectives": collectives, "seconds": time.monotonic() - began}
                )
                told = running
