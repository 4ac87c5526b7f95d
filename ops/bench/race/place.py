"""Where a race is run: on the hosts of a lab, or as processes of this machine where there can be no lab."""

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
    """What a race needs of where it runs."""

    hosts: tuple[str, ...]
    folder: Path
    is_lab: bool

    def address(self, host: str) -> str:
        """In digits."""

    def start(
        self, host: str, argv: Sequence[str], more: Mapping[str, str], log: IO[bytes], root: Path = ROOT
    ) -> subprocess.Popen[bytes]:
        """Starts a command of a checkout on a host; `more` is in its environment, and what it writes goes to `log`."""

    def pids(self) -> frozenset[int]:
        """All processes that run here, as this process numbers them."""

    def counters(self) -> dict[str, tuple[int, int]]:
        """Host -> bytes (received, sent) so far; empty where nothing counts them."""

    def lift_rates(self, are_lifted: bool) -> None:
        """Lets links carry what they can, or gives them their rates again."""


class InLab:
    """The hosts of a lab, which is up."""

    is_lab = True

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.hosts = lab.names
        self.folder = lab.folder

    def address(self, host: str) -> str:
        """In the lab's own network."""
        return self.lab.address(host)

    def start(
        self, host: str, argv: Sequence[str], more: Mapping[str, str], log: IO[bytes], root: Path = ROOT
    ) -> subprocess.Popen[bytes]:
        """Through nsenter."""
        return self.lab.start_on(
            host, argv, env=_environment(more, root), cwd=root, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def pids(self) -> frozenset[int]:
        """Of all hosts."""
        return frozenset(pid for host in self.hosts for pid in self.lab.processes(host))

    def counters(self) -> dict[str, tuple[int, int]]:
        """Of the hosts' interfaces."""
        return self.lab.counters()

    def lift_rates(self, are_lifted: bool) -> None:
        """Those of all hosts."""
        self.lab.lift_rates(are_lifted)


class OnThisMachine:
    """Processes of this machine, all on one `host`; nothing counts their bytes."""

    is_lab = False

    def __init__(self, folder: Path, hosts: int) -> None:
        self.hosts = tuple(f"host{number}" for number in range(hosts))
        self.folder = folder
        self._mark = secrets.token_hex(8)

    def address(self, host: str) -> str:
        """Loopback."""
        return "127.0.0.1"

    def start(
        self, host: str, argv: Sequence[str], more: Mapping[str, str], log: IO[bytes], root: Path = ROOT
    ) -> subprocess.Popen[bytes]:
        """As a child that ends with this process."""
        return subprocess.Popen(
            tied_argv(sys.executable, list(argv), os.getpid(), signal.SIGTERM),
            env={**_environment(more, root), _MARK: self._mark},
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def pids(self) -> frozenset[int]:
        """Those that carry this race's mark, which children inherit."""
        return frozenset(processes_with({_MARK: self._mark}))

    def counters(self) -> dict[str, tuple[int, int]]:
        """None."""
        return {}

    def lift_rates(self, are_lifted: bool) -> None:
        """There are no links."""


@contextlib.contextmanager
def place_of(hosts: int, rate_bytes_per_s: int | None, in_lab: bool) -> Iterator[Place]:
    """A place for a race inside a `with` block; nothing that was started there is left after it."""
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
    """How mpirun reaches the hosts of a place, for a user who starts a job with it by hand."""
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
