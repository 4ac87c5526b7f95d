"""Builds the rewrites of a graph from the results of its last traversal.

The findings of the rules, edge by edge, are combined here: a push or a collection for each merge, worker 0's value for
whatever is fed, and gathers for whatever a user may fetch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parallax.analysis.layouts.batch_names import name_batches
from parallax.analysis.layouts.layout_notes import note_layouts
from parallax.analysis.propagation import accumulated_batches, stand_ins, visit_node, worker_state
from parallax.analysis.propagation.gradient_pieces import find_outside_edges, list_accumulated_gradients
from parallax.analysis.propagation.server_nodes import check_reads, find_owned_nodes
from parallax.analysis.propagation.split_micro_batches import split_step
from parallax.analysis.propagation.states import AtOwners, Rows
from parallax.analysis.propagation.walk import Merge, Walk
from parallax.base.errors import GraphError
from parallax.graph.batches import batch_by_node, is_of_script
from parallax.graph.view import VARIABLES, node_of
from parallax.plans.rewrites import (
    Broadcast,
    Collect,
    GatherRows,
    Push,
    Rewrites,
    Scale,
    SliceRows,
    Table,
    TrainingMode,
)


def collect_rewrites(walk: Walk, terms: TrainingMode) -> Rewrites:
    """The rewrites of a graph, from a finished traversal.

    Raises:
        GraphError: an update over several batches depends on a value of one of them, or on another update.
        NoRule: a variable on servers is read by workers that cannot know that it was written.
    """
    layouts = walk.facts.layouts
    if layouts is not None:
        _check_layouts(walk, terms)
    is_accumulated = terms.accumulate_steps > 1
    if is_accumulated:
        accumulated_batches.check_kept(walk)
    is_pushed = {key: _is_pushed(walk, merge) for key, merge in walk.merges.items()}
    pushes = tuple(_push(walk, merge) for key, merge in walk.merges.items() if is_pushed[key])
    owned, gathers = find_owned_nodes(walk), tuple(_list_gathers(walk))
    if terms.synchronous:
        check_reads(walk, owned, pushes)
    rewrites = Rewrites(
        tables=_list_tables(walk),
        scales=tuple(walk.scales) if layouts is None else _sum_rows(walk, terms),
        shared_rows=tuple(walk.shared_rows),
        all_reduces=tuple(walk.all_reduces),
        broadcasts=(*walk.broadcasts, *_list_broadcasts(walk)),
        slices=tuple(SliceRows(tensor, tuple(edges), table) for (tensor, table), edges in walk.slices.items()),
        gathers=gathers,
        shapes=tuple(walk.shapes),
        counts=tuple(walk.counts),
        lookups=tuple(walk.lookups),
        pushes=pushes,
        collects=tuple(_collect(walk, merge) for key, merge in walk.merges.items() if not is_pushed[key]),
        sharded_tensors=_list_sharded_tensors(walk, gathers),
        equal_random_ops=_list_equal_draws(walk),
        initial_random_ops=_list_initial_draws(walk),
        local_variables=tuple(sorted(walk.assumptions.local_variables)),
        batch_writes=accumulated_batches.find_batch_writes(walk) if is_accumulated else (),
        scatters=tuple(walk.scatters),
        owned=owned,
        terms=terms,
        padded=layouts.padded if layouts is not None else (),
        notes=_note_means(walk) if layouts is None else note_layouts(walk.view, layouts.rewrites),
        accumulated_gradients=list_accumulated_gradients(walk) if is_accumulated else (),
        alike_rows=tuple(walk.alike_rows) if is_accumulated else (),
    )
    if layouts is not None and not terms.synchronous:
        return replace(rewrites, layouts=(layouts.rewrites,))
    if layouts is not None:
        batches = (*stand_ins.uneven_batches(walk.view), *stand_ins.batches_of_elements(walk.view))
        rewrites = replace(rewrites, layouts=(layouts.rewrites,), batches=batches)
        if not is_accumulated:  # accumulated gradients exclude them
            rewrites = stand_ins.exclude_stand_ins(walk, rewrites, layouts)
        elif not is_of_script(walk.view):
            micro_batches, keeps = split_step(walk, rewrites.accumulated_gradients, rewrites.batch_writes)
            rewrites = replace(rewrites, micro_batches=(micro_batches,), accumulated_gradients=keeps)
        return name_batches(walk.view, rewrites) if is_of_script(walk.view) else rewrites
    return rewrites


def _check_layouts(walk: Walk, terms: TrainingMode) -> None:
    """Refuses cases that layouts do not support.

    Raises:
        GraphError: no batch is marked, or steps are planned otherwise than they were analysed.
    """
    if terms.synchronous != walk.facts.captured.synchronous:
        raise GraphError(
            f"The graph was analysed for {'asynchronous' if terms.synchronous else 'synchronous'} training, but the "
            f"plan is for {'synchronous' if terms.synchronous else 'asynchronous'} training. Leave sync at "
            f"{not terms.synchronous}."
        )
    if terms.synchronous and is_of_script(walk.view) and not batch_by_node(walk.view):
        raise GraphError(
            "Config(layouts=True) needs a batch of open length, but this graph has no placeholder, iterator or queue "
            "with an open first dimension. Leave that dimension open (None), or remove layouts."
        )


def _sum_rows(walk: Walk, terms: TrainingMode) -> tuple[Scale, ...]:
    """With layouts: the rows that must be sums over the workers, and are parts of the global batch's gradients."""
    sparse = {source.values: source for source in walk.facts.sources if source.indices is not None}
    scales = (Scale(tensor, tuple(find_outside_edges(walk, one, tensor))) for tensor, one in sparse.items())
    return () if terms.average_sparse or not terms.synchronous else tuple(scale for scale in scales if scale.edges)


def _list_tables(walk: Walk) -> tuple[Table, ...]:
    """The tables, each with all variables that are sharded like it."""
    members: dict[str, list[str]] = {table: [] for table in walk.facts.tables}
    for member, table in sorted(walk.assumptions.table_of.items()):
        members[table].append(member)
    return tuple(replace(table, members=tuple(members[table.op])) for table in walk.facts.tables.values())


def _list_broadcasts(walk: Walk) -> Iterator[Broadcast]:
    """The fed values on which shared state depends."""
    for placeholder in sorted(walk.fed):
        yield Broadcast(f"{placeholder}:0", tuple(walk.view.consumers(f"{placeholder}:0")))


def _is_pushed(walk: Walk, merge: Merge) -> bool:
    """Whether the rows of a merge go to owners; others go to all workers."""
    return merge.part in walk.assumptions.table_of


def _push(walk: Walk, merge: Merge) -> Push:
    lookups, searched = visit_node.lookups_of_indices(walk, merge)
    return Push(
        table=walk.assumptions.table_of[merge.part],
        values=tuple(merge.values),
        indices=tuple(merge.indices),
        lookups=lookups,
        searched=searched,
        merge=not merge.merges_equal_rows,
    )


def _collect(walk: Walk, merge: Merge) -> Collect:
    variable = walk.facts.captured.variables[merge.part]
    return Collect(
        variable=variable.logical_name,
        op=merge.part,
        rows=variable.part.rows,
        route=walk.facts.routes[merge.part],
        values=tuple(merge.values),
        indices=tuple(merge.indices),
        merge=not merge.merges_equal_rows,
        pieces=merge.pieces,
    )


def _list_gathers(walk: Walk) -> Iterator[GatherRows]:
    """The rows that are read in full, and tensors computed from a table that may be fetched."""
    gather_by_tensor = dict(walk.gathers)
    for tensor, state in walk.states.items():
        node = node_of(tensor)
        if isinstance(state, Rows) and node not in walk.facts.training and node not in walk.facts.initial:
            gather_by_tensor.setdefault(tensor, (state.table, []))
    for tensor, (table, edges) in gather_by_tensor.items():
        if edges or not _is_update_read(walk, node_of(tensor)):
            yield GatherRows(tensor, tuple(edges), table)


def _is_update_read(walk: Walk, node: str) -> bool:
    """Whether a node reads a variable for an update or writes it there; these are never fetched, and Adam has many."""
    return node in walk.facts.training and walk.view.op(node) not in ("Identity", *VARIABLES)


def _list_sharded_tensors(walk: Walk, gathers: tuple[GatherRows, ...]) -> tuple[str, ...]:
    """The tensors that only owners store, and that are gathered nowhere."""
    rows = {tensor for tensor, state in walk.states.items() if isinstance(state, AtOwners)}
    return tuple(sorted(rows - {gather.tensor for gather in gathers}))


def _list_equal_draws(walk: Walk) -> tuple[str, ...]:
    """The random ops with equal draws on all workers, and the nodes of initial values whose functions draw."""
    view, equal_nodes = walk.view, walk.facts.initial | walk.facts.after_gradients
    random_ops = {n for n in equal_nodes if visit_node.is_random(view.op(n))}
    random_ops |= {n for n in view.nodes if visit_node.is_equal_draw(walk, n)}
    random_ops |= set(walk.facts.layouts.equal_draws) if walk.facts.layouts is not None else set()
    return tuple(sorted(random_ops | {n for n in equal_nodes if walk.facts.functions.of_node(view.nodes[n])}))


def _list_initial_draws(walk: Walk) -> tuple[str, ...]:
    return tuple(sorted(n for n in walk.facts.initial if visit_node.is_random(walk.view.op(n))))


def _note_means(walk: Walk) -> tuple[str, ...]:
    """The plan's notes where losses are not analysed by layouts."""
    return walk.facts.captured.note_of_means, *worker_state.note_local_state(walk)
