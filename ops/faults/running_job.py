"""A trial's running job: its start, its processes and its output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ops.lab import Lab
from parallax.runtime.supervisor.processes import processes_with

_RANK, _MARK = "OMPI_COMM_WORLD_RANK", "PARALLAX_FAULTS"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of a job.

    Attributes:
        pid: its PID on this machine.
        parent: its parent's PID.
        words: its command line.
        environment: its initial environment; for a forked worker, its rank and its fork server's environment.
    """

    pid: int
    parent: int
    words: str
    environment: Mapping[str, str]

    @staticmethod
    def of(process: psutil.Process) -> Seen:
        """Reads a process's attributes; psutil.Error if it has ended."""
        return Seen(process.pid, process.ppid(), " ".join(process.cmdline()), process.environ())

    @property
    def rank(self) -> int | None:
        """The rank that it belongs to; None for processes that start ranks."""
        rank = self.environment.get(_RANK)
        return None if rank is None else int(rank)

    @property
    def is_agent(self) -> bool:
        """Whether it is a supervisor or a supervisor's guard."""
        return self.rank is not None and "supervisor.agent" in self.words

    @property
    def is_mpirun(self) -> bool:
        """Whether it is mpirun."""
        return self.rank is None and self.words.startswith(str(Path(sys.executable).with_name("mpirun")))


class RunningJob:
    """A running job, on this machine or on the hosts of a lab.

    Args:
        folder: of the trial.
        mark: a value in the environment of all its processes.
        argv: a module of ops.faults and its arguments.
        lab: the hosts; None for this machine.
        shows: whether its stdout is shown.
    """

    def __init__(self, folder: Path, mark: str, argv: list[str], lab: Lab | None, shows: bool = False) -> None:
        self.lab = lab
        self.own = folder / "own"
        self.own.mkdir()
        self._mark, self._stderr = mark, folder / "stderr"
        words = [sys.executable, "-m", *argv]
        temporary = {"TMPDIR": str(self.own)} if lab is None else {}
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                words if lab is None else lab.argv_on("host0", words),
                env={**os.environ, _MARK: mark, "TF_CPP_MIN_LOG_LEVEL": "2", **temporary},
                stdin=subprocess.DEVNULL,
                stdout=None if shows else subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Returns the PIDs of the job. On emulated hosts these are all processes there."""
        if self.lab is not None:
            return [pid for name in self.lab.names for pid in self.lab.processes(name)]
        return list(processes_with({_MARK: self._mark}))

    def seen(self) -> Iterator[Seen]:
        """Yields the job's processes with their attributes, without zombies."""
        for pid in self.pids():
            with contextlib.suppress(psutil.Error):
                seen = Seen.of(psutil.Process(pid))
                if seen.words:
                    yield seen

    def said(self) -> str:
        """Returns the launcher's stderr so far."""
        return self._stderr.read_text(errors="replace")

    def kill(self) -> None:
        """Kills all remaining processes."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def daemon_of(pid: int) -> int | None:
    """Returns the PID of the Open MPI daemon that started a supervisor; None if mpirun started it."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid).parent()
        if parent is not None and parent.name() == "orted":
            return int(parent.pid)
    return None


def wait(there: Callable[[], bool], limit_s: float) -> bool:
    """Waits until a condition holds; returns whether it held in time."""
    deadline_s = time.monotonic() + limit_s
    while not there():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
