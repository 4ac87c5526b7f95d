"""Lists the signals that end a job, and installs the launcher's handlers for them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

ENDING = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM),
    *(signal.SIGPROF, signal.SIGXCPU, signal.SIGIO, signal.SIGPWR),
)
"""Signals that end a process by default without a fault in it.

mpirun does not receive them: it would end, or pass them on to all ranks, and not say why. It does receive SIGTERM,
because the kernel sends it when the launcher is dead.
"""


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collects the signals that end the job; only a main thread can have handlers."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    # Under nohup SIGHUP stays ignored; a script's own handlers stay too.
    numbers += [n for n in ENDING if n not in numbers and signal.getsignal(n) is signal.SIG_DFL]
    before = {number: signal.signal(number, lambda got, frame: caught.append(got)) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def add_sigterm_to(signals: list[int]) -> Iterator[None]:
    """Context in which SIGTERM is added to the signals of a job; a script's own handler stays."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda got, frame: signals.append(got))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
