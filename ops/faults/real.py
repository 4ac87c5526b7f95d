"""Real jobs with real faults: kills, stops and signals of any of a job's processes, and cut links, at random moments.

Jobs run on this machine, and, where root can make an emulated cluster, on its hosts too. All processes of a job have
its mark in their command lines, so what is left is found wherever it runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ops.faults.job import LIMITS, LOCAL_WORKERS
from ops.lab import Lab, why_not

_RANK = b"OMPI_COMM_WORLD_RANK="
_START_S = 60.0
_HANG_S = 60.0  # from the fault
_EMPTY_S = 20.0  # from the launcher's end
_LAB_WORKERS = (1, 2)  # of which the second host's two share a host


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done to a job.

    Attributes:
        victim: `worker`, `agent`, `mpirun`, `daemon`, `launcher` or `link`.
        number: the signal.
        status: the job's exit status; None when the launcher cannot give one.
        words: what its message begins with, as a pattern; RANK is the victim's.
    """

    victim: str
    number: int
    status: int | None
    words: str

    def __str__(self) -> str:
        return f"{self.victim} {'cut' if self.victim == 'link' else signal.Signals(self.number).name}"


_NAME = r"rank RANK( on host \S+)?"
_LOST = "host host1 is lost"
FAULTS = (
    Fault("worker", signal.SIGKILL, 137, f"{_NAME} was killed by SIGKILL"),
    Fault("worker", signal.SIGHUP, 129, f"{_NAME} was killed by SIGHUP"),
    Fault("worker", signal.SIGSEGV, 139, f"{_NAME} was killed by SIGSEGV"),
    Fault("worker", signal.SIGSTOP, 124, f"{_NAME} is silent: a signal stopped"),
    Fault("agent", signal.SIGKILL, 137, f"{_NAME} is lost: its supervisor was killed by SIGKILL"),
    Fault("agent", signal.SIGSTOP, 124, f"{_NAME} is lost: its supervisor, process"),
    Fault("agent", signal.SIGHUP, 129, f"{_NAME} is lost: its supervisor was ended by SIGHUP"),
    Fault("agent", signal.SIGINT, 130, f"{_NAME} is lost: its supervisor was ended by SIGINT"),
    Fault("agent", signal.SIGTERM, 143, f"{_NAME} is lost: its supervisor was ended by SIGTERM"),
    Fault("mpirun", signal.SIGKILL, 137, "mpirun was killed by SIGKILL"),
    Fault("mpirun", signal.SIGSTOP, 124, "mpirun is silent: a signal stopped it"),
    Fault("launcher", signal.SIGINT, 130, "the launcher got SIGINT"),
    Fault("launcher", signal.SIGTERM, 143, "the launcher got SIGTERM"),
    Fault("launcher", signal.SIGKILL, None, ""),
    Fault("launcher", signal.SIGSTOP, None, ""),
)
OF_HOSTS = (
    Fault("daemon", signal.SIGKILL, 1, _LOST),
    Fault("daemon", signal.SIGSTOP, 1, _LOST),
    Fault("link", 0, 1, _LOST),
)
"""Those that need a host besides the launcher's."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How a job with a fault went: what was wrong, empty when nothing was, and seconds from the fault to its end."""

    what: str
    seconds: float


def run_all(number: int, first: int) -> int:
    """Runs `number` trials from seed `first` on, and prints what was wrong and how long ends took; 0 if all is well."""
    reason = why_not()
    if reason:
        print(f"Jobs of this machine only, for no emulated cluster can be made: {reason}.")
    trials = []
    with contextlib.ExitStack() as ends:
        lab = None if reason else ends.enter_context(Lab(2))
        for seed in range(first, first + number):
            trial, text = _try(Random(seed), lab)
            trials.append(trial)
            if trial.what:
                print(f"seed {seed}, {text}: {trial.what}", flush=True)
    count = {kind: sum(trial.what.startswith(kind) for trial in trials) for kind in ("hangs", "said", "left", "status")}
    print(", ".join(f"{kind}: {value}" for kind, value in count.items()))
    seconds = [trial.seconds for trial in trials]
    median_s, worst_s = statistics.median(seconds), max(seconds)
    print(f"{number} jobs; seconds from the fault to the end: {median_s:.1f} median, {worst_s:.1f} worst.")
    return 1 if any(trial.what for trial in trials) else 0


def _try(random: Random, lab: Lab | None) -> tuple[Trial, str]:
    on_hosts = lab is not None and random.random() < 0.4
    fault = random.choice(FAULTS + OF_HOSTS if on_hosts else FAULTS)
    ranks = sum(_LAB_WORKERS) if on_hosts else LOCAL_WORKERS
    rank = random.randrange(ranks)
    text = f"{fault} of rank {rank} on {'two hosts' if on_hosts else 'one host'}"
    if lab is not None and on_hosts and fault.victim == "agent" and fault.number == signal.SIGSTOP:
        rank = max(
            rank, 1
        )  # alone on its host a supervisor cannot be told from the host; its neighbour tells them apart
    with tempfile.TemporaryDirectory(prefix="parallax-faults-") as folder:
        return _Running(Path(folder), lab if on_hosts else None).meets(fault, rank, ranks, random), text


class _Running:
    """A job that runs."""

    def __init__(self, folder: Path, lab: Lab | None) -> None:
        self._mark = folder.name
        self._lab = lab
        self._stderr = folder / "stderr"
        where = "local" if lab is None else str(lab.resource_file(list(_LAB_WORKERS)))
        words = [sys.executable, "-m", "ops.faults.job", self._mark, where]
        with self._stderr.open("wb") as stderr:
            argv = words if lab is None else lab.argv_on("host0", words)
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
            )

    def meets(self, fault: Fault, rank: int, ranks: int, random: Random) -> Trial:
        """Waits for a moment, does what the fault says, and looks how the job ends."""
        try:
            self._wait(lambda: len(self._pids("worker")) == ranks, _START_S)
            time.sleep(2 * LIMITS.word_s + 3 * random.random())
            began_s = time.monotonic()
            self._hit(fault, rank)
            if fault.status is None:
                self._wait(lambda: set(self._left()) <= {self._process.pid, *self._pids("launcher")}, _HANG_S)
                self._kill("launcher")
            elif not self._wait(lambda: self._process.poll() is not None, _HANG_S):
                return Trial(f"hangs: {self._stderr.read_text()[-2000:]}", _HANG_S)
            seconds = time.monotonic() - began_s
            self._wait(lambda: not self._left(), _EMPTY_S)
            return Trial(self._wrong(fault, rank), seconds)
        finally:
            if self._lab is not None:
                self._link("up")
            for pid in self._left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()

    def _wrong(self, fault: Fault, rank: int) -> str:
        if left := self._left():
            return f"left: {left}"
        if fault.status is None:
            return ""
        said, status = self._stderr.read_text(), self._process.returncode
        if (128 - status if status < 0 else status) != fault.status:
            return f"status {status} and not {fault.status}: {said[-2000:]}"
        pattern = "^parallax: " + fault.words.replace("RANK", str(rank))
        return "" if re.search(pattern, said, re.MULTILINE) else f"said {said[-2000:]}"

    def _hit(self, fault: Fault, rank: int) -> None:
        if fault.victim == "link":
            self._link("down")
            return
        found = self._pids(fault.victim)
        os.kill(found[rank] if fault.victim in ("worker", "agent") else min(found.values()), fault.number)

    def _link(self, state: str) -> None:
        if self._lab is not None:
            subprocess.run(self._lab.argv_on_bridge(["ip", "link", "set", "to-host1", state]), check=True)

    def _kill(self, kind: str) -> None:
        for pid in self._pids(kind).values():
            os.kill(pid, signal.SIGKILL)

    def _pids(self, kind: str) -> dict[int, int]:
        """The processes of a kind: rank -> number, or any key where there are no ranks."""
        found: dict[int, int] = {}
        for pid, words, rank in self._processes():
            is_kind = {
                "agent": rank is not None and b"supervisor.agent" in words,
                "worker": rank is not None and b"supervisor.agent" not in words,
                "mpirun": rank is None and words.startswith(str(Path(sys.executable).with_name("mpirun")).encode()),
                "launcher": rank is None and b"ops.faults.job" in words and b"nsenter" not in words,
                "daemon": False,
            }[kind]
            if is_kind:
                key = pid if rank is None else rank
                found[key] = min(pid, found.get(key, pid))  # a supervisor's guard comes after it
        if kind == "daemon":
            return {rank: _parent(pid) for rank, pid in self._pids("agent").items() if rank}
        return found

    def _left(self) -> list[int]:
        return [pid for pid, words, _ in self._processes() if b"nsenter" not in words]

    def _processes(self) -> Iterator[tuple[int, bytes, int | None]]:
        """The job's processes: number, words of the command, rank."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (folder / "cmdline").read_bytes()
                    if self._mark.encode() in words:
                        ranks = [w for w in (folder / "environ").read_bytes().split(b"\0") if w.startswith(_RANK)]
                        yield int(folder.name), words, int(ranks[0][len(_RANK) :]) if ranks else None

    def _wait(self, there: Callable[[], bool], limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while not there():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.05)
        return True


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
