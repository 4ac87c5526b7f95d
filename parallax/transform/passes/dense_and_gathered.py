"""Passes for gradients of replicated variables: scaling, all-reduce, broadcast, and all-gather of sparse rows."""

from __future__ import annotations

import math
from functools import partial

import tensorflow as tf

from parallax.base.types import Operation, Tensor
from parallax.graph.view import node_of
from parallax.plans.gradient_rows import GradientPiece, SharedRows
from parallax.plans.plan import ALLGATHER
from parallax.plans.rewrites import AllReduce, Collect, Rewrites
from parallax.transform.building.batch_weights import mask_uncounted
from parallax.transform.building.collectives import all_gather, open_end
from parallax.transform.building.copies import NamedTensor
from parallax.transform.building.deduplicated_ids import INT32_ROWS, merge_equal_rows, merge_rows_of_equal_keys
from parallax.transform.building.editor import SCOPE, Counter, Editor
from parallax.transform.building.reduce_and_broadcast import Reducer
from parallax.transform.building.wire import GRADIENTS


def reduce_gradients(editor: Editor, rewrites: Rewrites) -> None:
    """Scales gradient rows by 1/W, all-reduces dense gradients and sums over rows, and broadcasts fed values."""
    for scale in rewrites.scales:
        values = editor.at(scale.edges[0]) if rewrites.layouts else editor.leaving(scale.tensor)
        with tf.name_scope(f"{SCOPE}/scale/"):
            editor.redirect(scale.edges, _scale_rows(editor, rewrites, values))
    for shared in rewrites.shared_rows:
        if not rewrites.terms.synchronous:
            continue  # a single worker has the rows of one process
        with tf.name_scope(f"{SCOPE}/shared_rows/"):
            editor.redirect(shared.edges, _keep_on_last_worker(editor, editor.at(shared.edges[0]), shared))
    for feed in rewrites.broadcasts:
        with tf.name_scope(f"{SCOPE}/broadcast/"):
            editor.redirect(feed.edges, editor.reducer.broadcast(editor.tensor(feed.tensor)))
    for reduction in rewrites.all_reduces:
        if reduction.table:
            continue  # its parts are on servers
        with tf.name_scope(f"{SCOPE}/all_reduce/"):
            reduced = _reduce(editor, reduction)
        editor.redirect(reduction.edges, reduced)
        if reduction.kind not in ("mean", "gradient"):  # its own gradient may be fetched, a part of a sum not
            editor.full_tensors[reduction.tensor] = str(reduced.name)


def _reduce(editor: Editor, reduction: AllReduce) -> NamedTensor | Tensor:
    """A reduction over the workers; for tensors of one shape it is built once, and then copied, where it can be."""
    if reduction.kind == "rows_mean":
        return _mean_of_rows(editor, reduction)
    weighed = editor.redirected.get(reduction.edges[0]) if reduction.edges else None
    named = editor.take_tensor(reduction.tensor) if weighed is None else weighed
    became_dense = editor.view.op(node_of(reduction.tensor)) == "UnsortedSegmentSum"
    build = partial(_build, editor.reducer, editor.worker.size, reduction.kind, became_dense)
    is_counted = [editor.batch_weights[reduction.batch].is_counted] if reduction.batch else []
    if reduction.tensor in editor.accumulated or not editor.reducer.can_be_copied(named.dtype):
        return build(editor.leaving(reduction.tensor), *is_counted)
    return editor.copies.copy((_build, reduction.kind, became_dense), build, [named, *is_counted])


def _build(
    reducer: Reducer, workers: int, kind: str, became_dense: bool, tensor: Tensor, is_counted: Tensor | None = None
) -> Tensor:
    """One reduction by its kind (rewrites.AllReduce); gradients may travel in half precision."""
    if is_counted is not None:
        tensor = mask_uncounted(is_counted, tensor, "sum" if kind == "gradient" else kind)
    if kind == "mean":
        return reducer.add_gradients(tensor, 1.0 / workers)
    if kind == "gradient" or (kind == "sum" and became_dense):
        return reducer.add_gradients(tensor)
    return reducer.all_reduce(tensor, kind)


def _keep_on_last_worker(editor: Editor, values: Tensor, shared: SharedRows) -> Tensor:
    """Gradient rows in which those of shared pieces are the sum over the workers on the last one, and zero elsewhere.

    The last worker has examples whenever any worker has (graph/batches.py): workers without examples send no rows.
    """
    pieces_here = []
    for piece, rows in zip(shared.pieces, _split(editor, values, shared.pieces), strict=True):
        if piece.kind == "shared":
            # An open end: TensorFlow would fold a product with a known zero, and drop the all-reduce there.
            mine = open_end(tf.constant(1.0 if editor.worker.rank == editor.worker.size - 1 else 0.0, rows.dtype))
            rows = editor.reducer.add_gradients(rows) * mine
        pieces_here.append(rows)
    return tf.concat(pieces_here, 0)


def _split(editor: Editor, rows: Tensor, pieces: tuple[GradientPiece, ...]) -> list[Tensor]:
    """The rows of each piece."""
    if len(pieces) < 2:
        return [rows]
    return list(tf.split(rows, [editor.rows_of(piece) for piece in pieces]))


def _scale_rows(editor: Editor, rewrites: Rewrites, values: Tensor) -> Tensor:
    """Gradient rows times the worker's weight among all workers."""
    terms, size = rewrites.terms, editor.worker.size
    if rewrites.layouts:  # parts of the global batch's
        return values * tf.constant(size, values.dtype)
    return values * tf.constant(1.0 / size if terms.synchronous and terms.average_sparse else 1.0, values.dtype)


def _mean_of_rows(editor: Editor, reduction: AllReduce) -> Tensor:
    """The mean over all workers' rows, from each worker's mean over its own (which may be empty)."""
    mean, rows = editor.leaving(reduction.tensor), editor.leaving(reduction.weight)
    count = tf.raw_ops.Shape(input=rows)[0]  # tf.shape would return the user's full static shape
    if reduction.batch:
        count = editor.batch_weights[reduction.batch].zero_uncounted(count)
    weight = tf.cast(count, mean.dtype)
    total = tf.where(count > 0, mean * weight, tf.zeros_like(mean))
    return editor.reducer.all_reduce(total) / editor.reducer.all_reduce(weight)


def collect_rows(editor: Editor, rewrites: Rewrites) -> None:
    """Sparse gradients of replicated variables: all workers get all touched rows."""
    collected = []
    for collect in rewrites.collects:
        with tf.name_scope(f"{SCOPE}/collect/{collect.op}/"):
            collected.append(_collect(editor, collect))
    # Afterwards: two gradients may have one tensor of row numbers.
    for collect, (values, indices) in zip(rewrites.collects, collected, strict=True):
        editor.redirect(collect.values, values)
        editor.redirect(collect.indices, indices)


def _collect(editor: Editor, collect: Collect) -> tuple[Tensor, Tensor]:
    """(values `[m, row...]`, indices `[m]`) over all workers; the same on all."""
    indices = open_end(editor.at(collect.indices[0]), [None])
    values = editor.at(collect.values[0]) if collect.values else None
    row_shape: list[int] = []
    if values is not None:
        is_known = values.shape.rank is not None and None not in values.shape.as_list()[1:]
        # The rows are the variable's, whatever TensorFlow has inferred.
        dims = editor.view.nodes[collect.op].attr["shape"].shape.dim
        row_shape = values.shape.as_list()[1:] if is_known else [int(dim.size) for dim in dims][1:]
    flat = open_end(tf.reshape(values, [-1, math.prod(row_shape)])) if values is not None else None
    if flat is None:
        flat = tf.zeros([tf.size(indices), 0])
    if collect.route == "raw":
        all_values, all_indices = _as_one_process(editor, collect, flat, indices)
    else:
        counted_values, counted_indices = (_counted_rows(editor, collect, rows) for rows in (flat, indices))
        build = _densify if collect.route == "allreduce" else _gather
        all_values, all_indices = build(editor, collect, counted_values, counted_indices)
    return tf.reshape(all_values, [-1, *row_shape]), tf.cast(all_indices, indices.dtype)


def _counted_rows(editor: Editor, collect: Collect, rows: Tensor) -> Tensor:
    """Gradient rows of this worker's examples; none where it has no examples."""
    return editor.batch_weights[collect.batch].counted_rows(rows) if collect.batch else rows


def _densify(editor: Editor, collect: Collect, values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over a full table, with a column that counts the workers that touched a row; only the union is returned.

    A sparse Momentum, Adam or Ftrl update leaves untouched rows unchanged, so they must not reach the update.
    """
    with_count = tf.concat([values, tf.ones([tf.shape(values)[0], 1], values.dtype)], 1)
    total = editor.reducer.add_gradients(tf.math.unsorted_segment_sum(with_count, indices, collect.rows))
    touched = tf.where(total[:, -1] > 0)[:, 0]
    return tf.gather(total[:, :-1], touched), touched


def _gather(editor: Editor, collect: Collect, values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = _sent_to_all(editor, collect, *merge_equal_rows(values, indices))
    return merge_equal_rows(values, indices) if collect.merge else (values, indices)


def _as_one_process(editor: Editor, collect: Collect, values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Every row that one process would have, piece by piece."""
    pieces = collect.pieces
    gathered = []
    for piece, rows, numbers in zip(
        pieces, _split(editor, values, pieces), _split(editor, indices, pieces), strict=True
    ):
        if piece.kind == "shared":
            gathered.append((editor.reducer.add_gradients(rows), numbers))
        else:
            gathered.append(_of_all_workers(editor, collect, piece, rows, numbers))
    return tf.concat([v for v, _ in gathered], 0), tf.concat([tf.cast(i, indices.dtype) for _, i in gathered], 0)


def _of_all_workers(
    editor: Editor, collect: Collect, piece: GradientPiece, rows: Tensor, numbers: Tensor
) -> tuple[Tensor, Tensor]:
    """The rows of all workers for one lookup; those of equal ids, or of equal keys where these decide, are summed."""
    sent = _sent_to_all(editor, collect, *(_counted_rows(editor, collect, one) for one in (rows, numbers)))
    if piece.of:
        keys = _counted_rows(editor, collect, editor.keys_of(piece))
        return merge_rows_of_equal_keys(_from_all(editor, keys), *sent)
    return merge_equal_rows(*sent) if piece.kind == "unique" else sent


def _sent_to_all(editor: Editor, collect: Collect, values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    indices = tf.cast(indices, tf.int32 if collect.rows < INT32_ROWS else tf.int64)
    sent = tf.size(indices, out_type=tf.int64)
    counted = count(editor, collect, values, indices, [sent, sent, sent * (editor.worker.size - 1)])
    with tf.control_dependencies([counted]):
        sent_values = _from_all(editor, editor.wire.out(values, GRADIENTS))
        return tf.cast(sent_values, values.dtype), _from_all(editor, indices)


def _from_all(editor: Editor, rows: Tensor) -> Tensor:
    """The rows of all workers, by worker; a single worker's own rows."""
    return all_gather(rows) if editor.worker.size > 1 else open_end(rows)


def count(editor: Editor, collect: Collect, values: Tensor, indices: Tensor, numbers: list[Tensor]) -> Operation:
    """Counts one run of an allgather exchange."""
    row_bytes = int(values.shape[1]) * editor.wire.rows_type(values.dtype).size
    counter = Counter("", ALLGATHER, (collect.variable,), row_bytes, indices.dtype.size, True, ALLGATHER, 1.0)
    return add_counter(editor, counter, numbers)


def add_counter(editor: Editor, counter: Counter, numbers: list[Tensor]) -> Operation:
    """Adds a counter variable; returns the op that adds 1 and then `numbers` to it."""
    from dataclasses import replace

    length = 1 + len(numbers)
    name = f"{SCOPE}/counter_{len(editor.counters)}"
    with tf.name_scope(f"{name}/"), tf.init_scope(), editor.scratch.as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[length], shared_name=name, name="handle")
        start = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([length], tf.int64))
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
    editor.counters.append(replace(counter, tensor=str(read.name)))
    editor.counter_initializers.append(str(start.name))
    steps = [tf.constant(1, tf.int64), *(tf.cast(n, tf.int64) for n in numbers)]
    return tf.raw_ops.AssignAddVariableOp(resource=handle, value=tf.stack(steps))
