"""Where a job has its state in the memory of hosts, and how nothing of it stays there when the job has ended."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from parallax.cluster.machines import Cluster
from parallax.runtime.launcher.reach import argv_on

_NAME = "parallax-state"
_ANSWER_S = 10.0


def host_folder(memory_dir: Path | str, job: str, host: str) -> Path:
    """The folder of one host; hosts that see one file system have one each.

    Args:
        memory_dir: a file system in memory.
        job: what this job alone has, the same at all its starts.
        host: the host's own name.
    """
    return Path(memory_dir) / f"{_NAME}-{job}-{host}"


def clear_host_memory(cluster: Cluster, memory_dir: Path | str, job: str) -> None:
    """Removes what a job that has ended has on its hosts; one that gives no answer is left as it is.

    Args:
        cluster: all hosts on which the job may have run.
        memory_dir: as `host_folder` takes it.
        job: likewise.
    """
    pattern = f"{shlex.quote(str(Path(memory_dir) / f'{_NAME}-{job}-'))}*"
    words = ["sh", "-c", f"rm -rf {pattern}"]
    started = [_started(argv_on(host, cluster.ssh, words)) for host in cluster.hosts]
    until_s = time.monotonic() + _ANSWER_S
    for process in started:
        if process is None:
            continue
        try:
            process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _started(words: Sequence[str]) -> subprocess.Popen[bytes] | None:
    none = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        return subprocess.Popen(words, stdin=none, stdout=none, stderr=none, start_new_session=True)
    return None
