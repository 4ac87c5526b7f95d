"""Layouts at control-flow joins: of conditionals, whose branch all workers agree on, and of loop iterations."""

from __future__ import annotations

from parallax.analysis.layouts.rules.facts import BLANK, COUNTED, LENGTHS, REPLICATED, SUM, Dims, Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.graph.control_flow import branches_at, branches_of
from parallax.graph.lengths import Length
from parallax.graph.view import GraphView, node_of
from parallax.plans.layouts import Layout, Sharded

INSIDE = "loop "
"""Prefix of symbols of a loop's lengths; no op's name contains a blank."""
_COPIES = ("Identity", "Reshape", "Cast", "BroadcastTo", "Tile", "ExpandDims", "Snapshot", "Switch", "Enter")


def choose_branch(step: StepWalk, node: str) -> list[Fact] | None:
    """Switch: all workers take the same branch."""
    fact = step.inputs(node)[0]
    step.require_layout(node, 1, REPLICATED)
    return [fact, fact]


def exit_loop(step: StepWalk, node: str) -> list[Fact] | None:
    """Exit: the loop variable after the last iteration."""
    return [see_outside(step, f"{node}:0", step.inputs(node)[0])]


def find_condition(step: StepWalk, node: str) -> list[Fact] | None:
    """LoopCond: all workers run equally many iterations."""
    step.require_layout(node, 0, REPLICATED)
    return step.all_outputs(node, REPLICATED)


def see_outside(step: StepWalk, tensor: str, fact: Fact) -> Fact:
    """The facts of a tensor that an iteration passes on: lengths that it has computed may differ in the next one."""
    is_open = any(one is not None and _is_of_turn(step, one) for one in fact.values() or ())
    dims = fact.dims
    if dims is not None:
        names = [Length.of(f"{step.prefix}{tensor}[{axis}]") for axis in range(len(dims))]
        dims = tuple(new if _is_of_turn(step, one) else one for one, new in zip(dims, names, strict=True))
    return Fact(fact.layout, dims, None if is_open else fact.value)


def _is_of_turn(step: StepWalk, length: Length) -> bool:
    """Whether an iteration has computed a length; also one of the loop whose gradient this loop is."""
    return any(length.has_symbol_of(inside) for inside in (INSIDE, f"{step.prefix}{INSIDE}"))


def join_branches(step: StepWalk, node: str) -> list[Fact] | None:
    """Merge of two branches: the common layout, if any, where zeros or empty lists match any; else replicated.

    Where the branch that runs is known, its layout.
    """
    facts = step.inputs(node)
    of_taken = [fact for fact, t in zip(facts, step.view.inputs(node), strict=True) if _may_run(step, node, t)]
    of_tensors = [fact for fact in of_taken if fact.layout != BLANK] or of_taken[:1]
    if len(of_tensors) == 1:
        return [of_tensors[0], step.fact(f"{node}:1", REPLICATED)]
    nothing = [fact.is_same and are_zeros(step.view, t) for fact, t in zip(facts, step.view.inputs(node), strict=True)]
    branch_facts = [fact for fact, is_nothing in zip(facts, nothing, strict=True) if not is_nothing] or facts
    if any(fact.axis is not None for fact in branch_facts) and len({fact.dims for fact in facts}) > 1:
        branch_facts = facts  # zeros have the length of the tensor that they replace, or are no part of it
    layout: Layout = REPLICATED
    if all(fact.layout == branch_facts[0].layout for fact in branch_facts):
        layout = branch_facts[0].layout
    elif all(fact.is_sum or fact.is_same for fact in branch_facts):
        layout = COUNTED
    value = facts[0].value if all(fact.value == facts[0].value for fact in facts) else None
    if layout == LENGTHS and value is None:  # each branch has its own lengths of the global batch
        layout = REPLICATED
    for slot, is_nothing in enumerate(nothing):
        if not (is_nothing and layout in (SUM, COUNTED)):
            step.require_layout(node, slot, layout)
    dims = facts[0].dims if all(f.dims == facts[0].dims for f in facts) else None
    return [step.fact(f"{node}:0", layout, dims, value), step.fact(f"{node}:1", REPLICATED)]


def _may_run(step: StepWalk, merge: str, tensor: str) -> bool:
    """Whether a branch of a Merge may run, as far as predicates are known."""
    for branch in branches_at(step.view, tensor)[len(branches_of(step.view)[merge]) :]:
        fact = step.facts.get(branch.predicate)
        predicate_values = fact.numbers() if fact is not None else None
        if predicate_values is not None and bool(predicate_values[0]) != bool(branch.taken):
            return False
    return True


def join_facts(step: StepWalk, output: str, one: Fact, other: Fact) -> Fact | None:
    """The fact of a tensor that is one or the other; lengths that differ are unknown.

    Args:
        step: the traversal.
        output: the joined tensor.
        one: the first fact.
        other: the second fact.
    """
    if other.layout == BLANK:
        return one
    if one.layout == BLANK:
        one = other
    layout = _join_layouts(step, one, other)
    if layout is None:
        return None
    value = one.value if one.value == other.value else None
    return Fact(layout, _join_dims(step, output, layout, one, other), value)


def join_turns(step: StepWalk, output: str, one: Fact, other: Fact, is_nothing: bool) -> Fact | None:
    """The fact of a loop variable before and after an iteration.

    Args:
        step: the traversal.
        output: the variable after the last iteration.
        one: the fact before an iteration.
        other: the fact after it.
        is_nothing: whether it begins with zeros, which match any layout, and are a part of any sum.
    """
    if is_nothing and one.is_same and other.is_sum:  # an iteration adds a sum to them, which may be uncounted yet
        return Fact(SUM, _join_dims(step, output, SUM, one, other))
    if is_nothing:
        if one.is_same and isinstance(other.layout, Sharded):
            step.find_fed_length(other.layout.part, (one.dims or ())[other.layout.axis :][:1])
        one = Fact(SUM if one.layout == SUM else other.layout, one.dims)
    joined = join_facts(step, output, one, other)
    if joined is not None or step.is_list(output) or not all(f.is_same or is_partial(f) for f in (one, other)):
        return joined
    layout: Layout = COUNTED if all(f.is_same or f.is_sum for f in (one, other)) else REPLICATED
    return Fact(layout, _join_dims(step, output, layout, one, other))


def _join_layouts(step: StepWalk, one: Fact, other: Fact) -> Layout | None:
    layouts = {one.layout, other.layout}
    if len(layouts) == 1:
        return one.layout
    if one.layout == SUM and other.is_counted:
        return COUNTED
    if layouts == {REPLICATED, LENGTHS}:
        return LENGTHS
    if not one.is_same or not isinstance(other.layout, Sharded):
        return None
    step.find_fed_length(other.layout.part, (one.dims or ())[other.layout.axis :][:1])
    return other.layout


def _join_dims(step: StepWalk, output: str, layout: Layout, one: Fact, other: Fact) -> Dims | None:
    known = [f.dims for f in (one, other) if f.dims is not None]
    if len(known) < 2 or len(known[0]) != len(known[1]):
        return None
    dims = [
        lengths[0] if len(set(lengths)) == 1 else Length.of(f"{step.prefix}{output}[{axis}]")
        for axis, lengths in enumerate(zip(*known, strict=True))
    ]
    if isinstance(layout, Sharded):
        dims[layout.axis] = layout.part.length
    return tuple(dims)


def are_zeros(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is zeros, whatever its shape."""
    node = node_of(tensor)
    while view.op(node) in _COPIES or view.op(node) == "Fill":
        node = node_of(view.inputs(node)[1 if view.op(node) == "Fill" else 0])
    if view.op(node) == "ZerosLike":
        return True
    value = view.constant(f"{node}:0") if view.op(node) == "Const" else None
    return value is not None and value.dtype.kind in "fc" and not value.any()
