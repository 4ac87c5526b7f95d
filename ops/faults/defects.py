"""Defects planted in the state machines, one at a time. The simulated jobs must find each of them.

A defect changes a few words in the source of one module. A separate process loads the changed module and runs schedules
until one violates an invariant.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from types import CodeType, ModuleType

RUNTIME = Path(__file__).resolve().parents[2] / "parallax" / "runtime"
MOST_SCHEDULES = 4000
_AGAIN = ("parallax.runtime.", "ops.faults.model", "ops.faults.fault_cases", "ops.faults.simulate_job")


@dataclass(frozen=True, slots=True)
class Defect:
    """A change to one module.

    Attributes:
        module: `supervisor.state_machine`, `launcher.failures.stall` ...
        before: text that occurs once in its source.
        after: its replacement.
    """

    module: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.module}: {self.before.strip()} -> {self.after.strip() or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Hunt:
    """The result of a search for a defect: the violating schedule, or empty, and the number of schedules run."""

    defect: Defect
    found: str
    schedules: int


def find_all(defects: Sequence[Defect] | None = None) -> int:
    """Searches for every defect; returns 0 if all were found."""
    began_s = time.monotonic()
    defects = DEFECTS if defects is None else defects
    with Pool(maxtasksperchild=1) as pool:
        hunts = list(pool.imap(hunt, defects, chunksize=1))
    for one in hunts:
        print(f"{one.schedules:5} schedules, {'found by ' + one.found if one.found else 'NOT FOUND'} | {one.defect}")
    missed = sum(not one.found for one in hunts)
    print(f"{len(hunts)} defects in {time.monotonic() - began_s:.0f} s: {len(hunts) - missed} found.")
    return 1 if missed else 0


def hunt(defect: Defect) -> Hunt:
    """Runs schedules on the changed module until one violates an invariant; requires a process of its own."""
    for name in [name for name in sys.modules if name.startswith(_AGAIN)]:
        del sys.modules[name]
    sys.meta_path.insert(0, _ChangedModuleFinder(defect))
    from ops.faults.simulate_job import simulate

    for seed in range(MOST_SCHEDULES):
        try:
            broken, _ = simulate(seed)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            return Hunt(defect, f"{type(error).__name__} in seed {seed}", seed + 1)
        if broken:
            return Hunt(defect, f"{broken.fault}, seed {seed}", seed + 1)
    return Hunt(defect, "", MOST_SCHEDULES)


def changed_source(defect: Defect) -> str:
    """Returns the source of the changed module; ValueError if `before` does not occur exactly once."""
    source = _file_of(defect).read_text(encoding="utf-8")
    if source.count(defect.before) != 1:
        raise ValueError(f"{defect.module} has {defect.before!r} {source.count(defect.before)} times; it must be once.")
    return source.replace(defect.before, defect.after)


def _file_of(defect: Defect) -> Path:
    return RUNTIME.joinpath(*defect.module.split(".")).with_suffix(".py")


class _ChangedModuleFinder(importlib.abc.MetaPathFinder):
    """An import finder that replaces a module by its changed source."""

    def __init__(self, defect: Defect) -> None:
        self._defect = defect

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of the changed module; None for all others."""
        if name != f"parallax.runtime.{self._defect.module}":
            return None
        file = str(_file_of(self._defect))
        return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, file, self._defect))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, file: str, defect: Defect) -> None:
        super().__init__(name, file)
        self._defect = defect

    def get_code(self, name: str) -> CodeType:
        return compile(changed_source(self._defect), self.path, "exec")


_RANK, _JOB, _LIVE = "supervisor.state_machine", "launcher.failures.end_of_job", "launcher.failures.liveness"
_OUT, _STALL, _LIMITS = "launcher.failures.first_failure", "launcher.failures.stall", "supervisor.limits"

DEFECTS = (
    # A supervisor's view of its worker.
    Defect(_RANK, "stopped_s=state.stopped_s + passed_s if stopped else 0.0", "stopped_s=0.0"),
    Defect(_RANK, "passed_s if stopped else 0.0", "passed_s if stopped else state.stopped_s"),
    Defect(_RANK, " or vitals.ticks != state.ticks", ""),
    Defect(_RANK, "vitals.state in _AT_WORK or ", ""),
    Defect(_RANK, "doing=event.doing, quiet_s=0.0", "doing=event.doing"),
    Defect(_RANK, "doing=event.doing, quiet_s=0.0", "quiet_s=0.0"),
    Defect(_RANK, "ticks=vitals.ticks", "ticks=state.ticks"),
    Defect(_RANK, "0.0 if at_work else state.quiet_s + passed_s", "state.quiet_s + passed_s"),
    Defect(_RANK, "0.0 if at_work else state.quiet_s + passed_s", "0.0 if at_work else passed_s"),
    Defect(_RANK, "0.0 if at_work else", "0.0 if at_work or not state.doing else"),
    Defect(_RANK, "return after, (Tell(Pulse(", "return after, () and (Tell(Pulse("),
    # A supervisor's messages and signals, and its end.
    Defect(_RANK, "if after.unheard_s >= after.limits.unheard_s:", "if False:"),
    Defect(_RANK, "return replace(state, unheard_s=0.0), ()", "return state, ()"),
    Defect(_RANK, "unheard_s=state.unheard_s + passed_s", "unheard_s=0.0"),
    Defect(_RANK, "is_end_requested=True), (SignalWorker(signal.SIGKILL),)", "is_end_requested=True), ()"),
    Defect(_RANK, "Leave(128 + signal.SIGKILL, True)", "Leave(128 + signal.SIGKILL, False)"),
    Defect(_RANK, "kill_s=now_s + GRACE_S", 'kill_s=float("inf")'),
    Defect(_RANK, "by = 0 if event.number == signal.SIGTERM else event.number", "by = 0"),
    Defect(_RANK, "by = 0 if event.number == signal.SIGTERM else event.number", "by = event.number"),
    Defect(
        _RANK, "Exit(state.rank, status, state.is_end_requested, state.by)", "Exit(state.rank, status, False, state.by)"
    ),
    Defect(_RANK, "() if state.preempted else (TellPreemption(),)", "()"),
    Defect(_RANK, "preempted=True, unheard_s=0.0", "preempted=True, is_end_requested=True"),
    # Elapsed time.
    Defect(_LIMITS, "min(max(0.0, now_s - before_s), 2 * beat_s)", "max(0.0, now_s - before_s)"),
    Defect(_LIMITS, "min(max(0.0, now_s - before_s), 2 * beat_s)", "0.0"),
    # Silent processes.
    Defect(_LIVE, "idle_s = self.idle_s + passed_s -", "idle_s = self.idle_s + 0.0 * passed_s - 0.0 *"),
    Defect(_LIVE, "at_s = _ENDED if isinstance(frame, Exit) else now_s", "at_s = now_s"),
    Defect(_LIVE, "if isinstance(frame, Start):", "if True:"),
    Defect(_LIVE, "else now_s - self.idle_s", "else now_s"),
    Defect(_LIVE, "if pulse.stopped_s >= limits.stopped_s:", "if False:"),
    Defect(_LIVE, "if pulse.quiet_s >= limits.frozen_s:", "if False:"),
    Defect(_LIVE, "        if silent:\n", "        if False:\n"),
    Defect(_LIVE, "kind, ranks = HOST, of_host", "kind, ranks = SUPERVISOR, of_host"),
    Defect(_LIVE, "kind, ranks = MPIRUN, tuple(ages)", "pass"),
    Defect(_LIVE, "set(of_host) <= set(late)", "True"),
    Defect(_LIVE, "and (only_host or len({self.hosts[rank] for rank in ages}) > 1)", ""),
    Defect(_LIVE, "if self.mpirun_stopped_s >= limits.stopped_s:", "if False:"),
    Defect(_LIVE, "for rank, seconds in self.stopped_s.items():", "for rank, seconds in ():"),
    Defect(_LIVE, "if ranks and clock_s - since_s >= limit_s", "if False"),
    Defect(_LIVE, "since_s, limit_s = self.began_s, self.limits.begin_s", "return None"),
    Defect(_LIVE, "return has_unstarted or is_late", "return is_late"),
    Defect(_LIVE, "tuple(rank for rank, at_s in enumerate(heard) if at_s is None)", "tuple(range(len(heard)))"),
    Defect(_LIVE, "        return any(\n", "        return False and any(\n"),
    Defect(_LIVE, "        return any(\n", "        return True or any(\n"),
    # The end of a job.
    Defect(_JOB, "EXIT_UNKNOWN if silence.kind == HOST else EXIT_STALLED", "EXIT_STALLED"),
    Defect(_JOB, "kill_s=now_s + GRACE_S", 'kill_s=float("inf")'),
    Defect(_JOB, "    if state.signals and not _is_saving(state, now_s):\n", "    if False:\n"),
    Defect(_JOB, "    if state.is_unread:\n", "    if False:\n"),
    Defect(
        _JOB, "if state.judge.knows_failure() and not _may_follow(state, now_s):", "if state.judge.knows_failure():"
    ),
    Defect(
        _JOB, "if state.judge.knows_failure() or state.alive.is_in_doubt(now_s):", "if state.judge.knows_failure():"
    ),
    Defect(_JOB, "stall = state.stalls.verdict(now_s)", "stall = None"),
    Defect(_JOB, "judge=state.judge.observe(frame, now_s)", "judge=state.judge"),
    Defect(_JOB, "state.judge.has_failed(now_s) and", "state.judge.knows_failure() and"),
    Defect(_JOB, "Ending(128 + state.signals[0], what, EndCause", "Ending(state.signals[0], what, EndCause"),
    Defect(_JOB, "stalls = stalls.observe(frame.rank, frame.message, now_s)", "pass"),
    # The checkpoint and end of a preempted job.
    Defect(_JOB, "and state.signals[:1] == (signal.SIGTERM,)", "and state.signals[:1] == (signal.SIGINT,)"),
    Defect(_JOB, "ask_s=now_s + state.alive.limits.word_s), (SignalMpirun(PREEMPTION),)", 'ask_s=float("inf")), ()'),
    Defect(_JOB, 'frame.message.get("kind") == "preempted":', "False:"),
    Defect(_JOB, "len(state.signals) == 1 and now_s < state.save_until_s", "len(state.signals) == 1"),
    Defect(_JOB, "len(state.signals) == 1 and now_s < state.save_until_s", "now_s < state.save_until_s"),
    Defect(_JOB, "return Ending(EXIT_PREEMPTED, what, ", "return Ending(0, what, "),
    # The first failure.
    Defect(_OUT, "was_killed = ended.status == -signal.SIGKILL and", "was_killed = False and"),
    Defect(_OUT, "if not frame.told or frame.by:", "if True:"),
    Defect(_OUT, "        if ended.by:\n", "        if False:\n"),
    Defect(_OUT, "failure = self.failure or _Failure(", "failure = _Failure("),
    Defect(_OUT, "return status if status > 0 else 128 - status", "return status if status > 0 else 128 + status"),
    Defect(_OUT, "if self.noticed is not None and", "if False and"),
    Defect(_OUT, "        if self.lost_host is not None:\n", "        if False:\n"),
    Defect(_OUT, "if self.first_out is not None and self.first_out in", "if False and self.first_out in"),
    Defect(_OUT, "_EXIT_WAIT_S = 5.0", "_EXIT_WAIT_S = 500.0"),
    # Stalls.
    Defect(_STALL, 'if kind == "finished":', "if False:"),
    Defect(_STALL, "lead = len(state.failures) - len(run.failures)", "lead = 0"),
    Defect(_STALL, "if state.collectives == run.collectives:", "if True:"),
    Defect(_STALL, "max(began_s, min(self._away_s(rank) for rank, _ in absent))", "began_s"),
    Defect(_STALL, 'now_s - float(str(message["seconds"]))', "now_s"),
    Defect(_STALL, ">= self.timeout_s", ">= 10 * self.timeout_s"),
)
