"""Gives the value of numbers that constants are put together to, such as the order in which axes are transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from parallax.analysis.propagation.axis_part import MIXED, AxisPart
from parallax.graph.view import GraphView, split_tensor
from parallax.types import Value

if TYPE_CHECKING:
    from parallax.analysis.propagation.batch_axis import BatchAxes

_FOLDED: dict[str, Callable[[list[Value]], Value | None]] = {
    "Range": lambda given: np.arange(*given),
    "Add": lambda given: given[0] + given[1],
    "AddV2": lambda given: given[0] + given[1],
    "Sub": lambda given: given[0] - given[1],
    "Pack": lambda given: np.stack(given) if all(one.shape == () for one in given) else None,
    "ConcatV2": lambda given: np.concatenate(given[:-1]) if all(one.ndim == 1 for one in given[:-1]) else None,
}
"""What numbers are computed by when an op is to work along an axis in the middle."""


def value(view: GraphView, tensor: str) -> Value | None:
    """The value of a tensor, if a Const gives it or it is computed of such by an op of the list; else None."""
    found, node = view.constant(tensor), split_tensor(tensor)[0]
    if found is not None or view.op(node) not in _FOLDED:
        return found
    given = [value(view, t) for t in view.inputs(node)]
    return None if any(one is None for one in given) else _FOLDED[view.op(node)](given)


def by_numbers(name: str, whole: int) -> Callable[[BatchAxes, str, tuple[str, ...]], int | None]:
    """The rule of ops that do something along some axes, by a constant: `whole` there leaves an axis alone."""

    def rule(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> int | None:
        axis, numbers = axes.known(inputs[0]), axes.constant(inputs[1])
        if axis is None or axis == MIXED or numbers is None:
            return None
        if name == "axes":
            shape = axes.shape(inputs[0])
            return axis if shape and axis not in {int(n) % len(shape) for n in numbers.reshape(-1)} else None
        mine = numbers[axis]
        return axis if bool((mine == whole).all() if hasattr(mine, "all") else mine == whole) else None

    return rule


def tile(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> AxisPart | int | None:
    """Copies along another axis, or blocks of whole copies along a first joined one; both as often on all workers."""
    if axes.known(inputs[0]) != 0:
        return by_numbers("multiples", 1)(axes, node, inputs)
    multiples, packed = axes.constant(inputs[1]), split_tensor(inputs[1])[0]
    if multiples is None and axes.view.op(packed) == "Pack":
        first, shape = axes.constant(axes.view.inputs(packed)[0]), axes.shape(f"{node}:0") or ()
        return 0 if first is not None and int(first) == 1 and None not in shape[1:] else None
    if multiples is None or int(multiples[0]) < 1:
        return None
    return AxisPart(MIXED, int(multiples[0])) if int(multiples[0]) > 1 else 0
