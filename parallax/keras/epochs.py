"""Keras 3 epochs: over row numbers without a dataset, and from the middle of an epoch.

The order of an epoch over row numbers is drawn as Keras draws it, and split into batches here: a dataset that returns a
few hundred numbers a batch costs more than reading the rows by them.

A `fit` that resumes from a checkpoint skips the epochs and batches that it was trained on. Keras creates their
iterators again, so that shuffles repeat their draws; a generator or another source that continues across epochs repeats
its batches.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from parallax.base.types import Argument, Array, Dataset, Nest
from parallax.keras.inputs import row_numbers
from parallax.keras.progress import FitProgress


class PeekedDataset:
    """A dataset whose first batch was read for inspection; its first iterator returns that batch too.

    Attributes:
        dataset: a tf.data.Dataset.
        first: its first batch; None if it is empty.
        is_iterated: whether its first iterator is in use.
    """

    def __init__(self, dataset: Dataset, batches: Dataset) -> None:
        """Reads the first batch.

        Args:
            dataset: the argument of Keras.
            batches: the dataset that Keras makes of it, for example with class weights.
        """
        self.dataset, self.is_iterated = dataset, False
        self._rest = iter(batches)
        self.first: Nest = next(self._rest, None)

    def iterate_once(self) -> Iterator[Nest]:
        """Its first iterator, which can be used once."""
        self.is_iterated = True
        return itertools.chain([] if self.first is None else [self.first], self._rest)


PeekedDatasets = Sequence[PeekedDataset]


class NumberedEpochs(TFEpochIterator):  # type: ignore[misc]
    """Replaces the iterator over Keras's epochs.

    It differs only where batches are row numbers, and in the first epochs of a `fit` that resumes.
    """

    def __init__(
        self,
        *args: Argument,
        x: Nest = None,
        shuffle: bool | str = False,
        progress: FitProgress | None = None,
        begun: PeekedDatasets = (),
        **kwargs: Argument,
    ) -> None:
        super().__init__(*args, x=x, shuffle=shuffle, **kwargs)
        self._begun = next((one for one in begun if one.dataset is x and not one.is_iterated), None)
        self._progress = progress if progress is not None and progress.follow(self) else None
        self._numbers = None if shuffle == "batch" else row_numbers(x)
        self._shuffled = None
        if self._numbers is not None and shuffle:  # all of them form one batch
            whole = ArrayDataAdapter(self._numbers, batch_size=len(self._numbers), shuffle=True)
            self._shuffled = whole.get_tf_dataset()
        self._named = x

    @property
    def known_batches(self) -> int | None:
        """The number of batches in an epoch; None where it is unknown in advance."""
        batches: int | None = self.steps_per_epoch or self.data_adapter.num_batches
        return batches

    def _get_iterator(self) -> Iterator[Nest]:
        if self._begun is not None and not self._begun.is_iterated:
            return self._begun.iterate_once()
        return super()._get_iterator() if self._numbers is None else self._batches()

    def _batches(self) -> Iterator[dict[str, Array]]:
        numbers: Any = self._numbers if self._shuffled is None else np.asarray(next(iter(self._shuffled)))
        (name,) = self._named
        for first in range(0, len(numbers), self.data_adapter.batch_size):
            yield {name: numbers[first : first + self.data_adapter.batch_size]}

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Iterator[Nest]]]:
        epochs, batches = (0, 0) if self._progress is None else self._progress.pop_skipped()
        for _ in range(epochs):
            self._pass_over_epoch()
        for first, last, iterator in super()._enumerate_iterator():
            passed = min(max(batches - first, 0), self.steps_per_execution)
            _drop(iterator, passed)
            if passed == 0:
                yield first, last, iterator
            elif passed < self.steps_per_execution:
                yield first, last, itertools.islice(iterator, self.steps_per_execution - passed)

    def _pass_over_epoch(self) -> None:
        """Iterates over an epoch, and reads as much of it as the batches of the next one depend on."""
        is_fresh = self.steps_per_epoch is None and isinstance(self.data_adapter, ArrayDataAdapter | TFDatasetAdapter)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns where an epoch of unknown length ends
            with self.catch_stop_iteration():
                for first, _, iterator in super()._enumerate_iterator():
                    if first == 0 or not is_fresh or self.known_batches is None:
                        _drop(iterator, self.steps_per_execution)


def _drop(batches: Iterator[Nest], number: int) -> None:
    for _ in range(number):
        next(batches)
