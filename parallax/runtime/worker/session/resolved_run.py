"""A combination of fetches and feeds, resolved on a worker's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallax.base.types import Value
from parallax.transform.passes.full_batches import FullBatch, led_to_full


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """What a combination of fetches and feeds needs on this worker's graph.

    Attributes:
        tensors: names in the worker's graph: one for each name asked for that can be had, then what is run besides.
        empty: placeholders fed with empty tensors, as the run does not need their values.
        collectives: digest of the collectives that the run takes part in; empty when it takes part in none.
        fed: tensor of the user's graph -> tensor to feed, of those that have another name on this worker.
        had: for each name asked for whether it can be had; what comes with an update only cannot between updates.
        full: where batches go that are full, of those that are fed.
        absent: tensors of the user's graph that are fed, and that this worker has nothing of.
        whole: of a model in stages, `tensors` in the graph of all of them; empty where the worker has it all.
        stages: place of a name asked for -> the stage that has it, of those that one stage has.
    """

    tensors: tuple[str, ...]
    empty: dict[str, Value]
    collectives: str
    fed: Mapping[str, str] = field(default_factory=dict)
    had: tuple[bool, ...] = ()
    full: tuple[FullBatch, ...] = ()
    absent: frozenset[str] = frozenset()
    whole: tuple[str, ...] = ()
    stages: Mapping[int, int] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """The tensors and ops that all workers of a replica run, in the uncut graph."""
        return self.whole or self.tensors

    def feeds(self, given: Mapping[str, Value]) -> dict[str, Value]:
        """What is fed in the user's names, in those of this worker's graph."""
        here = {self.fed.get(name, name): value for name, value in given.items() if name not in self.absent}
        return led_to_full(here, self.full) or here

    def values(self, found: Sequence[Value]) -> Sequence[Value]:
        """What a run of `tensors` has given, for each name asked for; None for what cannot be had."""
        if all(self.had):
            return found[: len(self.had)]
        values = iter(found)
        return [next(values) if had else None for had in self.had]
