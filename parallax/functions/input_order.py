"""Datasets that give all workers the same batches, whatever runs in parallel within them.

Random ops of a parallel `map` or `interleave` draw in the order in which its calls happen to run, which is another one
in each process and in each run. TensorFlow has a rewrite of datasets that takes what draws or has effects in order, and
leaves all else parallel.
"""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.data.ops.dataset_ops import DatasetV2, UnaryUnchangedStructureDataset

from parallax.types import Dataset, Nest

_REWRITE = "make_deterministic"


class _InOrder(UnaryUnchangedStructureDataset):  # type: ignore[misc]
    """A dataset whose random ops draw in the order of its elements."""

    def __init__(self, dataset: Dataset) -> None:
        rewritten = tf.raw_ops.OptimizeDatasetV2(
            input_dataset=dataset._variant_tensor,
            optimizations_enabled=[_REWRITE],
            optimizations_disabled=[],
            optimizations_default=[],
            **dataset._flat_structure,
        )
        super().__init__(dataset, rewritten)


def iterate_in_order() -> None:
    """From here on, datasets that are iterated eagerly take what draws in order; a second call changes nothing."""
    own = DatasetV2.__iter__
    if getattr(own, "_parallax", False):
        return

    def iterate(self: Dataset) -> Iterator[Nest]:
        batches: Iterator[Nest] = own(_InOrder(self) if tf.executing_eagerly() else self)
        return batches

    iterate._parallax = True  # type: ignore[attr-defined]
    DatasetV2.__iter__ = iterate
