"""Classifies the variables of a captured graph by the ops that read and write them, and records these ops as evidence.

Whether a sparse variable can be sharded is not guessed: propagation is tried with all sparse variables sharded. A
variable that reaches an op without a rule falls back to the next route of `alltoall`, `allgather` and raw (every row is
sent to every worker, not coalesced), with that op as the reason, and the traversal restarts. A variable without a
remaining route is an error that names the op. The classes are those of parallax.graph.spec.VariableClass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import TypeVar

from parallax.analysis.propagation.lazy_notes import lazy_notes
from parallax.analysis.propagation.propagate import propagate
from parallax.analysis.propagation.walk import NoRule
from parallax.analysis.reading.capture import CapturedGraph, CapturedVariable, variable_of_tensor
from parallax.analysis.reading.gradients import (
    STATED,
    find_gradients,
    followed_variable,
    gradient_updates,
    is_in_loop,
    written_variable,
)
from parallax.analysis.reading.row_reads import lookup_edges
from parallax.base.errors import GraphError
from parallax.graph.batches import length_by_step
from parallax.graph.garbage import without_collections
from parallax.graph.ops import ELEMENTWISE, state_op
from parallax.graph.spec import OPEN_SHAPE, GradientSource, GraphSpec, Slot, VariableClass, VariableSpec, model_key
from parallax.graph.view import EXAMPLES, GraphView, node_of
from parallax.plans.rewrites import Rewrites, TrainingMode
from parallax.report.text import list_first

_LADDER = {"alltoall": "allgather", "allgather": "raw"}
"""The next route of a part whose route led to an op without a rule."""

_Value = TypeVar("_Value")
_NARROWING = ("Unique", "UniqueV2", "DynamicPartition", "Identity", "Reshape", "Cast", "ExpandDims", "StopGradient")
"""Ops that return no more elements than their first input has."""
_LATE = (
    "Import parallax before building the graph, or start the script with `parallax run`, so that gradients are "
    "recorded as they are created. The gradients of {} were not recorded and had to be guessed, so the error may have "
    "another cause:"
)


@without_collections
def classify(captured: CapturedGraph, accumulate_steps: int = 1) -> tuple[GraphSpec, tuple[GradientSource, ...]]:
    """The spec of a graph, and the sources of its gradients.

    Args:
        captured: the graph.
        accumulate_steps: the number of batches whose gradients an update uses.

    Raises:
        GraphError: no trainable variable, no update op, or an op for which no route is correct.
    """
    sources = find_gradients(captured)
    updates = gradient_updates(captured, sources)
    _check_trains(captured, updates)
    routes, reasons = _choose_first_routes(captured, sources)
    terms = TrainingMode(captured.synchronous, accumulate_steps=accumulate_steps)
    try:
        rewrites, routes, reasons = _find_best_case(captured, sources, routes, reasons, terms)
    except GraphError as error:
        late = sorted({s.part for s in sources if s.found_by not in STATED})
        if not late:
            raise
        raise GraphError(f"{_LATE.format(', '.join(late[:5]))} {error}") from error
    owner = _find_slot_owners(captured, updates, rewrites)
    by_name: dict[str, list[CapturedVariable]] = {}
    for op, found in captured.variables.items():
        if op not in owner:
            by_name.setdefault(found.logical_name, []).append(found)
    case = _Case(
        captured=captured,
        sources_of=_group_by_key((s.part, (number, s)) for number, s in enumerate(sources)),
        routes=routes,
        reasons=reasons,
        slots_of=_group_by_key((of, slot) for slot, of in sorted(owner.items())),
        updates_of=_list_updates(captured, updates),
        training=captured.view.ancestors(updates),
        local=frozenset(rewrites.local_variables),
        exchanged=frozenset([p.table for p in rewrites.pushes] + [c.op for c in rewrites.collects]),
    )
    variables = tuple(_make_variable(case, by_name[name]) for name in sorted(by_name))
    notes = (
        *_note_sources(sources),
        *_note_loops(captured, sources),
        *_note_open_shapes(variables),
        *lazy_notes(captured, variables),
    )
    notes = (*notes, *rewrites.notes)
    return GraphSpec(captured.fingerprint, variables, notes, model_key(variables), captured.by_layouts), sources


@dataclass(frozen=True, slots=True)
class _Case:
    """The context in which single variables are classified.

    Attributes:
        captured: the graph.
        sources_of: variable op -> the sources of its gradients, with their indices among all.
        routes: variable op -> the route of the best case.
        reasons: variable op -> why it cannot be sharded.
        slots_of: variable op -> the slot variable ops that follow it, sorted.
        updates_of: variable op -> the nodes that update it from its gradient.
        training: the nodes on which a training step depends.
        local: per-worker variable ops.
        exchanged: variable ops whose gradient rows reach an update as rows.
    """

    captured: CapturedGraph
    sources_of: dict[str, list[tuple[int, GradientSource]]]
    routes: dict[str, str]
    reasons: dict[str, str]
    slots_of: dict[str, list[str]]
    updates_of: dict[str, list[str]]
    training: set[str]
    local: frozenset[str]
    exchanged: frozenset[str]


def _group_by_key(pairs: Iterable[tuple[str, _Value]]) -> dict[str, list[_Value]]:
    values_by_key: dict[str, list[_Value]] = {}
    for key, value in pairs:
        values_by_key.setdefault(key, []).append(value)
    return values_by_key


def _list_updates(captured: CapturedGraph, updates: Set[str]) -> dict[str, list[str]]:
    return _group_by_key((written_variable(captured, node), node) for node in captured.view.nodes if node in updates)


def _check_trains(captured: CapturedGraph, updates: Set[str]) -> None:
    """Refuses a graph that, as far as can be seen, trains nothing, unless its steps only evaluate."""
    if any(written_variable(captured, node) for node in updates):
        return
    trainable = [name for name, v in captured.variables.items() if v.trainable]
    initializers = {v.initializer for v in captured.variables.values()}
    written = {written_variable(captured, node) for node in captured.view.nodes if node not in initializers}
    if length_by_step(captured.view) and written.isdisjoint(trainable):
        return
    if not trainable:
        raise GraphError("The graph has no trainable variable. Build the model before calling parallel_run.")
    raise GraphError(
        f"None of the {len(trainable)} trainable variables ({', '.join(sorted(trainable)[:5])}) is updated from its "
        "gradient. Call optimizer.minimize (or apply_gradients) before parallel_run. Gradients that a script computes "
        "without tf.gradients or a tape's gradient need a batch whose first dimension is open (None)."
    )


def _choose_first_routes(
    captured: CapturedGraph, sources: tuple[GradientSource, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """The routes that are tried first for parts with gradient rows, and why some are not tried sharded.

    Raises:
        GraphError: rows are looked up in a variable of unknown shape.
    """
    routes, reasons = {}, {}
    for part in dict.fromkeys(s.part for s in sources if s.indices):
        variable = captured.variables[part]
        if variable.part.shape == OPEN_SHAPE and variable.is_open:
            raise GraphError(
                f"The shape of variable {part!r}, whose rows are looked up, is unknown, and so is the shape of its "
                "initial value. Give the initial value a static shape (tf.ensure_shape), or create the variable with "
                "validate_shape=True."
            )
        routes[part] = "alltoall" if variable.part.shape else "raw"
        if variable.is_open:
            routes[part], reasons[part] = (
                "allgather",
                ("its shape was unknown when it was built, so every worker holds it whole"),
            )
    return routes, reasons


def _find_best_case(
    captured: CapturedGraph,
    sources: tuple[GradientSource, ...],
    routes: dict[str, str],
    reasons: dict[str, str],
    terms: TrainingMode,
) -> tuple[Rewrites, dict[str, str], dict[str, str]]:
    """Decisions with as many parts sharded as possible, the routes that this took, and why others were not."""
    routes, reasons = dict(routes), dict(reasons)
    while True:
        try:
            return propagate(captured, sources, routes, terms=terms), routes, reasons
        except NoRule as error:
            if routes.get(error.part) not in _LADDER:
                raise GraphError(
                    f"Cannot plan variable {error.part!r}: {error.reason}, and no route supports that. Remove random "
                    "ops, batch data and ops that mix rows from its update."
                ) from error
            routes[error.part] = _LADDER[routes[error.part]]
            reasons.setdefault(error.part, error.reason)


def _find_slot_owners(captured: CapturedGraph, updates: Set[str], rewrites: Rewrites) -> dict[str, str]:
    """Slot variable op -> the variable op to which it belongs."""
    owner = {}
    for table in rewrites.tables:
        owner.update({m: table.op for m in table.members if m != table.op})
    for node in captured.view.nodes:
        if node not in updates:
            continue
        inputs = captured.view.inputs(node)
        state = state_op(captured.view.op(node), len(inputs))
        main = written_variable(captured, node)
        for slot in state.state[1:] if state is not None else ():
            name = variable_of_tensor(captured.view, captured.variables, inputs[slot])
            if name in captured.variables and not captured.variables[name].trainable:
                owner.setdefault(name, main)
    for name in captured.variables:  # written by plain assigns, like the moments of Adam on sparse rows
        followed = followed_variable(captured, name)
        if followed:
            owner.setdefault(name, followed)
    return owner


def _make_variable(case: _Case, parts: list[CapturedVariable]) -> VariableSpec:
    parts = sorted(parts, key=lambda v: (v.part.row_offset, v.part.op))
    ops = [v.part.op for v in parts]
    numbered = sorted((one for op in ops for one in case.sources_of.get(op, ())), key=lambda one: one[0])
    sources = tuple(source for _, source in numbered)
    updates = tuple(u for op in ops for u in case.updates_of.get(op, ()))
    lookups = _find_lookups(case, ops)
    cls, reason, evidence = _classify_variable(case, ops, sources, updates, tuple(n for n, _ in lookups))
    first = parts[0]
    return VariableSpec(
        name=first.logical_name,
        shape=first.whole_shape,
        dtype=first.dtype,
        dtype_bytes=first.dtype_bytes,
        parts=tuple(v.part for v in parts),
        trainable=any(v.trainable for v in parts),
        cls=cls,
        evidence=evidence,
        reason=reason,
        gradients=sources,
        lookups=tuple(n for n, _ in lookups),
        updates=updates,
        slots=_list_slots(case, first.logical_name, ops),
        unmerged=any(case.routes.get(op) == "raw" for op in ops),
        ids_per_step=_bound_ids(case, lookups),
        is_counter=not updates and any(_is_counted(case.captured, op) for op in ops),
        is_open=any(v.is_open for v in parts),
        sums=max(case.captured.sums.get(op, 1) for op in ops),
    )


def _classify_variable(
    case: _Case, ops: list[str], sources: tuple[GradientSource, ...], updates: tuple[str, ...], lookups: tuple[str, ...]
) -> tuple[VariableClass, str, tuple[str, ...]]:
    """(class, reason when not shardable, evidence)."""
    trainable, named = any(case.captured.variables[op].trainable for op in ops), case.captured.gradient_of_script
    if not updates or not (sources or trainable):
        if set(ops) & case.local:
            return VariableClass.LOCAL, "", ("written from each worker's own batch",)
        kept = tuple(f"written from gradients by {case.captured.view.op(u)} {u}" for u in updates)
        return VariableClass.UNTRAINED, "", kept or ("no update from a gradient",)
    evidence = tuple(f"updated by {case.captured.view.op(u)} {u}" for u in updates)
    evidence += tuple(f"rows looked up by {case.captured.view.op(n)} {n}" for n in lookups)
    if not any(s.indices for s in sources):
        evidence += tuple(f"dense gradient {named(s.values)}" for s in sources)
        if lookups:
            return VariableClass.MIXED, "", (*evidence, "looked up by row and read whole: its gradient is dense")
        return VariableClass.DENSE, "", evidence
    evidence += tuple(f"gradient rows {named(s.values)} at {named(s.indices)}" for s in sources if s.indices)
    evidence += tuple(f"dense gradient {named(s.values)}" for s in sources if not s.indices)
    if not set(ops) & case.exchanged:
        return VariableClass.MIXED if lookups else VariableClass.DENSE, "", (*evidence, "made dense before its update")
    reasons = [case.reasons[op] for op in ops if op in case.reasons]
    if reasons:
        return VariableClass.NOT_SHARDABLE, reasons[0], (*evidence, reasons[0])
    return VariableClass.SPARSE, "", evidence


def _is_counted(captured: CapturedGraph, variable: str) -> bool:
    """Whether an op adds a constant to a variable."""
    view = captured.view
    for edge in view.consumers(f"{variable}:0"):
        state = state_op(view.op(edge.node), len(view.inputs(edge.node)))
        if state is not None and state.kind == "delta" and view.constant(view.inputs(edge.node)[1]) is not None:
            return True
    return False


def _find_lookups(case: _Case, ops: list[str]) -> list[tuple[str, str]]:
    """(gather node, its ids) of the gathers that training runs on these variable ops."""
    view = case.captured.view
    lookups = []
    for op in ops:
        for edge in lookup_edges(view, op):
            if edge.node in case.training and edge.node not in case.updates_of.get(op, ()):
                lookups.append((edge.node, view.inputs(edge.node)[edge.slot]))
    return list(dict.fromkeys(lookups))


def _bound_ids(case: _Case, lookups: list[tuple[str, str]]) -> int | None:
    """An upper bound of the ids that a step looks up; None when a shape is open."""
    sizes = {}
    for _, ids in lookups:
        root, size = _measure_ids(case, ids)
        if size is None:
            return None
        sizes[root] = size
    return sum(sizes.values()) if lookups else None


def _measure_ids(case: _Case, tensor: str) -> tuple[str, int | None]:
    """(the origin of the ids, the maximum number of them)."""
    view = case.captured.view
    while True:
        shape, node = case.captured.planned_shape(tensor), node_of(tensor)
        if shape and shape[0] is None and (examples := _find_examples(view, tensor)):
            shape = (examples, *shape[1:])
        if shape is not None and None not in shape:
            size = 1
            for length in shape:
                size *= length or 0
            return tensor, size
        equal_nodes = [
            t for t in view.inputs(node) if view.op(node) in ELEMENTWISE and case.captured.planned_shape(t) == shape
        ]
        if view.op(node) not in _NARROWING and not equal_nodes:
            return tensor, None
        tensor = equal_nodes[0] if equal_nodes else view.inputs(node)[0]


def _find_examples(view: GraphView, tensor: str) -> int:
    """The number of a worker's examples along the first axis of a tensor of a marked batch; 0 if unknown."""
    while True:
        node = view.nodes[node_of(tensor)]
        if EXAMPLES in node.attr:
            return int(node.attr[EXAMPLES].i)
        if node.op == "StridedSlice":
            strides = view.constant(view.inputs(node.name)[3])
            is_whole = all(node.attr[mask].i & 1 for mask in ("begin_mask", "end_mask"))
            is_cut = any(node.attr[mask].i & 1 for mask in ("new_axis_mask", "ellipsis_mask", "shrink_axis_mask"))
            if strides is None or strides[0] != 1 or not is_whole or is_cut:
                return 0
        elif node.op not in ("Identity", "Cast", "StopGradient"):
            return 0
        tensor = view.inputs(node.name)[0]


def _list_slots(case: _Case, name: str, ops: list[str]) -> tuple[Slot, ...]:
    found: dict[str, dict[str, str]] = {}
    for slot, owner in sorted((slot, op) for op in ops for slot in case.slots_of.get(op, ())):
        found.setdefault(slot.removeprefix(f"{owner}/"), {})[owner] = slot
    return tuple(
        _make_slot(case, f"{name}/{suffix}", [by_part[op] for op in ops if op in by_part], ops)
        for suffix, by_part in sorted(found.items())
    )


def _make_slot(case: _Case, name: str, slots: list[str], ops: list[str]) -> Slot:
    """A slot with its number of elements for each row of its variable."""
    slot_variables = [case.captured.variables[slot] for slot in slots]
    rows = sum(case.captured.variables[op].part.rows for op in ops)
    elements = sum(math.prod(one.part.shape) for one in slot_variables)
    return Slot(name, tuple(slots), math.ceil(elements / max(rows, 1)), slot_variables[0].dtype_bytes)


def _note_open_shapes(variables: tuple[VariableSpec, ...]) -> tuple[str, ...]:
    names = [v.name for v in variables if v.shape == OPEN_SHAPE and v.is_open]
    return (f"shape unknown until the graph runs, bytes not counted: {', '.join(names)}",) if names else ()


def _note_loops(captured: CapturedGraph, sources: tuple[GradientSource, ...]) -> tuple[str, ...]:
    parts = sorted({source.part for source in sources if is_in_loop(captured.view, source)})
    if not parts or not captured.by_layouts:
        return ()
    return (f"a loop computes gradients of {list_first(parts)} in each iteration: bytes are those of one iteration",)


def _note_sources(sources: tuple[GradientSource, ...]) -> tuple[str, ...]:
    notes = []
    for how in sorted({s.found_by for s in sources}.difference(STATED)):
        parts = sorted({s.part for s in sources if s.found_by == how})
        notes.append(f"gradients found by {how}, not recorded while the graph was built: {list_first(parts, 5)}")
    return tuple(notes)
