"""The one process of each island in a comparison: it trains on the island's batches, and meets the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from parallax.base.types import Value
from parallax.plans.island_plan import IslandPlan
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.islands.averaged_variables import AveragedVariables, wire_type
from parallax.runtime.islands.centre import Centre, Packing, averaging
from parallax.runtime.verify.one_process import STARTS, OneProcess, Values, noise_of

UNMET, MET = "unmet", "met"
"""The moments that are compared: before the first meeting, where each island has only its own errors; after the last.
"""


@dataclass(frozen=True, slots=True)
class IslandRun:
    """All variables of an island's process.

    Attributes:
        before: the steps.
        unmet: before the first meeting.
        met: after the last.
    """

    before: Values
    unmet: Values
    met: Values

    def until(self, moment: str) -> tuple[Values, Values]:
        """The values before the steps, and at a moment."""
        return self.before, self.unmet if moment == UNMET else self.met


class IslandProcesses:
    """One process for each island, all in this one.

    Args:
        one: the program.
        terms: how islands meet.
        averaged: the variables that they average.
    """

    def __init__(self, one: OneProcess, terms: IslandPlan, averaged: AveragedVariables) -> None:
        self._one = one
        self._terms = terms
        self._groups = [
            _AveragedGroup(terms, averaged.dense),
            _AveragedGroup(averaging(terms), averaged.state),
            _AveragedGroup(replace(averaging(terms), wire_dtype=None), averaged.tables),
        ]

    def run(
        self,
        fetches: Sequence[str],
        batches: Sequence[Sequence[Mapping[str, Value]]],
        rounding: tuple[float, int] | None = None,
    ) -> list[IslandRun]:
        """Runs the steps; islands meet when it is time, and after the last step.

        Args:
            fetches: the fetches of a step.
            batches: by island, its batch of each step.
            rounding: as for `OneProcess.run`.
        """
        with ExitStack() as stack:
            sessions = [stack.enter_context(self._one.begin(rounding=rounding)) for _ in batches]
            before = [self._one.read(session) for session in sessions]
            unmet: list[Values] = []
            for group in self._groups:
                group.begin(before[0])
            for step, by_island in enumerate(zip(*batches, strict=True), 1):
                for session, batch in zip(sessions, by_island, strict=True):
                    session.run(list(fetches), batch)
                if step % self._terms.every == 0 or step == len(batches[0]):
                    values = [self._one.read(session) for session in sessions]
                    unmet = unmet or values
                    for group in self._groups:
                        for session, moved in zip(sessions, group.meet(values), strict=True):
                            self._one.write(session, moved)
            met = [self._one.read(session) for session in sessions]
        return [IslandRun(*of) for of in zip(before, unmet, met, strict=True)]

    def noise(
        self,
        fetches: Sequence[str],
        batches: Sequence[Sequence[Mapping[str, Value]]],
        runs: Sequence[IslandRun],
        rounding: float,
    ) -> list[dict[str, dict[str, float]]]:
        """By island and moment, the noise of each variable; see verdicts.py.

        Args:
            fetches: the fetches of a step.
            batches: by island, its batch of each step.
            runs: the result of `run`.
            rounding: of the perturbed starts, relative to an element, at least.
        """
        perturbed = [self.run(fetches, batches, (rounding, draw)) for draw in range(STARTS)]
        return [
            {moment: noise_of(one.until(moment), [other.until(moment) for other in others]) for moment in (UNMET, MET)}
            for one, *others in zip(runs, *perturbed, strict=True)
        ]


class _AveragedGroup:
    """Some variables of all islands, which meet by the same terms.

    Args:
        terms: how.
        entries: the variables.
    """

    def __init__(self, terms: IslandPlan, entries: Sequence[CheckpointEntry]) -> None:
        self._terms = terms
        self._entries = entries
        self._packing = Packing(tuple((one.shape or (), wire_type(one)) for one in entries))
        self._centres: list[Centre] = []

    def begin(self, values: Values) -> None:
        """Sets the centre, of which each island has a copy, as in a job."""
        self._centres = [Centre(self._terms, self._packing) for _ in range(self._terms.count)]
        for centre in self._centres:
            centre.values = self._packing.pack([np.asarray(values[one.op]) for one in self._entries])

    def meet(self, values: Sequence[Values]) -> list[Values]:
        """The values of each island after a meeting, given those before."""
        local = [self._packing.pack([np.asarray(one[entry.op]) for entry in self._entries]) for one in values]
        contributions = [centre.contribute(own) for centre, own in zip(self._centres, local, strict=True)]
        found: list[Values] = []
        for centre, own in zip(self._centres, local, strict=True):
            centre.take(own, {dtype: np.sum([one[dtype] for one in contributions], 0) for dtype in own})
            views = zip(self._entries, self._packing.views(own), strict=True)
            found.append({one.op: view.astype(tf.as_dtype(one.dtype).as_numpy_dtype) for one, view in views})
        return found
