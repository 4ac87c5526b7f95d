"""Pass: converts tensors of a step to the layouts in which ops require them (parallax/plans/layouts.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import tensorflow as tf

from parallax.base.errors import TransformError
from parallax.base.types import Tensor
from parallax.graph.lengths import Length
from parallax.plans.layouts import (
    Change,
    Concatenated,
    ExampleNumbers,
    FilledRows,
    Layout,
    LayoutRewrites,
    LengthValue,
    LocalShape,
    OffsetRange,
    Partial,
    PerExample,
    Replicated,
    RowEnds,
    ScaledMean,
    Sharded,
    ShardedAxis,
)
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.axes import add_to_numbers, slice_axis, with_axis_back, with_axis_first
from parallax.transform.building.batch_weights import mask_uncounted
from parallax.transform.building.collectives import open_end
from parallax.transform.building.editor import SCOPE, Editor
from parallax.transform.building.global_lengths import GlobalLengths

_NO_ENTRIES = (
    "The last example of a batch has no entry in {!r}, so one process's result would have fewer rows than the batch. "
    "Use tf.nn.safe_embedding_lookup_sparse, or give each example an entry."
)


def change_layouts(editor: Editor, rewrites: Rewrites) -> None:
    """Inserts the collectives and slices of all layout changes, in topological order of the tensors."""
    for layouts in rewrites.layouts:
        _change_layouts(editor, layouts)


def _change_layouts(editor: Editor, layouts: LayoutRewrites) -> None:
    build = _Build(editor, layouts)
    with tf.name_scope(f"{SCOPE}/layouts/"):
        for tensor in layouts.from_worker_0:
            broadcast_value = editor.reducer.broadcast(editor.tensor(tensor))
            editor.redirect(editor.view.consumers(tensor), broadcast_value)
            editor.full_tensors[tensor] = str(broadcast_value.name)
        for node, axes in layouts.squeezed.items():
            editor.attributes[node, "squeeze_dims"] = tf.compat.v1.AttrValue(
                list=tf.compat.v1.AttrValue.ListValue(i=axes)
            )
        for mean in layouts.means:
            build.weigh(mean)
        for filled in layouts.filled:
            build.fill_rows(filled)
        for counted_up in layouts.ranges:
            build.offset(counted_up)
        for change in layouts.changes:
            build.change(change)
        for shape in layouts.shapes:
            build.local_shape(shape)
        for one in layouts.reported:
            value = editor.tensor(one.tensor)
            value = editor.batch_weights[one.batch].zero_uncounted(value) if one.batch else value
            value = value * tf.constant(editor.worker.size, value.dtype)
            editor.redirect(editor.view.consumers(one.tensor), value)
            editor.full_tensors[one.tensor] = str(value.name)


class _Dealt(NamedTuple):
    """The entries of an axis that is unevenly distributed over the workers: scalars of type int64.

    Attributes:
        first: the offset of this worker's entries.
        computed: the number that it computes on, including a stand-in's.
        counted: the number that it has.
        total: the number that all workers have.
    """

    first: Tensor
    computed: Tensor
    counted: Tensor
    total: Tensor


class _Build:
    """Builds layout changes for one worker.

    Args:
        editor: the graph editor.
        layouts: the layout changes.
    """

    def __init__(self, editor: Editor, layouts: LayoutRewrites) -> None:
        self._editor = editor
        self._layouts = layouts
        self._global = GlobalLengths(editor, layouts)
        self._offsets: dict[str, Tensor] = {}
        self._firsts: dict[str, Tensor] = {}
        self._columns = {one.node: one.columns for one in layouts.ranges}
        self._dealt: dict[tuple[Length, str], _Dealt] = {}

    def change(self, change: Change) -> None:
        """Redirects the edges of a change to the tensor in its new layout."""
        editor = self._editor
        if isinstance(change.before, LengthValue):
            source = self._global.find_value(change.tensor)
            before: Layout = Replicated()
        else:
            source = editor.at(change.edges[0]) if change.edges else editor.tensor(change.tensor)
            before = change.before
        static = editor.view.shape(change.tensor)
        if source.shape.rank is None and static is not None:
            source = tf.identity(source)
            source.set_shape([None] * len(static))
        if isinstance(before, Concatenated):  # partial rows alongside others; a stand-in's must not count
            source, before = self._exclude_stand_in(source, Partial("sum"), change.batch), change.after
        if isinstance(before, Partial) and not before.is_counted:
            source, before = self._exclude_stand_in(source, before, change.batch), replace(before, is_counted=True)
        if change.ends and isinstance(before, Sharded):
            changed = self._gather(source, before, change.ends)
        else:
            changed = self._change_tensor(source, before, change.after)
        editor.redirect(change.edges, changed)
        if change.is_whole:
            editor.full_tensors[change.tensor] = str(changed.name)

    def _exclude_stand_in(self, tensor: Tensor, layout: Partial, batch: str) -> Tensor:
        """A worker's part of a reduction; for a stand-in, the neutral element."""
        return mask_uncounted(self._editor.batch_weights[batch].is_counted, tensor, layout.kind)

    def _change_tensor(self, tensor: Tensor, before: Layout, after: Layout) -> Tensor:
        if before == after:
            return tensor
        if isinstance(after, ExampleNumbers) and after.times:
            times = tf.reduce_prod([tf.cast(self._editor.tensor(one), tf.int64) for one in after.times])
            return self._editor.batch_weights[after.part.batch].localize(
                tensor, self._firsts[after.of], times, after.of
            )
        if isinstance(after, ExampleNumbers):
            return add_to_numbers(tensor, -self._firsts[after.of], self._columns[after.of])
        if isinstance(before, PerExample):  # an entry's index, counted per worker
            first = self._offset(before.part.batch) * (before.part.factor.number or 1)
            return tensor + tf.cast(first, tensor.dtype)
        if not isinstance(before, Replicated):
            tensor = self._replicate(tensor, before)
        if isinstance(after, Sharded):
            return self._cut(tensor, after)
        if isinstance(after, Partial):
            return self._keep_on_worker_0(tensor)
        return tensor

    def _replicate(self, tensor: Tensor, before: Layout) -> Tensor:
        """The tensor of one process on every worker."""
        if isinstance(before, Partial):
            return self._editor.reducer.all_reduce(tensor, before.kind)
        if isinstance(before, Sharded):
            return self._gather(tensor, before)
        if isinstance(before, RowEnds):
            ends = tensor[1:] + tf.cast(self._offset(before.elements), tensor.dtype)
            return tf.concat([tensor[:1], self._gather(ends, Sharded(0, ShardedAxis(before.rows)))], 0)
        raise TransformError(
            f"A tensor of layout {before} cannot be replicated. This is a fault of Parallax: please report it."
        )

    def _gather(self, tensor: Tensor, layout: Sharded, ends: int = 0) -> Tensor:
        """The pieces of all workers in rank order, block by block; of one block perhaps only entries at an end."""
        axis, blocks = layout.axis, layout.part.blocks
        if self._editor.worker.size == 1:
            return tf.identity(tensor)
        first = with_axis_first(tensor, axis)
        others = tf.shape(first)[1:]
        if tensor.shape.rank is None:
            first = tf.reshape(first, tf.stack([tf.shape(first)[0], tf.reduce_prod(others)]))
        pieces = tf.split(first, blocks) if blocks > 1 else [first]
        pieces = [self._editor.batch_weights[layout.part.batch].counted_rows(piece) for piece in pieces]
        if ends:
            pieces = [piece[:ends] if ends > 0 else piece[ends:] for piece in pieces]
        gathered = [self._gather_rows(piece) for piece in pieces]
        whole = tf.concat(gathered, 0) if blocks > 1 else gathered[0]
        if tensor.shape.rank is None:
            whole = tf.reshape(whole, tf.concat([tf.shape(whole)[:1], others], 0))
        return with_axis_back(whole, axis)

    def _gather_rows(self, rows: Tensor) -> Tensor:
        """The rows `[n, ...]` of all workers; strings travel as their bytes."""
        reducer = self._editor.reducer
        if rows.dtype != tf.string:
            wire = tf.uint8 if rows.dtype == tf.bool else rows.dtype
            return tf.cast(reducer.all_gather(tf.cast(rows, wire)), rows.dtype)
        texts = tf.reshape(rows, [-1])
        sizes = reducer.all_gather(tf.strings.length(texts))
        gathered = reducer.all_gather(tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8))
        bytes_of = tf.constant([bytes([number]) for number in range(256)])
        joined_texts = tf.strings.unsorted_segment_join(
            tf.gather(bytes_of, tf.cast(gathered, tf.int32)), tf.repeat(tf.range(tf.size(sizes)), sizes), tf.size(sizes)
        )
        return tf.reshape(joined_texts, tf.concat([[-1], tf.shape(rows)[1:]], 0))

    def _cut(self, tensor: Tensor, layout: Sharded) -> Tensor:
        """This worker's piece; an axis of length 1 is broadcast, and unchanged."""
        axis, part = layout.axis, layout.part
        if not part.is_even:
            dealt = self._find_dealt(part)
            return slice_axis(tensor, axis, dealt.first, dealt.computed)
        weight = self._editor.batch_weights[part.batch]
        length = tf.shape(tensor, out_type=tf.int64)[axis]
        factor = length // tf.maximum(weight.rows * part.blocks, 1)
        local = weight.local
        first = tf.minimum(self._offset(part.batch), weight.rows - local)
        starts = [(block * weight.rows + first) * factor for block in range(part.blocks)]
        if part.blocks == 1:  # an axis along the batch has length 1 only for a batch of one example
            is_broadcast = tf.logical_and(tf.equal(length, 1), tf.not_equal(weight.rows, 1))
            starts, count = (
                [tf.where(is_broadcast, tf.zeros_like(starts[0]), starts[0])],
                tf.where(is_broadcast, tf.ones_like(local), local * factor),
            )
        else:
            count = local * factor
        pieces = [slice_axis(tensor, axis, start, count) for start in starts]
        cut = tf.concat(pieces, axis) if len(pieces) > 1 else pieces[0]
        if tensor.shape.rank is not None:
            static = tensor.shape.as_list()
            static[axis] = None
            cut.set_shape(static)
        return cut

    def _find_dealt(self, part: ShardedAxis) -> _Dealt:
        """This worker's entries of an unevenly distributed axis."""
        if (part.factor, part.batch) not in self._dealt:
            worker, weight = self._editor.worker, self._editor.batch_weights[part.batch]
            dealt = (
                (tensor, one.axis) for tensor, one in self._layouts.sharded.items() if one.part.factor == part.factor
            )
            tensor, axis = next(dealt)
            computed = tf.shape(self._editor.tensor(tensor), out_type=tf.int64)[axis]
            mine = weight.zero_uncounted(computed) * tf.one_hot(worker.rank, worker.size, dtype=tf.int64)
            every = self._editor.reducer.all_reduce(mine) if worker.size > 1 else mine
            total = tf.reduce_sum(every)
            first = tf.minimum(tf.reduce_sum(every[: worker.rank]), total - computed)
            self._dealt[part.factor, part.batch] = _Dealt(first, computed, weight.zero_uncounted(computed), total)
        return self._dealt[part.factor, part.batch]

    def _keep_on_worker_0(self, tensor: Tensor) -> Tensor:
        """The tensor on worker 0 and zeros elsewhere; the open end keeps TensorFlow from folding the zeros."""
        mine = open_end(tf.constant(1 if self._editor.worker.rank == 0 else 0, tensor.dtype))
        return tensor * mine

    def _offset(self, batch: str) -> Tensor:
        """The number of examples of the preceding workers."""
        weight = self._editor.batch_weights[batch]
        if weight.first is not None:
            return weight.first
        if weight.source not in self._offsets:
            worker = self._editor.worker
            local_count = weight.unchecked * tf.one_hot(worker.rank, worker.size, dtype=tf.int64)
            rows = self._editor.reducer.all_reduce(local_count) if worker.size > 1 else local_count
            self._offsets[weight.source] = tf.reduce_sum(rows[: worker.rank])
        return self._offsets[weight.source]

    def weigh(self, mean: ScaledMean) -> None:
        """Weights a mean by this worker's share of the averaged entries."""
        value = self._editor.tensor(f"{mean.node}:0")
        if mean.dealt is None:
            self._editor.redirect(mean.edges, self._editor.batch_weights[mean.batch].weigh(value))
            return
        dealt = self._find_dealt(mean.dealt)
        share = tf.cast(dealt.counted, value.dtype) / tf.cast(dealt.total, value.dtype)  # of no entries NaN
        self._editor.redirect(mean.edges, tf.math.multiply_no_nan(value, share))

    def offset(self, one: OffsetRange) -> None:
        """Starts a range at the offset of this worker's piece."""
        editor = self._editor
        counted = editor.tensor(f"{one.node}:{one.output}")
        if not one.part.is_even:
            first = self._firsts[one.node] = self._find_dealt(one.part).first
            editor.redirect(one.edges, add_to_numbers(counted, first))
            return
        factor: int | Tensor | None = one.part.factor.number
        if factor is None:
            local = editor.batch_weights[one.part.batch].local
            entries = editor.tensor(one.along) if one.along else counted
            factor = tf.shape(entries, out_type=tf.int64)[0] // tf.maximum(local, 1)
        first = self._firsts[one.node] = self._offset(one.part.batch) * factor
        added = first * tf.cast(editor.tensor(one.times), tf.int64) if one.times else tf.convert_to_tensor(first)
        editor.redirect(one.edges, add_to_numbers(counted, added, one.columns))

    def fill_rows(self, one: FilledRows) -> None:
        """Pads rows to the number of this worker's examples: its last ones may have no entries.

        Where the last example of the global batch has none, one process's result is shorter than the batch: a run
        raises an error.
        """
        rows, weight = self._editor.tensor(f"{one.node}:0"), self._editor.batch_weights[one.batch]
        missing = weight.local - tf.shape(rows, out_type=tf.int64)[0]
        others = tf.zeros([tf.rank(rows) - 1, 2], tf.int64)
        has_more = self._offset(one.batch) + weight.local < weight.rows
        check = tf.raw_ops.Assert(condition=tf.logical_or(has_more, missing <= 0), data=[_NO_ENTRIES.format(one.node)])
        with tf.control_dependencies([check]):
            filled = tf.pad(rows, tf.concat([[[0, missing]], others], 0))
        filled.set_shape([None, *rows.shape[1:]])
        self._editor.redirect(one.edges, filled)

    def local_shape(self, one: LocalShape) -> None:
        """Makes an edge read a shape with some per-worker axes, and all others of one process."""
        editor, edge = self._editor, one.edge
        tensor = editor.view.inputs(edge.node)[edge.slot]
        whole = self._global.find_value(tensor)
        end = one.axis + one.count
        local_lengths = editor.batch_weights[one.batch].take_length(whole[one.axis : end])
        editor.redirect([edge], tf.concat([whole[: one.axis], local_lengths, whole[end:]], 0))
