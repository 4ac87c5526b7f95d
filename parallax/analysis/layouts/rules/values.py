"""Evaluates ops on lengths: the values of small integer tensors, as polynomials over symbols."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from parallax.analysis.layouts.rules.facts import Fact, Value
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.graph.lengths import ONE, Length, broadcast, multiply
from parallax.graph.view import GraphView, node_of

_MOST = 64
"""Vectors with more elements have no recorded values: no shape has that many axes."""
_Values = list[Length | None]
BatchOf = Callable[[Length], str | None]


def constant_value(view: GraphView, tensor: str) -> Value | None:
    """The value of a small constant of integers, or of booleans as 1 and 0."""
    shape = view.shape(tensor) or ()
    is_small = len(shape) <= 1 and all((length or 0) <= _MOST for length in shape)
    constant = view.constant(tensor) if is_small and _is_integral(view.dtype(tensor)) else None
    if constant is None or constant.ndim > 1 or constant.size > _MOST:
        return None
    return Length.of(int(constant)) if constant.ndim == 0 else tuple(Length.of(int(n)) for n in constant)


@cache
def _is_integral(dtype: int) -> bool:
    return bool(tf.as_dtype(dtype).is_integer or tf.as_dtype(dtype).is_bool)


def compute_value(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    """The value of a node's first output, where it follows from its inputs' facts."""
    compute = _COMPUTE.get(view.op(node))
    if compute is None or not inputs:
        return None
    return compute(view, node, inputs)


def computes_value(op: str) -> bool:
    """Whether an op on lengths returns lengths, or integers computed from them."""
    return op in _COMPUTE


def _copy(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    return inputs[0].value


def _elementwise(compute: Callable[[Length, Length], Length | None]) -> Callable[..., Value | None]:
    def value(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
        one, other = inputs[0].value, inputs[1].value
        if one is None or other is None:
            return None
        if isinstance(one, Length) and isinstance(other, Length):
            return compute(one, other)
        length = max(len(v) for v in (one, other) if isinstance(v, tuple))
        pairs = zip(_spread(one, length), _spread(other, length), strict=True)
        return tuple(None if a is None or b is None else compute(a, b) for a, b in pairs)

    return value


def _spread(value: Value, length: int) -> Sequence[Length | None]:
    if isinstance(value, Length):
        return [value] * length
    return list(value) * length if len(value) == 1 else value


def _floor_divide(one: Length, other: Length) -> Length | None:
    if one.number is not None and other.number:
        return Length.of(one.number // other.number)
    return one.divide(other)


def _remainder(one: Length, other: Length) -> Length | None:
    if one.number is not None and other.number:
        return Length.of(one.number % other.number)
    return Length() if one.divide(other) is not None else None


def _maximum(one: Length, other: Length) -> Length | None:
    if one == other:
        return one
    if one.number is not None and other.number is not None:
        return Length.of(max(one.number, other.number))
    if one.number is not None and one.number <= 1:
        return other
    return one if other.number is not None and other.number <= 1 else None


def _minimum(one: Length, other: Length) -> Length | None:
    if one == other:
        return one
    are_known = one.number is not None and other.number is not None
    return Length.of(min(one.number or 0, other.number or 0)) if are_known else None


def _compare(compare: Callable[[int, int], bool]) -> Callable[[Length, Length], Length | None]:
    """A comparison as 1 or 0."""

    def rule(one: Length, other: Length) -> Length | None:
        if one.number is None or other.number is None:
            return None
        return Length.of(int(compare(one.number, other.number)))

    return rule


def _broadcast(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    one, other = (fact.values() for fact in inputs)
    if one is None or other is None:
        return None
    pairs = zip_longest(reversed(one), reversed(other), fillvalue=ONE)
    return tuple(None if a is None or b is None else broadcast(a, b) for a, b in pairs)[::-1]


def _negate(fact: Fact) -> Value | None:
    known = fact.complete_values()
    if known is None:
        return None
    return tuple(Length() - one for one in known) if isinstance(fact.value, tuple) else Length() - known[0]


def _select(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    known = [one for one in (fact.value for fact in inputs) if one is not None]
    if len(known) < len(inputs):
        condition = inputs[0].numbers() or []
        return inputs[1 if condition[0] else 2].value if len(condition) == 1 else None
    length = max((len(one) for one in known if isinstance(one, tuple)), default=None)
    rows = zip(*(_spread(one, length or 1) for one in known), strict=True)
    values = tuple(None if by is None or by.number is None else a if by.number else b for by, a, b in rows)
    return values[0] if length is None else values


def _product(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    factors = inputs[0].values()
    if factors is None or None in factors or (inputs[0].rank and inputs[1].numbers() is None):
        return None
    if inputs[0].rank and not inputs[1].numbers():
        return inputs[0].value
    return multiply(one for one in factors if one is not None)


def _extreme(of_two: Callable[[Length, Length], Length | None]) -> Callable[..., Value | None]:
    def value(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
        candidates, axes = inputs[0].values(), inputs[1].numbers()
        if not candidates or inputs[0].rank != 1 or axes not in ([0], [-1]) or view.flag(node, "keep_dims"):
            return None
        most = candidates[0]
        for one in candidates[1:]:
            most = of_two(most, one) if most is not None and one is not None else None
        return most

    return value


def _pack(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    if any(fact.rank != 0 for fact in inputs) or len(inputs) > _MOST:
        return None
    return tuple(fact.value if isinstance(fact.value, Length) else None for fact in inputs)


def _concatenate(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    joined: _Values = []
    for fact in inputs[:-1]:
        length = fact.dims[0].number if fact.dims and len(fact.dims) == 1 else None
        if length is None or length > _MOST:
            return None
        joined += fact.values() or [None] * length
    return tuple(joined)


def _slice_strided(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    value, bounds = inputs[0].value, [fact.numbers() for fact in inputs[1:]]
    masks = [view.nodes[node].attr[f"{name}_mask"].i for name in ("begin", "end", "shrink_axis")]
    others = [view.nodes[node].attr[f"{name}_mask"].i for name in ("ellipsis", "new_axis")]
    if not isinstance(value, tuple) or any(others) or any(b is None or len(b) != 1 for b in bounds):
        return None
    begin, end, stride = (bound[0] for bound in bounds if bound)
    if masks[2] & 1:
        return value[begin] if -len(value) <= begin < len(value) else None
    return value[slice(None if masks[0] & 1 else begin, None if masks[1] & 1 else end, stride)]


def _slice(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    value, begin, size = inputs[0].value, inputs[1].numbers(), inputs[2].numbers()
    if not isinstance(value, tuple) or not begin or not size:
        return None
    return value[begin[0] : None if size[0] < 0 else begin[0] + size[0]]


def _gather(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    value, rows = inputs[0].value, inputs[1].numbers()
    if not isinstance(value, tuple) or rows is None or any(not 0 <= row < len(value) for row in rows):
        return None
    picked = tuple(value[row] for row in rows)
    return picked if inputs[1].rank else picked[0]


def _one_axis_more(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    return (inputs[0].value,) if isinstance(inputs[0].value, Length) else None


def _reshape(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    value, rank = inputs[0].value, len(view.shape(f"{node}:0") or ()) if view.shape(f"{node}:0") is not None else None
    if value is None or rank not in (0, 1):
        return None
    lengths = list(value) if isinstance(value, tuple) else [value]
    return tuple(lengths) if rank == 1 else lengths[0] if len(lengths) == 1 else None


def _stitch(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    half = len(inputs) // 2
    length_by_index: dict[int, Length | None] = {}
    for places, data in zip(inputs[:half], inputs[half:], strict=True):
        numbers = places.numbers()
        if numbers is None:
            return None
        length_by_index.update(zip(numbers, data.values() or [None] * len(numbers), strict=False))
    order = sorted(length_by_index)
    return tuple(length_by_index[n] for n in order) if order == list(range(len(order))) else None


def _fill(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    dims, value = inputs[0].numbers(), inputs[1].value
    if dims is None or not isinstance(value, Length) or len(dims) > 1 or (dims and dims[0] > _MOST):
        return None
    return (value,) * dims[0] if dims else value


def _count(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    ranges = [fact.numbers() for fact in inputs]
    if any(one is None or len(one) != 1 for one in ranges):
        return None
    counted = range(*(one[0] for one in ranges if one))
    return tuple(Length.of(n) for n in counted) if len(counted) <= _MOST else None


def _pad(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    vector, added = inputs[0].value, view.constant(view.inputs(node)[1])
    filling = inputs[2].values() if len(inputs) == 3 else [Length()]
    if not isinstance(vector, tuple) or added is None or filling is None:
        return None
    before, behind = added.ravel().tolist()
    return (*filling * before, *vector, *filling * behind)


def _invert(view: GraphView, node: str, inputs: Sequence[Fact]) -> Value | None:
    order = inputs[0].numbers()
    if order is None or sorted(order) != list(range(len(order))):
        return None
    return tuple(Length.of(order.index(n)) for n in range(len(order)))


def reduced_axes(one: Fact, other: Fact, batch_of: BatchOf) -> tuple[Value | None, Value | None]:
    """The axes over which the gradients of two tensors that were broadcast to each other are summed.

    Args:
        one: the shape of the first, a vector.
        other: that of the second.
        batch_of: the batch of which a length is a multiple.
    """
    both = summed_axes(one, other, batch_of)
    if both is None or any(None in are_summed for are_summed in both):
        return None, None
    first, second = (tuple(Length.of(axis) for axis, is_over in enumerate(found) if is_over) for found in both)
    return first, second


def summed_axes(one: Fact, other: Fact, batch_of: BatchOf) -> tuple[list[bool | None], list[bool | None]] | None:
    """For each axis of a broadcast result: whether the gradient of either operand is summed over it.

    None means unknown: for an axis, or for all.

    Args:
        one: the shape of the first, a vector.
        other: that of the second.
        batch_of: the batch of which a length is a multiple: two multiples of one batch are equal, if they are broadcast
            to each other.
    """
    left, right = one.values(), other.values()
    if left is None or right is None:
        return None
    rank = max(len(left), len(right))
    pairs = list(zip([ONE] * (rank - len(left)) + left, [ONE] * (rank - len(right)) + right, strict=True))
    are_known = [
        a is not None and b is not None and (broadcast(a, b) is not None or batch_of(a) == batch_of(b) is not None)
        for a, b in pairs
    ]
    first, second = (  # TensorFlow sums over an axis of length 1 of both, too
        [pair[which] == ONE if is_known else None for is_known, pair in zip(are_known, pairs, strict=True)]
        for which in (0, 1)
    )
    return first, second


_COMPUTE: dict[str, Callable[[GraphView, str, Sequence[Fact]], Value | None]] = {
    **dict.fromkeys(("Identity", "Cast", "StopGradient", "Snapshot", "EnsureShape", "PlaceholderWithDefault"), _copy),
    **dict.fromkeys(("Add", "AddV2"), _elementwise(lambda a, b: a + b)),
    "Sub": _elementwise(lambda a, b: a - b),
    "Mul": _elementwise(lambda a, b: a * b),
    "FloorDiv": _elementwise(_floor_divide),
    "FloorMod": _elementwise(_remainder),
    "Maximum": _elementwise(_maximum),
    "Minimum": _elementwise(_minimum),
    "BroadcastArgs": _broadcast,
    "Neg": lambda view, node, inputs: _negate(inputs[0]),
    "Less": _elementwise(_compare(lambda a, b: a < b)),
    "LessEqual": _elementwise(_compare(lambda a, b: a <= b)),
    "Greater": _elementwise(_compare(lambda a, b: a > b)),
    "GreaterEqual": _elementwise(_compare(lambda a, b: a >= b)),
    "Equal": _elementwise(_compare(lambda a, b: a == b)),
    "NotEqual": _elementwise(_compare(lambda a, b: a != b)),
    **dict.fromkeys(("Select", "SelectV2"), _select),
    "Prod": _product,
    "Max": _extreme(_maximum),
    "Min": _extreme(_minimum),
    "Pack": _pack,
    "ConcatV2": _concatenate,
    "StridedSlice": _slice_strided,
    "Slice": _slice,
    "GatherV2": _gather,
    "ExpandDims": _one_axis_more,
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "DynamicStitch": _stitch,
    "Fill": _fill,
    **dict.fromkeys(("Pad", "PadV2"), _pad),
    "Range": _count,
    "InvertPermutation": _invert,
}


def flatten_matrix(step: StepWalk, tensor: str) -> Value | None:
    """The elements of a matrix, row by row, where they are known."""
    found = _find_elements(step, tensor)
    return None if found is None or found.ndim != 2 else tuple(found.ravel())


def _find_elements(step: StepWalk, tensor: str) -> _Elements | None:
    """The elements of an integer tensor of any rank, each a Length or None, where its shape is known."""
    view, node = step.view, node_of(tensor)
    if tensor not in step.facts:
        return None
    if (values := step.facts[tensor].values()) is not None:
        return _array(values, () if step.facts[tensor].rank == 0 else (len(values),))
    if view.op(node) == "Const":
        constant = view.constant(tensor) if _is_integral(view.dtype(tensor)) else None
        if constant is None or constant.size > _MOST:
            return None
        return _array([Length.of(int(n)) for n in constant.ravel()], constant.shape)
    if view.op(node) not in _ARRANGE:
        return None
    of_elements, of_numbers, arrange = _ARRANGE[view.op(node)]
    inputs = view.inputs(node)
    arrays = [_find_elements(step, one) for one in inputs[of_elements]]
    numbers = [step.facts[one].numbers() for one in inputs[of_numbers]]
    known_arrays, known_numbers = ([one for one in found if one is not None] for found in (arrays, numbers))
    if len(known_arrays) < len(arrays) or len(known_numbers) < len(numbers):
        return None
    if view.op(node) == "Pack":
        known_numbers = [[view.nodes[node].attr["axis"].i]]
    return arrange(known_arrays, *known_numbers)


def _array(values: Sequence[Length | None], shape: Sequence[int]) -> _Elements:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _fill_array(value: Sequence[_Elements], shape: Sequence[int]) -> _Elements | None:
    return np.full(shape, value[0].item(), object) if math.prod(shape) <= _MOST else None


def _cut_array(whole: Sequence[_Elements], begin: Sequence[int], size: Sequence[int]) -> _Elements:
    return whole[0][tuple(slice(a, None if n < 0 else a + n) for a, n in zip(begin, size, strict=True))]


_Elements = NDArray[np.object_]
_FIRST, _SECOND, _NONE = slice(1), slice(1, 2), slice(0)
_ARRANGE: dict[str, tuple[slice, slice, Callable[..., _Elements | None]]] = {
    **dict.fromkeys(("Identity", "Cast", "StopGradient"), (_FIRST, _NONE, lambda arrays: arrays[0])),
    "Pack": (slice(None), _NONE, lambda arrays, axis: np.stack(arrays, axis[0])),
    "ConcatV2": (slice(-1), slice(-1, None), lambda arrays, axis: np.concatenate(arrays, axis[0])),
    "ExpandDims": (_FIRST, _SECOND, lambda arrays, axis: np.expand_dims(arrays[0], axis[0])),
    "Transpose": (_FIRST, _SECOND, lambda arrays, order: arrays[0].transpose(order)),
    "Reshape": (_FIRST, _SECOND, lambda arrays, shape: arrays[0].reshape(shape)),
    "Fill": (_SECOND, _FIRST, _fill_array),
    "Slice": (_FIRST, slice(1, 3), _cut_array),
}
"""For an op that arranges elements: its inputs that have elements, those that have numbers, and the result of both."""
