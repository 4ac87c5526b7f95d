"""Analyses tf.data pipelines: splits off their row functions, and finds the lengths of the parts of batches.

After a split, the script's process still reads the elements, and workers compute rows from them.

A stateless function that `map` calls for each element returns the same row wherever and whenever it is called. So it
may be called after the ops that only select and order elements, and by the worker that needs the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import (
    batch_op,
    dataset_ops,
    map_op,
    prefetch_op,
    repeat_op,
    shard_op,
    shuffle_op,
    skip_op,
    take_op,
    zip_op,
)

from parallax.base.types import Argument, ConcreteFunction, Dataset, Nest, TensorLike
from parallax.functions.batches.row_pipeline import RowPipeline, can_move
from parallax.functions.batches.split_batch import find_replicated_parts
from parallax.keras.inputs import parts_of

ELEMENTS = "parallax_elements_of_"
"""Prefix of the name of a step whose batches are elements from which rows are computed."""
_PASSED = (prefetch_op._PrefetchDataset, dataset_ops._OptionsDataset)
_BATCHES = (batch_op._BatchDataset, batch_op._ParallelBatchDataset)
_CHOOSERS = (repeat_op._RepeatDataset, take_op._TakeDataset, skip_op._SkipDataset, shard_op._ShardDataset)
_MAPS = (map_op._MapDataset, map_op._ParallelMapDataset)


class SplitDataset(NamedTuple):
    """A split dataset.

    Attributes:
        elements: batches of the source elements of rows, in a dict under the step's name.
        pipeline: the functions of each row.
    """

    elements: Dataset
    pipeline: RowPipeline


def split_dataset(dataset: Dataset, which: str) -> SplitDataset | None:
    """Splits a dataset of batches; None where no function can be moved, so that nothing would be gained.

    Args:
        dataset: a tf.data.Dataset, which is not modified.
        which: "train" or "test".
    """
    batches: Any = dataset
    while isinstance(batches, _PASSED):
        batches = batches._input_dataset
    if not isinstance(batches, _BATCHES):
        return None
    elements, functions = _move_functions(batches._input_dataset)
    if not functions or not _is_plain(elements.element_spec, is_whole=True) or not _is_plain(dataset.element_spec):
        return None
    rows = [tf.TensorSpec(one.shape[1:], one.dtype) for one in tf.nest.flatten(dataset.element_spec)]
    pipeline = RowPipeline.of(functions, tf.nest.flatten(elements.element_spec), rows)
    elements = elements.batch(batches._batch_size, drop_remainder=bool(batches._drop_remainder))
    named = tf.data.Dataset.zip({ELEMENTS + which: elements}).prefetch(tf.data.AUTOTUNE)
    return SplitDataset(named.with_options(dataset.options()), pipeline)


def elements_of(batch: Nest, which: str) -> list[TensorLike] | None:
    """The source elements of a batch's rows, flat; None for a batch of rows."""
    if isinstance(batch, dict) and batch.keys() == {ELEMENTS + which}:
        elements: list[TensorLike] = tf.nest.flatten(batch)
        return elements
    return None


def _move_functions(dataset: Any) -> tuple[Any, list[ConcreteFunction]]:
    """A dataset of elements without the functions that can be moved, and these functions, in order."""
    passed: list[Any] = []  # datasets that select and order, the last first
    chosen: list[Any] = []
    functions: list[ConcreteFunction] = []
    elements = dataset
    while True:
        if isinstance(dataset, _MAPS) and can_move(dataset._map_func.function):
            functions.insert(0, dataset._map_func.function)
            elements, chosen = dataset._input_dataset, list(passed)
        elif _has_no_state(dataset):
            passed.append(dataset)
        elif not isinstance(dataset, _PASSED):
            break
        dataset = dataset._input_dataset
    for one in reversed(chosen):
        elements = _choose_again(elements, one)
    return elements, functions


def _has_no_state(dataset: Any) -> bool:
    """Whether a dataset only selects or orders elements, in an order that is fixed or left to each instance."""
    if isinstance(dataset, shuffle_op._ShuffleDataset):  # with seeds the order depends on earlier iterations
        return not int(dataset._seed) and not int(dataset._seed2)
    return isinstance(dataset, _CHOOSERS)


def _choose_again(elements: Any, chooser: Any) -> Any:
    """Applies a dataset's selection to the elements before the moved functions."""
    if isinstance(chooser, repeat_op._RepeatDataset):
        return elements.repeat(chooser._count)
    if isinstance(chooser, take_op._TakeDataset):
        return elements.take(chooser._count)
    if isinstance(chooser, skip_op._SkipDataset):
        return elements.skip(chooser._count)
    if isinstance(chooser, shard_op._ShardDataset):
        return elements.shard(chooser._num_shards, chooser._index)
    again = chooser._reshuffle_each_iteration
    return elements.shuffle(chooser._buffer_size, reshuffle_each_iteration=again)


def _is_plain(spec: Nest, is_whole: bool = False) -> bool:
    """Whether elements are tensors; with `is_whole`, tensors that can be batched whatever their values are."""
    parts = tf.nest.flatten(spec)
    plain = all(isinstance(one, tf.TensorSpec) and one.shape.rank is not None for one in parts)
    return plain and not (is_whole and any(not one.shape.is_fully_defined() for one in parts))


@contextmanager
def record_batches(data: Argument, kinds: type[Any] | tuple[type[Any], ...]) -> Iterator[list[Nest]]:
    """A context that records the batches that Keras reads by their index, as it does to know their types.

    Args:
        data: an argument of `fit`; only objects of `kinds` are recorded.
        kinds: classes of sources with an index.
    """
    batches: list[Nest] = []
    if not isinstance(data, kinds):
        yield batches
        return
    original = type(data).__getitem__

    def get_item(source: Argument, index: int) -> Nest:
        batch = original(source, index)
        if source is data:
            batches.append(batch)
        return batch

    with mock.patch.object(type(data), "__getitem__", get_item):
        yield batches


def find_unsplit_parts(dataset: Dataset, peeked: Sequence[Nest]) -> frozenset[int] | None:
    """The flat indices of the parts of a batch whose length differs from the batch's.

    Args:
        dataset: the dataset that `fit` makes of its arguments.
        peeked: its first batches, if they were read; else empty.

    Returns:
        The indices; None where they are unknown before a batch is read.
    """
    if peeked:
        return find_replicated_parts([one if hasattr(one, "shape") else np.asarray(one) for one in parts_of(peeked[0])])
    specs = [one for one in tf.nest.flatten(dataset.element_spec) if not isinstance(one, tf.OptionalSpec)]
    lengths = _lengths_of(dataset)
    if not all(isinstance(one, tf.TensorSpec) for one in specs) or len(specs) < 2:
        return frozenset()
    if len(lengths) != len(specs) or None in lengths:
        return None
    known = [tf.TensorSpec([length, *one.shape[1:]]) for length, one in zip(lengths, specs, strict=True)]
    return find_replicated_parts(known)


def _lengths_of(dataset: Any) -> list[int | None]:
    """The flat lengths of the parts of a dataset's batches; None where unknown."""
    while isinstance(dataset, (*_PASSED, *_CHOOSERS, shuffle_op._ShuffleDataset)):
        dataset = dataset._input_dataset
    if isinstance(dataset, zip_op._ZipDataset):
        return [length for one in tf.nest.flatten(dataset._datasets) for length in _lengths_of(one)]
    specs = tf.nest.flatten(dataset.element_spec)
    if hasattr(dataset, "_batch_size"):
        return [int(dataset._batch_size)] * len(specs)
    return [one.shape[0] if getattr(one, "shape", None) is not None and one.shape.rank else None for one in specs]
