"""Tracks a job's position in its data: batches that training has consumed, and elements read from iterators.

Every run of the user's is inspected, once for each combination of fetches. Elements are numbered as the one sequence
that all workers read together: of W workers, worker r reads r, r + W, r + 2W and so on. So a number identifies the
consumed data for any number of workers. An iterator over a dataset that is not sharded is per worker, and numbered by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parallax.base.types import Value
from parallax.graph.view import node_of
from parallax.runtime.worker.session.accumulation import Gather
from parallax.runtime.worker.session.names import Names
from parallax.transform.passes.inputs import InputIterator, Maker


@dataclass(frozen=True, slots=True)
class _RunEffects:
    """The effects of all runs of one combination.

    Attributes:
        trains: whether they train.
        takes: (iterator, how many elements they read from it).
        begins: (iterator, op that initializes it).
    """

    trains: bool
    takes: tuple[tuple[str, int], ...]
    begins: tuple[tuple[str, str], ...]


@dataclass
class IteratorPosition:
    """A worker's position in an iterator.

    Attributes:
        maker: the op that initialized it; empty before that.
        next: the number of the element that comes next.
        pending: the position that the iterator is set to when the op `maker` initializes it the next time; None for its
            start.
    """

    maker: str = ""
    next: int = 0
    pending: int | None = None


@dataclass
class InputPositions:
    """The positions of one worker.

    Attributes:
        rank: this worker.
        size: number of workers.
        trains: whether a run trains that fetches these names.
        inputs: the iterators whose elements are counted, by name.
        is_equal: whether all workers train in the same runs.
        consumed: batches that training runs have consumed, on all workers together.
        taken: by iterator.
    """

    rank: int
    size: int
    trains: Callable[[tuple[str, ...]], bool]
    inputs: Mapping[str, InputIterator] = field(default_factory=dict)
    is_equal: bool = True
    consumed: int = 0
    taken: dict[str, IteratorPosition] = field(init=False)
    _names: Names | None = None
    _known: dict[tuple[object, ...], _RunEffects] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taken = {name: IteratorPosition() for name in self.inputs}

    def feeds(
        self, names: Names, fetched: tuple[str, ...], fed: Iterable[str], gather: Gather | None
    ) -> dict[str, Value]:
        """Additional feeds of a run, by which iterators that it initializes resume at their positions."""
        begins = self._find_effects(names, fetched, frozenset(fed), gather).begins
        return self.start_feeds(begins) if begins else {}

    def start_feeds(self, begins: Sequence[tuple[str, str]]) -> dict[str, Value]:
        """Feeds that restore the positions of iterators, for the (iterator, op) that initialize them."""
        feeds = {}
        for name, maker in begins:
            position, one = self.taken[name], self._maker(name, maker)
            if position.pending is not None and position.maker == maker:
                feeds[one.start] = np.int64(one.count_skipped(position.pending, self.size))
        return feeds

    def record_run(self, names: Names, fetched: tuple[str, ...], fed: Iterable[str], gather: Gather | None) -> None:
        """Counts a run that has succeeded."""
        does = self._find_effects(names, fetched, frozenset(fed), gather)
        self.consumed += self.size if does.trains else 0
        self.record_begin(does.begins)
        for name, count in does.takes:
            position = self.taken[name]
            if position.maker and position.pending is None:
                position.next += count * self._maker(name, position.maker).stride(self.size)

    def record_begin(self, begins: Sequence[tuple[str, str]]) -> None:
        """Records that iterators were initialized."""
        for name, maker in begins:
            position = self.taken[name]
            goes_on = position.pending is not None and position.maker == maker
            first = position.pending if goes_on else self._maker(name, maker).first(self.rank)
            self.taken[name] = IteratorPosition(maker, int(first or 0))

    def _maker(self, name: str, op: str) -> Maker:
        return next(one for one in self.inputs[name].makers if one.op == op)

    def _find_effects(
        self, names: Names, fetched: tuple[str, ...], fed: frozenset[str], gather: Gather | None
    ) -> _RunEffects:
        if names is not self._names:  # the plan has changed
            self._names, self._known = names, {}
        key = (fetched, fed, gather)
        if key not in self._known:
            self._known[key] = self._derive_effects(names, *key)
        return self._known[key]

    def _derive_effects(
        self, names: Names, fetched: tuple[str, ...], fed: frozenset[str], gather: Gather | None
    ) -> _RunEffects:
        trains = self.trains(fetched)
        if not self.inputs:
            return _RunEffects(trains, (), ())
        cut_off = frozenset(names.here(name) for name in fed)
        tensors = [tensor for tensor in names.resolve(fetched, fed, gather).targets if tensor not in cut_off]
        runs = names.run_view.ancestors({node_of(t) if ":" in t else t for t in tensors}, cut_off)
        takes = tuple((n, sum(names.here(op) in runs for op in one.takes)) for n, one in self.inputs.items())
        begins = tuple((n, m.op) for n, one in self.inputs.items() for m in one.makers if names.here(m.op) in runs)
        return _RunEffects(trains, takes, begins)
