"""Finds the integers in a graph for a fixed batch that may be, or must be, multiples of the batch length."""

from __future__ import annotations

from collections.abc import Set
from copy import copy

import numpy as np

from parallax.analysis.reading.batches.open_batches import SOURCES
from parallax.analysis.reading.batches.open_lengths import OpenLengths
from parallax.base.types import Array
from parallax.graph.view import GraphView

_TOO_LONG = 2**31
_READS = ("ReadVariableOp", "VariableV2", "Variable")


class BatchNumbers:
    """The numbers of one graph.

    Args:
        view: the graph for the fixed batch.
        forward: the nodes that are not autodiff's, and not of initial values.
        length: of the batch.

    Attributes:
        is_batch_alone: whether no variable, and no example, has an axis as long as the batch.
        lengths: which lengths axes have had that are open.
    """

    def __init__(self, view: GraphView, forward: Set[str], length: int) -> None:
        self._length = length
        widths = [
            (view.shape(tensor) or ())[view.op(node) not in _READS :]
            for node in forward
            if view.op(node) in (*_READS, *SOURCES)
            for tensor in view.outputs(node)
        ]
        self.is_batch_alone = not any(length in dims for dims in widths)
        self._widths = {n for dims in widths for n in dims if n is not None}
        self.lengths = OpenLengths()

    def of_body(self) -> BatchNumbers:
        """The numbers of a function's body, which has the variables and batches of its graph."""
        found = copy(self)
        found.lengths = OpenLengths()
        return found

    def find_factor(self, n: int) -> int:
        """How many times the batch's length a length is that can but be the batch's; else 0."""
        if n == self._length:
            return int(self.is_batch_alone)
        is_told = n in self.lengths.of_batch and not self._is_other(n)
        return n // self._length if n % self._length == 0 and is_told else 0

    def find_factor_of_number(self, n: int) -> int:
        """The same of a number that is no axis: there must be none of its length that is none of the batch."""
        return 0 if self._is_other(n) else self.find_factor(n)

    def may_be_length(self, n: int) -> bool:
        """Whether a length may be a multiple of the batch's: none that only axes have that are none of the batch."""
        return n > 0 and n % self._length == 0 and (n in self.lengths.of_batch or not self._is_other(n))

    def find_axis(self, lengths: Array) -> int | None:
        """The one entry of a shape that is the batch's, where all others are known not to be."""
        found = [axis for axis, n in enumerate(lengths) if self.find_factor(int(n))]
        others = [n for axis, n in enumerate(lengths) if axis not in found and self.may_be_length(int(n))]
        return found[0] if len(found) == 1 and not others else None

    def may_be_of_batch(self, value: Array | None) -> bool:
        """Whether a constant may have an axis as long as a multiple of the batch, or be or list such a length."""
        if value is None or value.dtype.kind not in "iuf":
            return False
        if any(map(self.may_be_length, value.shape)):
            return True
        return self.lists_length(value)

    def lists_length(self, value: Array | None) -> bool:
        """Whether whole numbers may be a multiple of the batch's length, or have one among them."""
        if value is None or value.dtype.kind not in "iu":
            return False  # of others see is_size
        return any(self.may_be_length(int(n)) for n in value.flat) or bool(value.ndim == 0 and value == self._length)

    def is_size(self, number: float) -> bool:
        """Whether a number may be how many entries a tensor of the batch has, along some of its axes."""
        found = round(number) if np.isclose(number, np.round(number)) and 0 < number < _TOO_LONG else 0
        return found == self._length or found in self.lengths.sizes

    def is_multiple(self, number: float) -> bool:
        """Whether a number, or one by it, is a multiple of the batch's length: a sum may be divided by it."""
        found = [round(one) for one in (number, 1 / number) if np.isclose(one, np.round(one))] if number > 0 else []
        return any(0 < n < _TOO_LONG and n % self._length == 0 for n in found)

    def _is_other(self, n: int) -> bool:
        return n in self._widths or n in self.lengths.others
