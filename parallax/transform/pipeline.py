"""Transforms a captured graph into one worker's graph by its decisions: the passes in order, with a check after each.

The finished graph is checked as well (invariants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from parallax.base.types import GraphDef
from parallax.cluster.team_names import GROUP, STAGE
from parallax.graph.garbage import without_collections
from parallax.graph.ownership import Ownership
from parallax.graph.view import GraphView, node_of
from parallax.plans.rewrites import Rewrites
from parallax.transform.between_passes import check_pass
from parallax.transform.building.all_to_all import restrict_to_team
from parallax.transform.building.editor import (
    SCOPE,
    Counter,
    Cut,
    Editor,
    GradientAccumulation,
    SlicedValue,
    Worker,
    open_editor,
)
from parallax.transform.building.loop_entries import bring_into_loops, run_in_order
from parallax.transform.building.open_shapes import with_open_shapes
from parallax.transform.building.wire import Rounding
from parallax.transform.building.write_order import keep_write_order
from parallax.transform.invariants import check
from parallax.transform.passes.accumulate import keep_gradients
from parallax.transform.passes.cut_stages import StageGraph, cut_stages
from parallax.transform.passes.dense_and_gathered import collect_rows, reduce_gradients
from parallax.transform.passes.exchange import exchange_rows
from parallax.transform.passes.full_batches import FullBatch, add_full_batches
from parallax.transform.passes.fused_all_reduces import FusedMessage, fuse_all_reduces
from parallax.transform.passes.gradients_to_servers import scatter_gradients
from parallax.transform.passes.inputs import IteratorsOfGraph, keep_inputs
from parallax.transform.passes.layouts import change_layouts
from parallax.transform.passes.local_tables import gather_rows, slice_rows, spread_tables
from parallax.transform.passes.on_servers import run_on_servers
from parallax.transform.passes.padded_rows import pad_to_longest_row
from parallax.transform.passes.random_positions import RandomStreams, keep_streams
from parallax.transform.passes.random_seeds import set_seeds
from parallax.transform.passes.rows_up_to_date import keep_up_to_date, lazily_updated
from parallax.transform.passes.server_partitions import place_tables
from parallax.transform.passes.shard_numbers import set_shards
from parallax.transform.passes.touched_rows import NO_ROW_MEMORY, RowMemory, remember_touched_rows
from parallax.transform.passes.turns import add_gates
from parallax.transform.passes.weigh_micro_batches import weigh_micro_batches
from parallax.transform.passes.weigh_uneven_batches import weigh_uneven_batches

PASSES: tuple[Callable[[Editor, Rewrites], None], ...] = (
    spread_tables,
    place_tables,
    weigh_uneven_batches,
    change_layouts,
    weigh_micro_batches,
    keep_gradients,
    reduce_gradients,
    pad_to_longest_row,
    scatter_gradients,
    slice_rows,  # after the broadcasts: a full value that is fed is worker 0's, then sliced
    exchange_rows,
    collect_rows,
    gather_rows,
    run_on_servers,
)
"""The passes in order; between_passes.py has the invariants after each."""


@dataclass(frozen=True, slots=True)
class WorkerGraph:
    """The graph of one worker.

    Attributes:
        graph_def: the changed graph; it contains all of the user's names.
        full_tensors: tensor of local rows -> the tensor of all rows, for fetches.
        sharded_tensors: tensors that contain local rows only.
        cuts: tensors that are fed empty values when a fetch does not need them.
        fused: fused all-reduces; parts that a run does not need are fed empty values, too.
        counters: counters of the exchanges.
        roundings: measurements of rounding on the wire.
        counter_initializers: ops that reset all of these to zero, and the record of touched rows.
        tables: variable ops whose values differ between workers because each stores its rows.
        spread: variable op -> the map from rows to workers, for those of `tables` that workers own.
        on_servers: variable ops of which this worker stores nothing.
        partitions: variable op -> the variable ops of its partitions on servers.
        local_variables: per-worker variable ops.
        synchronous: whether every step uses the gradients of all workers.
        overlaps: whether it has gates at which overlapping runs are serialized.
        sliced_values: values that this worker computes in full although only rows of them are needed.
        accumulate_steps: the number of batches whose gradients are accumulated before they are sent.
        accumulations: the accumulated gradients; empty where every batch makes an update.
        batch_writes: nodes of the user's graph that write with every batch, though all workers share the variable.
        update_writes: nodes of the user's graph that write with the update only, though each worker has its own part.
        micro_batch_weight: the tensor that is fed a micro-batch's fraction of its step's examples; empty where no
            step is split.
        lazily_updated: the variable ops of each table, or partition, whose rows are brought up to date when they are
            read; the table's own first.
        touched: the record of rows that updates have touched, if there is one.
        streams: the random streams that are drawn while it trains, where checkpoints include their positions.
        inputs: the dataset iterators, where checkpoints include their positions.
        full: the feeds of batches of the usual length.
        stages: its stage; None where it is the whole model.
        elsewhere: variable ops that other stages store, and this worker does not.
        refused: node of the user's graph that cannot be run -> why.
    """

    graph_def: GraphDef
    full_tensors: dict[str, str]
    sharded_tensors: frozenset[str]
    cuts: tuple[Cut, ...]
    fused: tuple[FusedMessage, ...]
    counters: tuple[Counter, ...]
    roundings: tuple[Rounding, ...]
    counter_initializers: tuple[str, ...]
    tables: frozenset[str]
    spread: dict[str, Ownership]
    on_servers: frozenset[str]
    partitions: dict[str, tuple[str, ...]]
    local_variables: frozenset[str]
    synchronous: bool
    overlaps: bool
    sliced_values: tuple[SlicedValue, ...]
    accumulate_steps: int = 1
    accumulations: tuple[GradientAccumulation, ...] = ()
    batch_writes: frozenset[str] = frozenset()
    update_writes: frozenset[str] = frozenset()
    micro_batch_weight: str = ""
    lazily_updated: tuple[tuple[str, ...], ...] = ()
    touched: RowMemory = NO_ROW_MEMORY
    streams: RandomStreams = RandomStreams()
    inputs: IteratorsOfGraph = IteratorsOfGraph()
    full: tuple[FullBatch, ...] = ()
    stages: StageGraph | None = None
    elsewhere: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)


def _keep_fetchable(editor: Editor) -> None:
    """Makes fetches of an inlined call's results read their source, if a part of it is on servers."""
    for node in editor.no_ops:
        if editor.view.op(node) == "IdentityN":
            for number, tensor in enumerate(editor.view.inputs(node)):
                editor.full_tensors.setdefault(f"{node}:{number}", editor.full_tensors.get(tensor, tensor))


@without_collections
def transform(
    view: GraphView, rewrites: Rewrites, worker: Worker, remembers_rows: bool = False, overlaps: bool = False
) -> WorkerGraph:
    """Builds the graph of one worker. Pure: the view is not modified, and no cluster or Horovod job is needed.

    Args:
        view: the captured graph.
        rewrites: the rewrites.
        worker: the worker whose graph it is.
        remembers_rows: whether touched rows are recorded.
        overlaps: whether runs can overlap, where workers train together and without servers.

    Raises:
        TransformError: when the graph cannot be edited, or an invariant is violated afterwards.
    """
    view = with_open_shapes(view, rewrites.layouts)
    editor = open_editor(view, worker, rewrites.terms)
    with editor.scratch.as_default(), tf.name_scope(f"{SCOPE}/"):
        for one_pass in PASSES:
            one_pass(editor, rewrites)
            check_pass(editor, rewrites, one_pass.__name__)
    _keep_fetchable(editor)
    changed = editor.finish()
    freed = {edge for edge, other in editor.waits_for.items() if other is None}
    keep_write_order(changed, view, editor.redirected, (*editor.replaced, *editor.constants), freed)
    set_seeds(changed, frozenset(rewrites.equal_random_ops), worker.among_all)
    bring_into_loops(changed)
    run_in_order(changed)
    set_shards(changed, worker.among_all)
    streams, inputs = RandomStreams(), IteratorsOfGraph()
    if worker.keeps_positions:
        streams = keep_streams(changed, view, frozenset(rewrites.initial_random_ops))
        inputs = keep_inputs(changed, view, worker.among_all)
    if worker.islands > 1:
        restrict_to_team(GROUP, changed)
    lazy = lazily_updated(editor)
    read = keep_up_to_date(changed, lazy)
    touched = remember_touched_rows(changed, editor, rewrites) if remembers_rows else NO_ROW_MEMORY
    cleared = [name for one in touched.tables for name in (one.clear, *one.clear_partitions) if name]
    stages, counters, elsewhere = None, tuple(editor.counters), frozenset[str]()
    initializers = (*editor.counter_initializers, *(r.initializer for r in editor.wire.roundings), *cleared)
    for places in rewrites.stages:
        check(changed, rewrites, worker)
        changed, stages = cut_stages(changed, places, worker.stage, view, editor.scratch)
        restrict_to_team(STAGE, changed)
        counters = tuple(one for one in counters if stages.is_here(node_of(one.tensor)))
        initializers = tuple(one for one in initializers if stages.is_here(one))
        elsewhere = stages.variables_elsewhere(view)
    fused = fuse_all_reduces(changed, None if stages is None else stages.whole)
    in_parts = [step for one in rewrites.micro_batches for step in one.steps]
    full = add_full_batches(changed, worker, rewrites.terms.accumulate_steps, in_parts)
    can_overlap = overlaps and worker.size > 1 and rewrites.terms.synchronous and not worker.servers
    if can_overlap or stages is not None:
        add_gates(changed)
    if stages is None:
        check(changed, rewrites, worker)
    return WorkerGraph(
        graph_def=changed,
        full_tensors=read | {tensor: read.get(whole, whole) for tensor, whole in editor.full_tensors.items()},
        sharded_tensors=frozenset((*rewrites.sharded_tensors, *editor.sharded_tensors)),
        cuts=tuple(editor.cuts),
        fused=fused,
        overlaps=can_overlap or stages is not None,
        counters=counters,
        roundings=tuple(editor.wire.roundings),
        counter_initializers=initializers,
        tables=frozenset(m for t in rewrites.tables for m in t.members if not (t.replicated and m == t.op)),
        spread={m: t.ownership(worker.size) for t in rewrites.tables if not t.servers for m in t.members},
        on_servers=frozenset(editor.partitions) - {t.op for t in rewrites.tables if t.replicated},
        partitions={op: tuple(str(part.op.name) for part in parts) for op, parts in editor.partitions.items()},
        local_variables=frozenset(rewrites.local_variables),
        synchronous=rewrites.terms.synchronous,
        sliced_values=tuple(editor.sliced_values),
        accumulate_steps=rewrites.terms.accumulate_steps,
        accumulations=tuple(editor.keepings),
        batch_writes=frozenset(rewrites.batch_writes),
        update_writes=frozenset(node for one in rewrites.micro_batches for node in one.updates),
        micro_batch_weight="" if editor.micro_batch_weight is None else str(editor.micro_batch_weight.name),
        lazily_updated=lazy,
        touched=touched,
        streams=streams,
        inputs=inputs,
        full=full,
        stages=stages,
        elsewhere=elsewhere,
        refused={node: why for one in rewrites.layouts for node, why in one.refused.items()},
    )
