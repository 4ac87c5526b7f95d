"""What a worker's session is made with: what looks at its runs, reads its variables, and changes its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from parallax.base.types import ArrayOnWorker0, Comm, Value
from parallax.plans.plan import Plan
from parallax.runtime.worker.session.accumulation import Gather
from parallax.runtime.worker.session.fetches import Request


class BetweenStepsHook(Protocol):
    """Something that is done between the runs of a session, by all workers after the same one, once or in turns."""

    done: bool
    """Whether nothing is left to do."""

    def after_run(self, fetched: tuple[str, ...], seconds: float) -> None:
        """Looks whether it is time.

        Args:
            fetched: what the run fetched, in the user's names.
            seconds: how long it took.
        """


class Verification(Protocol):
    """Something that looks at the first runs that train, by all workers."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to look at."""

    def before_run(self, request: Request) -> None:
        """Takes in what is about to run."""

    def after_run(self) -> None:
        """Looks at what it gave."""


class RunGuard(Protocol):
    """Something that compares the workers after runs (guard/guard.py)."""

    def after_run(
        self,
        fetched: tuple[str, ...],
        for_hooks: tuple[str, ...],
        fed: Mapping[str, Value] | set[str],
        gather: Gather | None,
        seconds: float,
    ) -> None:
        """Counts a run, and compares the workers when it is time."""

    def close(self) -> None:
        """Takes in that the session ends well."""


class ValueAccess(Protocol):
    """Reads and writes variables (checkpoint/values.py); every worker must make the same calls."""

    @property
    def comm(self) -> Comm:
        """Communicator of all workers, of all stages of a model too."""

    def read(self, ops: Sequence[str]) -> dict[str, ArrayOnWorker0]:
        """The values on worker 0, by variable op; None elsewhere."""

    def write(self, values: Mapping[str, ArrayOnWorker0]) -> None:
        """Writes worker 0's values, by variable op, wherever they are held."""


class SavedSteps(Protocol):
    """Which checkpoints a session has written (checkpoint/checkpoints.py)."""

    @property
    def saved_step(self) -> int | None:
        """The global step of the latest one; None while there is none."""


class PlanChange(Protocol):
    """Goes over to other plans (replan/requested_plan.py); every worker must make the same calls."""

    def to(self, plan: Plan | str | Path) -> str:
        """Goes over to a plan, and gives what is to be told of it."""
