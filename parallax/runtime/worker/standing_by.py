"""What a process of a spare job does until the job before it has failed: it imports at low priority, and waits.

It has called MPI_Init, so the spare's processes are connected; what is missing is the parcel. Nothing is forked, which
threads of TensorFlow would not survive.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from parallax.runtime.supervisor.control import READY, send
from parallax.runtime.worker.barrier import wait_for_all
from parallax.types import Comm

_LOWEST = 19


def get_ready(modules: Sequence[str]) -> None:
    """Imports modules beside the job that trains, and tells the launcher.

    A thread does it, whose priority is its own: a process without privileges could not take its own back. NumPy comes
    before, for its threads stay and compute later.
    """
    import_module("numpy")
    failed: list[BaseException] = []
    thread = threading.Thread(target=_import, args=(modules, failed), name="parallax-imports")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    send({"kind": READY, "bytes": own_bytes()})


def wait_for_go(world: Comm) -> None:
    """Waits until rank 0 has the parcel and comes here too; every rank must call it."""
    wait_for_all(world)


def own_bytes() -> int:
    """The memory that this process takes: its share of what it has in common with others counts by their number."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(encoding="ascii"), re.MULTILINE)
    return 1024 * int(found.group(1)) if found else 0


def _import(modules: Sequence[str], failed: list[BaseException]) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
    try:
        for module in modules:
            import_module(module)
    except BaseException as error:  # raised again in the main thread
        failed.append(error)
