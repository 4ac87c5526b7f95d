"""Keras 3's epochs over row numbers: an epoch's order is drawn as Keras draws it, and cut into batches here.

A dataset that gives a few hundred numbers a batch costs more than taking the rows by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from parallax.keras.inputs import row_numbers
from parallax.types import Argument, Array, Nest


class NumberedEpochs(TFEpochIterator):  # type: ignore[misc]
    """In the place of what Keras goes over its batches by; only where these are row numbers it does something else."""

    def __init__(self, *args: Argument, x: Nest = None, shuffle: bool | str = False, **kwargs: Argument) -> None:
        super().__init__(*args, x=x, shuffle=shuffle, **kwargs)
        self._numbers = None if shuffle == "batch" else row_numbers(x)
        self._shuffled = None
        if self._numbers is not None and shuffle:  # all of them are one batch
            whole = ArrayDataAdapter(self._numbers, batch_size=len(self._numbers), shuffle=True)
            self._shuffled = whole.get_tf_dataset()
        self._named = x

    def _get_iterator(self) -> Iterator[Nest]:
        return super()._get_iterator() if self._numbers is None else self._batches()

    def _batches(self) -> Iterator[dict[str, Array]]:
        numbers: Any = self._numbers if self._shuffled is None else np.asarray(next(iter(self._shuffled)))
        (name,) = self._named
        for first in range(0, len(numbers), self.data_adapter.batch_size):
            yield {name: numbers[first : first + self.data_adapter.batch_size]}
