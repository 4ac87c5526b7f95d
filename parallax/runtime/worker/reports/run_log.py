"""Records what the runs of a worker's session did: whether any of them trains, and the time of a step.

It is called after every run, and costs a dictionary lookup and two additions. At the end it logs the measured step time
next to the plan's prediction; and that nothing was trained, if no run fetched a training op.
"""

from __future__ import annotations

import re
import statistics
import threading
from collections import deque
from collections.abc import Set
from dataclasses import dataclass

from parallax.analysis.reading.train_ops import find_ops_after
from parallax.graph.view import GraphView
from parallax.plans.plan import Plan
from parallax.report.logger import log
from parallax.report.text import list_first, ms_text, pluralize

FIRST_STEPS = 5
"""The number of first steps that are excluded: memory is allocated, graphs are prepared, caches are filled."""

IDLE_RUNS = 20
"""The number of runs without training after which a warning is logged once."""

_KEPT_STEPS = 10_000  # the last ones, whose median is reported
_LIKE_A_TRAIN_OP = re.compile(r"(?:.*[/_])?train(?:ing)?(?:_?(?:op|step))?(?:_\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of one worker, medians in seconds.

    Attributes:
        steps: how many were measured.
        step_s: of a step, which is an update with all its batches: the time in its runs.
        between_s: from the end of the previous run to the start of a step, which is the script's own time. A run that
            begins within another one, as a hook's does, has none.
    """

    steps: int
    step_s: float
    between_s: float


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The start of a run.

    Attributes:
        began_s: by the monotonic clock.
        between_s: since the end of the previous run; 0 in a run within another one.
    """

    began_s: float
    between_s: float


class RunLog:
    """Follows one session's runs.

    Args:
        view: the user's graph.
        updates: the ops in it that train.
        is_reporter: whether this worker logs the results; one does, for all.
        may_idle: whether a session that trains nothing is no mistake.
    """

    def __init__(self, view: GraphView, updates: Set[str], is_reporter: bool, may_idle: bool = False) -> None:
        self._view = view
        self._updates = updates
        self._is_reporter, self._may_idle = is_reporter, may_idle
        self._trains: dict[tuple[str, ...], bool] = {}
        self._plan: Plan | None = None
        self._times: deque[tuple[float, float]] = deque(maxlen=_KEPT_STEPS)
        self._ended_s = 0.0
        self._in_progress = 0
        self._begin_loop()
        self._lock = threading.Lock()  # a script may run a session in several threads

    def begin(self, now_s: float) -> RunTimes:
        """Records the start of a run, which `end` must follow however it ends; by the monotonic clock."""
        with self._lock:
            between_s = 0.0 if self._in_progress else now_s - self._ended_s
            self._in_progress += 1
        return RunTimes(now_s, between_s)

    def end(self, now_s: float) -> None:
        """Records the end of a run, successful or not."""
        with self._lock:
            self._in_progress -= 1
            self._ended_s = now_s

    def record_run(self, names: tuple[str, ...], run: RunTimes, now_s: float, pending: int, plan: Plan | None) -> None:
        """Records the results of a run that succeeds.

        Args:
            names: of the fetches, in the user's graph.
            run: its times, of `begin`.
            now_s: when it ends.
            pending: the number of batches with accumulated gradients that await an update.
            plan: the current plan.
        """
        self._runs += 1
        if self.trains(names):
            self._take_step(now_s - run.began_s, run.between_s, pending, plan)
        elif not self._trained and self._runs == IDLE_RUNS and not self._may_idle:
            self._warn(f"None of the first {IDLE_RUNS} runs of this session updated a trained variable.")

    @property
    def step(self) -> int:
        """The number of the step in progress, or of the next one, from 1."""
        return self._trained + 1

    def trains(self, names: tuple[str, ...]) -> bool:
        """Whether a run that fetches these names trains, including updates by servers."""
        if names not in self._trains:
            self._trains[names] = self._is_inspected(names)
        return self._trains[names]

    def times(self) -> StepTimes | None:
        """The step times under the current plan; None when there were too few."""
        if not self._times:
            return None
        step_s, between_s = zip(*self._times, strict=True)
        return StepTimes(len(self._times), statistics.median(step_s), statistics.median(between_s))

    def finish(self) -> None:
        """Logs the results, when a loop has succeeded; later runs count as a new loop."""
        times = self.times()
        if self._is_reporter and times is not None:
            log.info(times_text(times, self._plan))
        if self._runs and not self._trained and not self._may_idle:
            self._warn(f"No run of this session ({pluralize(self._runs, 'run')}) updated a trained variable.")
        self._begin_loop()

    def _begin_loop(self) -> None:
        self._times.clear()
        self._steps = self._runs = self._trained = 0
        self._warned = False
        self._step_s = self._between_s = 0.0

    def _take_step(self, run_s: float, between_s: float, pending: int, plan: Plan | None) -> None:
        self._trained += 1
        if plan is not self._plan:
            self._plan, self._steps = plan, 0
            self._times.clear()
        self._step_s += run_s
        self._between_s += between_s
        if pending:
            return
        self._steps += 1
        if self._steps > FIRST_STEPS:
            self._times.append((self._step_s, self._between_s))
        self._step_s = self._between_s = 0.0

    def _is_inspected(self, names: tuple[str, ...]) -> bool:
        """Whether a run of these fetches trains; logs an op that looks as if it should and does not."""
        for name in names:
            if ":" not in name and _LIKE_A_TRAIN_OP.fullmatch(name) and not self._reaches_update((name,)):
                self._warn(f"Fetching the op {name} updates no trained variable.")
        return self._reaches_update(names)

    def _reaches_update(self, names: tuple[str, ...]) -> bool:
        return not self._updates.isdisjoint(self._view.ancestors({name.split(":")[0] for name in names}))

    def _warn(self, what: str) -> None:
        if not self._is_reporter or self._warned:
            return
        self._warned = True
        ops = sorted(find_ops_after(self._view, self._updates))
        remedy = (
            f"Fetch an op that trains; the graph has {list_first(ops)}."
            if ops
            else "No op of the graph writes a variable from its gradient: build one with an optimizer's minimize()."
        )
        log.warning(f"{what} {remedy}")


def times_text(times: StepTimes, plan: Plan | None) -> str:
    """Formats the step times, next to the predictions."""
    known = None if plan is None else plan.prediction
    predicted = ""
    if known is not None and known.step_s is not None:
        of = "" if known.has_compute else "of its exchanges alone, "
        predicted = f"; {of}{ms_text(known.step_s)} predicted"
    return (
        f"A step took {ms_text(times.step_s)} (median of {pluralize(times.steps, 'step')}{predicted}); between steps "
        f"the script took {ms_text(times.between_s)}."
    )
