"""Exchanges a run's values between the stages of a replica: each script gets all of them, or one error.

Every worker of a replica makes the same runs. A stage that alone has a value broadcasts it after the run, or the error
that it got instead, which the others then raise. After the last run of a front end's step, the first stage gathers the
values of all its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import tensorflow as tf

from parallax.base.types import Comm, Value
from parallax.runtime.worker.session.resolved_run import ResolvedRun

_UNKNOWN = 2  # error_codes.proto


class StageValues:
    """The values of one worker's runs that stages exchange.

    Args:
        replica: communicator of the workers of this replica, ranked by stage, reserved for this.

    Attributes:
        settle: waits until no run is in flight.
    """

    def __init__(self, replica: Comm) -> None:
        self._replica = replica
        self._owed: list[ResolvedRun] = []
        self.settle: Callable[[], None] = lambda: None

    @contextmanager
    def share_failures(self, run: ResolvedRun) -> Iterator[None]:
        """Context of a run whose values are sent to all stages; all of them fail if one fails."""
        self._owed = [run]
        try:
            yield
        except Exception as error:
            for owed in self._owed:
                with suppress(tf.errors.OpError):
                    self._exchange(owed, [None] * len(owed.had), error)
            self._owed = []
            with suppress(Exception):  # runs in flight fail with the same error, reported once
                self.settle()
            raise

    def add(self, run: ResolvedRun) -> None:
        """Records a hook's fetches of the run, which are exchanged before the run's own."""
        self._owed.insert(len(self._owed) - 1, run)

    def complete_values(self, run: ResolvedRun, local: Sequence[Value]) -> Sequence[Value]:
        """The values of all fetched names, of which `local` has the local ones; None if unavailable.

        Raises:
            OpError: the error that another stage got instead of them.
        """
        self._owed = [owed for owed in self._owed if owed is not run]
        return self._exchange(run, list(local), None)

    @contextmanager
    def share_step_failures(self) -> Iterator[None]:
        """Context of the runs of a step; all stages fail if one fails."""
        try:
            yield
        except Exception as error:
            with suppress(tf.errors.OpError):
                self._tell_all(error)
            with suppress(Exception):
                self.settle()
            raise

    def gather(self, runs: Sequence[tuple[ResolvedRun, Sequence[Value]]]) -> list[Sequence[Value]]:
        """The results of a step's runs on the first stage; on other stages, None for values that they do not have.

        Args:
            runs: each with its local values.

        Raises:
            OpError: a run has failed on another stage.
        """
        self._tell_all(None)
        stage = self._replica.Get_rank()
        local = [{place: values[place] for place, at in run.stages.items() if at == stage} for run, values in runs]
        of_stages = self._replica.gather(None if stage == 0 else local) or []
        values_by_run = [list(values) for _, values in runs]
        for theirs in of_stages[1:]:
            for values, brought in zip(values_by_run, theirs, strict=True):
                for place, value in brought.items():
                    values[place] = value
        return list(values_by_run)

    def _tell_all(self, failed: Exception | None) -> None:
        """Notifies the other stages of an error, and raises theirs."""
        first_error = next((one for one in self._replica.allgather(_text_of(failed)) if one is not None), None)
        if first_error is not None:
            _raise(first_error)

    def _exchange(self, run: ResolvedRun, values: list[Value], failed: Exception | None) -> list[Value]:
        error_text: tuple[int, str] | None = None
        for stage in sorted(set(run.stages.values())):
            places = [place for place, at in run.stages.items() if at == stage]
            local = _text_of(failed), [values[place] for place in places]
            error, theirs = self._replica.bcast(local, stage)
            error_text = error_text or error
            for place, value in zip(places, theirs, strict=True):
                values[place] = value
        if error_text is not None:
            _raise(error_text)
        return values


def _raise(error_text: tuple[int, str]) -> NoReturn:
    """Raises the error of another stage."""
    raise tf.compat.v1.errors.exception_type_from_error_code(error_text[0])(None, None, error_text[1])


def _text_of(error: Exception | None) -> tuple[int, str] | None:
    """The code and the text of an error."""
    if error is None:
        return None
    return (error.error_code, error.message) if isinstance(error, tf.errors.OpError) else (_UNKNOWN, str(error))
