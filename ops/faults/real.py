"""Real jobs with real faults at random moments: kills, stops and signals of any process, cut links and full disks.

Jobs run on this machine, and, where root can make an emulated cluster, on its hosts too. What is looked for at the end:
the job's exit status and message, processes of the job wherever they run, and what Open MPI keeps in files.
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

from ops.faults.disk import SmallDisk
from ops.faults.drawn import Drawn, drawn
from ops.faults.found import environment_of, parent_of, words_of
from ops.lab import Lab, why_not
from parallax.runtime.supervisor.processes import processes_with, remove_scratch, scratch_patterns

_RANK = "OMPI_COMM_WORLD_RANK"
_MARK = "PARALLAX_FAULTS"
_HANG_S = 90.0  # from the fault
_EMPTY_S = 30.0  # from the launcher's end
_SHOWN = 2000
_WORDS = 80
KINDS = ("start", "hangs", "status", "said", "left", "disk")
"""How what was wrong begins."""


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
    trials, ran = [], []
    with contextlib.ExitStack() as ends:
        lab = None if reason else ends.enter_context(Lab(2))
        for seed in range(first, first + number):
            what = drawn(Random(seed), lab is not None)
            with tempfile.TemporaryDirectory(prefix="parallax-faults-") as folder:
                trial = _Running(Path(folder), what, lab if what.on_hosts else None).meets()
            trials.append(trial)
            ran.append(what)
            print(f"seed {seed}, {what}: {trial.what or f'{trial.seconds:.1f} s'}", flush=True)
    count = {kind: sum(trial.what.startswith(kind) for trial in trials) for kind in KINDS}
    print(", ".join(f"{kind}: {value}" for kind, value in count.items()))
    for training in (False, True):
        seconds = [t.seconds for t, d in zip(trials, ran, strict=True) if (d.job.kind != "tiny") == training]
        if seconds:
            median_s, worst_s = statistics.median(seconds), max(seconds)
            what = "with TensorFlow" if training else "without TensorFlow"
            print(
                f"{len(seconds)} jobs {what}; from the fault to the end {median_s:.1f} s median, {worst_s:.1f} worst."
            )
    return 1 if any(trial.what for trial in trials) else 0


class _Running:
    """A job that runs."""

    def __init__(self, folder: Path, what: Drawn, lab: Lab | None) -> None:
        self._what = what
        self._lab = lab
        self._mark = folder.name
        self._stderr = folder / "stderr"
        self._own = folder / "own"
        self._own.mkdir()
        self._scratch: set[str] = set()
        self._disk = SmallDisk(folder / "disk", is_mounted=what.fault.victim == "disk")
        servers = [1] * len(what.job.workers) if what.job.servers else ()
        where = "local" if lab is None else str(lab.resource_file(list(what.job.workers), servers))
        words = [sys.executable, "-m", "ops.faults.job", self._mark, where]
        if what.job.kind != "tiny":
            words[2:] = ["ops.faults.training", self._mark, where, what.job.kind, str(self._disk.folder)]
        environment = {**os.environ, _MARK: self._mark, "TF_CPP_MIN_LOG_LEVEL": "2"}
        if lab is None:
            environment["TMPDIR"] = str(self._own)
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                words if lab is None else lab.argv_on("host0", words),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def meets(self) -> Trial:
        """Waits for a moment, does what the fault says, and looks how the job ends."""
        fault, job = self._what.fault, self._what.job
        try:
            if not self._wait(self._is_there, job.ready_s) or self._process.poll() is not None:
                return Trial(f"start: not all ranks came: {self._running()}: {self._said()}", 0.0)
            time.sleep(self._what.after_s)
            if fault.victim == "disk" and (wrong := self._disk.fill_and_free(self._said)):
                return Trial(f"disk {wrong}: {self._said()}", 0.0)
            began_s = time.monotonic()
            self._hit()
            if fault.status is None:
                if not self._wait(lambda: set(self._left()) <= set(self._pids("launcher").values()), _HANG_S):
                    return Trial(f"hangs: {self._left()}: {self._said()}", _HANG_S)
                self._kill("launcher")
            elif not self._wait(lambda: self._process.poll() is not None, _HANG_S):
                return Trial(f"hangs: {self._said()}", _HANG_S)
            seconds = time.monotonic() - began_s
            return Trial(self._wrong(), seconds)
        finally:
            if self._lab is not None:
                self._link("up")
            for pid in self._left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._clean()
            self._disk.close()

    def _is_there(self) -> bool:
        """Whether all ranks run; nothing more is waited for when the launcher has ended."""
        for pid in self._pids("worker").values():
            with contextlib.suppress(OSError):
                self._scratch.update(scratch_patterns(environment_of(pid)))
        return self._process.poll() is not None or len(self._pids("worker")) == self._what.job.ranks

    def _wrong(self) -> str:
        fault = self._what.fault
        self._wait(lambda: not self._left() and not self._files_left(), _EMPTY_S)
        if left := self._left():
            return f"left: {left}"
        if files := self._files_left():
            return f"left: {files}"
        if fault.status is None:
            return ""
        said, status = self._said(), self._process.returncode
        if (128 - status if status < 0 else status) != fault.status:
            return f"status {status} and not {fault.status}: {said}"
        pattern = "^parallax: " + fault.words.replace("NAME", self._what.name)
        # What it shows of the victim's own words may be longer than what is shown here.
        return "" if re.search(pattern, self._all_said(), re.MULTILINE) else f"said {said}"

    def _said(self) -> str:
        return self._all_said()[-_SHOWN:]

    def _all_said(self) -> str:
        return self._stderr.read_text(errors="replace")

    def _hit(self) -> None:
        fault, rank = self._what.fault, self._what.rank
        if fault.victim == "link":
            self._link("down")
            return
        kind = {"server": "worker", "disk": "launcher"}.get(fault.victim, fault.victim)
        found = self._pids(kind)
        os.kill(found[rank] if kind in ("worker", "agent") else min(found.values()), fault.number)

    def _link(self, state: str) -> None:
        if self._lab is not None:
            subprocess.run(self._lab.argv_on_bridge(["ip", "link", "set", "to-host1", state]), check=True)

    def _kill(self, kind: str) -> None:
        for pid in self._pids(kind).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _pids(self, kind: str) -> dict[int, int]:
        """The processes of a kind: rank -> number, or any key where there are no ranks."""
        found: dict[int, int] = {}
        for pid, words, rank in self._processes():
            is_kind = {
                "agent": rank is not None and "supervisor.agent" in words,
                "worker": rank is not None and "supervisor.agent" not in words,
                "mpirun": rank is None and words.startswith(str(Path(sys.executable).with_name("mpirun"))),
                "launcher": rank is None and words.startswith(f"{sys.executable} -m ops.faults."),
                "daemon": False,
            }[kind]
            if is_kind:
                key = pid if rank is None else rank
                found[key] = min(pid, found.get(key, pid))  # a supervisor's guard comes after it
        if kind == "daemon":
            parents = {rank: parent_of(pid) for rank, pid in self._pids("agent").items()}
            return {rank: pid for rank, pid in parents.items() if Path(words_of(pid).split()[0]).name == "orted"}
        return found

    def _running(self) -> list[str]:
        """What runs of the job, and where in the kernel it waits."""
        found = []
        for pid, words, rank in self._processes():
            with contextlib.suppress(OSError):
                found.append(f"rank {rank}: {words[-_WORDS:]} in {Path(f'/proc/{pid}/wchan').read_text()}")
        return found

    def _left(self) -> list[int]:
        return [pid for pid, _, _ in self._processes()]

    def _files_left(self) -> list[str]:
        """What Open MPI has left in temporary folders."""
        found = [str(path) for path in self._own.iterdir()]
        for pattern in self._scratch:
            found += [str(path) for path in Path("/").glob(pattern.lstrip("/"))]
        if self._lab is not None:
            found += [f"{name}: {file.name}" for name in self._lab.names for file in self._lab.own_files(name)]
        return sorted(set(found))

    def _clean(self) -> None:
        """Removes what a job has left that had to be killed here, so that the next one is not blamed for it."""
        remove_scratch(self._scratch)
        for name in self._lab.names if self._lab is not None else ():
            remove_scratch(str(file) for file in self._lab.own_files(name))

    def _processes(self) -> Iterator[tuple[int, str, int | None]]:
        """The job's processes: number, command line, rank. On emulated hosts they are all that run there."""
        if self._lab is not None:
            pids = [pid for name in self._lab.names for pid in self._lab.processes(name)]
        else:
            pids = list(processes_with({_MARK: self._mark}))
        for pid in pids:
            with contextlib.suppress(OSError):
                words = words_of(pid)
                rank = environment_of(pid).get(_RANK)
                if words:
                    yield pid, words, None if rank is None else int(rank)

    def _wait(self, there: Callable[[], bool], limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while not there():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.1)
        return True
