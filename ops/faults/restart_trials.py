"""Injects several faults at random times into real jobs that restart; each job must complete its training.

Steps must resume after every fault. The job must end with status 0, its variables and slots must equal those of a job
without faults bit by bit, and no process or file of it may be left. A fault may also hit the spare job, which must have
no effect. Jobs run on this machine and, if root can make an emulated cluster, on its hosts too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from ops.faults.harmless import HARMLESS, start_second_job
from ops.faults.random_trials import OF_HOSTS, OF_OTHERS, OF_SERVERS, OF_WORKERS, Fault
from ops.faults.resumable_job import HURRY, LAST_STEP, STEPS, VALUES
from ops.faults.running_job import RunningJob, Seen, daemon_of, wait
from ops.lab import Lab, why_not
from parallax.runtime.supervisor.processes import JOB_ID

KINDS = ("hangs", "status", "values", "left", "outlived")
"""First words of the problems."""
_FAULTS_OF_A_JOB = 4
_MOMENTS_S = (0.5, 12.0)  # after the first step since the previous fault
_HANG_S = 240.0
_EMPTY_S = 30.0
_SPARE_SHARE = 0.15
_HARMLESS_SHARE = 0.2
_SHOWN = 3000
_STOPS = (signal.SIGSTOP,)
_JOBS = (("workers", "local"), ("servers", "local"), ("workers", "hosts"), ("servers", "hosts"))


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault injected into a job.

    Attributes:
        what: the fault and its victim.
        seconds: until the next step of the restarted job; None if there was none.
        is_silent: whether the victim was stopped, which the silence limits detect.
        is_harmless: whether the job has no reason to restart.
        wrong: the problem with the job's reaction; empty if there is none.
    """

    what: str
    seconds: float | None
    is_silent: bool = False
    is_harmless: bool = False
    wrong: str = ""


def run_all(number: int, first: int, at_a_time: int = 1) -> int:
    """Injects `number` faults or a few more into jobs with seeds from `first` on, and prints the problems.

    Args:
        number: of faults.
        first: the first seed; each job takes the next one.
        at_a_time: number of jobs that run in parallel, each on hosts of its own.
    """
    reason = why_not()
    if reason:
        print(f"Jobs of this machine only, for no emulated cluster can be made: {reason}.")
    with tempfile.TemporaryDirectory(prefix="parallax-faults-") as folder:
        trials = _Trials(number, first, Path(folder), has_hosts=not reason)
        with ThreadPoolExecutor(at_a_time) as pool:
            for ended in [pool.submit(trials.run) for _ in range(at_a_time)]:
                ended.result()
    return trials.report()


class _Trials:
    """Jobs with injected faults; each thread runs its jobs one after the other.

    Args:
        number: of faults.
        first: the first seed.
        folder: for the jobs' files.
        has_hosts: whether jobs run on emulated hosts too.
    """

    def __init__(self, number: int, first: int, folder: Path, has_hosts: bool) -> None:
        self._number, self._folder, self._has_hosts = number, folder, has_hosts
        self._seeds = itertools.count(first)
        self._lock = threading.Lock()
        self._expected = 0  # faults injected, or planned for running jobs
        self._undisturbed: dict[tuple[str, str], Path] = {}
        self._undisturbed_lock = threading.Lock()
        self._injected: list[InjectedFault] = []
        self._wrong: list[str] = []
        self._jobs = 0

    def run(self) -> None:
        """Runs jobs until enough faults are injected."""
        with contextlib.ExitStack() as ends:
            lab = ends.enter_context(Lab(2)) if self._has_hosts else None
            while (seed := self._next()) is not None:
                random = Random(seed)
                kind, where = random.choice(_JOBS if lab is not None else _JOBS[:2])
                own = lab if where == "hosts" else None
                undisturbed = self._values_of_undisturbed(kind, where, own)
                found, what = _RestartedJob(self._folder / f"job-{seed}", kind, own).inject(
                    random, _FAULTS_OF_A_JOB, undisturbed
                )
                self._note(f"seed {seed}, {kind}, {where}", found, what)

    def report(self) -> int:
        """Prints the number of faults, the problems, and the times to the next step; returns 0 if nothing failed."""
        struck, wrong = self._injected, self._wrong
        print(f"{len(struck)} faults in {self._jobs} jobs; {self._jobs - len(wrong)} jobs trained to equal values.")
        print(", ".join(f"{kind}: {sum(what.startswith(kind) for what in wrong)}" for kind in KINDS))
        for is_silent, name in ((False, "noticed at once"), (True, "detected by silence")):
            seconds = [one.seconds for one in struck if one.seconds is not None and one.is_silent == is_silent]
            if seconds:
                median_s, worst_s = statistics.median(seconds), max(seconds)
                print(f"{len(seconds)} faults {name}; to next step: median {median_s:.1f} s, worst {worst_s:.1f} s.")
        return 1 if wrong else 0

    def _next(self) -> int | None:
        with self._lock:
            if self._expected >= self._number:
                return None
            self._expected += _FAULTS_OF_A_JOB
            return next(self._seeds)

    def _note(self, job: str, found: list[InjectedFault], what: str) -> None:
        with self._lock:
            print(f"{job}: {what or 'trained, values equal'}", flush=True)
            for one in found:
                print(f"  {one.what}: {'no restart' if one.seconds is None else f'{one.seconds:.1f} s'}", flush=True)
            self._injected += found
            self._wrong += [what] if what else []
            self._jobs += 1
            does_start = bool(found or not what)
            self._expected += len(found) - _FAULTS_OF_A_JOB if does_start else self._number

    def _values_of_undisturbed(self, kind: str, where: str, lab: Lab | None) -> Path:
        """Returns the file of values of a job without faults, which is run once."""
        with self._undisturbed_lock:
            if (kind, where) not in self._undisturbed:
                folder = self._folder / f"undisturbed-{kind}-{where}"
                found, what = _RestartedJob(folder, kind, lab).inject(Random(0), 0, None)
                if what or found:
                    raise RuntimeError(f"A job without faults failed: {what}")
                self._undisturbed[kind, where] = folder / VALUES
            return self._undisturbed[kind, where]


class _RestartedJob:
    """A running job that restarts after faults."""

    def __init__(self, folder: Path, kind: str, lab: Lab | None) -> None:
        folder.mkdir()
        self._folder = folder
        self._second_jobs = 0
        where = "local" if lab is None else str(lab.resource_file([1, 1], [1, 1] if kind == "servers" else ()))
        self._job = RunningJob(
            folder, str(folder), ["ops.faults.resumable_job", folder.name, where, kind, str(folder)], lab
        )

    def inject(self, random: Random, faults: int, undisturbed: Path | None) -> tuple[list[InjectedFault], str]:
        """Injects faults into the job; returns those injected, and the final problem, if any."""
        found: list[InjectedFault] = []
        try:
            for _ in range(faults):
                since_s = time.monotonic()
                if not wait(partial(self._has_step_after, since_s), _HANG_S):
                    return found, f"hangs: no step: {self._said()}"
                time.sleep(random.uniform(*_MOMENTS_S))
                if self._job.process.poll() is not None or self._steps()[-1][1] > LAST_STEP - 50:
                    break
                one = self._inject_fault(random)
                if one.wrong:
                    return found, f"outlived: {one.what}: {one.wrong}: {self._said()}"
                if one.seconds is None and not one.is_harmless:
                    return found, f"hangs: steps did not resume after {one.what}: {self._said()}"
                found.append(one)
            (self._folder / HURRY).touch()
            return found, self._wrong(undisturbed)
        finally:
            self._job.kill()

    def _inject_fault(self, random: Random) -> InjectedFault:
        """Injects one fault, and waits for its effect."""
        current = self._steps()[-1][0]
        ranks = self._ranks(current)
        spare = [one.pid for one, job in self._jobs() if job != current]
        struck_s = time.monotonic()
        if spare and random.random() < _SPARE_SHARE:
            os.kill(random.choice(spare), signal.SIGKILL)
            return InjectedFault("spare SIGKILL", None, is_harmless=True)
        if random.random() < _HARMLESS_SHARE:
            return self._inject_harmless(random)
        fault, pid = random.choice(list(self._victims(ranks)))
        os.kill(pid, fault.number)
        wait(lambda: self._next_step_s(struck_s, other_than=current) is not None, _HANG_S)
        next_s = self._next_step_s(struck_s, other_than=current)
        return InjectedFault(str(fault), None if next_s is None else next_s - struck_s, fault.number in _STOPS)

    def _inject_harmless(self, random: Random) -> InjectedFault:
        """Injects a fault that the job must survive without a restart."""
        name = random.choice([*HARMLESS, "second job"])
        if name in HARMLESS:
            wrong = HARMLESS[name](self._job)
        else:
            self._second_jobs += 1
            wrong = start_second_job(
                self._folder / f"second-{self._second_jobs}",
                self._folder / "checkpoints",
                lambda: self._job.process.poll() is None,
            )
        return InjectedFault(name, None, is_harmless=not wrong, wrong=wrong)

    def _victims(self, ranks: dict[str, list[int]]) -> Iterator[tuple[Fault, int]]:
        """Yields the possible faults and their victims; every kind of victim occurs equally often."""
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
        """Returns the processes of one job, by kind.

        The guards of supervisors are left out. So are the copies of workers that checkpoints are written from: they
        react to no signal but SIGKILL, and the job continues without them.
        """
        found: dict[str, list[int]] = {"worker": [], "server": [], "agent": [], "mpirun": []}
        own = [one for one, its_job in self._jobs() if its_job == job]
        agents = {one.pid for one in own if one.rank is not None and one.is_agent}
        servers = {one.pid for one in own if "worker.fork_server" in one.words and one.rank is None}
        for one in own:
            if one.is_mpirun:
                found["mpirun"].append(one.pid)
            elif one.pid in agents and one.parent not in agents:
                found["agent"].append(one.pid)
            elif one.rank is not None and one.pid not in agents and one.parent in agents | servers:
                found["server" if "worker.server" in one.words else "worker"].append(one.pid)
        return found

    def _jobs(self) -> Iterator[tuple[Seen, str]]:
        """Yields all processes of launched jobs, with the ID of their job."""
        return ((one, one.environment[JOB_ID]) for one in self._job.seen() if JOB_ID in one.environment)

    def _steps(self) -> list[tuple[str, int, float]]:
        """Returns the steps made so far: job ID, step and time."""
        with contextlib.suppress(OSError):
            lines = (self._folder / STEPS).read_text().split("\n")[:-1]
            return [(job, int(step), float(at_s)) for job, step, at_s in map(str.split, lines)]
        return []

    def _next_step_s(self, since_s: float, other_than: str = "") -> float | None:
        return next((at_s for job, _, at_s in self._steps() if at_s > since_s and job != other_than), None)

    def _has_step_after(self, since_s: float) -> bool:
        return self._next_step_s(since_s) is not None

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
    """Compares two files of values bit by bit; returns the difference, or empty."""
    import numpy as np

    if not found_file.exists():
        return "values: none were written"
    with np.load(wanted_file) as wanted, np.load(found_file) as found:
        if wanted.files != found.files:
            return f"values: {found.files}, expected {wanted.files}"
        differing = [name for name in wanted.files if wanted[name].tobytes() != found[name].tobytes()]
    return f"values: {', '.join(differing)}" if differing else ""
