"""Decides whether workers hold the values of one process: rounding passes, a lost or wrongly scaled update fails.

Of every array (a variable, or a slot of the optimizer) three norms are compared:

- *error*: the difference between a worker's value and the one process's, the largest of all workers;
- *change*: by how much the steps changed the one process's value. A variable that is left out has an error as large as
  its change, however small that is relative to its value; one whose gradient is wrong by a factor 1/W has (1 - 1/W) of
  it;
- *noise*: by how much the change itself changes when the one process starts from initial values that differ by one
  rounding each, the largest of several such starts. Exact arithmetic would hardly distinguish them; floating point does
  as soon as a gradient is nothing but rounding (the true gradient of a bias before a softmax is 0), and Adam, which
  divides a gradient by its own size, then moves the variable by full steps in either direction.

An error is allowed up to the largest of the tolerance times the change, MARGIN times the noise, and two roundings of
each element that differs. If that bound is so large that the part of one worker could be missing undetected, more than
half of 1/W of the change, the array cannot be judged and its verdict is *noise*: its error must still be within the
bound, and all workers must have the same. An array that the one process does not change at all is compared with the
rounding of the largest change of its kind: the trained variables, or the slots of one name. No other array is: in
attention models the gradients of query and key kernels begin at 1e-7 of the largest, and are exact all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from parallax.base.types import Array, Value

MARGIN = 32.0
"""Both are sums of roundings, drawn once and a few times: the error was at most 2 times the noise where many elements
change, and 16 times where a few elements change by one rounding.
"""

HALF_MARGIN = 4.0
"""Margin for jobs that round to half precision: all elements are then perturbed by the largest such rounding."""


VARIABLES, OTHERS, OWN = "variable", "other", "own"
"""Kinds of arrays: trained variables, untrained state, per-worker state. `slot NAME` for slots."""


class Verdict(str, Enum):
    """The verdict on an array."""

    EQUAL = "equal"
    NOISE = "noise"
    DIFFERENT = "NOT equal"
    APART = "NOT equal: workers differ"


@dataclass(frozen=True, slots=True)
class ArrayPair:
    """An array on both sides.

    Attributes:
        name: of the variable.
        kind: the arrays of similar size.
        errors: by worker, the norm of the difference between its value and the one process's.
        spread: the largest norm of the difference between a worker's value and worker 0's.
        change: the norm of the change of the one process's value in the steps.
        largest: the largest element of that change.
        moved: how many elements changed, or differ.
        stored: the norm of one rounding of every element that differs.
        noise: the norm of the change of this change, from initial values that differ by a rounding.
        rounding: unit of the element type at 1; 0 for integers, which must be equal.
    """

    name: str
    kind: str
    errors: tuple[float, ...]
    spread: float
    change: float
    largest: float
    moved: int
    stored: float
    noise: float
    rounding: float


@dataclass(frozen=True, slots=True)
class ArrayVerdict:
    """The verdict of an array; errors are relative to the change.

    Attributes:
        name: of the variable.
        kind: as measured.
        error: the largest of all workers.
        worker: which worker has it.
        allowed: its bound.
        verdict: the result.
    """

    name: str
    kind: str
    error: float
    worker: int
    allowed: float
    verdict: Verdict


def difference(received: Value, expected: Value) -> float:
    """The norm of the difference relative to the variable's norm; infinite when either is not finite."""
    received, expected = np.asarray(received, np.float64), np.asarray(expected, np.float64)
    norm = _norm(expected)
    value = _norm(received - expected) / norm if norm else _norm(received)
    return value if np.isfinite(value) else float("inf")


def measure(name: str, kind: str, before: Value, after: Value, noise: float, by_worker: Sequence[Value]) -> ArrayPair:
    """Measures an array.

    Args:
        name: of the variable.
        kind: the arrays of similar size.
        before: the one process's initial value.
        after: its value after the steps, of the same shape.
        noise: as `ArrayPair.noise`.
        by_worker: every worker's value after the steps.
    """
    is_float = not np.issubdtype(after.dtype, np.integer) and after.dtype != bool
    rounding = float(np.spacing(np.ones((), after.dtype))) if is_float else 0.0
    before, after, *by_worker = (np.asarray(value, np.float64) for value in (before, after, *by_worker))
    change = after - before
    errors = [value - after for value in by_worker]
    moved = np.count_nonzero(change) + max(np.count_nonzero((error != 0) & (change == 0)) for error in errors)
    return ArrayPair(
        name=name,
        kind=kind,
        errors=tuple(_finite(_norm(error)) for error in errors),
        spread=max(_finite(_norm(value - by_worker[0])) for value in by_worker),
        change=_norm(change),
        largest=float(np.max(np.abs(change), initial=0.0)),
        moved=int(moved),
        stored=max(rounding * _norm(after[error != 0]) for error in errors),
        noise=noise,
        rounding=rounding,
    )


def judge(measured: Iterable[ArrayPair], tolerance: float, margin: float = MARGIN) -> list[ArrayVerdict]:
    """The verdicts of arrays.

    Args:
        measured: all arrays of a comparison.
        tolerance: the allowed error relative to an array's change.
        margin: the allowed error relative to its noise.
    """
    arrays = list(measured)
    largest: dict[str, float] = {}
    for one in arrays:
        largest[one.kind] = max(largest.get(one.kind, 0.0), one.largest)
    return [_judge(one, tolerance, margin, one.largest if one.kind == OTHERS else largest[one.kind]) for one in arrays]


def _judge(one: ArrayPair, tolerance: float, margin: float, largest: float) -> ArrayVerdict:
    error = max(one.errors)
    stored = 2 * one.stored if one.change else one.rounding * largest * one.moved**0.5
    exact = tolerance * one.change if one.rounding else 0.0
    noise = max(margin * one.noise, stored)
    allowed = max(exact, noise)
    part = one.change / (2 * len(one.errors))
    if not error <= allowed:
        verdict = Verdict.DIFFERENT
    elif one.spread > max(exact, stored):
        verdict = Verdict.APART
    else:
        verdict = Verdict.NOISE if error > exact and noise > part else Verdict.EQUAL
    unit = one.change or 1.0
    return ArrayVerdict(one.name, one.kind, error / unit, int(np.argmax(one.errors)), allowed / unit, verdict)


def _norm(value: Array) -> float:
    return float(np.linalg.norm(value))


def _finite(value: float) -> float:
    return value if np.isfinite(value) else float("inf")
