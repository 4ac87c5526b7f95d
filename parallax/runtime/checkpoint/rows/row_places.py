"""Describes where a plan stores the rows of variables, for checkpoints and other readers of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parallax.graph.ownership import Ownership


@dataclass(frozen=True, slots=True)
class Places:
    """Where the rows of variables are.

    Attributes:
        spread: variable op -> which worker has which row, of those whose rows are spread over the workers.
        partitions: variable op -> the ops of its partitions on servers.
        absent: those of them of which the workers have no copy.
        names: variable op -> the op in the worker's graph, of those that have another name there.
        lazily_updated: ops in the worker's graph of each table whose rows are to be brought up to date before anybody
            reads or writes one of them.
        stages: variable op -> the worker that reads it, the first of those of its stage, of those that one stage holds.
        elsewhere: variable ops of which this worker has nothing, as another stage holds them.
        stage: this worker's.
    """

    spread: Mapping[str, Ownership] = field(default_factory=dict)
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    lazily_updated: tuple[tuple[str, ...], ...] = ()
    stages: Mapping[str, int] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()
    stage: int = 0

    def here(self, op: str) -> str:
        """A variable op by its name in the worker's graph."""
        return self.names.get(op, op)
