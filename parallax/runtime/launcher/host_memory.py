"""Records where a job has state in the memory of hosts, and removes all of it when the job has ended.

A killed launcher removes nothing. So each launcher has a record on its own machine, with the addresses of its hosts,
and holds a lock on it, which the kernel releases however the launcher ends. The next launcher of this user on that
machine removes, from the hosts, the state that records without a lock describe. No other user can open a record, and
files that another user creates under such a name are left alone. While a launcher lives, its job may be between two
starts, when no process of the job is on any host.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from parallax.base.private_files import lock_private_file, make_locked_file
from parallax.cluster.machines import Cluster
from parallax.runtime.launcher.reach import argv_on

_NAME = "parallax-state"
_RECORD = ".launcher"
_ANSWER_S = 10.0


@contextmanager
def host_memory(cluster: Cluster, memory_dir: Path | str, job: str) -> Iterator[None]:
    """Context that removes the leftovers of killed launchers at its start, and this job's state at its end.

    Args:
        cluster: all hosts on which the job may run.
        memory_dir: as in `host_folder`.
        job: as in `host_folder`.
    """
    clear_orphans(cluster, memory_dir)
    addresses = "".join(f"{host.address}\n" for host in cluster.hosts)
    with _record(Path(memory_dir) / f"{_NAME}-{job}{_RECORD}", addresses):
        try:
            yield
        finally:
            clear_host_memory(cluster, memory_dir, job)


def clear_orphans(cluster: Cluster, memory_dir: Path | str) -> None:
    """Removes from hosts the state of this user's jobs whose launchers on this machine were killed.

    Args:
        cluster: these hosts; other hosts of such a job keep its state, and the record lists them.
        memory_dir: as in `host_folder`.
    """
    ours = {host.address for host in cluster.hosts}
    for path in sorted(Path(memory_dir).glob(f"{_NAME}-*{_RECORD}")):
        locked = lock_private_file(path)
        if locked is None:
            continue
        with os.fdopen(locked, "r+", encoding="utf-8") as record:
            job = path.name.removeprefix(f"{_NAME}-").removesuffix(_RECORD)
            addresses = record.read().split()
            clear_host_memory(cluster, memory_dir, job, addresses)
            if left := [address for address in addresses if address not in ours]:
                record.seek(0)
                record.write("".join(f"{address}\n" for address in left))
                record.truncate()
            else:
                path.unlink()


def host_folder(memory_dir: Path | str, job: str, host: str) -> Path:
    """The folder of one host; hosts that share a file system have one each.

    Args:
        memory_dir: a file system in memory.
        job: a name unique to this job, the same at all its starts.
        host: the host's own name.
    """
    return Path(memory_dir) / f"{_NAME}-{job}-{host}"


def clear_host_memory(
    cluster: Cluster, memory_dir: Path | str, job: str, addresses: Collection[str] | None = None
) -> None:
    """Removes the state of a job that has ended from its hosts; hosts that do not respond are skipped.

    Args:
        cluster: all hosts on which the job may have run.
        memory_dir: as in `host_folder`.
        job: as in `host_folder`.
        addresses: of the hosts to clear; None for all.
    """
    pattern = f"{shlex.quote(str(Path(memory_dir) / f'{_NAME}-{job}-'))}*"
    words = ["sh", "-c", f"rm -rf {pattern}"]
    hosts = [host for host in cluster.hosts if addresses is None or host.address in addresses]
    started = [_start(argv_on(host, cluster.ssh, words)) for host in hosts]
    until_s = time.monotonic() + _ANSWER_S
    for process in started:
        if process is None:
            continue
        try:
            process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(words: Sequence[str]) -> subprocess.Popen[bytes] | None:
    none = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        return subprocess.Popen(words, stdin=none, stdout=none, stderr=none, start_new_session=True)
    return None


@contextmanager
def _record(path: Path, text: str) -> Iterator[None]:
    """Context of a file with a lock; without effect where this machine has no such file system."""
    try:
        record = make_locked_file(path, text)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(record)
