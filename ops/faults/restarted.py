"""Real jobs that are started again: several faults meet each at random moments, and it must end trained.

What is looked for: that steps come again after every fault, that the job ends with status 0, that its variables and
slots are those of a job without faults, bit by bit, and that nothing of it is left. A fault may also meet the spare
job, which must harm nothing. Jobs run on this machine and, where root can make an emulated cluster, on its hosts too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ops.faults.drawn import OF_HOSTS, OF_OTHERS, OF_SERVERS, OF_WORKERS, Fault
from ops.faults.going_on import HURRY, LAST_STEP, STEPS, VALUES
from ops.faults.running import RunningJob, Seen, daemon_of, wait
from ops.lab import Lab, why_not
from parallax.runtime.supervisor.processes import JOB_ID

KINDS = ("hangs", "status", "values", "left")
"""How what was wrong begins."""
_FAULTS_OF_A_JOB = 4
_MOMENTS_S = (0.5, 12.0)  # after the first step since the fault before
_HANG_S = 240.0
_EMPTY_S = 30.0
_SPARE_SHARE = 0.15
_SHOWN = 3000
_STOPS = (signal.SIGSTOP,)
_JOBS = (("workers", "local"), ("servers", "local"), ("workers", "hosts"), ("servers", "hosts"))


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that met a job.

    Attributes:
        what: the fault, and whom it met.
        seconds: until the next step; None where the job had no reason to be started again.
        is_silent: the victim was stopped, which the limits of silence find out.
    """

    what: str
    seconds: float | None
    is_silent: bool


def run_all(number: int, first: int) -> int:
    """Has `number` faults meet jobs, from seed `first` on, and prints what was wrong and how long steps kept away."""
    reason = why_not()
    if reason:
        print(f"Jobs of this machine only, for no emulated cluster can be made: {reason}.")
    struck: list[Struck] = []
    wrong: list[str] = []
    jobs = 0
    with contextlib.ExitStack() as ends:
        lab = None if reason else ends.enter_context(Lab(2))
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="parallax-faults-")))
        undisturbed: dict[tuple[str, str], Path] = {}
        while len(struck) < number:
            random = Random(first + jobs)
            job = random.choice(_JOBS if lab is not None else _JOBS[:2])
            own = lab if job[1] == "hosts" else None
            if job not in undisturbed:
                undisturbed[job] = _undisturbed(folder / f"undisturbed-{len(undisturbed)}", job[0], own)
            trial = _GoingOn(folder / f"job-{jobs}", job[0], own)
            found, what = trial.meets(random, min(_FAULTS_OF_A_JOB, number - len(struck)), undisturbed[job])
            print(f"seed {first + jobs}, {job[0]}, {job[1]}: {what or 'trained, values equal'}", flush=True)
            for one in found:
                print(f"  {one.what}: {'no restart' if one.seconds is None else f'{one.seconds:.1f} s'}", flush=True)
            struck += found
            wrong += [what] if what else []
            jobs += 1
            if what and not found:
                break  # it does not start
    print(f"{len(struck)} faults in {jobs} jobs, {jobs - len(wrong)} ended trained with equal values.")
    print(", ".join(f"{kind}: {sum(what.startswith(kind) for what in wrong)}" for kind in KINDS))
    for is_silent, name in ((False, "that tell of themselves"), (True, "that are found by silence")):
        seconds = [one.seconds for one in struck if one.seconds is not None and one.is_silent == is_silent]
        if seconds:
            median_s, worst_s = statistics.median(seconds), max(seconds)
            print(f"{len(seconds)} faults {name}; to the next step {median_s:.1f} s median, {worst_s:.1f} worst.")
    return 1 if wrong else 0


def _undisturbed(folder: Path, kind: str, lab: Lab | None) -> Path:
    """The values of a job without faults."""
    found, what = _GoingOn(folder, kind, lab).meets(Random(0), 0, None)
    if what or found:
        raise RuntimeError(f"A job without faults must end well: {what}")
    return folder / VALUES


class _GoingOn:
    """A job that runs."""

    def __init__(self, folder: Path, kind: str, lab: Lab | None) -> None:
        folder.mkdir()
        self._folder = folder
        where = "local" if lab is None else str(lab.resource_file([1, 1], [1, 1] if kind == "servers" else ()))
        self._job = RunningJob(folder, str(folder), ["ops.faults.going_on", folder.name, where, kind, str(folder)], lab)

    def meets(self, random: Random, faults: int, undisturbed: Path | None) -> tuple[list[Struck], str]:
        """Lets faults meet the job; gives those that did, and what was wrong in the end."""
        found: list[Struck] = []
        try:
            for _ in range(faults):
                since_s = time.monotonic()
                if not wait(lambda since_s=since_s: self._next_step_s(since_s) is not None, _HANG_S):
                    return found, f"hangs: no step: {self._said()}"
                time.sleep(random.uniform(*_MOMENTS_S))
                if self._job.process.poll() is not None or self._steps()[-1][1] > LAST_STEP - 50:
                    break
                if (one := self._strike(random)) is None:
                    return found, f"hangs: no step came again: {self._said()}"
                found.append(one)
            (self._folder / HURRY).touch()
            return found, self._wrong(undisturbed)
        finally:
            self._job.kill()

    def _strike(self, random: Random) -> Struck | None:
        """Does one fault; None when no step came afterwards."""
        current = self._steps()[-1][0]
        ranks = self._ranks(current)
        spare = [one.pid for one, job in self._jobs() if job != current]
        struck_s = time.monotonic()
        if spare and random.random() < _SPARE_SHARE:
            os.kill(random.choice(spare), signal.SIGKILL)
            return Struck("spare SIGKILL", None, False)
        fault, pid = random.choice(list(self._victims(current, ranks)))
        os.kill(pid, fault.number)
        if not wait(lambda: self._next_step_s(struck_s, other_than=current) is not None, _HANG_S):
            return None
        next_s = self._next_step_s(struck_s, other_than=current) or 0.0
        return Struck(str(fault), next_s - struck_s, fault.number in _STOPS)

    def _victims(self, job: str, ranks: dict[str, list[int]]) -> Iterator[tuple[Fault, int]]:
        """Each fault, with each process of the job that it may meet; every kind of victim equally often."""
        of_victim = {
            "worker": (OF_WORKERS, ranks["worker"]),
            "server": (OF_SERVERS, ranks["server"]),
            "agent": ([f for f in OF_OTHERS if f.victim == "agent"], ranks["agent"]),
            "mpirun": ([f for f in OF_OTHERS if f.victim == "mpirun"], ranks["mpirun"]),
            "daemon": (
                [f for f in OF_HOSTS if f.victim == "daemon"],
                [pid for pid in map(daemon_of, ranks["agent"]) if pid],
            ),
        }
        pairs = {victim: [(f, pid) for f in some for pid in pids] for victim, (some, pids) in of_victim.items()}
        most = max(len(found) for found in pairs.values())
        for found in pairs.values():
            yield from (found[number % len(found)] for number in range(most) if found)

    def _ranks(self, job: str) -> dict[str, list[int]]:
        """The processes of one job, by kind; a supervisor's guard, which comes after it, is left out."""
        found: dict[str, list[int]] = {"worker": [], "server": [], "agent": [], "mpirun": []}
        agents: dict[int, int] = {}
        for one, own in self._jobs():
            if own != job:
                continue
            if one.is_mpirun:
                found["mpirun"].append(one.pid)
            elif one.rank is not None and one.is_agent:
                agents[one.rank] = min(one.pid, agents.get(one.rank, one.pid))
            elif one.rank is not None:
                found["server" if "worker.server" in one.words else "worker"].append(one.pid)
        return {**found, "agent": list(agents.values())}

    def _jobs(self) -> Iterator[tuple[Seen, str]]:
        """All processes of launched jobs, with their job's mark."""
        return ((one, one.environment[JOB_ID]) for one in self._job.seen() if JOB_ID in one.environment)

    def _steps(self) -> list[tuple[str, int, float]]:
        """The steps made so far: the job, the step, when."""
        with contextlib.suppress(OSError):
            lines = (self._folder / STEPS).read_text().split("\n")[:-1]
            return [(job, int(step), float(at_s)) for job, step, at_s in map(str.split, lines)]
        return []

    def _next_step_s(self, since_s: float, other_than: str = "") -> float | None:
        return next((at_s for job, _, at_s in self._steps() if at_s > since_s and job != other_than), None)

    def _wrong(self, undisturbed: Path | None) -> str:
        if not wait(lambda: self._job.process.poll() is not None, _HANG_S):
            return f"hangs: {self._said()}"
        if self._job.process.returncode:
            return f"status {self._job.process.returncode}: {self._said()}"
        wait(lambda: not self._job.pids() and not list(self._job.own.iterdir()), _EMPTY_S)
        if left := [*self._job.pids(), *self._job.own.iterdir()]:
            return f"left: {left}"
        return "" if undisturbed is None else _difference(undisturbed, self._folder / VALUES)

    def _said(self) -> str:
        return self._job.said()[-_SHOWN:]


def _difference(wanted_file: Path, found_file: Path) -> str:
    """In what two files of values differ by any bit; empty when in nothing."""
    import numpy as np

    if not found_file.exists():
        return "values: none were written"
    with np.load(wanted_file) as wanted, np.load(found_file) as found:
        if wanted.files != found.files:
            return f"values: {found.files} and not {wanted.files}"
        differing = [name for name in wanted.files if wanted[name].tobytes() != found[name].tobytes()]
    return f"values: {', '.join(differing)}" if differing else ""
