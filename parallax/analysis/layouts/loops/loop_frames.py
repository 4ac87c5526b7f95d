"""Finds the layouts of loops, whose ops lie in the graph between Enter and Exit.

A loop is one unit. Each loop variable has the layout that an iteration returns for it; the traversal iterates over the
loop body until the layouts reach a fixed point. Layout changes that need no communication happen inside the iteration.
Where an iteration needs a length or a partial tensor replicated, the change is made before the loop if inputs of the
loop make it so, and partial tensors of the iteration itself are reduced there: all workers run equally many iterations.
Otherwise the loop reads its inputs replicated, and the tensors that it stores for the gradient's loop are replicated
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from parallax.analysis.layouts.loops.example_loops import Walk, find_example_loop
from parallax.analysis.layouts.loops.per_example import visit_inner_loop
from parallax.analysis.layouts.rules.branches import INSIDE, are_zeros, join_turns, see_outside
from parallax.analysis.layouts.rules.elementwise import FLOATS
from parallax.analysis.layouts.rules.facts import BLANK, COUNTED, LENGTHS, REPLICATED, SUM, ExampleLoop, Fact
from parallax.analysis.layouts.rules.stacks import record_elements
from parallax.analysis.layouts.rules.step_walk import REMEDY, StepWalk, is_partial
from parallax.base.errors import GraphError
from parallax.graph.control_flow import SWITCHES, LoopFrame
from parallax.graph.tensor_stores import store_of
from parallax.graph.view import NEXT_ITERATIONS, node_of
from parallax.plans.layouts import (
    Distinct,
    ExampleNumbers,
    Layout,
    LengthValue,
    Partial,
    PerExample,
    Pieces,
    Positions,
    Sharded,
)

_MOST_ROUNDS = 8
_EXITS = ("Exit", "RefExit")
_PASSES = ("Merge", "Switch", "Enter", *NEXT_ITERATIONS, *_EXITS)
_PUTS = ("StackPushV2", "TensorArrayWriteV3", "TensorArrayScatterV3", "TensorArraySplitV3")
_TAKES = ("StackPopV2", "TensorArrayReadV3", "TensorArrayGatherV3", "TensorArrayConcatV3")


@dataclass(frozen=True, slots=True)
class LoopVisits:
    """How the nodes of a loop are visited.

    Attributes:
        walk: visits the units of a loop.
        check_whole: refuses a node that would not return equal values on all workers from replicated inputs.
        check_in_loop: refuses a node that may not be in a loop over examples.
    """

    walk: Walk
    check_whole: Callable[[StepWalk, str], None]
    check_in_loop: Callable[[str], None]


def visit_frame(step: StepWalk, frame: LoopFrame, visits: LoopVisits) -> None:
    """Assigns layouts to all tensors of a loop.

    Args:
        step: the traversal.
        frame: the loop.
        visits: visit and check its nodes.
    """
    for enter in frame.enters:
        step.replicate_layouts(enter, Distinct, Positions)
    if step.example_loop is not None and visit_inner_loop(step, step.example_loop, frame, visits.check_in_loop):
        return
    if frame.nodes.isdisjoint(step.gathered):
        loop = find_example_loop(step, frame, visits.walk)
        if loop is not None and _visit_iterations(step, frame, visits.walk, loop):
            return
        if _visit_iterations(step, frame, visits.walk):
            return
    whole = _settle(replace(step, grown={}), frame, visits.walk, frame.enters)
    _require_replicated(step, frame, whole, visits.check_whole)


def _visit_iterations(step: StepWalk, frame: LoopFrame, walk: Walk, loop: ExampleLoop | None = None) -> bool:
    """Assigns the layouts with which every iteration begins; returns whether there are such."""
    brought = _find_computed_entries(step, frame) if loop is None else _find_incomplete_entries(step, frame, loop)
    while (inner := _settle(step, frame, walk, brought, loop)) is not None:
        more = _find_replicated_inputs(step, frame, inner)
        if more == set():
            _adopt(step, frame, inner, brought)
            return True
        if more is None or more <= brought or loop is not None:
            return False
        brought |= more
    return False


def _find_computed_entries(step: StepWalk, frame: LoopFrame) -> set[str]:
    """The entries that compute with lengths, as the gradient of a mean over the batch does: they are no shapes."""
    tensors = {enter: step.view.inputs(enter)[0] for enter in frame.enters}
    return {enter for enter, t in tensors.items() if step.view.dtype(t) in FLOATS and step.facts[t].is_lengths}


def _find_incomplete_entries(step: StepWalk, frame: LoopFrame, loop: ExampleLoop) -> set[str]:
    """The entries that iterations of unequal number cannot complete: partial tensors, and values made of lengths."""
    begun = {node_of(tensor) for head in (*loop.sums, *loop.counters) for tensor in step.view.inputs(head)}
    starts = {enter: step.facts[step.view.inputs(enter)[0]] for enter in frame.enters if enter not in begun}
    return {
        enter
        for enter, fact in starts.items()
        if is_partial(fact) or (fact.is_lengths and not step.is_of_batches(fact))
    }


def _settle(
    step: StepWalk, frame: LoopFrame, walk: Walk, brought: Iterable[str], loop: ExampleLoop | None = None
) -> StepWalk | None:
    """A traversal of an iteration that returns the layouts with which it began; None where there is none."""
    view = step.view
    starts = {enter: step.facts[view.inputs(enter)[0]] for enter in frame.enters}
    starts |= {enter: replace(starts[enter], layout=REPLICATED) for enter in brought}
    begins = {head: _find_begin(step, head, starts) for head in frame.heads}
    facts = {head: starts[begins[head][0]] for head in frame.heads}
    fixed = {head: replace(fact, layout=Pieces()) for head, fact in facts.items() if f"{head}:0" in step.grown}
    if loop is not None:
        fixed |= {
            head: facts[head] if facts[head].axis == 0 else replace(facts[head], layout=SUM) for head in loop.sums
        }
        fixed |= {head: Fact(layout, ()) for head, layout in loop.counters.items()}
    facts |= fixed
    stored: Mapping[str, Fact] = {}
    for _ in range(_MOST_ROUNDS):
        inner = replace(
            StepWalk(view, step.batches, step.part_variables, step.completed, grown=step.grown),
            fed_scalars=step.fed_scalars,
            fed_lengths=step.fed_lengths,
            prefix=f"{step.prefix}{INSIDE}{frame.name}/",
            gathered=set(step.gathered),
            stored=dict(step.stored),
            stored_before=stored,
            arrays=dict(step.arrays),
            example_loop=loop,
        )
        for enter, fact in starts.items():
            inner.facts[f"{enter}:0"] = fact
        for head, fact in facts.items():
            inner.facts |= {f"{head}:0": fact, f"{head}:1": step.fact(f"{head}:1", REPLICATED)}
        try:
            walk(inner, frame.units)
        except GraphError:
            return None  # an op that cannot have replicated inputs raises the error itself
        joined_by_head = {}
        for head, fact in facts.items():
            enter, next_turn, is_nothing = begins[head]
            next_fact = see_outside(step, f"{head}:0", inner.facts[next_turn])
            joined = fixed.get(head) or join_turns(step, f"{head}:0", fact, next_fact, is_nothing)
            if joined is not None and is_partial(joined) and f"{head}:0" in step.completed:
                joined = replace(joined, layout=REPLICATED)
            joined_by_head[head] = joined
        if joined_by_head == facts and inner.stored == stored:
            inner.gathered -= step.gathered
            for head, fact in facts.items():
                _convert_result(inner, node_of(begins[head][1]), fact.layout)
            if loop is not None:
                _leave_example_loop(inner, loop)
            return inner
        joined_facts = {head: fact for head, fact in joined_by_head.items() if fact is not None}
        if len(joined_facts) < len(joined_by_head):
            return None
        has_changed = any(
            one.layout not in (BLANK, facts[head].layout) and not step.is_list(f"{head}:0")
            for head, one in joined_facts.items()
        )
        empty = {head: start for head in facts if (start := starts[begins[head][0]]).layout == BLANK}
        facts, stored = joined_facts | (empty if has_changed else {}), inner.stored
    return None


def _leave_example_loop(inner: StepWalk, loop: ExampleLoop) -> None:
    """Sets the values of counters after the last iteration."""
    for head, value in loop.ends.items():
        for edge in inner.view.consumers(f"{head}:0"):
            if inner.view.op(edge.node) in SWITCHES and edge.slot == 0:
                inner.facts[f"{edge.node}:0"] = inner.fact(f"{edge.node}:0", LENGTHS, (), value)


def _convert_result(inner: StepWalk, next_turn: str, layout: Layout) -> None:
    """Makes an iteration return a partial or replicated loop variable in the layout with which iterations begin."""
    fact = inner.facts[f"{next_turn}:0"]
    if layout in (REPLICATED, COUNTED) and fact.layout != layout and (fact.is_same or is_partial(fact)):
        inner.require_layout(next_turn, 0, layout)


def _find_begin(step: StepWalk, head: str, starts: Mapping[str, Fact]) -> tuple[str, str, bool]:
    """A loop variable's initial tensor, its value after an iteration, and whether it begins with zeros."""
    view = step.view
    nodes = [node_of(tensor) for tensor in view.inputs(head)]
    enters = [node for node in nodes if node in starts]
    turns = [f"{node}:0" for node in nodes if view.op(node) in NEXT_ITERATIONS]
    if len(enters) != 1 or len(turns) != 1:
        raise GraphError(
            f"Cannot analyse the loop of {view.op(head)} {head!r}: a loop variable must have one initial value and "
            f"one value per iteration. {REMEDY}"
        )
    return enters[0], turns[0], starts[enters[0]].is_same and are_zeros(view, view.inputs(enters[0])[0])


def _find_replicated_inputs(step: StepWalk, frame: LoopFrame, inner: StepWalk) -> set[str] | None:
    """The entries that must be replicated; None where that does not help."""
    if inner.example_loop is not None:
        return _find_completions(inner, set()) if _communicates_nothing(inner) else None
    if not all(_are_alike(inner, *inner.grown[f"{head}:0"]) for head in frame.heads if f"{head}:0" in inner.grown):
        return None
    completed = _find_completions(inner, {f"{enter}:0" for enter in frame.enters}, _find_results(step, frame, inner))
    return None if completed is None else {node_of(tensor) for tensor in completed}


def _communicates_nothing(inner: StepWalk) -> bool:
    """Whether iterations change the layouts of lengths and of indices alone, so that workers may run unequally many."""
    tensors = {tensor for (tensor, _), edges in inner.changes.items() if edges}
    layouts = [inner.facts[tensor].layout for tensor in tensors]
    return tensors.isdisjoint(inner.reduced) and all(isinstance(one, LengthValue | PerExample) for one in layouts)


def _are_alike(inner: StepWalk, rows: str, numbers: str) -> bool:
    """Whether each worker has the rows of its examples, and their numbers likewise."""
    fact, other = inner.facts[rows], inner.facts[numbers]
    is_local = fact.axis == other.axis == 0 and fact.part == other.part
    return is_local or (isinstance(fact.layout, Pieces) and isinstance(other.layout, Pieces))


def _find_results(step: StepWalk, frame: LoopFrame, inner: StepWalk) -> list[str]:
    """The tensors whose last value is read outside; a list of known lengths contains those of each iteration."""
    view, tensors = step.view, []
    for tensor, fact in inner.facts.items():
        if step.is_list(tensor) and inner.is_of_batches(fact):
            continue
        exits = [e.node for e in view.consumers(tensor) if e.node not in frame.nodes and view.op(e.node) in _EXITS]
        if any(view.consumers(f"{node}:0") for node in exits):
            tensors.append(tensor)
    return tensors


def _adopt(step: StepWalk, frame: LoopFrame, inner: StepWalk, brought: Set[str]) -> None:
    """Converts the loop's inputs to the layouts that its iterations require."""
    view = step.view
    begun = {node_of(tensor): head for head in frame.heads for tensor in view.inputs(head)}
    for enter in frame.enters:
        start = step.facts[view.inputs(enter)[0]]
        layout: Layout = inner.facts[f"{enter}:0"].layout
        if enter in begun and isinstance(inner.facts[f"{begun[enter]}:0"].layout, Pieces | PerExample):
            continue
        if enter in begun:
            fact = inner.facts[f"{begun[enter]}:0"]
            is_part = fact.is_sum and start.is_same
            layout = start.layout if is_part and are_zeros(view, view.inputs(enter)[0]) else fact.layout
            layout = start.layout if start.is_same and layout == LENGTHS else layout
        if enter in brought or layout != start.layout:
            step.require_layout(enter, 0, layout)
    for key, edges in inner.changes.items():
        step.changes.setdefault(key, []).extend(edges)
    step.reduced |= inner.reduced
    step.incomplete |= inner.incomplete
    step.converted_reads |= inner.converted_reads
    step.means += inner.means
    step.ranges += inner.ranges
    step.shapes += inner.shapes
    step.squeezed |= inner.squeezed
    step.equal_draws += inner.equal_draws
    step.facts |= inner.facts
    step.blocks |= inner.blocks
    step.stored = inner.stored


def _require_replicated(
    step: StepWalk, frame: LoopFrame, inner: StepWalk | None, check_whole: Callable[[StepWalk, str], None]
) -> None:
    """Makes the loop read all its inputs, and stacks and TensorArrays, replicated; all workers compute the same.

    Args:
        step: the traversal.
        frame: the loop.
        inner: a traversal of an iteration on replicated inputs, which knows lengths; None where there is none.
        check_whole: see `visit_frame`.
    """
    view = step.view
    for enter in frame.enters:
        tensor = view.inputs(enter)[0]
        if isinstance(step.facts[tensor].layout, Sharded):
            step.mixing.setdefault(enter, [tensor])
        step.require_layout(enter, 0, REPLICATED)
    for node in sorted(frame.nodes):
        for tensor in view.outputs(node):
            known = inner.facts.get(tensor) if inner is not None else None
            step.facts[tensor] = known if known is not None and known.is_same else step.fact(tensor, REPLICATED)
        stored = step.stored.get(store := store_of(view, view.inputs(node)[0])) if view.op(node) in _TAKES else None
        if stored is not None and not stored.is_same:
            step.gathered.add(store)
    for node in sorted(frame.nodes):
        check_whole(step, node)
        if view.op(node) in _PUTS:
            store = store_of(view, view.inputs(node)[0])
            known = inner.stored.get(store) if inner is not None else None
            record_elements(step, store, known if known is not None and known.is_same else Fact(REPLICATED))


def _find_completions(inner: StepWalk, starts: Set[str], required: Iterable[str] = ()) -> set[str] | None:
    """The inputs that must be replicated; None where that does not help.

    Args:
        inner: a traversal of a body.
        starts: the input tensors.
        required: tensors of the body that must not be per-worker lengths.
    """
    changes = [key for key, edges in inner.changes.items() if edges and not _is_own(inner, *key)]
    lengths = [(tensor, REPLICATED) for tensor in required if inner.facts[tensor].is_lengths]
    completions = set[str]()
    for tensor, layout in (*changes, *lengths):
        before = inner.reduced.get(tensor, inner.facts[tensor].layout)
        sources = _find_incomplete(inner, starts, tensor)
        if layout != REPLICATED or not (sources or isinstance(before, Partial)):
            return None
        completions |= sources
    shapes = [inner.view.inputs(one.edge.node)[one.edge.slot] for one in inner.shapes]
    others = replace(
        inner,
        changes={},
        equal_draws=[],
        means=[mean for mean in inner.means if mean.dealt is not None],
        ranges=[one for one in inner.ranges if not one.part.is_even],
        shapes=[] if all(_is_computable(inner, tensor) for tensor in shapes) else inner.shapes,
    )
    return None if others.needs_changes else completions


def _is_own(inner: StepWalk, tensor: str, after: Layout) -> bool:
    """Whether a worker can change a layout without communication, from its values of one iteration."""
    before = inner.facts[tensor].layout
    if isinstance(after, ExampleNumbers):
        return after.part.is_even
    if isinstance(before, PerExample):
        return True
    if before == LENGTHS and after == REPLICATED:
        return _is_computable(inner, tensor)
    if before == REPLICATED and isinstance(after, Sharded):
        return after.part.is_even
    return before in (REPLICATED, SUM) and after == COUNTED


def _is_computable(inner: StepWalk, tensor: str) -> bool:
    """Whether a worker can compute the values of one process within an iteration, from batch lengths."""
    fact, node = inner.facts[tensor], node_of(tensor)
    if fact.is_same or (fact.is_lengths and not inner.is_list(tensor) and inner.is_of_batches(fact)):
        return True
    if not fact.is_lengths or inner.is_list(tensor) or inner.view.op(node) in (*_TAKES, *_PASSES):
        return False
    return all(_is_computable(inner, tensor_read) for tensor_read in inner.view.inputs(node))


def _find_incomplete(inner: StepWalk, starts: Set[str], tensor: str) -> set[str]:
    """The inputs that are lengths or partial sums and from which a tensor is computed."""
    view, waiting, seen, incomplete = inner.view, [tensor], {tensor}, set[str]()
    while waiting:
        one = waiting.pop()
        fact = inner.facts.get(one)
        if fact is None or not (fact.layout == LENGTHS or is_partial(fact)):
            continue
        if one in starts:
            incomplete.add(one)
            continue
        fresh = [tensor_read for tensor_read in view.inputs(node_of(one)) if tensor_read not in seen]
        seen |= set(fresh)
        waiting += fresh
    return incomplete
