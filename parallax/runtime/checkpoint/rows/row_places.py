"""Describes where a plan stores the rows of variables, for checkpoints and other readers of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parallax.base.types import Array
from parallax.graph.ownership import Ownership


@dataclass(frozen=True, slots=True)
class CentreValue:
    """The centre of a variable that islands average, on their leaders; None elsewhere.

    Attributes:
        value: the centre's; changed in place.
        momentum: the outer optimizer's, changed in place; None if it has none.
    """

    value: Array | None
    momentum: Array | None


@dataclass(frozen=True, slots=True)
class Places:
    """The placement of variables' rows.

    Attributes:
        spread: variable op -> ownership of its rows, for variables sharded over the workers.
        partitions: variable op -> the ops of its partitions on servers.
        absent: those of them of which the workers have no copy.
        names: variable op -> the op in the worker's graph, if it has another name there.
        lazily_updated: ops in the worker's graph of each table whose rows must be brought up to date before they are
            read or written.
        stages: variable op -> its stage, whose first worker reads it, for variables of a single stage.
        elsewhere: variable ops that another stage stores, so this worker has no part of them.
        stage: this worker's.
        centres: variable op -> the centre, for those that islands average. The team of an island is then that of a
            stage that has all variables, and the first island's values are read.
    """

    spread: Mapping[str, Ownership] = field(default_factory=dict)
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    lazily_updated: tuple[tuple[str, ...], ...] = ()
    stages: Mapping[str, int] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()
    stage: int = 0
    centres: Mapping[str, CentreValue] = field(default_factory=dict)

    def here(self, op: str) -> str:
        """A variable op's name in the worker's graph."""
        return self.names.get(op, op)
