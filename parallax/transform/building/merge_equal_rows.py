"""Where equal gradient rows are added up: at the worker that sends them, and at the owner who gets them of several.

Without the second an optimizer that does not merge rows by itself would take two half updates for one
(rewrites.Push.merge), and Adagrad, say, would come to another row than one process.
"""

from __future__ import annotations

import tensorflow as tf

from parallax.transform.building.deduplicated_ids import DeduplicatedIds
from parallax.types import Tensor


def merge_equal_rows(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Adds up the values `[n, width]` of equal indices `[n]`; each index comes once in the result."""
    distinct, inverse = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, inverse, tf.size(distinct)), distinct


def merge_rows_of_equal_keys(keys: Tensor, values: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Adds up rows `[n, width]` of equal keys `[n]`; (values, row numbers), one for each key."""
    distinct, place = tf.unique(keys)
    count = tf.size(distinct)
    return tf.math.unsorted_segment_sum(values, place, count), tf.math.unsorted_segment_max(numbers, place, count)


def merged_rows(asked: DeduplicatedIds, values: list[Tensor], positions: list[Tensor]) -> Tensor:
    """Gradient rows `[u, width]` in the order of the first hop's keys, equal ones of this worker added up.

    Args:
        asked: the rows.
        values: pieces `[n, width]`.
        positions: for each piece, where its rows are among the keys, `[n]`.
    """
    return tf.math.unsorted_segment_sum(tf.concat(values, 0), tf.concat(positions, 0), tf.size(asked.first.keys))
