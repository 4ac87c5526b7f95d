"""Passes for losses: each worker's share of the batch, what losses are divided by, sums, and what steps report."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from parallax.graph.batches import ADDED, VALUE
from parallax.graph.view import Edge
from parallax.plans.losses import PartAdded, ReportedScalar, Selected, Summed, UnevenBatch
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.editor import SCOPE, Editor
from parallax.transform.building.shares import BatchShare
from parallax.types import Tensor


def share_batches(editor: Editor, rewrites: Rewrites) -> None:
    """Has each worker know its share of all examples, for the batches that may be uneven."""
    by_source: dict[str, BatchShare] = {}
    for batch in rewrites.batches:
        with tf.name_scope(f"{SCOPE}/batch/"):
            if batch.placeholder not in by_source:
                by_source[batch.placeholder] = _share(editor, batch)
            editor.shares[batch.name] = _with_equal_lengths(editor, batch, by_source[batch.placeholder])
    for scatter in rewrites.scatters:
        if scatter.batch:
            with tf.name_scope(f"{SCOPE}/batch/"):
                share, own = editor.shares[scatter.batch], editor.leaving(scatter.tensor)
                is_mean = scatter.kind == "mean"  # who takes the sum multiplies it by 1/W
                editor.kept[scatter.tensor] = share.weigh(own, editor.worker.size) if is_mean else share.counted(own)


def _share(editor: Editor, batch: UnevenBatch) -> BatchShare:
    if batch.examples:
        counts = (1, editor.worker.size, editor.worker.rank)
        own, rows, first = (tf.constant(batch.examples * workers, tf.int64) for workers in counts)
        return BatchShare.of(batch.placeholder, own, rows, own, first)
    local = _length(editor, batch.placeholder) - (1 if batch.has_end else 0)
    if batch.length is None:
        own = editor.shares[batch.examples_of].counted(local) if batch.examples_of else local
        return BatchShare.of(batch.placeholder, own, editor.together.all_reduce(own), local)
    own = editor.at(batch.length)
    editor.redirect([batch.length], editor.together.all_reduce(own))
    rows = editor.tensor(f"{batch.length.node}:0")  # where that is fed, nobody waits for the sum
    return BatchShare.of(batch.placeholder, own, rows, local)


def _with_equal_lengths(editor: Editor, batch: UnevenBatch, share: BatchShare) -> BatchShare:
    """The share, where other sources of the batch are found to be as long."""
    checks = [
        tf.raw_ops.Assert(
            condition=tf.equal(_length(editor, other), share.count), data=[_unequal(other, batch.placeholder)]
        )
        for other in batch.alike
    ]
    if not checks:
        return share
    with tf.control_dependencies(checks):
        return BatchShare.of(share.source, tf.identity(share.count), share.rows, share.local, share.first)


def _unequal(one: str, other: str) -> str:
    return f"The batches of one step must be of one length on a worker, and those of {one} and {other} are not."


def _length(editor: Editor, batch: str) -> Tensor:
    return tf.raw_ops.Shape(input=editor.tensor(batch), out_type=tf.int64)[0]


def weigh_losses(editor: Editor, rewrites: Rewrites) -> None:
    """Losses that are divided by what the batch has of something are divided by what all workers have of it.

    Sums over batches that may be uneven count in full, and what is reported of such batches is weighted.
    """
    if not rewrites.terms.synchronous:
        return  # a worker by itself has the one process's loss
    size = editor.worker.size
    for divided in rewrites.divided:
        if divided.edges:
            with tf.name_scope(f"{SCOPE}/denominator/"):
                part = _part(editor, editor.at(divided.edges[0]), divided.batch)
            editor.redirect(divided.edges, part)
            if divided.is_mean:
                editor.whole[divided.tensor] = str(part.name)
    for selected in rewrites.selected:
        with tf.name_scope(f"{SCOPE}/denominator/"):
            _weigh_selected(editor, selected, _own_edges(editor, rewrites, selected.node))
    for summed in rewrites.summed:
        with tf.name_scope(f"{SCOPE}/sum/"):
            _count_in_full(editor, summed, _own_edges(editor, rewrites, summed.node))
    for reported in rewrites.reported:
        with tf.name_scope(f"{SCOPE}/reported/"):
            _report(editor, reported, size)
    for added in rewrites.added:
        with tf.name_scope(f"{SCOPE}/added/"):
            _add_part(editor, added)


def _part(editor: Editor, whole: Tensor, batch: str) -> Tensor:
    """What stands for a worker in place of a whole denominator: a W-th of it, or its share's part."""
    size = editor.worker.size
    return editor.shares[batch].part_of(whole, size) if batch else whole / tf.constant(size, whole.dtype)


def _own_edges(editor: Editor, rewrites: Rewrites, node: str) -> list[Edge]:
    """The edges that take a worker's own result of a node, and not what all workers have put together of it."""
    whole = {edge for one in rewrites.all_reduces if one.tensor == f"{node}:0" for edge in one.edges}
    return [edge for edge in editor.view.consumers(f"{node}:0") if edge not in whole]


def _weigh_selected(editor: Editor, one: Selected, edges: Sequence[Edge]) -> None:
    if one.is_whole and not one.counted:
        return
    mean = editor.tensor(f"{one.node}:0")
    own = tf.cast(tf.raw_ops.Size(input=editor.tensor(one.values)), mean.dtype)
    if one.batch:
        own = editor.shares[one.batch].counted(own)
    share = _part(editor, editor.together.all_reduce(own), one.batch)
    if not one.is_whole:
        added = tf.where(own > 0, mean * own, tf.zeros_like(mean))  # a mean of nothing is no number
        editor.redirect(edges, added / share)
    editor.redirect(one.counted, share)


def _count_in_full(editor: Editor, one: Summed, edges: Sequence[Edge]) -> None:
    for edge in (*edges, *one.cotangents):
        taken = editor.at(edge)
        editor.redirect([edge], tf.math.divide_no_nan(taken, editor.shares[one.batch].times(1.0, taken.dtype)))


def _report(editor: Editor, one: ReportedScalar, workers: int) -> None:
    tensor, share = f"{one.node}:0", editor.shares[one.batch]
    reported = editor.tensor(tensor)
    if one.kind == "length":
        weighed = tf.cast(share.rows, reported.dtype)
    elif one.kind == ADDED:
        weighed = editor.together.all_reduce(share.counted(reported))
    else:
        weighed = share.weigh(reported, workers if one.kind == VALUE else 1.0)
    editor.redirect(editor.view.consumers(tensor), weighed)
    editor.whole[tensor] = str(weighed.name)


def _add_part(editor: Editor, one: PartAdded) -> None:
    taken = editor.at(one.edge)
    if one.batch:
        share = editor.shares[one.batch]
        editor.redirect([one.edge], share.weigh(taken) if one.is_mean else share.counted(taken))
    elif editor.worker.rank:
        # Not a constant, for which nobody would compute `taken`: worker 0 needs what all put together for it.
        is_added = tf.compat.v1.placeholder_with_default(False, [])
        editor.redirect([one.edge], tf.where(is_added, taken, tf.zeros_like(taken)))
