"""Recognizes updates of whole tables whose untouched rows have a zero gradient, and converts them to row-wise updates.

Adam, momentum and similar optimizers change every row in each update, though a gradient has only a few. Such an update
is one function of a row's states, its gradient and some scalars. So an untouched row can be brought up to date later,
by the same function, with the scalars of the updates that it missed. All writes of such an update become one node,
`ParallaxUpdateRows`, which reads the gradient's rows and the function's text.

In the graphs of front ends, an update that already writes rows alone, as Keras's Adagrad makes of a sparse gradient,
also becomes one node, `ParallaxUpdateOnlyRows`: only the update consumes its intermediate values.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallax.analysis.reading.lazy.elementwise import ELEMENTWISE
from parallax.analysis.reading.lazy.execution import Execution
from parallax.analysis.reading.lazy.group import (
    SUM_OF_ROWS,
    NotLazyError,
    UpdateGroup,
    are_of_rows,
    find_connected,
    group_of,
    group_writes,
    order_of,
    source_of,
)
from parallax.analysis.reading.lazy.handles import READ, WRITES_ROWS, Handles
from parallax.analysis.reading.lazy.lazy_graph import RowUpdate, find_control_inputs, rewrite_graph
from parallax.analysis.reading.lazy.missed_updates import missed_updates
from parallax.analysis.reading.lazy.order import Order
from parallax.analysis.reading.lazy.program import program_text, scalars_of
from parallax.analysis.reading.lazy.references import SCATTERS, reference_tables
from parallax.base.types import GraphDef
from parallax.graph.batches import length_by_step
from parallax.graph.row_updates import UPDATE_ONLY_ROWS, UPDATE_ROWS
from parallax.graph.view import GraphView, node_of

_FOR_UPDATES = frozenset({*ELEMENTWISE, "Identity", SUM_OF_ROWS, "Unique", "StridedSlice", "Shape", "Split", "Reshape"})


@dataclass(frozen=True, slots=True)
class LazyTable:
    """A table with a gradient of rows, and whether its update is converted to a row-wise one.

    Attributes:
        table: the variable whose rows are looked up.
        states: the table and its slots, in the node's order; empty where the update stays unchanged.
        node: the ParallaxUpdateRows node; empty where there is none.
        program: its text.
        reason: why the update stays unchanged: a sentence that names the op; empty where it does not.
        removed: the nodes that computed with full states, which the graph no longer has.
    """

    table: str
    states: tuple[str, ...] = ()
    node: str = ""
    program: str = ""
    reason: str = ""
    removed: tuple[str, ...] = ()


def lazy_updates(graph_def: GraphDef, known: GraphView | None = None) -> tuple[GraphDef, tuple[LazyTable, ...]]:
    """Converts updates of whole tables to row-wise ones, where they are proven equal.

    Args:
        graph_def: with shapes of all outputs; it is not modified.
        known: its view, if there is one.

    Returns:
        A copy with the nodes, or the graph itself where there are none; and the result for each table whose update
        changes more rows than a gradient has.
    """
    if not any(node.op in (SUM_OF_ROWS, *WRITES_ROWS, *SCATTERS) for node in graph_def.node):
        return graph_def, ()
    view = GraphView(graph_def) if known is None else known
    tables = [LazyTable(table, reason=reason) for table, reason in reference_tables(view).items()]
    handles = Handles(view)
    connected = find_connected(view, handles)
    if not connected:
        return graph_def, tuple(tables)
    order, is_step = order_of(view, handles, connected), bool(length_by_step(view))
    updates = []
    for one in connected:
        writes = group_writes(handles, order, one)
        is_of_rows = are_of_rows(view, writes)
        if one.table not in writes or (is_of_rows and not is_step):
            continue
        try:
            updates.append(_row_update(view, handles, order, group_of(view, handles, order, one.table, writes)))
        except NotLazyError as refused:
            if not is_of_rows:
                tables.append(LazyTable(one.table, reason=str(refused)))
            continue
        if not is_of_rows:
            update = updates[-1]
            removed = tuple(sorted(node for node in update.inner if view.op(node) != READ))
            tables.append(LazyTable(one.table, update.states, update.name, update.program, removed=removed))
    return (rewrite_graph(view, handles, updates) if updates else graph_def), tuple(tables)


def _row_update(view: GraphView, handles: Handles, order: Order, group: UpdateGroup) -> RowUpdate:
    """The node for a table.

    Raises:
        NotLazyError: the update must stay unchanged.
    """
    done = Execution(view, handles, order, group)
    _check_readers(view, handles, order, group, done)
    scalars, gradient = scalars_of(done.values), done.gradient
    inner = frozenset(done.inner)
    before = _find_unmerged(view, *gradient) if group.is_of_rows else None
    if before is not None:
        needed = {*map(node_of, (*before, *scalars))}
        alone = _find_exclusive_nodes(view, inner | {*group.all_writes}, needed)
        if alone.issuperset(map(node_of, gradient)):
            gradient, inner = before, inner | alone
    waits = find_control_inputs(view, handles, group.all_writes, inner)
    _check_no_cycle(view, order, group, [*map(node_of, (*gradient, *scalars)), *waits])
    name = f"{group.table}/update_rows"
    while name in view.nodes:
        name += "_"
    missed = () if group.is_of_rows else missed_updates(group.states, done.values)
    text = program_text(group.states, scalars, done.values, missed)
    op = UPDATE_ONLY_ROWS if group.is_of_rows else UPDATE_ROWS
    return RowUpdate(
        name,
        op,
        group.states,
        group.all_writes,
        inner,
        tuple(done.dense),
        *gradient,
        scalars,
        waits,
        text,
        done.gradients,
    )


def _find_unmerged(view: GraphView, values: str, indices: str) -> tuple[str, str] | None:
    """Rows and their numbers before equal ones were summed, which the update does itself; None if none were."""
    sums, unique = node_of(values), node_of(indices)
    if (view.op(sums), view.op(unique), indices) != (SUM_OF_ROWS, "Unique", f"{unique}:0"):
        return None
    merged, places = view.inputs(sums)[:2]
    return (merged, view.inputs(unique)[0]) if source_of(view, places) == f"{unique}:1" else None


def _find_exclusive_nodes(view: GraphView, update: frozenset[str], excluded: set[str]) -> frozenset[str]:
    """The nodes that sum equal rows, or compute with the sums, for an update and no other consumer.

    Args:
        view: the graph.
        update: the nodes of the update.
        excluded: nodes to keep, with their inputs.
    """
    exclusive: set[str] = set()
    waiting = [node_of(one) for node in sorted(update) for one in view.inputs(node)]
    while waiting:
        node = waiting.pop()
        if view.op(node) in _FOR_UPDATES and node not in exclusive and node not in excluded:
            exclusive.add(node)
            waiting += map(node_of, view.inputs(node))
    while others := {node for node in exclusive if not update.union(exclusive).issuperset(view.users(node))}:
        exclusive -= others
    return frozenset(exclusive)


def _check_readers(view: GraphView, handles: Handles, order: Order, group: UpdateGroup, done: Execution) -> None:
    """Requires that no other node reads a full state, or a value computed from one, in the run of an update."""
    writes, update_nodes = order.bits(group.all_writes), {*done.inner, *group.all_writes}
    reads = [read for state in group.states for read in handles.uses[state].reads]
    reads += [lookup for state in group.states[1:] for lookup in handles.uses[state].lookups]
    for node in dict.fromkeys([*reads, *sorted(done.inner)]):
        takers = [
            edge.node
            for tensor in view.outputs(node)
            for edge in view.consumers(tensor)
            if edge.node not in update_nodes
        ]
        if not takers:
            continue
        if node in done.inner and view.op(node) != READ or order.have_common_dependent(node, writes):
            taker = takers[0]
            raise NotLazyError(f"op {view.op(taker)} {taker!r} uses the whole value of {view.op(node)} {node!r}")


def _check_no_cycle(view: GraphView, order: Order, group: UpdateGroup, needed: list[str]) -> None:
    for node in needed:
        if order.has(node, order.bits(group.all_writes)):
            raise NotLazyError(f"op {view.op(node)} {node!r} runs between the writes of the update")
