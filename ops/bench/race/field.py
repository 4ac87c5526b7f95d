"""Starts the processes of one system in a race, runs their turns, stops them in between, and ends them.

A stopped process (SIGSTOP) uses no processor and sends nothing. So all systems can be up at once and measured in turns,
without a new start for each turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ops.bench.race.measure import available_bytes, cpu_s, peak_bytes, settled_counters, switches
from ops.bench.race.place import ROOT, Place
from ops.bench.race.results import Turn
from ops.bench.race.systems import commands_of, python_of
from ops.bench.race.turns import Task, write_json, write_task

RESERVE_BYTES = 1_500_000_000
"""Memory that a race leaves free; a system that would use it is not run."""

_POLL_S = 0.02
_GRACE_S = 20.0
_TERM_GRACE_S = 5.0
_LAST_LINES = 25


class NotRunning(Exception):
    """A system did not start, died, or exceeded its time limit; the text says which, with its last output."""


class NoMemory(NotRunning):
    """A system needs more memory than the machine has available."""


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """The measurements of one turn.

    Attributes:
        turn: its figures.
        losses: mean over the workers, by step.
        step_s: seconds of each step, of the slowest worker.
    """

    turn: Turn
    losses: tuple[float, ...]
    step_s: tuple[float, ...]


class Entry:
    """A system in a race; a context manager that ends all its processes.

    Args:
        place: where it runs. Processes that already run there belong to other systems.
        task: the task of its processes.
    """

    def __init__(self, place: Place, task: Task) -> None:
        self._place = place
        self._task = task
        self._folder = Path(task.folder)
        self._log = self._folder / "log"
        self._others = place.pids()
        self._children: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._processes: list[psutil.Process] = []
        self._turns = 0
        self._pythons = {python_of(ROOT)}

    def __enter__(self) -> Entry:
        write_task(self._task)
        with self._log.open("ab") as log:
            for one in commands_of(self._place, self._task):
                self._pythons.add(python_of(one.root))
                environment = {**self._task.more["environment"], **one.environment}
                child = self._place.start(one.host, one.argv, environment, log, one.root)
                self._children.append(child)
                if not one.is_server:
                    self._workers.append(child)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends all processes; may be called again."""
        if all(child.returncode is not None for child in self._children):
            return
        if not self._processes:
            self._find()
        self._signal(signal.SIGCONT)
        if any(child.poll() is None for child in self._workers):
            self._signal(signal.SIGTERM)  # launchers clean up after their workers
            self._wait(_TERM_GRACE_S)
        self._signal(signal.SIGKILL)
        for child in self._children:
            child.kill()
            child.wait()

    def take_turn(self, steps: int, limit_s: float) -> MeasuredTurn:
        """Runs this many steps with all other systems stopped, and stops the processes.

        Raises:
            NotRunning: the system failed, or exceeded `limit_s`.
        """
        deadline_s = time.monotonic() + limit_s
        number = self._turns
        self._turns += 1
        self._signal(signal.SIGCONT)
        write_json(self._folder / f"turn-{number}.json", {"steps": steps})
        if number:
            self._answers("ready", number, deadline_s)
        else:
            self._await_start(deadline_s)
        switched = switches(self._pids())
        counters, cpu = self._place.counters(), cpu_s(self._pids())
        write_json(self._folder / f"go-{number}.json", {})
        done = self._answers("done", number, deadline_s)
        cpu = cpu_s(self._pids()) - cpu
        switched = switches(self._pids()) - switched
        self._signal(signal.SIGSTOP)
        after = settled_counters(self._place)
        bytes_by_host = [tuple(b - a for a, b in zip(counters[host], after[host], strict=True)) for host in after]
        turn = Turn(
            steps,
            max(one["end"] for one in done) - min(one["start"] for one in done),
            tuple(received for received, _ in bytes_by_host),
            tuple(sent for _, sent in bytes_by_host),
            cpu,
            switched,
        )
        losses = tuple(sum(of_step) / len(done) for of_step in zip(*(one["losses"] for one in done), strict=True))
        durations = [[b - a for a, b in zip(one["times"], one["times"][1:], strict=False)] for one in done]
        return MeasuredTurn(turn, losses, tuple(max(of_step) for of_step in zip(*durations, strict=True)))

    def _await_start(self, deadline_s: float) -> None:
        """Waits until all workers are at their first turn, with link rates lifted, as the start is not measured."""
        self._place.lift_rates(True)
        try:
            self._answers("ready", 0, deadline_s)
        finally:
            self._place.lift_rates(False)
        self._find()  # only now: later processes belong to the systems that are started later

    def finish(self) -> tuple[int, ...]:
        """Lets the processes exit within a grace period, and returns the peak memory of each."""
        peaks = peak_bytes(self._ranks())
        write_json(self._folder / f"turn-{self._turns}.json", {"steps": 0})
        self._signal(signal.SIGCONT)
        self._wait(_GRACE_S)
        return peaks

    def _wait(self, grace_s: float) -> None:
        deadline_s = time.monotonic() + grace_s
        while time.monotonic() < deadline_s and any(child.poll() is None for child in self._workers):
            time.sleep(_POLL_S)

    def _find(self) -> None:
        self._processes = []
        for pid in sorted(self._place.pids() - self._others):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._processes.append(psutil.Process(pid))

    def _pids(self) -> list[int]:
        """Returns the pids of processes that still run, without pids that the kernel has reused."""
        return [process.pid for process in self._processes if process.is_running()]

    def _ranks(self) -> list[int]:
        """Returns the pids of processes that run Python; the others (mpirun, its daemons) only wait for them."""
        pids, pythons = [], tuple(self._pythons)
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                if process.is_running() and "".join(process.cmdline()[:1]).startswith(pythons):
                    pids.append(process.pid)
        return pids

    def _signal(self, number: int) -> None:
        pids = self._pids() if number in (signal.SIGKILL, signal.SIGTERM) else self._ranks()
        if number == signal.SIGCONT:  # nsenter stops itself with its child
            pids += [child.pid for child in self._children if child.poll() is None]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _answers(self, kind: str, number: int, deadline_s: float) -> list[dict[str, Any]]:
        """Waits until all workers have written their answers, and returns these."""
        files = [self._folder / f"{kind}-{number}-{rank}.json" for rank in range(self._task.workers)]
        while not all(file.exists() for file in files):
            self._check(deadline_s)
            time.sleep(_POLL_S)
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    def _check(self, deadline_s: float) -> None:
        for child in self._children:
            if child.poll() is not None:
                raise NotRunning(f"ended with exit status {child.returncode}\n{self._last_lines()}")
        if available_bytes() < RESERVE_BYTES:
            raise NoMemory(f"needs more memory than is available ({RESERVE_BYTES / 1e9:.1f} GB are kept free)")
        if time.monotonic() > deadline_s:
            raise NotRunning(f"exceeded its time limit\n{self._last_lines()}")

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
