"""Update rules of row-wise optimizers: formulas for new values and slots of rows from a gradient.

A rule sees some rows, `[n, ...]`: those that a sparse gradient touches, coalesced, or all rows of a dense one. It
consists of elementwise ops and of means within a row, so that the owner of the rows computes what one process would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import tensorflow as tf

from parallax.base.errors import ConfigError
from parallax.base.types import DType, Tensor

MOST_SIGHTINGS = float(1 << 24)
"""The largest count that float32 represents exactly."""


class RowSlot(NamedTuple):
    """A slot: its name, whether it has one scalar a row, and its constant initial value.

    Where `odds` is not 0 the initial value is a draw of `sightings_until`.
    """

    name: str
    by_row: bool
    initial: float = 0.0
    odds: float = 0.0

    def shape(self, of: Sequence[int]) -> list[int]:
        """The slot's shape for a variable's shape."""
        return list(of[:1]) if self.by_row else list(of)


class RowRule(Protocol):
    """An update rule for rows.

    Attributes:
        replaces: whether it returns new values, computed from the old ones; else the values to subtract from them.
    """

    replaces: ClassVar[bool]

    @property
    def slots(self) -> tuple[RowSlot, ...]:
        """The slots of the rule."""

    @property
    def decays(self) -> tuple[float, ...]:
        """The scalars that are raised to the power of the step, which starts at 1."""

    def update(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], rate: Tensor, powers: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """New values, or the values to subtract, and new slots.

        Args:
            gradient: `[n, ...]`.
            value: values of the same rows; None where `replaces` is False.
            slots: slots of the same rows, `[n, ...]` or `[n]`.
            rate: the learning rate, a scalar.
            powers: of `decays`, scalars.
        """


@dataclass(frozen=True, slots=True)
class RowWiseAdagradRule:
    """Adagrad with one accumulator a row: a += mean(g²), w -= rate · g / (sqrt(a) + epsilon).

    As `EXACT_ROWWISE_ADAGRAD` of FBGEMM and TorchRec (Khudia et al. 2021; Mudigere et al. 2022, section 4.1). The mean
    is over the elements of a row; where rows have one element, it is Adagrad (Duchi et al. 2011).
    """

    initial_accumulator: float
    epsilon: float
    decays: ClassVar[tuple[float, ...]] = ()
    replaces: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_not_negative("initial_accumulator_value", self.initial_accumulator)
        _check_not_negative("epsilon", self.epsilon)

    @property
    def slots(self) -> tuple[RowSlot, ...]:
        """See `RowRule`."""
        return (RowSlot("accumulator", True, self.initial_accumulator),)

    def update(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], rate: Tensor, powers: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """See `RowRule`."""
        squares = tf.square(gradient)
        within = list(range(1, gradient.shape.rank))
        accumulator = slots[0] + (tf.reduce_mean(squares, within) if within else squares)
        root = tf.sqrt(_broadcast_over_rows(accumulator, gradient)) + self.epsilon
        return rate * gradient / root, [accumulator]


@dataclass(frozen=True, slots=True)
class LazyAdamRule:
    """Adam (Kingma & Ba 2015, algorithm 1, in the order of its section 2) for the rows of a gradient alone.

    m = b1 · m + (1 - b1) · g, v = b2 · v + (1 - b2) · g², w -= rate · sqrt(1 - b2^t) / (1 - b1^t) · m / (sqrt(v) +
    epsilon). Rows without a gradient keep m, v and w, as in TensorFlow's LazyAdamOptimizer of contrib.opt; t counts all
    steps.
    """

    beta1: float
    beta2: float
    epsilon: float
    replaces: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 0 and below 1, got {getattr(self, name)!r}.")
        _check_not_negative("epsilon", self.epsilon)

    @property
    def slots(self) -> tuple[RowSlot, ...]:
        """See `RowRule`."""
        return RowSlot("m", False), RowSlot("v", False)

    @property
    def decays(self) -> tuple[float, ...]:
        """See `RowRule`."""
        return self.beta1, self.beta2

    def update(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], rate: Tensor, powers: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """See `RowRule`."""
        m = self.beta1 * slots[0] + (1.0 - self.beta1) * gradient
        v = self.beta2 * slots[1] + (1.0 - self.beta2) * tf.square(gradient)
        corrected = rate * tf.sqrt(1.0 - powers[1]) / (1.0 - powers[0])
        return corrected * m / (tf.sqrt(v) + self.epsilon), [m, v]


@dataclass(frozen=True, slots=True)
class AdmittedFtrlRule:
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1) for rows that occurred often enough (section 3.1 there).

    s = (sqrt(n + g²) - sqrt(n)) / rate, z += g - s · w, n += g²; w is 0 where |z| <= l1, else -(z - sign(z) · l1) /
    ((beta + sqrt(n)) / rate + l2). A row is trained from the step on in which it occurs in a gradient for the
    `after`-th time, once a step. Before, its value is unchanged and its only state is `waits`, the number of remaining
    occurrences. With a probability instead, each occurrence admits it with `odds` ("Poisson inclusion"): `waits` then
    begins with the number of occurrences needed, which is geometric and drawn for all rows before the first step.
    """

    beta: float
    l1: float
    l2: float
    after: int
    odds: float
    decays: ClassVar[tuple[float, ...]] = ()
    replaces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("beta", "l1", "l2"):
            _check_not_negative(name, getattr(self, name))
        if not (isinstance(self.after, int) and 1 <= self.after < MOST_SIGHTINGS):
            raise ConfigError(f"admit_after must be at least 1, got {self.after!r}.")
        if not 0 < self.odds <= 1:
            raise ConfigError(f"admit_probability must be above 0 and at most 1, got {self.odds!r}.")
        if self.after > 1 and self.odds < 1:
            raise ConfigError(
                f"admit_after={self.after} and admit_probability={self.odds} cannot be combined: rows are admitted "
                "either by count or by probability. Set one."
            )

    @property
    def slots(self) -> tuple[RowSlot, ...]:
        """See `RowRule`."""
        waits = RowSlot("waits", True, float(self.after), self.odds if self.odds < 1 else 0.0)
        return RowSlot("n", False), RowSlot("z", False), waits

    def update(
        self, gradient: Tensor, value: Tensor, slots: Sequence[Tensor], rate: Tensor, powers: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """See `RowRule`."""
        waits = slots[2] - 1.0
        admitted = _broadcast_over_rows(waits, gradient) <= 0.0
        admitted_gradient = tf.where(admitted, gradient, tf.zeros_like(gradient))
        n = slots[0] + tf.square(admitted_gradient)
        z = slots[1] + admitted_gradient - (tf.sqrt(n) - tf.sqrt(slots[0])) / rate * value
        shrunk = tf.sign(z) * tf.maximum(tf.abs(z) - self.l1, 0.0)
        trained = -shrunk / ((self.beta + tf.sqrt(n)) / rate + self.l2)
        return tf.where(admitted, trained, value), [n, z, waits]


def sightings_until(odds: float, uniform: Tensor) -> Tensor:
    """The number of occurrences until one admits, each with `odds`: geometric, from 1, by inversion.

    Args:
        odds: above 0 and below 1.
        uniform: values from 0 to below 1, `[rows]`.
    """
    return tf.maximum(1.0, tf.math.ceil(tf.math.log1p(-uniform) / math.log1p(-odds)))


def initial_slot(slot: RowSlot, shape: Sequence[int], dtype: DType) -> Tensor:
    """The initial value of a slot of a shape; random values depend on the graph's seed, or TensorFlow's."""
    if slot.odds:
        return tf.cast(sightings_until(slot.odds, tf.random.uniform(shape)), dtype)
    return tf.fill(shape, tf.constant(slot.initial, dtype))


def _check_not_negative(name: str, value: float) -> None:
    """Raises ConfigError for a negative number."""
    if not value >= 0:
        raise ConfigError(f"{name} must be at least 0, got {value!r}.")


def _broadcast_over_rows(by_row: Tensor, gradient: Tensor) -> Tensor:
    """Reshapes scalars of rows `[n]` to `[n, 1, ...]`, to broadcast over rows `[n, ...]`."""
    for _ in range(1, gradient.shape.rank):
        by_row = tf.expand_dims(by_row, -1)
    return by_row
