"""The memory that the processes of an emulated host may take together: a control group of the kernel for each host.

A lab that is killed leaves its groups, which are empty then and cost nothing; `rmdir` removes them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_FIRST, _SECOND = ("memory/{name}", "memory.limit_in_bytes"), ("{name}", "memory.max")
"""Of both versions of control groups: the folder of a group, and the file of its limit."""

JOINED = 'echo $$ > "$0" && exec "$@"'
"""What a shell runs to join a group, by its file of processes, and to become a command there."""


@contextlib.contextmanager
def limited_memory(host: str, memory_bytes: int) -> Iterator[Path]:
    """A group inside the `with` block; gives its file of processes.

    Args:
        host: the host's name.
        memory_bytes: what its processes may take together, with what the kernel caches of files for them.

    Raises:
        RuntimeError: there are no control groups for memory here, or they cannot be made.
    """
    folder, limit = _FIRST if (_ROOT / "memory").is_dir() else _SECOND
    group = _ROOT / folder.format(name=f"parallax-lab-{os.getpid()}-{host}")
    try:
        group.mkdir()
        (group / limit).write_text(str(memory_bytes))
    except OSError as error:
        raise RuntimeError(
            f"A limit of a host's memory takes a control group, and {group} cannot be made: {error.strerror}. Leave "
            "the limit out."
        ) from error
    try:
        yield group / "cgroup.procs"
    finally:
        with contextlib.suppress(OSError):  # a process that is being ended is still in it
            group.rmdir()
