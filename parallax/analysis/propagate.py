"""Asks of every tensor how a worker holds it, and so decides what must be changed in the graph for given routes.

One walk in topological order over the user's graph; the rules for single ops are in rules.py, rules_rows.py and
rules_state.py. A newly found slot variable, or a variable found to be each worker's own, starts the walk again. The
result names nodes and edges only (decisions.py) and needs neither Horovod nor a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

from parallax.analysis import rules
from parallax.analysis.capture import Captured
from parallax.analysis.gradients import gradient_updates
from parallax.analysis.states import SAME, State
from parallax.analysis.walk import Merge, Walk
from parallax.decisions import (
    Broadcast,
    Collect,
    Decisions,
    GatherRows,
    Push,
    Scale,
    SliceRows,
    Table,
)
from parallax.spec import GradientSource


def propagate(captured: Captured, sources: tuple[GradientSource, ...], routes: Mapping[str, str]) -> Decisions:
    """Decides what must change so that N workers train as one process would.

    Args:
        captured: the graph.
        sources: where autodiff delivers gradients (gradients.find_gradients).
        routes: variable op -> `alltoall`, `allgather`, `allreduce` or `raw`, for every part whose gradient comes as
            IndexedSlices; dense gradients are always all-reduced.

    Raises:
        NoRule: a part's route cannot be carried out; the message names the op.
        GraphError: no route can make this graph right.
    """
    tables = {part: _table(captured, part) for part, route in sorted(routes.items()) if route == "alltoall"}
    updates = gradient_updates(captured, sources)
    initializers = {v.initializer for v in captured.variables.values() if v.initializer}
    order = captured.view.topological_order()
    table_of, own = {part: part for part in tables}, set[str]()
    dense_sources: dict[str, list[GradientSource]] = {}
    for source in sources:
        if source.indices is None:
            dense_sources.setdefault(source.values, []).append(source)
    while True:
        walk = Walk(
            captured=captured,
            sources=sources,
            routes=routes,
            tables=tables,
            table_of=table_of,
            own=own,
            shared=rules.shared_variables(captured, sources, updates),
            training=captured.view.ancestors(updates - initializers),
            initial=captured.view.ancestors(initializers),
            initializers=initializers,
            dense_sources=dense_sources,
        )
        _mark(walk)
        for node in order:
            rules.visit(walk, node)
        if not walk.new_members.keys() - table_of.keys() and not walk.new_own - own:
            return _decisions(walk)
        table_of = {**table_of, **walk.new_members}
        own = own | walk.new_own


def _table(captured: Captured, part: str) -> Table:
    variable = captured.variables[part]
    rows, *row_shape = variable.part.shape
    return Table(part, rows, tuple(row_shape), variable.dtype, (part,), variable.logical_name)


def _mark(walk: Walk) -> None:
    """Says what a gradient is for those who take it out of autodiff."""
    for source in walk.sources:
        if source.indices is None:
            continue
        values, indices = State("values", (source.values,)), State("indices", (source.indices,))
        raw = walk.routes.get(source.part) == "raw"
        for tensor, state in ((source.values, values), (source.indices, indices)):
            edges = [e for e in walk.view.consumers(tensor) if e.node in source.outside]
            for edge in edges:
                walk.marked[(tensor, edge.node)] = SAME if raw else state
        walk.pairs[indices.key] = values.key
        walk.part_of_token[source.values] = walk.part_of_token[source.indices] = source.part
        edges = [e for e in walk.view.consumers(source.values) if e.node in source.outside]
        if edges and not any(s.tensor == source.values for s in walk.scales):
            walk.scales.append(Scale(source.values, tuple(edges)))
        if raw:
            index_edges = [e for e in walk.view.consumers(source.indices) if e.node in source.outside]
            walk.merges[f"raw {source.values}"] = Merge(source.part, indices.key, index_edges, edges)


def _decisions(walk: Walk) -> Decisions:
    for placeholder in sorted(walk.fed):
        edges = tuple(walk.view.consumers(f"{placeholder}:0"))
        walk.broadcasts.append(Broadcast(f"{placeholder}:0", edges))
    pushes, collects = [], []
    for merge in walk.merges.values():
        table = walk.table_of.get(merge.part)
        values, indices = tuple(merge.values), tuple(merge.indices)
        if table is not None:
            found = rules.lookups_of_indices(walk, merge)
            pushes.append(Push(table, values, indices, found, not merge.merges_equal_rows))
        else:
            variable = walk.captured.variables[merge.part]
            route = walk.routes[merge.part]
            again = not merge.merges_equal_rows
            collects.append(
                Collect(variable.logical_name, merge.part, variable.part.rows, route, values, indices, again)
            )
    members = {t: tuple(sorted(m for m, of in walk.table_of.items() if of == t)) for t in walk.tables}
    tables = [Table(t.op, t.rows, t.row_shape, t.dtype, members[t.op], t.variable) for t in walk.tables.values()]
    rows = [t for t, s in walk.states.items() if s.kind in ("rows", "touched", "touched_indices", "map")]
    return Decisions(
        tables=tuple(tables),
        scales=tuple(walk.scales),
        all_reduces=tuple(walk.all_reduces),
        broadcasts=tuple(walk.broadcasts),
        slices=tuple(SliceRows(tensor, tuple(edges), table) for (tensor, table), edges in walk.slices.items()),
        gathers=tuple(GatherRows(tensor, tuple(edges), table) for tensor, (table, edges) in walk.gathers.items()),
        shapes=tuple(walk.shapes),
        conditionals=tuple(walk.conditionals),
        lookups=tuple(walk.lookups),
        pushes=tuple(pushes),
        collects=tuple(collects),
        held_by_row=tuple(sorted(t for t in rows if t not in walk.gathers)),
        initial_random_ops=tuple(sorted(n for n in walk.initial if rules.is_random(walk.view.op(n)))),
        local_variables=tuple(sorted(walk.own)),
    )
