"""Injects real faults into real jobs at random times: kills, stops and signals of any process, cut links, full disks.

Jobs run on this machine and, if root can make an emulated cluster, on its hosts too. At the end, a trial checks the
job's exit status and message, and that no process of the job and no file of Open MPI is left on any host.
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
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ops.faults.disk import SmallDisk
from ops.faults.harmless import HARMLESS, start_second_job
from ops.faults.random_trials import RandomTrial, draw_trial
from ops.faults.running_job import RunningJob, daemon_of, wait
from ops.lab import Lab, why_not
from parallax.runtime.supervisor.processes import remove_scratch, scratch_patterns

_HANG_S = 90.0  # from the fault
_EMPTY_S = 30.0  # from the launcher's end
_SHOWN = 2000
_WORDS = 80
KINDS = ("start", "hangs", "status", "said", "left", "disk", "image", "folder")
"""First words of the problems."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a job with an injected fault: the problem, or empty, and the seconds from the fault to its end."""

    what: str
    seconds: float


def run_all(number: int, first: int) -> int:
    """Runs `number` trials from seed `first` on and prints problems and times; returns 0 if there are no problems."""
    reason = why_not()
    if reason:
        print(f"Jobs run on this machine only, because no emulated cluster can be made: {reason}.")
    trials, ran = [], []
    with contextlib.ExitStack() as ends:
        lab = None if reason else ends.enter_context(Lab(2))
        for seed in range(first, first + number):
            what = draw_trial(Random(seed), lab is not None)
            with tempfile.TemporaryDirectory(prefix="parallax-faults-") as folder:
                trial = _RealTrial(Path(folder), what, lab if what.on_hosts else None).inject()
            trials.append(trial)
            ran.append(what)
            print(f"seed {seed}, {what}: {trial.what or f'{trial.seconds:.1f} s'}", flush=True)
    count = {kind: sum(trial.what.startswith(kind) for trial in trials) for kind in KINDS}
    print(", ".join(f"{kind}: {value}" for kind, value in count.items()))
    for training in (False, True):
        seconds = [t.seconds for t, d in zip(trials, ran, strict=True) if (d.job.kind != "tiny") == training]
        if seconds:
            median_s, worst_s = statistics.median(seconds), max(seconds)
            kind = "with TensorFlow" if training else "without TensorFlow"
            print(f"{len(seconds)} jobs {kind}; from fault to end: median {median_s:.1f} s, worst {worst_s:.1f} s.")
    return 1 if any(trial.what for trial in trials) else 0


class _RealTrial:
    """A running job, and the fault to inject into it."""

    def __init__(self, folder: Path, what: RandomTrial, lab: Lab | None) -> None:
        self._what = what
        self._lab = lab
        self._folder = folder
        self._scratch: set[str] = set()
        self._disk = SmallDisk(folder / "disk", is_mounted=what.fault.victim == "disk")
        servers = [1] * len(what.job.workers) if what.job.servers else ()
        where = "local" if lab is None else str(lab.resource_file(list(what.job.workers), servers))
        argv = ["ops.faults.job", folder.name, where]
        if what.job.kind != "tiny":
            argv = ["ops.faults.training", folder.name, where, what.job.kind, str(self._disk.folder)]
        self._job = RunningJob(folder, folder.name, argv, lab)

    def inject(self) -> Trial:
        """Injects the fault after its delay, and checks how the job ends."""
        fault, job = self._what.fault, self._what.job
        try:
            if not wait(self._is_there, job.ready_s) or self._job.process.poll() is not None:
                return Trial(f"start: not all ranks started: {self._running()}: {self._said()}", 0.0)
            time.sleep(self._what.after_s)
            if fault.victim == "disk" and (wrong := self._disk.fill_and_free(self._said)):
                return Trial(f"disk {wrong}: {self._said()}", 0.0)
            if fault.victim in ("image", "folder") and (wrong := self._meets_harmless()):
                return Trial(f"{fault.victim}: {wrong}: {self._said()}", 0.0)
            began_s = time.monotonic()
            self._hit()
            if fault.status is None:
                if not wait(lambda: set(self._job.pids()) <= set(self._pids("launcher").values()), _HANG_S):
                    return Trial(f"hangs: {self._job.pids()}: {self._said()}", _HANG_S)
                self._kill("launcher")
            elif not wait(lambda: self._job.process.poll() is not None, _HANG_S):
                return Trial(f"hangs: {self._said()}", _HANG_S)
            seconds = time.monotonic() - began_s
            return Trial(self._wrong(), seconds)
        finally:
            if self._lab is not None:
                self._link("up")
            self._job.kill()
            self._clean()
            self._disk.close()

    def _meets_harmless(self) -> str:
        """Injects a harmless fault and waits for the next checkpoint; returns any problem."""
        fault = self._what.fault
        if not self._disk.has_next():
            return "no checkpoint was written before the fault"
        if fault.victim == "folder":
            wrong = start_second_job(self._folder / "second", self._disk.folder, self._is_there)
        else:
            wrong = HARMLESS[str(fault)](self._job)
        return wrong or ("" if self._disk.has_next() else "no checkpoint was written after the fault")

    def _is_there(self) -> bool:
        """Returns whether all ranks run or the launcher has ended."""
        for one in self._job.seen():
            self._scratch.update(scratch_patterns(one.environment))
        return self._job.process.poll() is not None or len(self._pids("worker")) == self._what.job.ranks

    def _wrong(self) -> str:
        fault = self._what.fault
        wait(lambda: not self._job.pids() and not self._files_left(), _EMPTY_S)
        if left := self._job.pids():
            return f"left: {left}"
        if files := self._files_left():
            return f"left: {files}"
        if fault.status is None:
            return ""
        said, status = self._said(), self._job.process.returncode
        if (128 - status if status < 0 else status) != fault.status:
            return f"status {status}, expected {fault.status}: {said}"
        pattern = "^parallax: " + fault.words.replace("NAME", self._what.name)
        # Searches all of stderr: the victim's output in it may be longer than `said`.
        return "" if re.search(pattern, self._job.said(), re.MULTILINE) else f"said {said}"

    def _said(self) -> str:
        return self._job.said()[-_SHOWN:]

    def _hit(self) -> None:
        fault, rank = self._what.fault, self._what.rank
        if fault.victim == "link":
            self._link("down")
            return
        kind = {"server": "worker", **dict.fromkeys(("disk", "image", "folder"), "launcher")}.get(
            fault.victim, fault.victim
        )
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
        """Returns the processes of a kind: rank -> PID; a process without a rank has its PID as key."""
        if kind == "daemon":
            daemons = {rank: daemon_of(pid) for rank, pid in self._pids("agent").items()}
            return {rank: pid for rank, pid in daemons.items() if pid is not None}
        found: dict[int, int] = {}
        for one in self._job.seen():
            is_kind = {
                "agent": one.is_agent,
                "worker": one.rank is not None and not one.is_agent,
                "mpirun": one.is_mpirun,
                "launcher": one.rank is None and one.words.startswith(f"{sys.executable} -m ops.faults."),
            }[kind]
            if is_kind:
                key = one.pid if one.rank is None else one.rank
                found[key] = min(one.pid, found.get(key, one.pid))  # a supervisor's guard starts after it
        return found

    def _running(self) -> list[str]:
        """Returns the job's processes and the kernel functions in which they wait."""
        found = []
        for one in self._job.seen():
            with contextlib.suppress(OSError):
                place = Path(f"/proc/{one.pid}/wchan").read_text()
                found.append(f"rank {one.rank}: {one.words[-_WORDS:]} in {place}")
        return found

    def _files_left(self) -> list[str]:
        """Returns the files that Open MPI has left in temporary folders."""
        found = [str(path) for path in self._job.own.iterdir()]
        for pattern in self._scratch:
            found += [str(path) for path in Path("/").glob(pattern.lstrip("/"))]
        if self._lab is not None:
            found += [f"{name}: {file.name}" for name in self._lab.names for file in self._lab.own_files(name)]
        return sorted(set(found))

    def _clean(self) -> None:
        """Removes the files of a job that was killed here, so that they are not attributed to the next one."""
        remove_scratch(self._scratch)
        if self._lab is not None:
            for name in self._lab.names:
                remove_scratch(str(file) for file in self._lab.own_files(name))
