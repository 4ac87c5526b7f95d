"""Pass: accumulates gradients where they leave autodiff, until all batches of one update have run.

The run of each batch stores its gradients in the worker (`GradientAccumulation.begin`, `GradientAccumulation.add`), and
sends none. The run of the last batch reads the accumulated gradients, and all ops outside autodiff see the mean over
all batches, as if they were one per-worker batch. Nothing is cleared: the first batch of the next update overwrites the
accumulators. Where batches have layouts, each counts by the number of its examples on all workers, and a worker without
examples accumulates nothing. Where a front end's step is split into micro-batches, these add up to the step, each
weighted by a power of its share.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import Tensor
from parallax.plans.gradient_rows import AccumulateGradient
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.batch_weights import BatchWeight
from parallax.transform.building.editor import SCOPE, Editor, GradientAccumulation
from parallax.transform.passes.weigh_micro_batches import weigh


def keep_gradients(editor: Editor, rewrites: Rewrites) -> None:
    """Accumulates every gradient, so that its consumers see all batches of an update."""
    for number, keep in enumerate(rewrites.accumulated_gradients):
        _keep(editor, keep, rewrites.terms.accumulate_steps, f"{SCOPE}/keep_{number}")
    for equal_rows in rewrites.alike_rows:
        with tf.name_scope(f"{SCOPE}/alike_rows/"):
            row = editor.at(equal_rows.edge)[:1]
            rows = tf.raw_ops.Shape(input=editor.at(equal_rows.like))[:1]  # tf.shape would return the static one
            editor.redirect([equal_rows.edge], tf.broadcast_to(row, tf.concat([rows, tf.shape(row)[1:]], 0)))


def _keep(editor: Editor, keep: AccumulateGradient, steps: int, label: str) -> None:
    accumulators: list[_KeptGradients] = []
    with tf.name_scope(f"{label}/"):
        weight = editor.batch_weights[keep.batch] if keep.batch else None
        weights = _weights(editor, keep, weight, label, accumulators)
        gradient = editor.at(keep.value_edges[0]) if keep.value_edges else editor.tensor(keep.values)
        if keep.power is not None:  # the first micro-batch may be the last one, and then nothing is accumulated
            gradient = tf.ensure_shape(gradient, [None, *keep.shape[1:]] if keep.indices else keep.shape)
        if keep.indices:
            total = _rows(editor, keep, gradient, weights, accumulators, label)
        else:
            counted = gradient if weight is None or keep.is_counted else weight.zero_uncounted(gradient)
            total = _total(counted, f"{label}/gradient", accumulators, True, weights)
        editor.accumulated[keep.values] = total * tf.constant(1.0 / steps, gradient.dtype) if weights is None else total
    editor.redirect(keep.value_edges, editor.accumulated[keep.values])
    if keep.indices:
        editor.redirect(keep.index_edges, editor.accumulated[keep.indices])
    begin, add, take = zip(*((one.begin, one.add, one.take) for one in accumulators), strict=True)
    nothing = tuple(one.nothing for one in accumulators)
    editor.keepings.append(GradientAccumulation(keep.values, begin, add, take, nothing))


def _weights(
    editor: Editor, keep: AccumulateGradient, weight: BatchWeight | None, label: str, accumulators: list[_KeptGradients]
) -> _Weights | None:
    """The weights of the batches so far, and of this run's; None where all are equal."""
    if keep.power is not None:
        return _Weights(None, weigh(editor, tf.constant(1.0, tf.float64), keep.power))
    if weight is None:
        return None
    rows = _total(weight.rows, f"{label}/examples", accumulators, adds=True)
    local = tf.math.divide_no_nan(tf.cast(weight.rows, tf.float64), tf.cast(rows, tf.float64))
    return _Weights(1.0 - local, local)


def _rows(
    editor: Editor,
    keep: AccumulateGradient,
    gradient: Tensor,
    weights: _Weights | None,
    accumulators: list[_KeptGradients],
    label: str,
) -> Tensor:
    """The values of all batches, piece by piece, as their later treatment depends on the piece."""
    indices = [editor.at(keep.index_edges[0]) if keep.index_edges else editor.tensor(keep.indices)]
    values = [gradient]
    if len(keep.pieces) > 1:
        sizes = [editor.run_rows_of(piece) for piece in keep.pieces]
        values, indices = tf.split(values[0], sizes), tf.split(indices[0], sizes)
    all_values, all_indices = [], []
    for number, (rows, ids) in enumerate(zip(values, indices, strict=True)):
        piece = keep.pieces[number] if keep.pieces else None
        adds = keep.constant[number] if keep.constant else False
        keys = editor.run_keys_of(piece) if piece is not None and piece.of and not adds else None
        if keep.batch and (piece is None or piece.kind != "shared"):  # a worker without examples has none
            counted = editor.batch_weights[keep.batch].counted_rows
            rows, ids, keys = counted(rows), counted(ids), counted(keys) if keys is not None else None
        all_values.append(_total(rows, f"{label}/values_{number}", accumulators, adds, weights))
        all_indices.append(ids if adds else _total(ids, f"{label}/indices_{number}", accumulators))
        if piece is not None:
            if keys is not None:
                editor.accumulated_keys[piece] = _total(keys, f"{label}/keys_{number}", accumulators)
            editor.accumulated_sizes[piece] = tf.size(all_indices[-1])
    editor.accumulated[keep.indices] = tf.concat(all_indices, 0)
    return tf.concat(all_values, 0)


@dataclass(frozen=True, slots=True)
class _KeptGradients:
    """The ops of one variable, by name, as in `GradientAccumulation`."""

    begin: str
    add: str
    take: str
    nothing: tuple[str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights of the batches before this run's, and of this run's: scalars of type float64.

    Attributes:
        before: None where they were weighted when they were accumulated.
        local: of this run's.
    """

    before: Tensor | None
    local: Tensor


def _total(
    tensor: Tensor, name: str, accumulators: list[_KeptGradients], adds: bool = False, weights: _Weights | None = None
) -> Tensor:
    """A tensor of all batches so far, including this run's: summed, or else concatenated.

    Args:
        tensor: this run's.
        name: of the accumulator variable.
        accumulators: a list to which the variable's ops are added.
        adds: whether batches are summed.
        weights: their weights, where these differ.
    """
    shape = tensor.shape if adds else tf.TensorShape([None]).concatenate(tensor.shape[1:])
    with tf.name_scope(f"{name}/"):
        handle = tf.raw_ops.VarHandleOp(dtype=tensor.dtype, shape=shape, shared_name=name, name="handle")
        before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tensor.dtype, name="take")
        weighed = tensor if weights is None else tensor * tf.cast(weights.local, tensor.dtype)
        first, parts = weighed, [before, weighed]
        if weights is not None and weights.before is not None:
            first, parts = tensor, [before * tf.cast(weights.before, tensor.dtype), weighed]
        total = tf.add_n(parts) if adds else tf.concat(parts, 0)
        begin = tf.raw_ops.AssignVariableOp(resource=handle, value=first, name="begin")
        add = tf.raw_ops.AssignVariableOp(resource=handle, value=total, name="add")
    lengths = tuple(length or 0 for length in shape.as_list()) if shape.rank is not None else ()
    nothing = str(before.name), lengths, str(tensor.dtype.name)
    accumulators.append(_KeptGradients(str(begin.name), str(add.name), str(before.op.name), nothing))
    return total
