"""Pass: pads ragged rows to the longest row of all workers, as one process pads them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from parallax.base.types import Tensor
from parallax.graph.view import Edge
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.editor import SCOPE, Editor


def pad_to_longest_row(editor: Editor, rewrites: Rewrites) -> None:
    """Replaces the length that each op would compute with the longest one over the workers."""
    for number, one in enumerate(rewrites.padded):
        inputs = editor.view.inputs(one.node)
        shape = editor.at(Edge(one.node, 0))
        rank = len(editor.view.shape(f"{one.node}:0") or ())
        with tf.name_scope(f"{SCOPE}/padded_{number}/"):
            partitions = [editor.at(Edge(one.node, slot)) for slot in range(3, len(inputs))]
            local_length = tf.reduce_max(tf.concat([tf.cast(_lengths(partitions), shape.dtype), [0]], 0))
            longest = editor.reducer.all_reduce(local_length, "max")
            whole = tf.broadcast_to(shape, [rank])
            editor.redirect([Edge(one.node, 0)], tf.concat([whole[:1], [longest], whole[2:]], 0))


def _lengths(partitions: Sequence[Tensor]) -> Tensor:
    """The lengths of rows: from row splits, or from the number of rows and each element's row."""
    if len(partitions) == 1:
        return partitions[0][1:] - partitions[0][:-1]
    count, rows = partitions
    return tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, count)
