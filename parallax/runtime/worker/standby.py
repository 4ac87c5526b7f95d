"""Prepares a process of a spare job while the current job runs: imports at low priority, then waits.

It has called MPI_Init, so the spare's processes are connected; only the job message is missing. Nothing is forked,
because TensorFlow's threads would not survive that. Rank 0 sees that the message arrives, and then enters a barrier, by
which the others see it; a rank that is still importing then continues at normal priority.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from parallax.base.types import Comm
from parallax.runtime.supervisor.control import READY, send

# Alongside a busy process it gets a tenth of a core, and imports everything in a minute or two; at 19 it would take
# ten.
_LOW, _USUAL = 10, 0
_PATIENCE_S, _PAUSE_S = 60.0, 0.05
_POLL_S = 0.02
_INPUT = 0


def prepare_spare(modules: Sequence[str], world: Comm) -> None:
    """Imports modules while another job trains, notifies the launcher, and waits for the message; a collective call.

    A thread imports, so that messages of other ranks are received meanwhile. NumPy is imported before, because its
    threads stay and compute later.
    """
    import_module("numpy")
    imports = _Imports(modules)
    if world.rank == 0:
        imports.go_on_until(_has_input)
    imports.go_on_until(world.Ibarrier().Test)
    imports.finish()


class _Imports:
    """A thread that imports, at low priority."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._error: BaseException | None = None
        self._has_reported = False
        _set_group_priority(_LOW)
        self._thread = threading.Thread(target=self._run, name="parallax-imports")
        self._thread.start()

    def go_on_until(self, has_come: Callable[[], bool]) -> None:
        """Waits for the message; reports meanwhile when all modules are imported."""
        while not has_come():
            if not self._has_reported and not self._thread.is_alive():
                self.finish()
                send({"kind": READY, "bytes": count_process_bytes()})
                self._has_reported = True
            time.sleep(_POLL_S)

    def finish(self) -> None:
        """Imports the remaining modules at normal priority; raises the exception of an import."""
        _set_group_priority(_USUAL)
        if self._thread.is_alive() and self._thread.native_id is not None:
            _set_thread_priority(self._thread.native_id, _USUAL)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        _set_thread_priority(threading.get_native_id(), _LOW)
        try:
            for module in self._modules:
                import_module(module)
        except BaseException as error:  # raised again in the main thread
            self._error = error


def count_process_bytes() -> int:
    """The memory of this process: memory shared with other processes counts in proportion to their number."""
    match = re.search(r"^Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(encoding="ascii"), re.MULTILINE)
    return 1024 * int(match.group(1)) if match else 0


def _has_input() -> bool:
    """Whether rank 0 has data to read, or its input has ended."""
    poll = select.poll()
    poll.register(_INPUT, select.POLLIN)
    return bool(poll.poll(0))


def _set_thread_priority(thread: int, nice: int) -> None:
    """Sets the priority of one thread; without privileges it cannot be raised again."""
    try:
        os.setpriority(os.PRIO_PROCESS, thread, nice)
    except (PermissionError, ProcessLookupError):  # or the thread has ended
        return


def _set_group_priority(nice: int) -> None:
    """Sets the priority of this process's session (sched(7), autogroup), if the kernel has such groups.

    Threads' own priorities count only within the group there. The supervisor has given this process its session.
    """
    group = Path("/proc/self/autogroup")
    deadline_s = time.monotonic() + _PATIENCE_S
    while group.exists() and time.monotonic() < deadline_s:
        try:
            group.write_text(str(nice), encoding="ascii")
            return
        except BlockingIOError:  # the kernel allows ten such changes a second, of all users
            time.sleep(_PAUSE_S)
        except PermissionError:  # in some containers; the priority of the thread must suffice
            return
