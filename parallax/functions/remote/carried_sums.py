"""Sums of per-worker parts that continue when workers are replaced, whose parts then restart at zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from parallax.base.types import Array
from parallax.functions.remote.request_queue import RequestNote
from parallax.functions.remote.serve_driver import StepResults


class _NotedRequest(Protocol):
    """A request with its sender's note."""

    note: RequestNote | None


class RunSums:
    """The sums of one run of a step.

    Attributes:
        totals: by variable, once the workers have answered: the sums of the current workers and of their predecessors.

    Args:
        names: of the variables, in the order of the step's sums.
        carried: the sums of preceding workers, by variable.
    """

    def __init__(self, names: Sequence[str], carried: Mapping[str, Array]) -> None:
        self._names, self.carried = names, carried
        self.totals: Mapping[str, Array] = {}

    def on_answer(self, answer: StepResults) -> None:
        """Adds the sums of the current and of preceding workers."""
        self.totals = {
            name: (part + self.carried[name]).astype(part.dtype) if name in self.carried else part
            for name, part in zip(self._names, map(np.asarray, answer.sums), strict=True)
        }


class _Reset:
    """A reset of the variables to zero."""

    def on_answer(self, answer: StepResults) -> None:
        """Does nothing: a reset has no answer."""


class CarriedSums:
    """Tracks the sums with which the next workers would have to begin.

    Attributes:
        names: by step, the names of its sums.
    """

    def __init__(self) -> None:
        self.names: Mapping[str, Sequence[str]] = {}
        self._base: dict[str, Array] = {}  # of the next workers
        self._carried: Mapping[str, Array] = {}  # of the current workers

    def note_run(self, step: str) -> RunSums:
        """The note of a request that runs a step."""
        return RunSums(self.names.get(step, ()), self._carried)

    def note_reset(self) -> RequestNote:
        """The note of a request that resets all variables to zero."""
        self._carried = {}
        return _Reset()

    def on_forget(self, requests: Iterable[_NotedRequest]) -> None:
        """Records requests whose effect the next workers begin with."""
        for request in requests:
            if isinstance(request.note, _Reset):
                self._base = {}
            elif isinstance(request.note, RunSums):
                self._base |= request.note.totals

    def on_restore(self, requests: Iterable[_NotedRequest]) -> None:
        """Records requests that other workers execute now."""
        carried: Mapping[str, Array] = dict(self._base)
        for request in requests:
            if isinstance(request.note, _Reset):
                carried = {}
            elif isinstance(request.note, RunSums):
                request.note.carried = carried
        self._carried = carried
