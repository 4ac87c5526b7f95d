"""Arrays addressed by row number: a worker reads only the rows that it needs, and no process builds whole batches."""

from __future__ import annotations

import numpy as np

from parallax.base.types import Array
from parallax.functions.batches.shared_arrays import SharedArrays


class NumberedRows:
    """Rows of an array, which are taken when they are asked for.

    Attributes:
        source: of which arrays they are.
        array: the one of them, [n, ...].
        numbers: theirs in it.
        shape: theirs.
    """

    def __init__(self, source: SharedArrays, array: Array, numbers: Array, first: int | None) -> None:
        """Remembers which rows they are.

        Args:
            source: of which arrays they are.
            array: the one of them, [n, ...].
            numbers: of the rows, [m], whole numbers.
            first: the first of them where they follow one another, else None.
        """
        self.source, self.array, self.numbers, self._first = source, array, numbers, first
        self.shape: tuple[int, ...] = (len(numbers), *array.shape[1:])

    def __getitem__(self, part: slice) -> Array:
        """Some of the rows: a view of the array where they follow one another, else a copy."""
        if self._first is None:
            return self.array[self.numbers[part]]
        begin, end, _ = part.indices(len(self.numbers))
        return self.array[self._first + begin : self._first + end]


class NumberedArrays:
    """The arrays of one input; a batch is the numbers of its rows.

    Args:
        shared: equally long, and changed by nobody.
    """

    def __init__(self, shared: SharedArrays) -> None:
        self._shared = shared

    def batch(self, numbers: Array) -> list[NumberedRows]:
        """The rows of each array, by their numbers, [m]."""
        first = int(numbers[0]) if len(numbers) else 0
        follows = bool((numbers == np.arange(first, first + len(numbers))).all())
        known = first if follows else None
        return [NumberedRows(self._shared, array, numbers, known) for array in self._shared.arrays]
