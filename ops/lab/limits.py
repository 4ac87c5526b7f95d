"""Memory limits of emulated hosts: a control group for the processes of each host.

A killed lab leaves its groups behind. They are empty and cost nothing; `rmdir` removes them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_FIRST, _SECOND = ("memory/{name}", "memory.limit_in_bytes"), ("{name}", "memory.max")
"""For each version of control groups: the folder of a group, and the file of its limit."""

JOINED = 'echo $$ > "$0" && exec "$@"'
"""Shell script that joins a group through its file of processes and then executes a command."""


@contextlib.contextmanager
def limited_memory(host: str, memory_bytes: int) -> Iterator[Path]:
    """Makes a control group for the `with` block; yields its file of processes.

    Args:
        host: the host's name.
        memory_bytes: limit for all its processes together, including the kernel's file cache for them.

    Raises:
        RuntimeError: no control groups for memory are available here, or they cannot be made.
    """
    folder, limit = _FIRST if (_ROOT / "memory").is_dir() else _SECOND
    group = _ROOT / folder.format(name=f"parallax-lab-{os.getpid()}-{host}")
    try:
        group.mkdir()
        (group / limit).write_text(str(memory_bytes))
    except OSError as error:
        raise RuntimeError(
            f"A host's memory limit needs a control group, and {group} cannot be made: {error.strerror}. "
            "Leave the limit out."
        ) from error
    try:
        yield group / "cgroup.procs"
    finally:
        with contextlib.suppress(OSError):  # a dying process is still in it
            group.rmdir()
