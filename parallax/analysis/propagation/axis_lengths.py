"""Says of the numbers of a shape which of them are no lengths of the batch: what a Reshape is given at run time.

`tensordot`, which dense layers on sequences are made of, takes a tensor's shape apart and multiplies its lengths. A
number that is put together of lengths along other axes than the joined one is what the one process has too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from parallax.graph.view import split_tensor

if TYPE_CHECKING:
    from parallax.analysis.propagation.batch_axis import BatchAxes

ALIKE_LENGTH: Final = -2
"""A number that is not known, and that all workers and the one process have alike."""
_COPIES = ("Identity", "Cast")
_Numbers = list[int | None]
"""By place a number, ALIKE_LENGTH, or None where the batch's length may be a part of it."""


def lengths_of_reshape(axes: BatchAxes, node: str, inputs: tuple[str, ...]) -> tuple[int | None, ...]:
    """The shape that a Reshape gives, with ALIKE_LENGTH for lengths that are not known and no batch's."""
    out = axes.shape(f"{node}:0") or ()
    numbers = numbers_of_shape(axes, inputs[1]) if None in out else None
    if numbers is None or len(numbers) != len(out):
        return out
    if -1 in numbers and None in numbers:
        if numbers[0] is not None or numbers.count(None) + numbers.count(-1) != 2:
            return out
        numbers = [ALIKE_LENGTH if number == -1 else number for number in numbers]  # what is left of an example
    lengths = [None if number == -1 else number for number in numbers]
    return tuple(known if known is not None else number for known, number in zip(out, lengths, strict=True))


def numbers_of_shape(axes: BatchAxes, tensor: str) -> _Numbers | None:
    """The numbers of a vector, or the one of a scalar; None where the ops that give it are not followed."""
    view, node = axes.view, split_tensor(tensor)[0]
    op, inputs, value = view.op(node), view.inputs(node), axes.constant(tensor)
    if value is not None:
        return [int(number) for number in value.reshape(-1)] if value.dtype.kind in "iu" else None
    if op in _COPIES:
        return numbers_of_shape(axes, inputs[0])
    if op == "Shape":
        return _lengths(axes, inputs[0])
    if op == "Pack" or (op == "ConcatV2" and axes.constant(inputs[-1]) is not None):
        parts = [numbers_of_shape(axes, t) for t in (inputs if op == "Pack" else inputs[:-1])]
        return None if None in parts else [number for part in parts for number in part or ()]
    if op in ("Mul", "Prod"):
        factors = [numbers_of_shape(axes, t) for t in (inputs if op == "Mul" else inputs[:1])]
        is_one = view.shape(tensor) == ()
        return None if None in factors or not is_one else [_product([n for one in factors for n in one or ()])]
    given = numbers_of_shape(axes, inputs[0]) if op in ("GatherV2", "StridedSlice", "Slice") else None
    return None if given is None else _taken(axes, node, given)


def _lengths(axes: BatchAxes, tensor: str) -> _Numbers | None:
    """The numbers of a tensor's shape, of which one is the batch's; none where it is not known which."""
    shape, axis = axes.shape(tensor), axes.known(tensor)
    if shape is None or (axis is None and not axes.fits(tensor)):
        return None
    found: _Numbers = [ALIKE_LENGTH if length is None else length for length in shape]
    if axis is not None:
        found[max(axis, 0)] = None
    return found


def _product(numbers: _Numbers) -> int | None:
    if None in numbers:
        return None
    return ALIKE_LENGTH if min((n or 0 for n in numbers), default=0) < 0 else math.prod(n or 0 for n in numbers)


def _taken(axes: BatchAxes, node: str, given: _Numbers) -> _Numbers | None:
    """Some numbers of a vector, by constants."""
    view, (numbers, *others) = axes.view, [axes.constant(t) for t in axes.view.inputs(node)[1:]]
    if numbers is None or any(one is None for one in others):
        return None
    if view.op(node) == "GatherV2":
        return [given[int(place)] for place in numbers.reshape(-1)]
    if view.op(node) == "Slice":
        begins, count = (int(one.reshape(-1)[0]) for one in (numbers, *others) if one is not None)
        return given[begins:] if count < 0 else given[begins : begins + count]
    attr = view.nodes[node].attr
    begin, end, step = (int(one.reshape(-1)[0]) for one in (numbers, *others) if one is not None)
    if attr["new_axis_mask"].i or attr["ellipsis_mask"].i:
        return None
    if attr["shrink_axis_mask"].i:
        return [given[begin]]
    first, last = None if attr["begin_mask"].i else begin, None if attr["end_mask"].i else end
    return list(np.array(given, object)[slice(first, last, step)])
