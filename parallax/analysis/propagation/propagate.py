"""Asks of every tensor how a worker holds it, and so decides what must be changed in the graph for given routes.

One walk in topological order over the user's graph; the rules for single ops are in rules.py and in the files that
rules.py names. A newly found slot variable, a variable found to be each worker's own, or another kind of gradient
pieces starts the walk again. The result names nodes and edges only (parallax/plans/rewrites.py) and needs neither
Horovod nor a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from parallax.analysis.propagation import examples_apart, moving, own_state, rules, uneven, whole_batch
from parallax.analysis.propagation.denominators import Denominators, find_denominators, notes_of
from parallax.analysis.propagation.gradient_pieces import PieceKinds, keeps_of, mark, marked_by, piece_kinds
from parallax.analysis.propagation.own_state import computed_of
from parallax.analysis.propagation.passages import check_kept, find_passages
from parallax.analysis.propagation.server_nodes import owned_nodes
from parallax.analysis.propagation.server_order import check_reads
from parallax.analysis.propagation.states import LOCAL, SAME, AtOwners, Rows
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.propagation.whole_batch import Whole, find_wholes
from parallax.analysis.reading.capture import Captured
from parallax.analysis.reading.functions import functions_of
from parallax.analysis.reading.gradients import followed_variable, gradient_updates
from parallax.errors import GraphError, ParallaxError
from parallax.graph.control_flow import branches_of
from parallax.graph.garbage import cycles_wait
from parallax.graph.spec import GradientSource
from parallax.graph.view import split_tensor
from parallax.plans.rewrites import (
    Broadcast,
    Collect,
    GatherRows,
    Placement,
    Push,
    Rewrites,
    SliceRows,
    Table,
    TrainingMode,
)


@cycles_wait
def propagate(
    captured: Captured,
    sources: tuple[GradientSource, ...],
    routes: Mapping[str, str],
    equal_randomness: bool = False,
    placed: Mapping[str, Placement] | None = None,
    terms: TrainingMode | None = None,
) -> Rewrites:
    """Decides what must change so that N workers train as one process would; asked again, it gives what it gave.

    Args:
        captured: the graph.
        sources: where autodiff delivers gradients (gradients.find_gradients).
        routes: variable op -> `alltoall`, `allgather`, `allreduce`, `ps` or `raw`, for every part whose gradient comes
            as IndexedSlices; dense gradients are all-reduced unless their variable is placed on servers.
        equal_randomness: whether all workers draw the same random numbers (for verification).
        placed: variable op -> where its rows are, of all on servers and of those that workers own by a pattern.
        terms: on what terms the workers train together.

    Raises:
        NoRule: a part's route cannot be carried out; the message names the op.
        GraphError: no route can make this graph right.
    """
    terms, placed = terms or TrainingMode(), placed or {}
    asked = (sources, frozenset(routes.items()), equal_randomness, frozenset(placed.items()), terms)
    remembered = captured.remembered
    if asked not in remembered:
        remembered[asked] = _decisions(walked(captured, sources, routes, equal_randomness, placed), terms)
    rewrites: Rewrites = remembered[asked]
    return rewrites


def walked(
    captured: Captured,
    sources: tuple[GradientSource, ...],
    routes: Mapping[str, str],
    equal_randomness: bool = False,
    placed: Mapping[str, Placement] | None = None,
) -> Walk:
    """The last walk, from which the decisions follow; its `states` say of every tensor how a worker holds it."""
    placed = placed or {}
    spread = {part for part, route in routes.items() if route == "alltoall"}
    tables = {part: _table(captured, part, placed.get(part, Placement())) for part in sorted(spread | placed.keys())}
    updates = gradient_updates(captured, sources)
    initializers = {v.initializer for v in captured.variables.values() if v.initializer}
    training = captured.view.ancestors(updates - initializers)
    read = computed_of(captured.view, updates - initializers)
    initial, shared = captured.view.ancestors(initializers), rules.shared_variables(captured, sources, updates)
    delivered = [split_tensor(t)[0] for s in sources for t in (s.values, s.indices) if t is not None]
    before = captured.view.ancestors(delivered)
    order, branches = captured.view.topological_order(), branches_of(captured.view)
    functions = functions_of(captured.view, lambda op: rules.differs(op, equal_randomness))
    expected, own = _expected_slots(captured, tables), set[str]()
    table_of = {part: part for part in tables} | expected
    kinds: PieceKinds = {}
    dense_sources: dict[str, list[GradientSource]] = {}
    for source in sources:
        if source.indices is None:
            dense_sources.setdefault(source.values, []).append(source)
    passages, alike = find_passages(captured), frozenset[str]()
    denominators, wholes = Denominators(), dict[str, Whole]()
    while True:
        walk = Walk(
            captured=captured,
            sources=sources,
            routes=routes,
            tables=tables,
            table_of=table_of,
            own=own,
            shared=shared,
            training=training,
            read=read,
            initial=initial,
            initializers=initializers,
            dense_sources=dense_sources,
            kinds=kinds,
            equal_randomness=equal_randomness,
            after_gradients=training - before,
            branches=branches,
            functions=functions,
            denominators=denominators,
            passages=passages,
            alike=alike,
            wholes=wholes,
        )
        try:
            mark(walk)
            refusal = _visit_all(walk, order)
        except ParallaxError:
            if not expected:
                raise
            expected, table_of = {}, {part: part for part in tables}
            continue
        if expected.keys() - walk.confirmed:  # so named, and no slot: the walk shall find which there are
            expected, table_of = {}, {part: part for part in tables}
            continue
        expected = {}
        if walk.decisive:
            divisions, (parts, unproven) = find_denominators(walk, denominators), find_wholes(walk)
            if divisions != denominators:  # what losses are divided by comes first: it says what a loss is a part of
                denominators = divisions
                continue
            if parts != wholes:
                wholes = parts
                continue
            if refusal is not None:
                raise _with_place(walk, refusal, unproven)
        found = piece_kinds(walk)
        asked = frozenset(t for t in walk.asked if walk.states.get(t) == SAME)
        if (
            not walk.new_members.keys() - table_of.keys()
            and not walk.new_own - own
            and (marked_by(walk, found), asked) == (marked_by(walk, kinds), alike)
        ):
            divisions = find_denominators(walk, denominators)
            if divisions == denominators:
                walk.kinds = found
                return walk
            denominators = divisions
        kinds, alike = found, asked
        table_of = {**table_of, **walk.new_members}
        own = own | walk.new_own


def _expected_slots(captured: Captured, tables: Mapping[str, Table]) -> dict[str, str]:
    """Variable op -> table op, of the variables that by name and shape are slots of a table; a walk must confirm it."""
    named = {op: followed_variable(captured, op) for op in captured.variables}
    return {op: table for op, table in named.items() if table in tables}


def _visit_all(walk: Walk, order: list[str]) -> ParallaxError | None:
    """Visits every node; gives the first error, where parts of the batch that could mend it have been met before."""
    refusal = None
    for node in order:
        try:
            rules.visit(walk, node)
        except ParallaxError as error:
            if not walk.decisive:
                raise
            refusal = refusal or error
            walk.set_all(node, LOCAL)
    return refusal


def _with_place(walk: Walk, refusal: ParallaxError, unproven: str) -> ParallaxError:
    """The error, with the op that is in the way."""
    if not unproven or not isinstance(refusal, GraphError):
        return refusal
    op = walk.view.op(split_tensor(unproven)[0])
    return GraphError(f"{refusal} It cannot be seen what one process has of {op} {unproven!r}.")


def _table(captured: Captured, part: str, placement: Placement) -> Table:
    variable = captured.variables[part]
    shape = variable.part.shape
    return Table(
        op=part,
        rows=variable.part.rows,
        row_shape=shape[1:],
        dtype=variable.dtype,
        members=(part,),
        variable=variable.logical_name,
        servers=placement.servers,
        replicated=placement.replicated,
        is_scalar=not shape,
        pattern=placement.pattern,
    )


def _is_update_read(walk: Walk, node: str) -> bool:
    """Whether a node reads a variable for an update or writes it there; nobody fetches those, and Adam has many."""
    return node in walk.training and walk.view.op(node) not in ("Identity", *rules.VARIABLES)


def _equal_random_ops(walk: Walk) -> tuple[str, ...]:
    """What draws alike on all workers, and the nodes of initial values whose functions draw."""
    view, alike = walk.view, walk.initial | walk.after_gradients
    found = {n for n in alike if rules.is_random(view.op(n))}
    found |= {n for n in view.nodes if rules.draws_alike(walk, n)}
    return tuple(sorted(found | {n for n in alike if walk.functions.of_node(view.nodes[n])}))


def _decisions(walk: Walk, terms: TrainingMode) -> Rewrites:
    if terms.accumulate_steps > 1:
        check_kept(walk)
        whole_batch.check_kept(walk)
    for placeholder in sorted(walk.fed):
        edges = tuple(walk.view.consumers(f"{placeholder}:0"))
        walk.broadcasts.append(Broadcast(f"{placeholder}:0", edges))
    pushes, collects = [], []
    for merge in walk.merges.values():
        table = walk.table_of.get(merge.part)
        values, indices = tuple(merge.values), tuple(merge.indices)
        if table is not None and not merge.of_batch:
            lookups, searched = rules.lookups_of_indices(walk, merge)
            pushes.append(Push(table, values, indices, lookups, searched, not merge.merges_equal_rows))
        else:
            variable = walk.captured.variables[merge.part]
            route = "raw" if merge.of_batch else walk.routes[merge.part]
            again, pieces = not merge.merges_equal_rows, merge.pieces
            collects.append(
                Collect(variable.logical_name, merge.part, variable.part.rows, route, values, indices, again, pieces)
            )
    for tensor, state in walk.states.items():
        node = split_tensor(tensor)[0]
        if isinstance(state, Rows) and node not in walk.training and node not in walk.initial:
            walk.gather_rows(tensor, state.table)  # for whoever fetches what is computed from a table
    members = {t: tuple(sorted(m for m, of in walk.table_of.items() if of == t)) for t in walk.tables}
    tables = [replace(t, members=members[t.op]) for t in walk.tables.values()]
    rows = [t for t, s in walk.states.items() if isinstance(s, AtOwners)]
    gathers = tuple(
        GatherRows(tensor, tuple(edges), table)
        for tensor, (table, edges) in walk.gathers.items()
        if edges or not _is_update_read(walk, split_tensor(tensor)[0])
    )
    owned = owned_nodes(walk)
    if terms.synchronous:
        check_reads(walk, owned, pushes)
    rewrites = Rewrites(
        tables=tuple(tables),
        scales=tuple(walk.scales),
        shared_rows=tuple(walk.shared_rows),
        all_reduces=tuple(walk.all_reduces),
        broadcasts=tuple(walk.broadcasts),
        slices=tuple(SliceRows(tensor, tuple(edges), table) for (tensor, table), edges in walk.slices.items()),
        gathers=gathers,
        shapes=tuple(walk.shapes),
        conditionals=tuple(walk.conditionals),
        lookups=tuple(walk.lookups),
        pushes=tuple(pushes),
        collects=tuple(collects),
        held_by_row=tuple(sorted(set(rows) - {g.tensor for g in gathers})),
        equal_random_ops=_equal_random_ops(walk),
        local_variables=tuple(sorted(walk.own)),
        scatters=tuple(walk.scatters),
        owned=owned,
        terms=terms,
        divided=walk.denominators.divided,
        selected=walk.denominators.selected,
        notes=(
            *notes_of(walk.denominators),
            *own_state.notes_of(walk),
            *moving.notes_of(walk),
            *uneven.notes_of(walk),
            *whole_batch.notes_of(walk),
            *examples_apart.notes_of(walk),
        ),
        keeps=keeps_of(walk) if terms.accumulate_steps > 1 else (),
        alike_rows=tuple(walk.alike_rows) if terms.accumulate_steps > 1 else (),
    )
    return uneven.weighed(walk, rewrites)
