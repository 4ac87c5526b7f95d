"""Gives the value of numbers that constants are put together to, such as the order in which axes are transposed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parallax.graph.view import GraphView, split_tensor
from parallax.types import Value

_FOLDED: dict[str, Callable[[list[Value]], Value | None]] = {
    "Range": lambda given: np.arange(*given),
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
