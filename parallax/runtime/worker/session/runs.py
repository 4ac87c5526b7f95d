"""Records the aspects of this worker's runs that must match other workers: collectives, their order, and writes.

Workers that fetch different things may continue without a stall and match collectives of different steps, so the order
is part of the comparison. The writes of a variable in runs of one worker alone explain why it differs.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parallax.base.types import Value
from parallax.graph.view import GraphView, node_of
from parallax.runtime.worker.session.accumulation import Gather
from parallax.runtime.worker.session.names import Names, fetch_text

_REMEMBERED = 256  # runs between two comparisons whose fetches a message can name


@dataclass(eq=False, slots=True)
class RunKind:
    """All runs of the same fetches and feeds.

    Attributes:
        fetches: their fetches, for messages.
        collectives: digest of the collectives that they take part in; empty for none.
        writers: those of their ops that write variables.
        is_step: whether they train.
        count: how many there were.
    """

    fetches: str
    collectives: str
    writers: frozenset[str]
    is_step: bool
    count: int = 0


@dataclass(frozen=True, slots=True)
class CollectiveRuns:
    """The runs of one thread that took part in collectives.

    Attributes:
        digest: over all of them, in their order.
        recent: (fetches, collectives) of the last ones.
    """

    digest: bytes
    recent: tuple[tuple[str, str], ...]


class Runs:
    """The runs of one worker.

    Args:
        view: the user's graph.
        writers: the ops of it that write variables.
        trains: whether a run trains that fetches these names.
    """

    def __init__(self, view: GraphView, writers: frozenset[str], trains: Callable[[tuple[str, ...]], bool]) -> None:
        self._view = view
        self._writers = writers
        self._trains = trains
        self._names: Names | None = None
        self._kinds: dict[tuple[object, ...], RunKind] = {}
        self._before: list[RunKind] = []  # of earlier plans
        self._order: dict[int, Any] = {}
        self._recent: dict[int, deque[tuple[str, str]]] = {}

    def add(
        self,
        names: Names,
        fetched: tuple[str, ...],
        for_hooks: tuple[str, ...],
        fed: Mapping[str, Value] | set[str],
        gather: Gather | None,
    ) -> RunKind:
        """Counts a run that has ended.

        Args:
            names: of the graph that ran.
            fetched: by the user, in the user's names.
            for_hooks: fetched by hooks.
            fed: by both.
            gather: for a run that accumulates gradients for a later update.
        """
        if names is not self._names:
            self._names = names
            self._before += self._kinds.values()
            self._kinds = {}
        key = (fetched, for_hooks, frozenset(fed), gather)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._kind(names, *key)
        kind.count += 1
        if kind.collectives:
            thread = threading.get_ident()  # each thread has its own order
            if thread not in self._order:
                self._order[thread] = hashlib.sha256()
                self._recent[thread] = deque(maxlen=_REMEMBERED)
            self._order[thread].update(kind.collectives.encode())
            self._recent[thread].append((kind.fetches, kind.collectives))
        return kind

    def list_collective_runs(self) -> CollectiveRuns:
        """The runs of this thread that took part in collectives."""
        thread = threading.get_ident()
        if thread not in self._order:
            return CollectiveRuns(b"", ())
        return CollectiveRuns(self._order[thread].digest(), tuple(self._recent[thread]))

    def forget_recent(self) -> None:
        """Drops the recent runs: all workers have done the same up to here."""
        for recent in self._recent.values():
            recent.clear()

    def written_by(self, writers: tuple[str, ...]) -> Counter[str]:
        """The number of runs of each of some ops that write."""
        count_by_writer: Counter[str] = Counter()
        for kind in (*self._before, *self._kinds.values()):
            for writer in kind.writers.intersection(writers):
                count_by_writer[writer] += kind.count
        return count_by_writer

    def _kind(
        self,
        names: Names,
        fetched: tuple[str, ...],
        for_hooks: tuple[str, ...],
        fed: frozenset[str],
        gather: Gather | None,
    ) -> RunKind:
        every = (*fetched, *for_hooks)
        resolved = names.resolve(every, fed, gather)
        nodes = {node_of(name) if ":" in name else name for name in every if name not in fed}
        writers = frozenset() if gather is not None else self._writers & self._view.ancestors(nodes, fed)
        is_step = gather is None and self._trains(fetched)
        return RunKind(fetch_text(fetched, for_hooks), resolved.collectives, writers, is_step)
