"""Sends gradients to servers: through accumulators that wait for all workers, or directly from one worker.

Each partition of a push or scatter has an accumulator. Each contributor adds one gradient a step: all workers, or, for
rows, each server's front alone. Worker 0 reads the sum when all have contributed, and multiplies a dense sum by 1/W if
the mean is wanted; rows were scaled where they left autodiff. No worker contributes again before the first sum is read,
as its step ends only after the update.
"""

from __future__ import annotations

import tensorflow as tf

from parallax.base.types import Operation, Tensor
from parallax.graph.view import Edge
from parallax.plans.rewrites import Rewrites, Scatter
from parallax.transform.building.deduplicated_ids import merge_equal_rows
from parallax.transform.building.editor import SCOPE, Editor
from parallax.transform.building.reduce_and_broadcast import device_of
from parallax.transform.building.transports import Pushers
from parallax.transform.passes.server_partitions import cut_rows

ALL_GIVE, FRONTS_GIVE = f"{SCOPE}/accumulate", f"{SCOPE}/front"
"""The scopes of the nodes that contribute gradient rows: on all workers alike, or on the front of each server."""
NEVER_STALE = 2**63 - 1
"""Local step of contributions: an accumulator drops those older than its own step."""


def scatter_gradients(editor: Editor, rewrites: Rewrites) -> None:
    """Scatters dense gradients of tables on servers: each partition gets its rows of the workers' mean, or sum."""
    for number, scatter in enumerate(rewrites.scatters):
        _scatter(editor, rewrites, scatter, f"{SCOPE}/scatter/{number}")


def _scatter(editor: Editor, rewrites: Rewrites, scatter: Scatter, label: str) -> None:
    table = rewrites.table(scatter.table)
    with tf.name_scope(f"{label}/"):
        is_kept = scatter.tensor in editor.accumulated or not scatter.edges
        gradient = editor.leaving(scatter.tensor) if is_kept else editor.at(scatter.edges[0])
        pieces = cut_rows(gradient, len(table.servers), table.is_scalar)
        if not rewrites.terms.synchronous:
            _lead_parts(editor, scatter.edges, pieces, [])
            return
        sums: list[Tensor] = []
        contributions: list[Operation] = []
        for piece, server in zip(pieces, table.servers, strict=True):
            with tf.device(device_of(server)):
                handle = tf.raw_ops.ConditionalAccumulator(
                    dtype=piece.dtype,
                    shape=piece.shape,
                    shared_name=f"{label}/{len(contributions)}",
                    reduction_type="SUM",
                    name="accumulator",
                )
                contributions.append(
                    tf.raw_ops.AccumulatorApplyGradient(
                        handle=handle, local_step=tf.constant(NEVER_STALE, tf.int64), gradient=piece, name="give"
                    )
                )
                if editor.worker.rank == 0:
                    size = tf.constant(editor.worker.size)
                    with tf.control_dependencies([contributions[-1]]):
                        total = tf.raw_ops.AccumulatorTakeGradient(handle=handle, num_required=size, dtype=piece.dtype)
                    total.set_shape(piece.shape)
                    is_mean = scatter.kind == "mean"
                    sums.append(total * tf.constant(1.0 / editor.worker.size, piece.dtype) if is_mean else total)
    _lead_parts(editor, scatter.edges, sums, contributions)


def push_rows(
    editor: Editor, rewrites: Rewrites, index: int, sent: list[list[tuple[Tensor, Tensor]]], pushers: Pushers
) -> None:
    """Pushes gradient rows of a table on servers: each partition gets those of all workers, summed.

    Args:
        editor: the graph.
        rewrites: the rewrites.
        index: the index of the push.
        sent: for each pull that the rows were looked up in, and each partition, (values `[n, width]` in their type on
            the wire, local row numbers `[n]`).
        pushers: the workers that contribute.
    """
    push = rewrites.pushes[index]
    table, label = rewrites.table(push.table), f"{ALL_GIVE if pushers.count > 1 else FRONTS_GIVE}/{index}"
    row_shape = editor.at(push.values[0]).shape.as_list()[1:] if push.values else None
    index_type = editor.at(push.indices[0]).dtype
    all_values, all_indices, contributions = [], [], []
    for number, server in enumerate(table.servers):
        values = _join([by_partition[number][0] for by_partition in sent])
        indices = tf.cast(_join([by_partition[number][1] for by_partition in sent]), tf.int64)
        with tf.device(device_of(server)), tf.name_scope(f"{label}/{number}/"):
            values = tf.cast(values, table.dtype)
            if rewrites.terms.synchronous:
                rows = table.local_shape(number, editor.worker.size)[0]
                handle = accumulator(values, rows, f"{label}/{number}")
                gives = [contribute(handle, values, indices, rows)] if number in pushers.partitions else []
                contributions += gives
                if editor.worker.rank > 0:
                    continue
                with tf.control_dependencies(gives or _find_sends(sent, number)):
                    values, indices = collect_sum(handle, values, pushers.count)
            if push.merge:
                values, indices = merge_equal_rows(values, indices)
            all_indices.append(tf.cast(indices, index_type))
            if row_shape is not None:
                all_values.append(tf.reshape(values, [-1, *row_shape]))
    sent_ops = contributions or _find_sends(sent, 0)
    _lead_parts(editor, push.values, all_values, sent_ops)
    _lead_parts(editor, push.indices, all_indices, sent_ops)


def _find_sends(sent: list[list[tuple[Tensor, Tensor]]], number: int) -> list[Operation]:
    """The ops by which a worker that contributes nothing to a partition sends its rows to the worker that does."""
    return [piece.op for by_partition in sent for piece in by_partition[number]]


def accumulator(values: Tensor, rows: int, name: str) -> Tensor:
    """The accumulator of a partition's gradient rows, which all workers share by its name."""
    return tf.raw_ops.SparseConditionalAccumulator(
        dtype=values.dtype,
        shape=[rows, int(values.shape[1])],
        shared_name=name,
        reduction_type="SUM",
        name="accumulator",
    )


def contribute(handle: Tensor, values: Tensor, indices: Tensor, rows: int) -> Operation:
    """Contributes this worker's gradient rows `[n, width]` of a partition of `rows` rows, numbered `[n]` int64."""
    return tf.raw_ops.SparseAccumulatorApplyGradient(
        handle=handle,
        local_step=tf.constant(NEVER_STALE, tf.int64),
        gradient_indices=indices,
        gradient_values=values,
        gradient_shape=tf.constant([rows, int(values.shape[1])], tf.int64),
        has_known_shape=True,
        name="give",
    )


def collect_sum(handle: Tensor, like: Tensor, pushers: int) -> tuple[Tensor, Tensor]:
    """The sum of all contributions: values `[m, width]` and row numbers `[m]`."""
    accumulated = tf.raw_ops.SparseAccumulatorTakeGradient(
        handle=handle, num_required=tf.constant(pushers), dtype=like.dtype
    )
    accumulated.values.set_shape([None, int(like.shape[1])])
    accumulated.indices.set_shape([None])
    return accumulated.values, accumulated.indices


def _join(pieces: list[Tensor]) -> Tensor:
    return tf.concat(pieces, 0) if len(pieces) > 1 else pieces[0]


def _lead_parts(editor: Editor, edges: tuple[Edge, ...], parts: list[Tensor], contributions: list[Operation]) -> None:
    for edge in edges:
        if parts:
            editor.redirected_parts[edge] = parts
        if contributions:
            editor.arrivals[edge] = contributions
