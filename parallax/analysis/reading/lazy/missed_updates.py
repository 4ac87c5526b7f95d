"""Derives how updates without a gradient change the states of a row, where a closed-form cut-off exists.

A state *decays* if it is multiplied by a factor that depends on scalars alone. A state *moves* if, in addition, a term
made of decaying states is added: later terms are then bounded by the powers of the factors. The degrees of a term are
the powers by which it follows its leaves: with leaf x multiplied by a <= 1, a term with degrees (lo, hi) in x is
multiplied by a^lo at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallax.analysis.reading.lazy.expressions import (
    CONSTANT,
    SCALAR,
    STATE,
    Expression,
    Expressions,
    leaves_of,
)

Degrees = dict[Expression, tuple[float, float]]
_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}


@dataclass(frozen=True, slots=True)
class Decay:
    """A state is multiplied by a factor."""

    factor: Expression


@dataclass(frozen=True, slots=True)
class Movement:
    """A state is multiplied by a factor, and a term is added.

    Attributes:
        factor: depends on scalars alone.
        bound: an upper bound of the magnitude of the term.
        degrees: of the bound, in its states and scalars.
    """

    factor: Expression
    bound: Expression
    degrees: Degrees


def missed_updates(states: Sequence[str], values: Sequence[Expression]) -> tuple[Decay | Movement, ...]:
    """The effect of an update without a gradient on each state; empty where it is unknown for some, or does not decay.

    Factors have constants in double precision, as many of them are multiplied.

    Args:
        states: variables.
        values: the new value of each.
    """
    made = Expressions(np.float64)
    values = [made.copy(value) for value in values]
    old = [made.leaf(STATE, state) for state in states]
    after = [made.without_gradient(value) for value in values]
    terms = _Magnitudes(made, _not_negative(made, old, values))
    missed_by_state: dict[Expression, Decay | Movement] = {}
    for _ in states:  # the movement of a state may depend on the decay of another
        for state, value in zip(old, after, strict=True):
            factor = terms.factor(value, state)
            factor = terms.stays(value, state, after) if factor is None else factor
            if factor is not None and state not in missed_by_state:
                missed_by_state[state] = Decay(factor)
                terms.decays[state] = factor
                terms.known[value] = made.simplify("mul", factor, state)
    for state, value in zip(old, after, strict=True):
        parts = None if state in missed_by_state else terms.split(value, state)
        if parts is not None and parts[1] is not None:
            bound = terms.upper(parts[1])
            if bound is not None and all(leaf in terms.decays for leaf in bound[1] if leaf.op == STATE):
                if not any(leaf.op == STATE for leaf in bound[1]):
                    return ()  # the added term does not vanish, however many updates are missed
                missed_by_state[state] = Movement(parts[0], *bound)
    return tuple(missed_by_state[state] for state in old) if len(missed_by_state) == len(old) else ()


def _not_negative(made: Expressions, old: Sequence[Expression], values: Sequence[Expression]) -> set[Expression]:
    """The states that are non-negative after an update, whatever they were before it."""
    known: set[Expression] = set()
    while True:
        terms = _Magnitudes(made, known)
        more = {state for state, value in zip(old, values, strict=True) if terms.is_positive(value)} - known
        if not more:
            return known
        known |= more


class _Magnitudes:
    """Bounds of expressions without a gradient.

    Attributes:
        decays: state -> factor, for states that are known to decay.
        known: new value of such a state -> factor times state.
    """

    def __init__(self, made: Expressions, positive: set[Expression]) -> None:
        self._made, self._positive = made, positive
        self.decays: dict[Expression, Expression] = {}
        self.known: dict[Expression, Expression] = {}

    def is_positive(self, one: Expression) -> bool:
        """Whether an expression is known to be non-negative, unless it is NaN."""
        below = [*map(self.is_positive, one.inputs)]
        if one.op == CONSTANT:
            return bool(one.value >= 0)
        if one.op in ("sqrt", "square", "abs", "rsqrt", "exp", "squared_difference"):
            return True
        if one.op == "mul" and one.inputs[0] is one.inputs[1]:
            return True
        if one.op == "max":
            return any(below)
        if one.op in ("add", "mul", "div", "min", "reciprocal", "pow", "div_no_nan"):
            return all(below[: 1 if one.op == "pow" else None])
        return one in self._positive

    def factor(self, value: Expression, state: Expression) -> Expression | None:
        """The factor from a state to a value, made of scalars alone; None for all other values."""
        parts = self.split(value, state)
        return parts[0] if parts is not None and parts[1] is None else None

    def split(self, value: Expression, state: Expression) -> tuple[Expression, Expression | None] | None:
        """A value as (factor, rest): factor * state + rest, the rest without the state; None for other forms."""
        make = self._made.simplify
        if value is state:
            return self._made.constant(1), None
        if not any(leaf is state for leaf in leaves_of([value])):
            return self._made.constant(0), None if _is_zero(value) else value
        if value.op == "neg":
            value = self._made.make("mul", value.inputs[0], self._made.constant(-1))
        if value.op == "max" and self.is_positive(state):
            return self._largest(value, state)
        if value.op not in ("add", "sub", "mul", "div"):
            return None
        first, second = value.inputs
        if value.op == "mul" and _is_scalar(first):
            first, second = second, first
        one = self.split(first, state)
        if one is None:
            return None
        if value.op in ("mul", "div"):
            if not _is_scalar(second):
                return None
            return make(value.op, one[0], second), None if one[1] is None else make(value.op, one[1], second)
        other = self.split(second, state)
        if other is None:
            return None
        return make(value.op, one[0], other[0]), self._sum(value.op, one[1], other[1])

    def _sum(self, op: str, one: Expression | None, other: Expression | None) -> Expression | None:
        if other is None:
            return one
        if one is None:
            return self._made.simplify("neg", other) if op == "sub" else other
        return self._made.simplify(op, one, other)

    def _largest(self, value: Expression, state: Expression) -> tuple[Expression, Expression | None] | None:
        """The maximum of a multiple of a non-negative state and of zero, or of a decaying value."""
        for one, other in (value.inputs, value.inputs[::-1]):
            factor = self.factor(one, state)
            if factor is not None and self.is_positive(factor) and _is_zero(other):
                return factor, None
        return None

    def stays(self, value: Expression, state: Expression, after: Sequence[Expression]) -> Expression | None:
        """The factor 1 where a state is the maximum that another state has had, and the other one shrinks.

        This holds for squares, which are non-negative (the root of a negative one would be NaN).
        """
        if value.op != "max" or state not in value.inputs:
            return None
        other = value.inputs[1] if value.inputs[0] is state else value.inputs[0]
        factor = self.known[other].inputs[:1] if other in after and other in self.known else ()
        shrinks = any(one.op == CONSTANT and 0 <= one.value <= 1 for one in factor)
        return self._made.constant(1) if shrinks else None

    def substitute_decays(self, value: Expression) -> Expression:
        """A value in which updated states are replaced with factor times state, where factors are constant.

        m + (0 - m) * 0.1 has terms of both signs, while 0.9 m has not.
        """
        if not value.inputs:
            return value
        known = self.known.get(value)
        if known is not None and (not known.inputs or known.inputs[0].op == CONSTANT):
            return known
        states = [leaf for leaf in leaves_of([value]) if leaf.op == STATE]
        if len(states) == 1 and value.op in ("add", "sub", "mul", "div", "neg", "max"):
            factor = self.factor(value, states[0])
            if factor is not None and factor.op == CONSTANT:
                return self._made.simplify("mul", factor, states[0])
        return self._made.simplify(value.op, *map(self.substitute_decays, value.inputs))

    def upper(self, value: Expression) -> tuple[Expression, Degrees] | None:
        """An upper bound of the magnitude of a value, and its degrees; None where none is known."""
        return self._upper(self.substitute_decays(value))

    def _upper(self, value: Expression) -> tuple[Expression, Degrees] | None:
        exact = self._exact(value)
        if exact is not None:
            return exact
        if value.op == "sign":
            return self._made.constant(1), {}
        if value.op in ("mul", "div"):
            one = self._upper(value.inputs[0])
            other = self._upper(value.inputs[1]) if value.op == "mul" else self._exact(value.inputs[1])
            return self._product(value.op, one, other)
        if value.op in ("neg", "abs"):
            return self._upper(value.inputs[0])
        if value.op in ("square", "sqrt"):
            return self._power(value.op, self._upper(value.inputs[0]))
        if value.op in ("add", "sub", "max", "min"):
            return self._bound_either("add" if value.op in ("add", "sub") else "max", *map(self._upper, value.inputs))
        if value.op == "select":
            return self._bound_either("max", *map(self._upper, value.inputs[1:]))
        return None

    def _exact(self, value: Expression) -> tuple[Expression, Degrees] | None:
        """The magnitude of a value without cancellation, and its degrees; None where terms may cancel."""
        if value.op == CONSTANT:
            return self._made.make("abs", value), {}
        if value.op in (STATE, SCALAR):
            return self._made.make("abs", value), {value: (1.0, 1.0)}
        below = [*map(self._exact, value.inputs)]
        if value.op in ("neg", "abs"):
            return below[0]
        if value.op in _POWERS:
            return self._power(value.op, below[0])
        if value.op in ("mul", "div"):
            return self._product(value.op, *below)
        if value.op in ("add", "max", "min") and all(map(self.is_positive, value.inputs)):
            return self._bound_either(value.op, *below)
        if value.op == "pow" and value.inputs[1].op == CONSTANT and below[0] is not None:
            power = value.inputs[1].value
            return self._made.make("pow", below[0][0], value.inputs[1]), _times(below[0][1], power)
        return None

    def _power(self, op: str, one: tuple[Expression, Degrees] | None) -> tuple[Expression, Degrees] | None:
        return None if one is None else (self._made.make(op, one[0]), _times(one[1], _POWERS[op]))

    def _product(
        self, op: str, one: tuple[Expression, Degrees] | None, other: tuple[Expression, Degrees] | None
    ) -> tuple[Expression, Degrees] | None:
        if one is None or other is None:
            return None
        power = _times(other[1], -1.0 if op == "div" else 1.0)
        degrees = {leaf: _plus(one[1].get(leaf), power.get(leaf)) for leaf in {**one[1], **power}}
        return self._made.simplify(op, one[0], other[0]), degrees

    def _bound_either(
        self, op: str, one: tuple[Expression, Degrees] | None, other: tuple[Expression, Degrees] | None
    ) -> tuple[Expression, Degrees] | None:
        if one is None or other is None:
            return None
        none = (0.0, 0.0)
        pairs = {leaf: (one[1].get(leaf, none), other[1].get(leaf, none)) for leaf in {**one[1], **other[1]}}
        degrees = {leaf: (min(a[0], b[0]), max(a[1], b[1])) for leaf, (a, b) in pairs.items()}
        return self._made.simplify(op, one[0], other[0]), degrees


def _times(degrees: Degrees, power: float) -> Degrees:
    scaled = {leaf: (lowest * power, highest * power) for leaf, (lowest, highest) in degrees.items()}
    return {leaf: (min(pair), max(pair)) for leaf, pair in scaled.items()}


def _plus(one: tuple[float, float] | None, other: tuple[float, float] | None) -> tuple[float, float]:
    pairs = [pair for pair in (one, other) if pair is not None]
    return math.fsum(pair[0] for pair in pairs), math.fsum(pair[1] for pair in pairs)


def _is_zero(one: Expression) -> bool:
    return one.op == CONSTANT and bool(one.value == 0)


def _is_scalar(one: Expression) -> bool:
    """Whether a value depends on scalars alone."""
    return all(leaf.op in (SCALAR, CONSTANT) for leaf in leaves_of([one]))
