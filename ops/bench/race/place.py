"""The places of a race: the hosts of a lab, or processes of this machine where a lab is impossible."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from ops.lab.lab import Lab
from ops.lab.links import SUBNET
from parallax.runtime.supervisor.processes import processes_with, tied_argv

ROOT = Path(__file__).resolve().parents[3]
_MARK = "PARALLAX_RACE"


class Place(Protocol):
    """The interface of a place."""

    hosts: tuple[str, ...]
    folder: Path
    is_lab: bool

    def address(self, host: str) -> str:
        """Returns the host's IP address."""

    def start(
        self, host: str, argv: Sequence[str], more: Mapping[str, str], log: IO[bytes], root: Path = ROOT
    ) -> subprocess.Popen[bytes]:
        """Starts a command of a checkout on a host, with `more` in its environment and its output in `log`."""

    def pids(self) -> frozenset[int]:
        """Returns all processes that run here, by their pids in this process's namespace."""

    def counters(self) -> dict[str, tuple[int, int]]:
        """Returns host -> bytes (received, sent) so far; empty if nothing counts them."""

    def lift_rates(self, are_lifted: bool) -> None:
        """Removes the rate limits of links, or restores them."""


class InLab:
    """The hosts of a running lab."""

    is_lab = True

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.hosts = lab.names
        self.folder = lab.folder

    def address(self, host: str) -> str:
        """Returns the host's address in the lab's own network."""
        return self.lab.address(host)

    def start(
        self, host: str, argv: Sequence[str], more: Mapping[str, str], log: IO[bytes], root: Path = ROOT
    ) -> subprocess.Popen[bytes]:
        """Starts the command through nsenter."""
        return self.lab.start_on(
            host, argv, env=_environment(more, root), cwd=root, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def pids(self) -> frozenset[int]:
        """Returns the processes of all hosts."""
        return frozenset(pid for host in self.hosts for pid in self.lab.processes(host))

    def counters(self) -> dict[str, tuple[int, int]]:
        """Returns the counters of the hosts' interfaces."""
        return self.lab.counters()

    def lift_rates(self, are_lifted: bool) -> None:
        """Removes or restores the rate limits of all hosts."""
        self.lab.lift_rates(are_lifted)


class OnThisMachine:
    """Processes of this machine in place of hosts; nothing counts their bytes."""

    is_lab = False

    def __init__(self, folder: Path, hosts: int) -> None:
        self.hosts = tuple(f"host{number}" for number in range(hosts))
        self.folder = folder
        self._mark = secrets.token_hex(8)

    def address(self, host: str) -> str:
        """Returns the loopback address."""
        return "127.0.0.1"

    def start(
        self, host: str, argv: Sequence[str], more: Mapping[str, str], log: IO[bytes], root: Path = ROOT
    ) -> subprocess.Popen[bytes]:
        """Starts the command as a child that ends with this process."""
        return subprocess.Popen(
            tied_argv(sys.executable, list(argv), os.getpid(), signal.SIGTERM),
            env={**_environment(more, root), _MARK: self._mark},
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def pids(self) -> frozenset[int]:
        """Returns the processes with this race's mark, which children inherit."""
        return frozenset(processes_with({_MARK: self._mark}))

    def counters(self) -> dict[str, tuple[int, int]]:
        """Returns no counters."""
        return {}

    def lift_rates(self, are_lifted: bool) -> None:
        """Does nothing: there are no links."""


@contextlib.contextmanager
def place_of(hosts: int, rate_bytes_per_s: int | None, in_lab: bool) -> Iterator[Place]:
    """Yields a place for a race, and ends all processes that were started there."""
    if in_lab:
        with Lab(hosts, rate_bytes_per_s) as lab:
            yield InLab(lab)
        return
    folder = Path(tempfile.mkdtemp(prefix="parallax-race-"))
    place = OnThisMachine(folder, hosts)
    try:
        yield place
    finally:
        for pid in place.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def mpirun_options(place: Place) -> list[str]:
    """Returns the options by which mpirun, started by hand, reaches the hosts of a place."""
    options = [
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *("--bind-to", "none", "--map-by", "slot", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"),
    ]
    if isinstance(place, InLab):
        parameters = {
            "plm": "rsh",
            "plm_rsh_agent": place.lab.agent,
            "plm_rsh_no_tree_spawn": "1",
            "pml": "ob1",
            "btl": "tcp,self,vader",
            "btl_tcp_if_include": SUBNET,
            "oob_tcp_if_include": SUBNET,
        }
        options += [word for name, value in parameters.items() for word in ("--mca", name, value)]
    return options


def _environment(more: Mapping[str, str], root: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **more, "PYTHONPATH": path}
