"""Layout rules of ops on tensor lists, as loops store them; a list has the layout of its stacked tensors."""

from __future__ import annotations

from dataclasses import replace

from parallax.analysis.layouts.rules.branches import are_zeros
from parallax.analysis.layouts.rules.elementwise import elementwise
from parallax.analysis.layouts.rules.facts import BLANK, LENGTHS, REPLICATED, Dims, Fact, Value, shift_axis
from parallax.analysis.layouts.rules.indexed_ops import find_numbers
from parallax.analysis.layouts.rules.reshaping import is_declared
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.graph.lengths import Length
from parallax.plans.layouts import Partial, PerExample, Sharded, ShardedAxis

_OPTIONAL = Length.of("one or none")
"""The number of tensors in an optional."""


def make_list(step: StepWalk, node: str) -> list[Fact] | None:
    """EmptyTensorList and TensorListReserve; unset elements have per-worker shapes."""
    shape, count = step.inputs(node)
    declared = shape.numbers() or []
    lengths = tuple(map(Length.of, declared)) if min(declared, default=-1) >= 0 else ()
    if (of_examples := _find_count(step, node)) is not None:
        step.keep_local(node)
        return [Fact(Sharded(0, of_examples), (of_examples.length, *lengths) if lengths else None)]
    step.require_layout(node, 1, REPLICATED)
    step.keep_local(node, [0])
    for axis, length in enumerate(shape.values() or ()):
        if shape.is_lengths and (part := step.part_of(length)) is not None:
            return [Fact(Sharded(axis + 1, part))]
    if step.view.op(node) == "TensorListReserve" and isinstance(count.value, Length):
        return [Fact(BLANK, (count.value, *lengths))]
    return [Fact(BLANK, (Length.of(f"{step.prefix}{node}[0]"), *lengths) if lengths else None)]


def list_from_tensor(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorListFromTensor: the slices along the first axis."""
    fact = step.inputs(node)[0]
    numbers = find_numbers(step, step.view.inputs(node)[0], fact.part) if fact.part is not None else None
    if fact.part is not None and fact.rank == 1 and numbers is not None and not numbers.times:
        step.require_layout(node, 0, numbers)
        return [Fact(PerExample(fact.part, "index"), fact.dims)]
    return [Fact(fact.layout, fact.dims)]


def stack_list(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorListStack, and TensorListGather of some tensors of a list."""
    fact = step.inputs(node)[0]
    if fact.layout == BLANK or isinstance(fact.layout, PerExample):
        return None
    is_gather = step.view.op(node) == "TensorListGather"
    if fact.part is not None and fact.axis == 0 and (is_gather or step.may_stack_none(fact.part, f"{node}:0")):
        return None
    if not _localize_shape(step, node, 2 if is_gather else 1, fact):
        return None
    if is_gather:
        step.require_layout(node, 1, REPLICATED)
        return step.all_outputs(node, fact.layout)
    if not isinstance(fact.layout, Sharded):
        step.require_layout(node, 1, REPLICATED)
    return step.all_outputs(node, fact.layout, fact.dims)


def push_back(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorListPushBack."""
    return _append_tensor(step, node, 1)


def set_item(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorListSetItem."""
    step.require_layout(node, 1, REPLICATED)
    return _append_tensor(step, node, 2)


def pop_back(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorListPopBack: the list, and its last tensor."""
    fact = step.inputs(node)[0]
    if is_of_examples(fact) or not _localize_shape(step, node, 1, fact):
        return None
    return [fact, _take_item(step, f"{node}:1", fact)]


def get_item(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorListGetItem."""
    fact = step.inputs(node)[0]
    if is_of_examples(fact) or not _localize_shape(step, node, 2, fact):
        return None
    step.require_layout(node, 1, REPLICATED)
    return [_take_item(step, f"{node}:0", fact)]


def make_optional(step: StepWalk, node: str) -> list[Fact] | None:
    """OptionalFromValue of one tensor, as a list of it; OptionalNone is a list without it."""
    facts = step.inputs(node)
    if not facts:
        return [Fact(BLANK)]
    return [_make_list(facts[0], _OPTIONAL)] if len(facts) == 1 and facts[0].dims is not None else None


def get_value(step: StepWalk, node: str) -> list[Fact] | None:
    """OptionalGetValue."""
    tensors = step.view.outputs(node)
    return [_take_item(step, tensors[0], step.inputs(node)[0])] if len(tensors) == 1 else None


def measure_list(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorListLength."""
    fact = step.inputs(node)[0]
    if isinstance(fact.layout, Sharded | PerExample) and is_of_examples(fact):
        return [Fact(LENGTHS, (), fact.layout.part.length)]
    return [Fact(REPLICATED, (), fact.dims[0] if fact.dims else None)]


def shape_of_items(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorListElementShape: per-worker, where the tensors are sharded."""
    fact = step.inputs(node)[0]
    value: Value | None = fact.dims[1:] if fact.dims else None
    return step.all_outputs(node, REPLICATED if fact.is_same or is_of_examples(fact) else LENGTHS, None, value)


def resize(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorListResize to a replicated number of tensors."""
    fact = step.inputs(node)[0]
    if is_of_examples(fact):
        return None
    step.require_layout(node, 1, REPLICATED)
    return [Fact(fact.layout, _open_dims(step, node, fact.dims), fact.value)]


def add_all(step: StepWalk, node: str) -> list[Fact] | None:
    """AddN, of lists tensor by tensor."""
    if not step.is_list(f"{node}:0"):
        return elementwise(step, node)
    set_facts = [f for f in step.inputs(node) if f.layout != BLANK]
    if not set_facts:
        return [Fact(BLANK)]
    return [Fact(set_facts[0].layout)] if all(f.layout == set_facts[0].layout for f in set_facts) else None


def zeros_like(step: StepWalk, node: str) -> list[Fact] | None:
    """ZerosLike; a list of zeros is like a list without elements, and an optional tensor of zeros has its shape.

    Zeros in place of a worker's pieces have their lengths.
    """
    if not step.is_list(f"{node}:0"):
        return elementwise(step, node)
    fact = step.inputs(node)[0]
    step.keep_local(node)
    is_optional = fact.dims is not None and fact.dims[0] == _OPTIONAL
    return [replace(fact, value=None) if is_optional or isinstance(fact.layout, Sharded) else Fact(BLANK)]


def _append_tensor(step: StepWalk, node: str, slot: int) -> list[Fact] | None:
    """A list with one more tensor."""
    facts = step.inputs(node)
    whole, item = facts[0], facts[slot]
    if is_of_examples(whole):
        return None
    number = Length.of(f"{step.prefix}{node}[0]")
    is_set = step.view.op(node) == "TensorListSetItem"
    if whole.dims and is_set and not step.view.flag(node, "resize_if_index_out_of_bounds"):
        number = whole.dims[0]
    stacked = _make_list(item, number)
    layout, dims = stacked.layout, stacked.dims
    if whole.layout == BLANK:
        is_fixed = item.axis is not None and whole.dims is not None and len(whole.dims) > item.axis + 1
        return None if is_fixed else [stacked]
    value = item.value if whole.value == item.value else None
    dims = whole.dims if whole.dims is not None and dims is not None and whole.dims[1:] == dims[1:] else None
    if {whole.layout, layout} <= {REPLICATED, LENGTHS}:
        return [Fact(LENGTHS if LENGTHS in (whole.layout, layout) else REPLICATED, dims, value)]
    if whole.layout == layout:
        return [Fact(layout, dims, value)]
    if isinstance(whole.layout, Partial) and item.is_same and are_zeros(step.view, step.view.inputs(node)[slot]):
        return [Fact(whole.layout, dims)]  # part of any sum
    if isinstance(whole.layout, Sharded) and item.is_same and item.rank is not None and whole.axis:
        step.require_layout(node, slot, Sharded(whole.axis - 1, whole.layout.part))
        return [Fact(whole.layout, dims)]
    return None


def is_of_examples(fact: Fact) -> bool:
    """Whether a list has a tensor for each example of a worker."""
    return fact.axis == 0 or isinstance(fact.layout, PerExample)


def _find_count(step: StepWalk, node: str) -> ShardedAxis | None:
    """The sharded axis of which a list has a tensor for each of a worker's entries."""
    shape, count = step.inputs(node)
    if step.view.op(node) != "TensorListReserve" or shape.is_lengths or not count.is_lengths:
        return None
    return step.part_of(count.value) if isinstance(count.value, Length) else None


def _localize_shape(step: StepWalk, node: str, slot: int, fact: Fact) -> bool:
    """Makes a node read the shape of a list's tensors with per-worker lengths.

    Returns:
        Whether the shape is that of a worker's tensors: not where it has another constant length of one process.
    """
    shape = step.inputs(node)[slot].values() or ()
    length = shape[fact.axis - 1] if fact.axis and len(shape) >= fact.axis else None
    if fact.axis and fact.part is not None and length is not None and (length.number or 0) > 0:
        if not is_declared(step, fact.part, length):
            return False
        step.localize_axis(node, slot, fact.axis - 1, fact.part)
    step.keep_local(node, [slot])
    return True


def _make_list(item: Fact, number: Length) -> Fact:
    """A list of the given number of tensors like this one."""
    return Fact(shift_axis(item.layout, 1), None if item.dims is None else (number, *item.dims), item.value)


def _take_item(step: StepWalk, tensor: str, fact: Fact) -> Fact:
    """One tensor of a list."""
    if fact.layout == BLANK:
        return step.fact(tensor, REPLICATED)
    return step.fact(tensor, shift_axis(fact.layout, -1), fact.dims[1:] if fact.dims is not None else None, fact.value)


def _open_dims(step: StepWalk, node: str, dims: Dims | None) -> Dims | None:
    return None if dims is None else (Length.of(f"{step.prefix}{node}[0]"), *dims[1:])
