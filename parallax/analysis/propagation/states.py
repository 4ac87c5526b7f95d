"""States: how a worker's tensor relates to that of one process that trains on the global batch.

Plain states, from best to worst; a result is as bad as its worst input: `Same`, `Fed`, `Batch`, `Local`, `Opaque`.
States along rows: `Values` and `Indices` of gradient rows of all lookups, `Rows` of a table at their owners, and, for
gradient rows aggregated at their owners, `TouchedRows`, `TouchedIndices` and `PlaceMap`. An `Extent` is a shape or
count of one of these, and a `Handle` a variable itself. States are equal when they have one class and refer to the same
objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class State:
    """How a worker holds a tensor.

    Attributes:
        kind: the word for it in docs/architecture.md.
        badness: of two inputs the result has the state of larger badness.
    """

    __slots__ = ()
    kind: ClassVar[str]
    badness: ClassVar[int] = 5

    @property
    def of(self) -> str:
        """The part, or the tensor of its gradient, that the state belongs to; empty where it belongs to none."""
        return ""


class Plain(State):
    """A state that results inherit from their inputs."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Same(Plain):
    """Equal on all workers, and what the one process would have."""

    kind = "same"
    badness = 0


@dataclass(frozen=True, slots=True)
class Fed(Plain):
    """Same if all workers feed the same scalars.

    Attributes:
        placeholders: what is fed, sorted.
    """

    kind = "fed"
    badness = 1
    placeholders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch(Plain):
    """Computed from what is fed, and so differs between workers."""

    kind = "batch"
    badness = 2


@dataclass(frozen=True, slots=True)
class Local(Plain):
    """Differs between workers for another reason: data, random numbers, variables of each worker's own."""

    kind = "local"
    badness = 3


@dataclass(frozen=True, slots=True)
class Opaque(Plain):
    """Made of a gradient by an op that has no rule; must never reach shared state.

    Attributes:
        part: the variable op whose gradient it is.
        reason: why it has no rule, with the op.
    """

    kind = "opaque"
    badness = 4
    part: str
    reason: str

    @property
    def of(self) -> str:
        """As `State.of`."""
        return self.part


@dataclass(frozen=True, slots=True)
class Joined(State):
    """Of joined IndexedSlices: the one process has all workers' rows one after the other, each worker its own.

    Attributes:
        tensors: where autodiff delivers them, one for each gradient that was put behind another.
    """

    tensors: tuple[str, ...]

    @property
    def of(self) -> str:
        """As `State.of`."""
        return self.tensors[0]


@dataclass(frozen=True, slots=True)
class Values(Joined):
    """Joined gradient rows."""

    kind = "values"


@dataclass(frozen=True, slots=True)
class Indices(Joined):
    """The row numbers of joined gradient rows."""

    kind = "indices"


@dataclass(frozen=True, slots=True)
class AtOwners(State):
    """Held by the owners of a table's rows.

    Attributes:
        table: the table op; of a PlaceMap the variable op, where its rows have no owners.
    """

    table: str

    @property
    def of(self) -> str:
        """As `State.of`."""
        return self.table


@dataclass(frozen=True, slots=True)
class Rows(AtOwners):
    """The local rows of a table, a slot, or what is computed of them row by row."""

    kind = "rows"


@dataclass(frozen=True, slots=True)
class Merged(AtOwners):
    """Of gradient rows that are merged at their owners.

    Attributes:
        merge: where they are merged, a key of Walk.merges.
    """

    merge: str


@dataclass(frozen=True, slots=True)
class TouchedRows(Merged):
    """Merged gradient rows at their owner."""

    kind = "touched"


@dataclass(frozen=True, slots=True)
class TouchedIndices(Merged):
    """The local row numbers of merged gradient rows."""

    kind = "touched_indices"


@dataclass(frozen=True, slots=True)
class PlaceMap(Merged):
    """Where each joined row is among the merged ones."""

    kind = "map"


@dataclass(frozen=True, slots=True)
class Extent(State):
    """A shape or count taken from what is along rows.

    Attributes:
        along: the state of what it was taken from.
    """

    kind = "extent"
    along: State

    @property
    def of(self) -> str:
        """As `State.of`."""
        return self.along.of


@dataclass(frozen=True, slots=True)
class Handle(State):
    """A variable itself.

    Attributes:
        variable: its op.
    """

    kind = "handle"
    variable: str

    @property
    def of(self) -> str:
        """As `State.of`."""
        return self.variable


SAME, BATCH, LOCAL = Same(), Batch(), Local()
ALONG_ROWS = (Values, Rows, TouchedRows)
BY_ROW = (*ALONG_ROWS, Indices, TouchedIndices)
"""States of what has an entry for each row: the row itself, or its number."""


def worst(states: Sequence[State]) -> State:
    """The plain state of a result whose inputs have these plain states."""
    if not states:
        return SAME
    if states.count(states[0]) == len(states):
        return states[0]
    state = max(states, key=lambda s: s.badness)
    if not isinstance(state, Fed):
        return state
    return Fed(tuple(sorted({name for s in states if isinstance(s, Fed) for name in s.placeholders})))
