"""Probe that runs on one host: reports its versions, free resources and clock.

The host's installation may be missing or different, so the probe is sent on standard input and needs nothing but
Python: no MPI is started, and no package is imported. It reads a line of JSON as the request and writes a line as the
answer. It answers each further line with the host's time. Answers begin with the token that the request contains,
because a login may write lines too.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PACKAGES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "horovod": ("horovod",),
    "mpi4py": ("mpi4py",),
    "numpy": ("numpy",),
    "keras": ("keras",),
    "msgspec": ("msgspec",),
    "google-crc32c": ("google-crc32c",),
    "cloudpickle": ("cloudpickle",),
}
"""Packages that workers import, with the names under which they are installed."""

NOT_NATIVE = "not native"
"""Replaces a library's digest."""

_MPIRUN_S = 10.0
_NO_LIMIT = 1 << 50
_ELF_BYTES, _IDENT_BYTES, _MACHINE = 20, 6, slice(18, 20)  # elf(5): mark, class and byte order; e_machine


def facts(question: dict[str, Any]) -> dict[str, Any]:
    """Answers a request.

    Args:
        question: `project`, the folder of the package; `libraries`, native libraries; `mpirun`, its path; `disks`,
            folders whose free space is reported; `written`, folders that must be writable; `address` and `ports`, a
            range of which the free ones are counted, or None; `folder`, the ranks' working folder.
    """
    return {
        "name": socket.gethostname(),
        "python": sys.version.split()[0],
        "packages": {name: _version(names) for name, names in PACKAGES.items()},
        "mpirun": _mpirun(question["mpirun"]),
        "project": _digest(sorted(Path(question["project"]).rglob("*.py"))),
        "libraries": {path: _library(Path(path)) for path in question["libraries"]},
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory_bytes(),
        "disks": {folder: _free_bytes(folder) for folder in [*question["disks"], *question["written"]]},
        "unwritable": [folder for folder in question["written"] if not _is_writable(folder)],
        "has_folder": Path(question["folder"]).is_dir(),
        "open_files": _open_files(),
        "free_ports": None if question["ports"] is None else _free_ports(question["address"], *question["ports"]),
    }


def _version(names: tuple[str, ...]) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _mpirun(path: str) -> str:
    """The first line of its version output; empty if it does not run."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_MPIRUN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else ""


def _digest(files: list[Path]) -> str:
    """A digest of the names and contents of files; empty if there are none."""
    digest = hashlib.sha256()
    for file in files:
        if not file.is_file():
            return ""
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest() if files else ""


def _library(path: Path) -> str:
    """The digest of a native library; empty if it is missing, NOT_NATIVE for another processor."""
    heads = []
    for file in (path, Path(sys.executable)):
        try:
            with file.open("rb") as opened:
                heads.append(opened.read(_ELF_BYTES))
        except OSError:
            return ""
    of_file, of_python = ((head[:_IDENT_BYTES], head[_MACHINE]) for head in heads)
    return _digest([path]) if of_file == of_python else NOT_NATIVE


def _memory_bytes() -> int:
    """The memory that is available to processes; in a container, within its limit."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (most := limit.read_text().strip()).isdigit():
        free = max(0, min(free, int(most) - int(used.read_text())))
    return free


def _free_bytes(folder: str) -> int:
    """The bytes that this user may write into a folder, or into its nearest existing ancestor."""
    path = Path(folder)
    while not path.is_dir():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _is_writable(folder: str) -> bool:
    path = Path(folder)
    while not path.exists():
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _open_files() -> int:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _NO_LIMIT if most == resource.RLIM_INFINITY else most


def _free_ports(address: str, first: int, last: int) -> int:
    """The number of ports of a range that can be listened on; 0 if the address is not this host's."""
    free = 0
    for port in range(first, last + 1):
        try:
            kind, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(kind, socket.SOCK_STREAM) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
                one.bind(place)
        except OSError:
            continue
        free += 1
    return free


def main() -> None:
    """Answers requests of standard input on standard output."""
    question = json.loads(sys.stdin.buffer.readline())
    sys.stdout.write(question["word"] + json.dumps(facts(question)) + "\n")
    sys.stdout.flush()
    while sys.stdin.buffer.readline():
        sys.stdout.write(f"{question['word']}{time.time_ns() / 1e3:.0f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
