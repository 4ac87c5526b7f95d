"""Layouts in a loop over examples: an op reads tensors of its iteration's example, or replicated ones.

The exceptions are ops on values that iterations pass on: lists, stacks and arrays, sums, and the number of iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from parallax.analysis.layouts.loops.example_loops import ADDITIONS
from parallax.analysis.layouts.rules.facts import BLANK, LENGTHS, REPLICATED, ExampleLoop, Fact
from parallax.analysis.layouts.rules.lists import is_of_examples
from parallax.analysis.layouts.rules.op_rules import RULES
from parallax.analysis.layouts.rules.plain import plain
from parallax.analysis.layouts.rules.stacks import find_elements, find_examples, record_elements
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.base.errors import GraphError
from parallax.graph.control_flow import MERGES, SWITCHES, LoopFrame, branches_at, branches_of, predicate_of
from parallax.graph.tensor_stores import store_of
from parallax.graph.view import NEXT_ITERATIONS, node_of
from parallax.plans.layouts import Layout, PerExample, Sharded, ShardedAxis

_COPIES = ("Identity", "IdentityN", "Exit", "RefExit", *NEXT_ITERATIONS)
_SUMS = ("Add", "AddV2", "Sub")
_COMPARISONS = ("Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd")
_OF_DECISIONS = {"Identity", "IdentityN", "LogicalAnd", "LoopCond"}
"""Ops that may read whether a loop runs another iteration."""
_OF_COUNTS = {*_COMPARISONS, "Identity", "IdentityN", "Pack", "StackPushV2", "StridedSlice", "TensorListPushBack"}
"""Ops that may read a number of iterations: those of the loop, and slices of one row."""


class ExamplesInteract(GraphError):
    """An iteration of a loop needs more than its own example."""


def visit_in_loop(step: StepWalk, loop: ExampleLoop, node: str) -> list[Fact] | None:
    """The facts of a node's results in a loop over examples; None where the rule of its op applies.

    Args:
        step: the traversal of an iteration.
        loop: the loop.
        node: a node of it.

    Raises:
        ExamplesInteract: the loop is not one over examples.
    """
    op = step.view.op(node)
    facts = step.inputs(node)
    if op == "LoopCond" and facts[0].layout == PerExample(loop.part, "count"):
        return [facts[0]]
    if op == "LoopCond":
        raise ExamplesInteract(f"{node!r} decides by other values than the number of iterations")
    if op in _COPIES:
        return list(facts)
    if op in SWITCHES:
        if step.view.op(node_of(predicate_of(step.view, node))) != "LoopCond":
            _require_of_example(step, node, [1])
        return [facts[0], facts[0]]
    if node in loop.additions:
        return _add_to_sum(step, node, loop.part)
    if op in _OF_LOOPS and (found := _OF_LOOPS[op](step, node, loop.part)) is not None:
        return found
    if (role := _find_role(step, node)) is not None:
        return step.all_outputs(node, PerExample(loop.part, role))
    if any(isinstance(fact.layout, PerExample) for fact in facts) or _is_chosen_by_example(step, node):
        found = _apply_rule(step, loop, node)
        _require_of_example(step, node, range(len(facts)))  # last: a rule that requires an input withdraws this
        return found
    return None


def _apply_rule(step: StepWalk, loop: ExampleLoop, node: str) -> list[Fact]:
    """The results of an op on an example's tensors: their lengths are those of its results on replicated ones."""
    tensors = step.view.inputs(node)
    before = {tensor: step.facts[tensor] for tensor in tensors}
    step.facts |= {tensor: replace(fact, layout=REPLICATED) for tensor, fact in before.items()}
    try:
        found = RULES.get(step.view.op(node), plain)(step, node)
    finally:
        step.facts |= before
    if found is None:
        return step.all_outputs(node, PerExample(loop.part))
    return [replace(fact, layout=PerExample(loop.part)) for fact in found]


def visit_inner_loop(step: StepWalk, loop: ExampleLoop, frame: LoopFrame, visit: Callable[[str], None]) -> bool:
    """Assigns layouts to the tensors of a loop that an iteration runs on tensors of its example.

    Args:
        step: the traversal of an iteration.
        loop: the loop over examples.
        frame: the inner loop.
        visit: refuses a node that may not be in a loop over examples.

    Returns:
        Whether the inner loop reads tensors of the example; else it is like any other.

    Raises:
        ExamplesInteract: the outer loop is not one over examples.
    """
    view = step.view
    if not any(isinstance(step.facts[view.inputs(enter)[0]].layout, PerExample) for enter in frame.enters):
        return False
    for enter in frame.enters:
        _require_of_example(step, enter, [0])
    for node in sorted(frame.nodes):
        visit(node)
        step.facts |= dict(zip(view.outputs(node), step.all_outputs(node, PerExample(loop.part)), strict=True))
    return True


def _add_to_sum(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact]:
    """A sum to which iterations add, some of them perhaps in a branch that their example decides on."""
    facts = step.inputs(node)
    if step.view.op(node) in MERGES:
        if len({fact.layout for fact in facts}) > 1:
            raise ExamplesInteract(f"{node!r} is a sum in one branch alone")
        return [facts[0], step.fact(f"{node}:1", PerExample(part))]
    places = [slot for slot, fact in enumerate(facts) if fact.is_sum or fact.axis == 0]
    others = [slot for slot in range(len(facts)) if slot not in places]
    if len(places) != 1:
        raise ExamplesInteract(f"{node!r} adds several sums")
    whole = facts[places[0]]
    if whole.is_sum:
        _require_of_example(step, node, others)
    elif any(facts[slot].layout != PerExample(part, "row") for slot in others):
        raise ExamplesInteract(f"{node!r} adds to the rows of all examples")
    return [Fact(whole.layout, whole.dims)]


def _find_role(step: StepWalk, node: str) -> str | None:
    """The role of what a node computes from the number of iterations, or from rows; None for an ordinary tensor."""
    op, facts = step.view.op(node), step.inputs(node)
    roles = [fact.layout.role if isinstance(fact.layout, PerExample) else "" for fact in facts]
    others = [fact for fact in facts if not isinstance(fact.layout, PerExample)]
    if op in ADDITIONS and set(roles) == {"row"}:
        return "row"
    if set(roles).isdisjoint(("index", "count")) or not all(fact.is_same or fact.is_lengths for fact in others):
        return None
    takers = {step.view.op(edge.node) for edge in step.view.takers(f"{node}:0")}
    if op in _COMPARISONS and takers <= _OF_DECISIONS:
        if any(fact.is_same and fact.numbers() is None for fact in others):
            raise ExamplesInteract(f"{node!r} compares the number of iterations with that of one process")
        step.keep_local(node)
        return "count"
    if op == "Pack" and roles[0] == "index" and all(fact.is_same for fact in others):
        return "index"
    is_count = takers <= _OF_COUNTS or not takers.isdisjoint(NEXT_ITERATIONS)
    return "count" if op in (*_SUMS, "Pack") and is_count and all(fact.is_same for fact in others) else None


def _require_of_example(step: StepWalk, node: str, slots: Iterable[int]) -> None:
    """Requires that inputs are the example's or replicated; lengths and indices are those of the global batch."""
    facts = step.inputs(node)
    for slot in slots:
        layout = facts[slot].layout
        if layout == LENGTHS or _is_countable(facts[slot]):
            step.require_layout(node, slot, REPLICATED)
        elif layout not in (REPLICATED, BLANK) and not (isinstance(layout, PerExample) and not layout.role):
            raise ExamplesInteract(f"{node!r} reads {step.view.inputs(node)[slot]!r}, which is not of one example")


def _is_countable(fact: Fact) -> bool:
    """Whether a scalar is the index of an entry, of which one process's is known."""
    part = fact.layout.part if isinstance(fact.layout, PerExample) else None
    return (
        part is not None and _is_index(fact) and fact.rank == 0 and part.blocks == 1 and part.factor.number is not None
    )


def _is_chosen_by_example(step: StepWalk, node: str) -> bool:
    """Whether a Merge takes the branch that its example decides on."""
    view = step.view
    if view.op(node) not in MERGES:
        return False
    outside = len(branches_of(view)[node])
    predicates = [one.predicate for tensor in view.inputs(node) for one in branches_at(view, tensor)[outside:]]
    return any(isinstance(step.facts[one].layout, PerExample) for one in predicates)


def _make_list(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact] | None:
    """A list of the iteration, unless it has an element for each of them."""
    shape, count = step.inputs(node)
    if step.view.op(node) == "TensorListReserve" and count.is_lengths and count.value == part.length:
        step.keep_local(node)
        return [Fact(Sharded(0, part))]
    _require_of_example(step, node, (0, 1))
    return [Fact(PerExample(part))]


def _append(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact] | None:
    """A list with the tensor of another iteration."""
    view, facts = step.view, step.inputs(node)
    whole, item = facts[0], facts[-1] if view.op(node) == "TensorListSetItem" else facts[1]
    role = item.layout.role if isinstance(item.layout, PerExample) else ""
    if item.is_lengths and item.complete_values() is not None:
        role = "lengths"
    layout = PerExample(part, role) if role else Sharded(0, part)
    if _is_of_iteration(whole):
        return None
    if view.op(node) == "TensorListSetItem":
        if not is_of_examples(whole) and not any(isinstance(fact.layout, PerExample) for fact in facts[1:]):
            return None
        is_in_place = _is_index(facts[1]) and not role and (whole.layout == layout or _grows(step, node))
    else:
        is_in_place = role != "row"
    if not is_in_place or whole.layout not in (BLANK, layout) or not branches_of(view)[node][-1].is_loop:
        raise ExamplesInteract(f"{node!r} does not append one tensor for each example")
    if not role:
        _require_of_example(step, node, [facts.index(item)])
    dims = None if item.dims is None else (part.length, *item.dims)
    return [Fact(layout, dims, item.value if role == "lengths" else None)]


def _is_along(whole: Fact, part: ShardedAxis) -> bool:
    """Whether a list has a tensor for each entry of an axis of this sharding."""
    return isinstance(whole.layout, Sharded | PerExample) and is_of_examples(whole) and whole.layout.part == part


def _grows(step: StepWalk, node: str) -> bool:
    return step.view.flag(node, "resize_if_index_out_of_bounds")


def _is_of_iteration(whole: Fact) -> bool:
    """Whether a list is a tensor of an iteration."""
    return isinstance(whole.layout, PerExample) and not whole.layout.role


def _is_index(fact: Fact) -> bool:
    return isinstance(fact.layout, PerExample) and fact.layout.role == "index"


def _take_item(step: StepWalk, tensor: str, whole: Fact, part: ShardedAxis) -> Fact:
    layout: Layout = whole.layout if isinstance(whole.layout, PerExample) else PerExample(part)
    if layout == PerExample(part, "lengths"):
        layout = LENGTHS
    return step.fact(tensor, layout, whole.dims[1:] if whole.dims is not None else None, whole.value)


def _pop(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact] | None:
    """The list, and the tensor of the iteration."""
    whole = step.inputs(node)[0]
    if _is_of_iteration(whole) or whole.layout == BLANK:
        return None
    if not _is_along(whole, part) or not branches_of(step.view)[node][-1].is_loop:
        raise ExamplesInteract(f"{node!r} does not take one tensor for each example from a list")
    return [whole, _take_item(step, f"{node}:1", whole, part)]


def _get_item(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact] | None:
    """The tensor of an iteration."""
    whole, index, _ = step.inputs(node)
    if not is_of_examples(whole) or _is_of_iteration(whole):
        return None
    if not _is_index(index) or not _is_along(whole, part):
        raise ExamplesInteract(f"{node!r} takes an element that may be another example's")
    return [_take_item(step, f"{node}:0", whole, part)]


def _write(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact] | None:
    """An array's element of the iteration's number, or another tensor on a stack."""
    is_push = step.view.op(node) == "StackPushV2"
    slot = 1 if is_push else 2
    store, item = store_of(step.view, step.view.inputs(node)[0]), step.inputs(node)[slot]
    if not is_push and (find_examples(step, store) != part or not _is_index(step.inputs(node)[1])):
        raise ExamplesInteract(f"{node!r} writes an element that may be another example's")
    layout = item.layout if isinstance(item.layout, PerExample) else PerExample(part)
    if item.is_lengths and is_push and item.complete_values() is not None:
        layout = PerExample(part, "lengths")
    fact = Fact(layout, item.dims, item.value if layout.role == "lengths" else None)
    if not layout.role:
        _require_of_example(step, node, [slot])
    elif not is_push:
        raise ExamplesInteract(f"{node!r} stores the index of an example")
    before = step.stored.get(store)
    if store in step.gathered or (before is not None and before.layout != fact.layout):
        raise ExamplesInteract(f"{node!r} writes to a container of other tensors")
    record_elements(step, store, fact)
    return [item] if is_push else step.all_outputs(node, REPLICATED)


def _read(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact] | None:
    """An array's element of the iteration's number, or the last tensor of a stack."""
    fact = find_elements(step, node)
    if fact is None or not isinstance(fact.layout, PerExample) or fact.layout.part != part:
        raise ExamplesInteract(f"{node!r} reads an element that may be another example's")
    if step.view.op(node) != "StackPopV2" and not _is_index(step.inputs(node)[1]):
        raise ExamplesInteract(f"{node!r} reads an element that may be another example's")
    if fact.layout.role == "lengths":
        return [Fact(LENGTHS, fact.dims, fact.value)]
    return [step.fact(f"{node}:0", fact.layout, fact.dims)]


def _slice_entry(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact] | None:
    """StridedSlice of the row of an iteration's entry."""
    whole, begin, _, strides = step.inputs(node)
    if whole.layout != Sharded(0, part) or not _is_index(begin) or not strides.is_same or not _takes_row(step, node):
        return None
    return step.all_outputs(node, PerExample(part))


def _slice_gradient(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact] | None:
    """StridedSliceGrad of the row of an iteration's entry: zeros but for that row."""
    shape, begin, *_ = step.inputs(node)
    lengths = shape.values() if shape.is_lengths else None
    if not lengths or lengths[0] != part.length or not _is_index(begin) or not _takes_row(step, node):
        return None
    step.keep_local(node, [0])
    _require_of_example(step, node, [4])
    return step.all_outputs(node, PerExample(part, "row"), shape.complete_values())


def _takes_row(step: StepWalk, node: str) -> bool:
    """Whether a slice takes one entry of the first axis."""
    masks = {name: step.view.nodes[node].attr[f"{name}_mask"].i for name in ("begin", "shrink_axis")}
    others = [step.view.nodes[node].attr[f"{name}_mask"].i for name in ("ellipsis", "new_axis")]
    return not masks["begin"] & 1 and bool(masks["shrink_axis"] & 1) and not any(others)


def _look_up_entry(step: StepWalk, node: str, part: ShardedAxis) -> list[Fact] | None:
    """Gather of the row of an iteration's entry."""
    whole, index, *axis = step.inputs(node)
    if whole.layout != Sharded(0, part) or not _is_index(index) or any(one.numbers() != [0] for one in axis):
        return None
    return step.all_outputs(node, PerExample(part))


_OF_LOOPS: dict[str, Callable[[StepWalk, str, ShardedAxis], list[Fact] | None]] = {
    "EmptyTensorList": _make_list,
    "TensorListReserve": _make_list,
    "TensorListPushBack": _append,
    "TensorListSetItem": _append,
    "TensorListPopBack": _pop,
    "TensorListGetItem": _get_item,
    "StackPushV2": _write,
    "StackPopV2": _read,
    "TensorArrayWriteV3": _write,
    "TensorArrayReadV3": _read,
    "StridedSlice": _slice_entry,
    "StridedSliceGrad": _slice_gradient,
    **dict.fromkeys(("Gather", "GatherV2"), _look_up_entry),
}
