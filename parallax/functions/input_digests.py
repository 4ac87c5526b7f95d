"""Digests of the input of a call, by which workers see that they train on what the launching process has.

Workers run the script anew, so what the script computes before a call must come out as it did where the job was
launched. Compared are the arrays and tensors that the script gives, and those that its datasets are made of. Numbers
are compared by sums, with a tolerance: what a model has predicted may be rounded otherwise on another machine.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from parallax.errors import SessionError
from parallax.types import Array, Dataset, Nest

_OTHER_INPUT = (
    "Workers run the script anew, and what this worker gives to call {number} of the program differs from what the "
    "launching process gave: its input was computed otherwise. Seed what is drawn before the data is made "
    "(keras.utils.set_random_seed(1), np.random.default_rng(1)), sort what is listed from disk, and read no file that "
    "the script itself has changed."
)
_BLOCKS, _BLOCK_BYTES = 64, 1 << 18
"""Of an array with more bytes than this many blocks have, blocks are looked at, evenly spaced."""
_LEAST_TOLERANCE = 1e-4
"""Of a sum, relative to the sum of absolute values: far above float32's rounding, far below another draw."""


@dataclass(frozen=True, slots=True)
class InputDigest:
    """What is known of an input.

    Attributes:
        mark: equal for equal shapes, types and texts; most likely another for others.
        sums: of the numbers of each block, [n].
        tolerances: how far sums of equal inputs may lie apart, [n].
    """

    mark: int
    sums: tuple[float, ...]
    tolerances: tuple[float, ...]

    def is_like(self, other: InputDigest) -> bool:
        """Whether both are most likely of inputs that are equal but for rounding."""
        return (
            self.mark == other.mark
            and len(self.sums) == len(other.sums)
            and all(abs(a - b) <= t for a, b, t in zip(self.sums, other.sums, self.tolerances, strict=True))
        )


def digest_of_input(data: Nest) -> InputDigest:
    """The digest of an input.

    Args:
        data: any structure of what `fit` or a step takes; what is made while it is read (records of a file, what a
            generator gives) is not looked at.
    """
    mark = 0
    sums: list[float] = []
    tolerances: list[float] = []
    for array in _arrays(data):
        mark = zlib.crc32(f"{array.shape} {array.dtype}".encode(), mark)
        for block in _blocks(array):
            if block.dtype.kind not in "biuf":
                mark = zlib.crc32(repr(block.ravel().tolist()).encode(), mark)
                continue
            found, sizes = _sums(block)
            sums += found
            tolerances += [_tolerance(block) * size for size in sizes]
    return InputDigest(mark, tuple(sums), tuple(tolerances))


def check_input(number: int, data: Nest, launched: InputDigest) -> None:
    """Refuses to train a worker on other input than the launching process has.

    Args:
        number: of the call.
        data: as for `digest_of_input`.
        launched: that of the launching process.

    Raises:
        SessionError: the inputs differ.
    """
    if not digest_of_input(data).is_like(launched):
        raise SessionError(_OTHER_INPUT.format(number=number))


def _arrays(data: Nest) -> Iterator[Array]:
    for one in tf.nest.flatten(data):
        if isinstance(one, tf.data.Dataset):
            yield from _arrays(list(_sources(one)))
        elif isinstance(one, tf.RaggedTensor | tf.SparseTensor):
            yield from _arrays(tf.nest.flatten(one, expand_composites=True))
        elif isinstance(one, np.ndarray | np.generic | tf.Tensor):
            yield np.asarray(one)
        elif hasattr(one, "to_numpy"):  # a table of pandas
            yield np.asarray(one.to_numpy())


def _sources(dataset: Dataset) -> Iterator[Any]:
    """The tensors that a dataset is made of."""
    tensors, specs = list(getattr(dataset, "_tensors", ())), tf.nest.flatten(dataset.element_spec)
    for place, tensor in enumerate(tensors):
        if tensor.dtype != tf.variant:
            yield tensor
        elif len(specs) == len(tensors):  # ragged or sparse elements, each encoded, or all of them in one
            spec = specs[place]
            are_all = tensor.shape.rank > (1 if isinstance(spec, tf.SparseTensorSpec) else 0)
            yield (spec._batch(None) if are_all else spec)._from_compatible_tensor_list([tensor])
    for one in dataset._inputs():
        yield from _sources(one)


def _blocks(array: Array) -> Iterator[Array]:
    """An array in blocks of rows, of a large one evenly spaced ones."""
    if not array.ndim or not array.size:
        yield array
        return
    rows = len(array)
    most = max(1, min(-(-rows // _BLOCKS), _BLOCK_BYTES * rows // max(1, array.nbytes)))
    for first in dict.fromkeys(np.linspace(0, rows - most, min(_BLOCKS, rows)).astype(int).tolist()):
        yield array[first : first + most]


def _sums(block: Array) -> tuple[list[float], list[float]]:
    """The sum of a block's numbers and one that their order changes, and sums of absolute values for both."""
    numbers = np.nan_to_num(np.asarray(block, np.float64).ravel(), nan=0.25, posinf=1.0, neginf=-1.0)
    ramp = np.linspace(1, 2, numbers.size)
    return [float(numbers.sum()), float(numbers @ ramp)], [float(np.abs(numbers).sum())] * 2


def _tolerance(block: Array) -> float:
    """The tolerance for sums of numbers of a type, relative to the sum of absolute values."""
    return max(_LEAST_TOLERANCE, 4 * float(np.finfo(block.dtype).eps)) if block.dtype.kind == "f" else _LEAST_TOLERANCE
