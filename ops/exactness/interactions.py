"""Productions of the grammar in which examples of a batch interact, as statistics, in-batch negatives and sorting do.

N workers train such programs as one process does where tensors have layouts (Config.layouts).
"""

from __future__ import annotations

from ops.exactness.draft import Draft

FEATURES = (
    "({h} - tf.reduce_mean({h}, 0)) * tf.math.rsqrt(tf.math.reduce_variance({h}, 0) + 0.1)",
    "tf.nn.batch_normalization({h}, *tf.nn.moments({h}, [0]), None, None, 0.1)",
    "tf.nn.softmax({h} @ tf.transpose({h})) @ {h}",
    "{h} * tf.nn.softmax({h}, axis=0)",
    "tf.cumsum({h}, 0) / tf.cast(n, F)",
    "tf.sort({h}, axis=0)",
    "tf.gather({h}, tf.argsort({h}[:, 0]))",
    "{h} - tf.reduce_max({h}, 0, keepdims=True)",
    "{h} + tf.roll({h}, 1, axis=0)",
    "{h} + {h}[:1] - {h}[-1]",
    "{h} + tf.reverse({h}, [0])",
    "tf.math.l2_normalize({h} + 0.1, 0)",
    "tf.gather(tf.math.unsorted_segment_mean({h}, {i} % 3, 3), {i} % 3)",
    "{h} @ (tf.matmul({h}, {h}, transpose_a=True) / tf.cast(n, F))",
    "tf.reshape(tf.reshape({h}, [-1]) - tf.reduce_mean({h}), [n, 4])",
)
"""Of features `{h}`, `[n, 4]`, and ids `{i}`, `[n]`, others."""

LOSSES = (
    "tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(n), {h} @ tf.transpose({h})))",
    "tf.reduce_mean(tf.math.top_k(per_row, n // 2 + 1)[0])",
    "tf.reduce_sum(tf.sort(per_row) * tf.cast(tf.range(n), F)) / tf.cast(n * n, F)",
    "tf.sqrt(tf.reduce_mean(per_row) + 1.0)",
    "tf.reduce_logsumexp(0.1 * per_row)",
    "tf.reduce_sum(per_row * tf.abs(y)) / tf.reduce_sum(tf.abs(y))",
    "tf.reduce_mean(tf.square(tf.matmul({h}, {h}, transpose_a=True) / tf.cast(n, F) - tf.eye(4, dtype=F)))",
    "tf.reduce_mean(tf.nn.relu(per_row[:, None] - per_row[None, :] + 0.1))",
    "tf.reduce_mean(tf.boolean_mask(per_row, tf.logical_or(y > 0.0, tf.range(n) < 1)))",
    "tf.reduce_mean(tf.cumsum(per_row)) / tf.cast(n, F)",
    "tf.math.reduce_std(per_row + tf.cast(tf.range(n), F))",
    "tf.reduce_max(per_row)",
    "0.1 * tf.reduce_sum(per_row)",
    "tf.reduce_mean(per_row[1:] * per_row[:-1])",
    "tf.reduce_mean(tf.square(per_row - tf.reduce_mean(per_row)))",
)
"""Of features `{h}` and of `per_row`, `[n]`, scalars."""


def mixed_rows(d: Draft) -> None:
    """Features of all examples."""
    h = d.row()
    d.new_row(d.pick(FEATURES).format(h=h, i=d.ids[0][0]), h)


def mixed_loss(d: Draft) -> None:
    """A further term of the loss, of all examples."""
    d.add(f"loss += 0.1 * {d.pick(LOSSES)}".format(h=d.rows[-1]))
