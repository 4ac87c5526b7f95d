"""Maps each row of a table to its owner and its local row; every module uses this one map.

Rows are dealt out in rounds of P. Slot `r % P` of the pattern names the owner of row r, so that a vocabulary sorted by
frequency is balanced whatever the shares. In a round an owner has as many rows as it has slots, its *share*:

    local row of r = (r // P) * share + place,    place = slots before `r % P` that belong to the same owner

The local rows of an owner are 0, 1, 2, ... without a gap, in the order of the rows of the table. Where every owner has
one slot, in order, row r is owned by `r % P` as local row `r // P`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ownership:
    """The map from rows to owners: the workers of a table, or its partitions on servers.

    Attributes:
        pattern: the owner of each slot.
        holders: the number of owners; one without a slot owns no rows.
    """

    pattern: tuple[int, ...]
    holders: int

    def __post_init__(self) -> None:
        if not self.pattern or not all(0 <= holder < self.holders for holder in self.pattern):
            raise ValueError(f"A pattern must name holders from 0 to {self.holders - 1}, not {self.pattern}.")

    @classmethod
    def even(cls, holders: int) -> Ownership:
        """Equal shares: one slot for each."""
        return cls(tuple(range(holders)), holders)

    @property
    def slots(self) -> int:
        """P, the rows of a round."""
        return len(self.pattern)

    @property
    def shares(self) -> tuple[int, ...]:
        """The number of slots of each owner."""
        return tuple(self.pattern.count(holder) for holder in range(self.holders))

    @property
    def places(self) -> tuple[int, ...]:
        """For each slot, the number of preceding slots of the same owner."""
        return tuple(self.pattern[:slot].count(holder) for slot, holder in enumerate(self.pattern))

    def slots_of(self, holder: int) -> tuple[int, ...]:
        """The slots of an owner, ascending."""
        return tuple(slot for slot, other in enumerate(self.pattern) if other == holder)

    def holder(self, row: int) -> int:
        """The owner of a row."""
        return self.pattern[row % self.slots]

    def local_row(self, row: int) -> int:
        """The local row of a row at its owner."""
        turn, slot = divmod(row, self.slots)
        return turn * self.shares[self.pattern[slot]] + self.places[slot]

    def row(self, holder: int, local: int) -> int:
        """The row that an owner stores as local row `local`."""
        slots = self.slots_of(holder)
        turn, place = divmod(local, len(slots))
        return turn * self.slots + slots[place]

    def count(self, holder: int, rows: int) -> int:
        """An owner's number of rows among 0, ..., rows - 1; also its first local row from row `rows` on."""
        turns, rest = divmod(rows, self.slots)
        return turns * self.pattern.count(holder) + self.pattern[:rest].count(holder)

    def counts(self, rows: int) -> tuple[int, ...]:
        """Each owner's number of rows among 0, ..., rows - 1."""
        return tuple(self.count(holder, rows) for holder in range(self.holders))

    def local_range(self, holder: int, first: int, count: int) -> tuple[int, int]:
        """The local rows of an owner among rows first, ..., first + count - 1: from, up to."""
        return self.count(holder, first), self.count(holder, first + count)

    def pieces(self, holder: int, first: int) -> Iterator[tuple[slice, slice]]:
        """The positions of an owner's rows in a range of rows that begins at `first`.

        Yields:
            For each of the owner's slots, that slot's rows in the range, and the same rows among the owner's rows of
            the range.
        """
        slots, low = self.slots_of(holder), self.count(holder, first)
        for place, slot in enumerate(slots):
            here = slice((slot - first) % self.slots, None, self.slots)
            yield here, slice((place - low) % len(slots), None, len(slots))
