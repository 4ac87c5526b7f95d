"""Assigns layouts to the results of each node of a step's graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from parallax.analysis.layouts.loops.loop_frames import LoopVisits, visit_frame
from parallax.analysis.layouts.loops.per_example import ExamplesInteract, visit_in_loop
from parallax.analysis.layouts.rules.facts import COUNTED, LENGTHS, REPLICATED, Fact
from parallax.analysis.layouts.rules.op_rules import RULES, TAKEN
from parallax.analysis.layouts.rules.plain import plain
from parallax.analysis.layouts.rules.sparse_tensors import visit_sparse_feed
from parallax.analysis.layouts.rules.step_walk import REMEDY, StepWalk, is_partial
from parallax.analysis.layouts.rules.values import constant_value
from parallax.analysis.layouts.training_graph import NO_ARRAYS, VisitedGraph
from parallax.analysis.reading.capture import variable_of_tensor
from parallax.base.errors import GraphError
from parallax.graph.batches import ROWS, WHOLE, batch_tensors, find_report_kind, is_stated_scalar
from parallax.graph.control_flow import Unit, branches_of
from parallax.graph.lengths import ONE, Length
from parallax.graph.local_statistics import is_local_reduction
from parallax.graph.ops import ELEMENTWISE, LOOKUPS, state_op
from parallax.graph.view import VARIABLES
from parallax.plans.layouts import Pieces, RowEnds, Sharded, ShardedAxis

_TEXT = 7  # types.proto
_EXTREMES = ("Max", "Min")
_ALIKE = ELEMENTWISE | {"AddN", "Concat", "ConcatV2", "Enter", "Merge", "Pack"}
"""Ops whose inputs have equal lengths along an axis, except one along which they are concatenated."""
_TO_SHAPES = ("BroadcastTo", "Reshape", "ScatterNd", "SparseToDense", "Tile", "UnsortedSegmentSum")
"""Ops whose results have a shape that is an input."""


def visit_all(program: VisitedGraph, step: StepWalk, units: Sequence[Unit]) -> None:
    """Assigns layouts to the results of some nodes, and of loops, in order."""
    for unit in units:
        if isinstance(unit, str):
            visit(program, step, unit)
        else:
            visits = LoopVisits(
                partial(visit_all, program), partial(_check_complete, program), partial(_check_in_example_loop, program)
            )
            visit_frame(step, unit, visits)


def visit(program: VisitedGraph, step: StepWalk, node: str) -> None:
    """Assigns layouts to the results of a node.

    A partial one that is required complete is reduced here. A shape with several lengths of a batch, of which only one
    is per-worker, is read in full.
    """
    for tensor, fact in zip(program.view.outputs(node), _find_facts(program, step, node), strict=True):
        if (tensor in step.completed and is_partial(fact)) or _is_shape_of_several(program, step, tensor, fact):
            step.changes[tensor, REPLICATED] = program.takers(tensor)
            step.reduced[tensor] = fact.layout
            fact = Fact(REPLICATED, fact.dims, fact.value)
        step.facts[tensor] = fact


def _is_shape_of_several(program: VisitedGraph, step: StepWalk, tensor: str, fact: Fact) -> bool:
    """Whether several lengths of a batch may be a shape, of which one axis at most is per-worker."""
    takers = program.takers(tensor) if fact.is_lengths and step.has_lengths(fact) else []
    return any(program.view.op(edge.node) not in _EXTREMES for edge in takers)


def _find_facts(program: VisitedGraph, step: StepWalk, node: str) -> list[Fact]:
    view, op = program.view, program.view.op(node)
    if op == "Const":
        return step.all_outputs(node, REPLICATED, None, constant_value(view, f"{node}:0"))
    if op in VARIABLES:
        return step.all_outputs(node, REPLICATED)
    if node in program.lengths:
        return step.all_outputs(node, REPLICATED, (), Length.of(program.lengths[node]))
    if op.startswith("Placeholder") or node in program.batches:
        return _visit_source(program, step, node)
    if step.example_loop is not None:
        _check_in_example_loop(program, node)
    if op in ("ReadVariableOp",) and variable_of_tensor(view, program.variables, view.inputs(node)[0]):
        is_added_up = variable_of_tensor(view, program.variables, view.inputs(node)[0]) in step.part_variables
        return step.all_outputs(node, COUNTED if is_added_up else REPLICATED)
    if not step.pieces.isdisjoint(view.outputs(node)):
        return step.all_outputs(node, Pieces())
    state = state_op(op, len(view.inputs(node)))
    if state is not None and op not in RULES:
        return _visit_write(program, step, node)
    missing = [t for t in view.inputs(node) if t not in step.facts]
    if missing:
        raise GraphError(
            f"Cannot analyse {op} {node!r}: it is unknown whether its input {missing[0]!r} is sharded or replicated. "
            f"{REMEDY}"
        )
    if node in program.compared:
        return step.all_outputs(node, REPLICATED)
    if not view.outputs(node):  # an assertion, which reads its worker's values, and lengths of the global batch
        for slot, fact in enumerate(step.inputs(node)):
            if fact.is_lengths:
                step.require_layout(node, slot, REPLICATED)
        return []
    if step.example_loop is not None and (found := visit_in_loop(step, step.example_loop, node)) is not None:
        return found
    if is_local_reduction(view.nodes[node]):
        return _visit_local_reduction(step, node)
    kind = find_report_kind(view.nodes[node])
    if kind in (ROWS, WHOLE):
        return _visit_result(program, step, node, kind)
    for layouts, takers in TAKEN:
        if op not in takers:
            step.replicate_layouts(node, *layouts)
    is_opaque = op not in RULES and (program.differs_in(node) or program.is_opaque(node))
    is_whole = is_opaque or node in step.gathered or program.writes(node, step.part_variables)
    facts = None if is_whole else RULES.get(op, plain)(step, node)
    if facts is None:
        return _require_replicated(program, step, node)
    if not any(fact.is_lengths for fact in facts) and not step.is_length_invariant(node, facts):
        step.take_global_lengths(node)
    return facts


def _check_in_example_loop(program: VisitedGraph, node: str) -> None:
    """Refuses a node that every iteration of one process must run, or that may communicate."""
    view, op = program.view, program.view.op(node)
    is_write = state_op(op, len(view.inputs(node))) is not None and op not in RULES
    if is_write or program.draws(op) or program.functions.of_node(view.nodes[node]):
        raise ExamplesInteract(f"{op} {node!r} may not run for the examples of one worker alone")
    if op not in (*RULES, "Enter", "RefEnter") and (program.differs(op) or program.is_opaque(node)):
        raise ExamplesInteract(f"{op} {node!r} may return another result in each iteration")
    if op in (*LOOKUPS, "ReadVariableOp"):
        variable = variable_of_tensor(view, program.variables, view.inputs(node)[0])
        if variable and (op in LOOKUPS or variable in program.tables):
            raise ExamplesInteract(f"{op} {node!r} reads rows of {variable!r}, which may have owners")


def _visit_local_reduction(step: StepWalk, node: str) -> list[Fact]:
    """A part of a sum over the per-worker batch, which is finally given to each of its examples."""
    fact = step.inputs(node)[0]
    if fact.axis is None and not fact.is_same:
        fact = step.require_layout(node, 0, REPLICATED)
    return step.all_outputs(node, fact.layout, fact.dims)


def _visit_result(program: VisitedGraph, step: StepWalk, node: str, kind: str) -> list[Fact]:
    """A reported value: rows of a worker's own examples; in another layout, or without rows, as in one process."""
    (fact,) = step.inputs(node)
    part = fact.part if kind == ROWS else None
    if part is not None and fact.axis == 0 and part == ShardedAxis(part.batch) and part.batch in program.row_batches:
        return step.all_outputs(node, fact.layout, fact.dims)
    step.gather(node)
    return step.all_outputs(node, REPLICATED)


def _visit_source(program: VisitedGraph, step: StepWalk, node: str) -> list[Fact]:
    """A placeholder, or another source of batches."""
    batch, view = program.batches.get(node), program.view
    if node in step.fed_lengths:
        return step.all_outputs(node, LENGTHS, (), Length.of(step.fed_lengths[node]))
    if node in step.fed_scalars:
        return step.all_outputs(node, REPLICATED, (), Length.of(f"{node}:0"))
    if batch is None:  # a scalar, unless the script states no shape: then perhaps a worker's part
        return step.all_outputs(node, REPLICATED, () if is_stated_scalar(view.nodes[node]) else None)
    if node in program.sparse:
        return visit_sparse_feed(step, node, program.sparse[node], batch)
    if node in program.ends:
        return step.all_outputs(node, RowEnds(batch, program.ends[node]), (Length.of(batch) + ONE,))
    of_batch = set(batch_tensors(view, node))
    others = [tensor for tensor in view.outputs(node) if tensor not in of_batch]
    others = [tensor for tensor in others if any(edge.node in program.order for edge in program.takers(tensor))]
    if others:
        raise GraphError(
            f"{view.op(node)} {node!r} gives batches of open length, but its output {others[0]!r} has the shape "
            f"{view.shape(others[0])}. All of its outputs must have an open first dimension (None). {REMEDY}"
        )
    rows = Sharded(0, ShardedAxis(batch))
    return [step.fact(tensor, rows if tensor in of_batch else REPLICATED) for tensor in view.outputs(node)]


def _require_replicated(program: VisitedGraph, step: StepWalk, node: str) -> list[Fact]:
    """An op that mixes examples, or has no rule: its inputs are replicated, and all workers compute the same."""
    if step.fed_scalars:
        _find_fed_lengths(step, node)
    _check_complete(program, step, node)
    step.gather(node)
    return step.all_outputs(node, REPLICATED)


def _find_fed_lengths(step: StepWalk, node: str) -> None:
    """Interprets a fed integer as a batch length, where an op has no rule by its value, but one by the length."""
    facts, op = step.inputs(node), step.view.op(node)
    for fact in facts:
        if fact.part is None or fact.axis is None:
            continue
        for other in facts:
            if op in _ALIKE and other.is_same:
                step.find_fed_length(fact.part, (other.dims or ())[fact.axis :][:1])
            if op in _TO_SHAPES:
                step.find_fed_length(fact.part, other.values() or ())
                step.find_fed_length(ShardedAxis(fact.part.batch), other.values() or ())
                for length in _find_merged_lengths(fact.part.factor, (fact.dims or ())[fact.axis + 1 :]):
                    merged = (other.values() or ())[fact.axis : fact.axis + 1]
                    step.find_fed_length(replace(fact.part, factor=length), merged if op == "Reshape" else ())


def _find_merged_lengths(factor: Length, following: Sequence[Length]) -> Iterator[Length]:
    """The ratios to the batch length of an axis into which a sharded axis and some following ones are merged."""
    for length in following:
        factor *= length
        yield factor


def _take_worker_0(program: VisitedGraph, step: StepWalk, node: str) -> None:
    """An op that may return other values on every worker from the same inputs: all use worker 0's.

    One without inputs from a batch may be the source of a worker's own examples.
    """
    view = program.view
    is_of_batch = any(not fact.is_same for fact in step.inputs(node))
    is_in_loop = bool(step.prefix) or any(branch.is_loop for branch in branches_of(view)[node])
    if not is_of_batch or is_in_loop or any(view.dtype(tensor) in (*NO_ARRAYS, _TEXT) for tensor in view.outputs(node)):
        raise GraphError(
            f"{view.op(node)} {node!r} may give a different result on each worker, and the result of worker 0 can be "
            "used on all of them only if it is computed from the batch, outside of loops, and is not a string or "
            f"resource. {REMEDY}"
        )
    step.from_worker_0 += view.outputs(node)


def _check_complete(program: VisitedGraph, step: StepWalk, node: str) -> None:
    """Makes a node return equal values on all workers from replicated inputs, or refuses it; draws become equal."""
    view, op = program.view, program.view.op(node)
    called = program.functions.of_node(view.nodes[node])
    inputs = view.inputs(node)
    state = state_op(op, len(inputs))
    slots = program.functions.written_slots(view.nodes[node]).union(state.state if state is not None else ())
    written = (inputs[slot] for slot in slots)
    if any(variable_of_tensor(view, program.variables, tensor) in step.part_variables for tensor in written):
        raise GraphError(
            f"{op} {node!r} updates a metric in a loop, where the workers' parts cannot be summed. Update the metric "
            "after the loop, multiplied by 0 or 1 if a condition decides."
        )
    if called or program.draws(op):
        step.equal_draws += [node] if program.differs_in(node) else []
    elif op not in RULES and state is None and program.differs(op):
        _take_worker_0(program, step, node)


def _visit_write(program: VisitedGraph, step: StepWalk, node: str) -> list[Fact]:
    """Variables accept replicated values; those that are added over the workers accept parts of a sum."""
    view = program.view
    state = state_op(view.op(node), len(view.inputs(node)))
    if state is None:
        return []
    handles = [variable_of_tensor(view, program.variables, view.inputs(node)[slot]) for slot in state.state]
    others = [slot for slot in range(len(view.inputs(node))) if slot not in state.state]
    if any(variable in step.part_variables for variable in handles):
        facts = step.inputs(node)
        by_row = state.indices is not None and facts[state.indices].part is not None
        if state.value is None or (by_row and facts[state.value].part != facts[state.indices or 0].part):
            raise GraphError(
                f"{view.op(node)} {node!r} updates a metric in a way that does not allow the workers' parts to be "
                f"summed. {REMEDY}"
            )
        if not by_row:
            step.require_layout(node, state.value, COUNTED)
    else:
        step.replicate(node, others)
    return step.all_outputs(node, REPLICATED)
