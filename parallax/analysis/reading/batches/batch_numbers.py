"""Finds the integers in a graph for a fixed batch that may be, or must be, multiples of the batch length."""

from __future__ import annotations

from collections.abc import Sequence, Set
from copy import copy
from typing import NamedTuple

import numpy as np

from parallax.analysis.reading.batches.find_open_batches import SOURCES
from parallax.analysis.reading.batches.open_lengths import IsBatch, OpenLengths, Shape
from parallax.base.types import Array
from parallax.graph.view import GraphView

_TOO_LONG = 2**31
_SHORT = (0.0, 1.0, *np.log10((2, 5)))
"""Logarithms of the digits of numbers that have one digit, 1, 2 or 5."""
_FEW = 2
"""Digits of a number by which a script multiplies the batch length, or divides it."""
_RARE = 6
"""The least divisor that is hardly a number of losses, as of their average."""
_LONG = 16
"""The least batch length to which few unrelated numbers of a script are equal."""
_READS = ("ReadVariableOp", "VariableV2", "Variable")


class LengthForm(NamedTuple):
    """A number that a script computes from the batch length L.

    Attributes:
        what: "length" for L, "pairs" for L * (L - 1), "square" for L * L, "rest" for L - 1, "logarithm" for log(L).
        factor: by which that is multiplied.
        degree: the power of L with which the number grows.
    """

    what: str
    factor: float = 1.0
    degree: float = 1.0


class IntegerClassifier:
    """Classifies the integers of one graph.

    Args:
        view: the graph for the fixed batch.
        forward: the nodes outside autodiff and outside initial values.
        length: of the batch.
        is_batch: (tensor, axis) -> whether the axis is the batch's; None where that is unknown. A tensor of a function
            has the prefix of its name.

    Attributes:
        lengths: the former lengths of axes that are open.
    """

    def __init__(self, view: GraphView, forward: Set[str], length: int, is_batch: IsBatch) -> None:
        self._length, self.is_batch = length, is_batch
        widths = [
            (view.shape(tensor) or ())[view.op(node) not in _READS :]
            for node in forward
            if view.op(node) in (*_READS, *SOURCES)
            for tensor in view.outputs(node)
        ]
        self._widths = {n for dims in widths for n in dims if n is not None}
        pairs = length * (length - 1)
        roots = length**0.5, (2 * length) ** 0.5
        self._divisors = (
            length - 1,
            2 * (length - 1),
            length + 1,
            length / 2,
            *roots,
            pairs,
            pairs / 2,
            (length - 1) ** 2,
        )
        self.lengths = OpenLengths()

    def of_body(self, function: str) -> IntegerClassifier:
        """The classification for a function's body, which has the variables and batches of its graph."""
        body_classifier = copy(self)
        body_classifier.lengths = OpenLengths()
        body_classifier.is_batch = lambda tensor, axis: self.is_batch(f"{function}/{tensor}", axis)
        return body_classifier

    def find_factor_of_axis(self, tensor: str, axis: int, n: int) -> int:
        """The ratio of an axis's length to the batch length, where the axis must be the batch's; else 0."""
        return n // self._length if self._is_axis_of_batch(tensor, axis, n) else 0

    def find_form_of_divisor(self, n: int, degree: float) -> LengthForm | None:
        """What a divisor of a sum over the batch is: a number of entries along some axes, of pairs, or one less.

        A script halves a mean of squares.

        Args:
            n: the divisor.
            degree: the power of the batch length with which the sum grows.
        """
        length = self._length
        pairs = {length * length: ("square", 1.0), length * (length - 1): ("pairs", 1.0)}
        pairs |= {length * (length - 1) // 2: ("pairs", 0.5)} if length > 3 else {}
        if degree >= 2 and length > 2 and n in pairs:
            return LengthForm(*pairs[n], degree=2.0)
        is_size = n in self.lengths.sizes and n % length == 0 and n % length**2 and not self._is_other(n)
        if is_size or self.is_length_or_twice(n):
            return LengthForm("length", n // length)
        is_rest = n == length - 1 >= _RARE and not self._is_other(n) and not is_weight(n)
        return LengthForm("rest") if is_rest else None

    def find_form_of_shift(self, number: float) -> LengthForm | None:
        """What a number is that is added to one of the batch: the logarithm of the length, or its negative."""
        is_own = self._length > 2 and not self._is_other(self._length) and self.is_logarithm(number)
        return LengthForm("logarithm", np.sign(number), 0.0) if is_own else None

    def is_length_or_twice(self, number: float) -> bool:
        """Whether a number is the batch length, or twice that."""
        return number in (self._length, 2 * self._length)

    def is_length(self, number: float) -> bool:
        """Whether a number is the batch length, and neither a width nor as short as a weight."""
        return number == self._length and not self._is_other(self._length) and not is_weight(number)

    def is_long_divisor(self, number: float, is_factor: bool = False) -> bool:
        """Whether a divisor, or a factor's reciprocal, is the batch length, and so large that this is hardly by chance.

        Factors such as 0.02 are weights whatever the length is.
        """
        is_own = number == self._length >= _LONG and not self._is_other(self._length)
        return is_own and not (is_factor and is_weight(number))

    def may_be_length(self, n: int) -> bool:
        """Whether a length may be a multiple of the batch's: not if only axes outside the batch have it."""
        return n > 0 and n % self._length == 0 and (n in self.lengths.of_batch or not self._is_other(n))

    def find_axes_of(self, tensor: str, lengths: Sequence[int | None]) -> list[int] | None:
        """The axes of a tensor, or of those in a list, that are the batch's; None where that is undecided."""
        found = [self._is_axis_of_batch(tensor, axis, n or 0) for axis, n in enumerate(lengths)]
        return None if None in found else [axis for axis, is_batch in enumerate(found) if is_batch]

    def _is_axis_of_batch(self, tensor: str, axis: int, n: int) -> bool | None:
        if n <= 0 or n % self._length:
            return False
        is_batch = self.is_batch(tensor, axis)
        return is_batch if is_batch is not None or self.may_be_length(n) else False

    def open_shape(self, tensor: str, shape: Shape) -> Shape | None:
        """The shape of a tensor with the batch's axes open; None where these are undecided."""
        axes = self.find_axes_of(tensor, shape)
        return None if axes is None else tuple(None if axis in axes else n for axis, n in enumerate(shape))

    def may_be_of_batch(self, tensor: str, value: Array | None) -> bool:
        """Whether a constant may have an axis that is a multiple of the batch, or be or list such a length.

        The entries of a matrix are ids or places.
        """
        is_list = value is not None and value.ndim < 2 and self.lists_length(value)
        return value is not None and (self.may_have_batch(tensor, value.shape) or is_list)

    def may_have_batch(self, tensor: str, lengths: Sequence[int]) -> bool:
        """Whether an axis of a tensor may be the batch's."""
        return any(self.may_be_length(n) and self.is_batch(tensor, axis) is not False for axis, n in enumerate(lengths))

    def lists_length(self, value: Array | None, shaped: str = "") -> bool:
        """Whether integers, the shape of a tensor if one is named, may be or contain a multiple of the batch length."""
        if value is None or value.dtype.kind not in "iu":
            return False  # for others see is_size
        if value.ndim == 1:
            return self.may_have_batch(shaped, value.tolist())
        return any(self.may_be_length(int(n)) for n in value.flat) or bool(value.ndim == 0 and value == self._length)

    def is_size(self, value: float) -> bool:
        """Whether an integer may be the number of entries of a batch tensor along some of its axes."""
        size = round(value) if np.isclose(value, np.round(value)) and 0 < value < _TOO_LONG else 0
        return size == self._length or (size > 1 and size in self.lengths.sizes)

    def is_multiple(self, value: float) -> bool:
        """Whether a number, or its reciprocal, is a multiple of the batch length: a sum may be divided by it."""
        integers = [round(one) for one in (value, 1 / value) if np.isclose(one, np.round(one))] if value > 0 else []
        return any(0 < n < _TOO_LONG and n % self._length == 0 for n in integers)

    def is_place(self, n: int) -> bool:
        """Whether a position in the batch may be computed from its length, also where it equals a width.

        Positions behind the batch are those of rows that a script appends to it, as of a queue of a fixed length.
        """
        return n >= max(2.0, self._length / 4) and not (n > self._length and self._is_other(n))

    def is_part(self, n: int) -> bool:
        """Whether a number of examples may be the batch length, or a part of it."""
        return (
            self.is_place(n) and n <= self._length and (2 * n in (self._length, 2 * self._length) or not is_weight(n))
        )

    def is_last(self, n: int) -> bool:
        """Whether an integer may be the position of one of the last two examples."""
        return n > 1 and n in (self._length - 1, self._length - 2) and not self._is_other(n)

    def is_divisor(self, number: float) -> bool:
        """Whether a divisor of a sum over the batch may be computed from the batch length, also of a sum in bits."""
        if np.isclose(number, self._divisors).any() or self.is_multiple(number / np.log(2)):
            return True
        is_multiple = number >= 1 and self.is_multiple(number)
        return not is_weight(number) and (is_multiple or is_longer(number, number / self._length))

    def is_factor(self, number: float) -> bool:
        """Whether a factor of a sum over the batch may be, or its reciprocal."""
        if is_weight(number):
            return False
        return self.is_divisor(number) or self.is_divisor(1 / number) or self.is_share(number)

    def is_share(self, number: float) -> bool:
        """Whether a factor may be a short number that was divided by the batch length."""
        return not is_weight(number) and is_longer(number, number * self._length)

    def is_correction(self, factor: float) -> bool:
        """Whether a factor of a mean over the batch may be computed from the length L; 2 and 0.95 are weights.

        L / (L - 1) corrects its bias, L / (L + 1) or (L - 1) / L makes room for one example, and 2 * L makes a sum.
        """
        if factor == 2 * self._length and not is_weight(factor):
            return True
        is_unbiased = self._length > 2 and bool(np.isclose(factor, self._length / (self._length - 1)))
        is_short = bool(np.isclose(factor, np.round(factor, 2)))
        rest = (self._length / (self._length + 1), (self._length - 1) / self._length)
        return is_unbiased or (not is_short and bool(np.isclose(factor, rest).any()))

    def is_reciprocal(self, number: float) -> bool:
        """Whether a number may be one over the batch length."""
        return not is_weight(number) and bool(np.isclose(number * self._length, 1.0, rtol=1e-6))

    def is_logarithm(self, number: float) -> bool:
        """Whether a number may be the logarithm of the batch length."""
        return bool(np.isclose(abs(number), np.log(self._length), rtol=1e-6))

    def _is_other(self, n: int) -> bool:
        return n in self._widths or n in self.lengths.others


def is_weight(number: float) -> bool:
    """Whether a number is as short as 0.1, 0.5 or 200: a script writes such weights."""
    return number <= 0 or bool(np.isclose(np.log10(number) % 1, _SHORT).any())


def is_longer(number: float, short: float) -> bool:
    """Whether a number has more digits than another one that has few of them."""
    digits, least = (len(f"{one:.5e}".partition("e")[0].replace(".", "").rstrip("0")) for one in (number, short))
    return digits > least <= _FEW
