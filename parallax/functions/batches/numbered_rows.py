"""Arrays addressed by row number: a worker reads only the rows that it needs, and no process builds whole batches."""

from __future__ import annotations

import numpy as np

from parallax.base.types import Array
from parallax.functions.batches.shared_arrays import SharedArrays


class NumberedRows:
    """Rows of an array, read on demand.

    Attributes:
        source: the arrays that contain it.
        array: the array, [n, ...].
        numbers: row numbers in the array.
        shape: of the rows.
    """

    def __init__(self, source: SharedArrays, array: Array, numbers: Array, first: int | None) -> None:
        """Stores which rows they are.

        Args:
            source: the arrays that contain it.
            array: the array, [n, ...].
            numbers: of the rows, [m], integers.
            first: the first row number if the rows are consecutive, else None.
        """
        self.source, self.array, self.numbers, self._first = source, array, numbers, first
        self.shape: tuple[int, ...] = (len(numbers), *array.shape[1:])

    def __getitem__(self, part: slice) -> Array:
        """Some of the rows: a view of the array if they are consecutive, else a copy."""
        if self._first is None:
            return self.array[self.numbers[part]]
        begin, end, _ = part.indices(len(self.numbers))
        return self.array[self._first + begin : self._first + end]


class NumberedArrays:
    """The arrays of one input; a batch is a list of row numbers.

    Args:
        shared: arrays of equal length that are never modified.
    """

    def __init__(self, shared: SharedArrays) -> None:
        self._shared = shared

    def batch(self, numbers: Array) -> list[NumberedRows]:
        """The rows of each array, by their numbers, [m]."""
        first = int(numbers[0]) if len(numbers) else 0
        follows = bool((numbers == np.arange(first, first + len(numbers))).all())
        known = first if follows else None
        return [NumberedRows(self._shared, array, numbers, known) for array in self._shared.arrays]
