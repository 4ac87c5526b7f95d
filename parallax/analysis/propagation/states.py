"""States: how a worker's tensor relates to that of one process that trains on the global batch.

Plain states, best first: `Same`, `FedScalars`, `Batch`, `Local`, `Opaque`; a result is as bad as its worst input.
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
    """The state of a tensor on a worker.

    Attributes:
        kind: its name in docs/architecture.md.
        badness: a result has the state of the input with the largest badness.
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
    """Equal on all workers, and to the value of one process."""

    kind = "same"
    badness = 0


@dataclass(frozen=True, slots=True)
class FedScalars(Plain):
    """Same if all workers feed the same scalars.

    Attributes:
        placeholders: the fed ones, sorted.
    """

    kind = "fed"
    badness = 1
    placeholders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch(Plain):
    """Computed from feeds, and so different between workers."""

    kind = "batch"
    badness = 2


@dataclass(frozen=True, slots=True)
class Local(Plain):
    """Different between workers for another reason: data, random numbers, per-worker variables."""

    kind = "local"
    badness = 3


@dataclass(frozen=True, slots=True)
class Opaque(Plain):
    """Computed from a gradient by an op without a rule; must never reach shared state.

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
        """See `State.of`."""
        return self.part


@dataclass(frozen=True, slots=True)
class UncoalescedRows(State):
    """Uncoalesced IndexedSlices: one process has the rows of all workers concatenated, each worker its own.

    Attributes:
        tensors: the tensors that autodiff delivers, one for each concatenated gradient.
    """

    tensors: tuple[str, ...]

    @property
    def of(self) -> str:
        """See `State.of`."""
        return self.tensors[0]


@dataclass(frozen=True, slots=True)
class Values(UncoalescedRows):
    """Gradient rows of all lookups (`joined`)."""

    kind = "values"


@dataclass(frozen=True, slots=True)
class Indices(UncoalescedRows):
    """The row numbers of such gradient rows."""

    kind = "indices"


@dataclass(frozen=True, slots=True)
class AtOwners(State):
    """Stored by the owners of a table's rows.

    Attributes:
        table: the table op; for a PlaceMap the variable op, where its rows have no owners.
    """

    table: str

    @property
    def of(self) -> str:
        """See `State.of`."""
        return self.table


@dataclass(frozen=True, slots=True)
class Rows(AtOwners):
    """The local rows of a table, a slot, or a row-wise function of them."""

    kind = "rows"


@dataclass(frozen=True, slots=True)
class CoalescedRows(AtOwners):
    """Gradient rows that are coalesced at their owners.

    Attributes:
        merge: where they are coalesced, a key of Walk.merges.
    """

    merge: str


@dataclass(frozen=True, slots=True)
class TouchedRows(CoalescedRows):
    """Coalesced gradient rows at their owner."""

    kind = "touched"


@dataclass(frozen=True, slots=True)
class TouchedIndices(CoalescedRows):
    """The local row numbers of coalesced gradient rows."""

    kind = "touched_indices"


@dataclass(frozen=True, slots=True)
class PlaceMap(CoalescedRows):
    """The position of each gradient row among the coalesced ones."""

    kind = "map"


@dataclass(frozen=True, slots=True)
class Extent(State):
    """A shape or count of a tensor along rows.

    Attributes:
        along: the state of that tensor.
    """

    kind = "extent"
    along: State

    @property
    def of(self) -> str:
        """See `State.of`."""
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
        """See `State.of`."""
        return self.variable


SAME, BATCH, LOCAL = Same(), Batch(), Local()
ALONG_ROWS = (Values, Rows, TouchedRows)
BY_ROW = (*ALONG_ROWS, Indices, TouchedIndices)
"""States of tensors with an entry for each row: the row itself, or its number."""


def find_worst_state(states: Sequence[State]) -> State:
    """The plain state of a result whose inputs have these plain states."""
    if not states:
        return SAME
    if states.count(states[0]) == len(states):
        return states[0]
    state = max(states, key=lambda s: s.badness)
    if not isinstance(state, FedScalars):
        return state
    return FedScalars(tuple(sorted({name for s in states if isinstance(s, FedScalars) for name in s.placeholders})))
