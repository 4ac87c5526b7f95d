"""Interfaces of a worker session's parts: they inspect its runs, access its variables, and change its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from parallax.base.types import ArrayOnWorker0, Comm, Value
from parallax.plans.plan import Plan
from parallax.runtime.worker.session.accumulation import Gather
from parallax.runtime.worker.session.fetches import Request


class BetweenStepsHook(Protocol):
    """Work between the runs of a session, by all workers after the same run, once or in turns."""

    done: bool
    """Whether no work is left."""

    def after_run(self, fetched: tuple[str, ...], seconds: float) -> None:
        """Does its work if it is due.

        Args:
            fetched: the run's fetches, in the user's names.
            seconds: how long it took.
        """


class Verification(Protocol):
    """Inspects the first training runs, on all workers."""

    @property
    def done(self) -> bool:
        """Whether there are no more runs to inspect."""

    def before_run(self, request: Request) -> None:
        """Processes a run that is about to start."""

    def after_run(self) -> None:
        """Inspects its results."""


class RunGuard(Protocol):
    """Compares the workers after runs (guard/guard.py)."""

    def after_run(
        self,
        fetched: tuple[str, ...],
        for_hooks: tuple[str, ...],
        fed: Mapping[str, Value] | set[str],
        gather: Gather | None,
        seconds: float,
    ) -> None:
        """Counts a run, and compares the workers when due."""

    def close(self) -> None:
        """Records that the session ends successfully."""


class ValueAccess(Protocol):
    """Reads and writes variables (checkpoint/values.py); every worker must make the same calls."""

    @property
    def comm(self) -> Comm:
        """Communicator of all workers, of all stages of a model too."""

    def read(self, ops: Sequence[str]) -> dict[str, ArrayOnWorker0]:
        """Reads values on worker 0, by variable op; None elsewhere."""

    def write(self, values: Mapping[str, ArrayOnWorker0]) -> None:
        """Writes worker 0's values, by variable op, to all processes that store them."""


class SavedSteps(Protocol):
    """The checkpoints that a session has written (checkpoint/checkpoints.py)."""

    @property
    def saved_step(self) -> int | None:
        """The global step of the latest one; None if there is none yet."""


class PlanChange(Protocol):
    """Switches to other plans (replan/requested_plan.py); every worker must make the same calls."""

    def to(self, plan: Plan | str | Path) -> str:
        """Switches to a plan, and returns a message about it."""


class MeetingSchedule(Protocol):
    """The meetings of islands (islands/meetings.py); every worker must make the same calls."""

    def count_update(self) -> bool:
        """Counts an update; returns whether islands have met after it."""

    def meet(self) -> None:
        """Runs a meeting of the islands, unless they have met after the last update."""
