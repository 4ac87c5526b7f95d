"""Pass: computes each worker's weight in batches that may have unequal lengths."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from parallax.base.types import Tensor
from parallax.graph.batches import is_opened
from parallax.graph.view import node_of
from parallax.plans.layouts import FedLength
from parallax.plans.rewrites import Rewrites
from parallax.plans.uneven_batches import UnevenBatch
from parallax.transform.building.batch_weights import BatchWeight
from parallax.transform.building.editor import SCOPE, Editor


def weigh_uneven_batches(editor: Editor, rewrites: Rewrites) -> None:
    """Computes each worker's weight in the batches that may be uneven."""
    by_source: dict[str, BatchWeight] = {}
    for batch in rewrites.batches:
        with tf.name_scope(f"{SCOPE}/batch/"):
            if batch.placeholder not in by_source:
                by_source[batch.placeholder] = _weigh_batch(editor, batch)
            editor.batch_weights[batch.name] = _with_equal_lengths(editor, batch, by_source[batch.placeholder])
    for fed in (one for layouts in rewrites.layouts for one in layouts.fed):
        with tf.name_scope(f"{SCOPE}/batch/"):
            _take_fed_length(editor, fed, editor.batch_weights[fed.batch])
    for scatter in rewrites.scatters:
        if scatter.batch:
            with tf.name_scope(f"{SCOPE}/batch/"):
                weight = editor.batch_weights[scatter.batch]
                editor.accumulated[scatter.tensor] = weight.zero_uncounted(editor.leaving(scatter.tensor))


def _weigh_batch(editor: Editor, batch: UnevenBatch) -> BatchWeight:
    if batch.examples:
        counts = (1, editor.worker.size, editor.worker.rank)
        local_length, rows, first = (tf.constant(batch.examples * workers, tf.int64) for workers in counts)
        return BatchWeight.of(batch.placeholder, local_length, rows, local_length, first)
    local = _length(editor, batch.placeholder) - (1 if batch.has_end else 0)
    if batch.length is None:
        local_length = editor.batch_weights[batch.examples_of].zero_uncounted(local) if batch.examples_of else local
        return BatchWeight.of(batch.placeholder, local_length, editor.reducer.all_reduce(local_length), local)
    local_length = editor.at(batch.length)
    editor.redirect([batch.length], editor.reducer.all_reduce(local_length))
    rows = editor.tensor(f"{batch.length.node}:0")  # where that is fed, no op waits for the sum
    return BatchWeight.of(batch.placeholder, local_length, rows, local)


def _take_fed_length(editor: Editor, fed: FedLength, weight: BatchWeight) -> None:
    """Sets the length of a worker's batch, including a stand-in's, and the global one where the script feeds it."""
    number = editor.tensor(fed.tensor)
    message = (
        f"{fed.tensor} is fed the length of a batch, which must be the length of the worker's own part, as "
        f"{_name_in_script(editor, weight.source)} has it; feed any other number as a float. The two are:"
    )
    is_equal = tf.equal(tf.cast(number, tf.int64), weight.count)
    check = tf.raw_ops.Assert(condition=is_equal, data=[message, number, weight.count])
    with tf.control_dependencies([check]):
        local, rows = (tf.reshape(tf.cast(one, number.dtype), []) for one in (weight.local, weight.rows))
    editor.redirect(fed.edges, local)
    editor.fed_lengths[fed.tensor] = rows


def _with_equal_lengths(editor: Editor, batch: UnevenBatch, weight: BatchWeight) -> BatchWeight:
    """The weight, with a check that other sources of the batch have the same length."""
    checks = [
        tf.raw_ops.Assert(
            condition=tf.equal(_length(editor, other), weight.count),
            data=[_unequal(_name_in_script(editor, other), _name_in_script(editor, batch.placeholder))],
        )
        for other in batch.equal_length_sources
    ]
    if not checks:
        return weight
    with tf.control_dependencies(checks):
        checked = BatchWeight.of(weight.source, tf.identity(weight.count), weight.rows, weight.local, weight.first)
    return replace(checked, unchecked=weight.count)


def _name_in_script(editor: Editor, batch: str) -> str:
    """The user's name of a batch that may have been opened."""
    node = node_of(batch)
    return editor.view.inputs(node)[0] if is_opened(editor.view.nodes[node]) else batch


def _unequal(one: str, other: str) -> str:
    return f"The batches of one step must have the same length on a worker, but {one} and {other} do not."


def _length(editor: Editor, batch: str) -> Tensor:
    return tf.raw_ops.Shape(input=editor.tensor(batch), out_type=tf.int64)[0]
