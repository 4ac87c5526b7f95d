"""Grammar productions in which the examples of a batch interact, such as statistics, in-batch negatives and sorting.

N workers train such programs like one process if tensors have layouts (Config.layouts).
"""

from __future__ import annotations

from ops.exactness.draft import Draft

FEATURES = (
    "({h} - tf.reduce_mean({h}, 0)) * tf.math.rsqrt(tf.math.reduce_variance({h}, 0) + 0.1)",
    "tf.nn.batch_normalization({h}, *tf.nn.moments({h}, [0]), None, None, 0.1)",
    "tf.nn.softmax({h} @ tf.transpose({h})) @ {h}",
    "{h} * tf.nn.softmax({h}, axis=0)",
    "tf.cumsum({h}, 0) / size",
    "tf.sort({h}, axis=0)",
    "tf.gather({h}, tf.argsort({h}[:, 0]))",
    "{h} - tf.reduce_max({h}, 0, keepdims=True)",
    "{h} + tf.roll({h}, 1, axis=0)",
    "{h} + {h}[:1] - {h}[-1]",
    "{h} + tf.reverse({h}, [0])",
    "tf.math.l2_normalize({h} + 0.1, 0)",
    "tf.gather(tf.math.unsorted_segment_mean({h}, {i} % 3, 3), {i} % 3)",
    "{h} @ (tf.matmul({h}, {h}, transpose_a=True) / size)",
    "tf.reshape(tf.reshape({h}, [-1]) - tf.reduce_mean({h}), [n, 4])",
    "tf.cast(v1.nn.fused_batch_norm(tf.cast({h}, tf.float32)[:, None, None], tf.ones([4]), tf.zeros([4]), "
    "epsilon=0.1)[0][:, 0, 0], F)",
    "tf.cumsum({h}, 0, exclusive=True, reverse=True) / size",
    "tf.math.cumulative_logsumexp({h}, 0)",
    "tf.scan(lambda kept, row: 0.5 * kept + row, {h})",
    "{h} + tf.foldl(lambda kept, row: tf.tanh(kept + row), {h}, tf.zeros([4], F))",
    "tf.math.top_k(tf.transpose({h}), n)[0][0][:, None] + {h}",
    "tf.cond(tf.reduce_mean({h}) > 0.0, lambda: {h} * 2.0, lambda: {h} - tf.reduce_mean({h}, 0))",
    "tf.while_loop(lambda t, kept: t < tf.reduce_max({i}) % 3 + 1, "
    "lambda t, kept: (t + 1, kept - tf.reduce_mean(kept, 0)), [tf.constant(0, tf.int64), {h}])[1]",
    "tf.while_loop(lambda t, kept: t < 2, lambda t, kept: (t + 1, kept * 0.5 + tf.reduce_sum("
    "tf.boolean_mask(kept, {i} > 2), 0) / size), [0, {h}])[1]",
    "{h} * tf.gather(1.0 / (1.0 + tf.math.bincount(tf.cast({i} % 3, tf.int32), minlength=3, maxlength=3, dtype=F)), "
    "{i} % 3)[:, None]",
    "tf.gather(tf.math.unsorted_segment_max({h}, tf.unique({i})[1], n), tf.unique({i})[1])",
    "{h} * tf.cast(tf.cumsum(tf.cast({i} > 2, tf.int64)) < tf.cast(n, tf.int64) // 2, F)[:, None]",
    "{h} + tf.reduce_sum({h} * tf.cast({i} > 2, F)[:, None], 0) / (1.0 + tf.reduce_sum(tf.cast({i} > 2, F)))",
    "tf.linalg.matmul(tf.cast(tf.equal({i}[:, None], {i}[None]), F), {h}) / size",
    "tf.tensor_scatter_nd_add(tf.zeros([3, 4], F), {i}[:, None] % 3, {h})[0] + {h}",
    "tf.tanh({h} @ tf.transpose({h})) @ {h} / size",
    "{h} * tf.reduce_sum(tf.exp(-tf.square({h}[:, None, 0] - {h}[None, :, 1])), 1, keepdims=True) / size",
    "{h} - tf.einsum('bi,ci,cj->bj', {h}, {h}, {h}) / size / size",
)
"""New features, from features `{h}`, `[n, 4]`, and ids `{i}`, `[n]`."""

LOSSES = (
    "tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(n), {h} @ tf.transpose({h})))",
    "tf.reduce_mean(tf.math.top_k(per_row, tf.cast(n, tf.int32) // 2 + 1)[0])",
    "tf.reduce_sum(tf.sort(per_row) * tf.cast(tf.range(n), F)) / size / size",
    "tf.sqrt(tf.reduce_mean(per_row) + 1.0)",
    "tf.reduce_logsumexp(0.1 * per_row)",
    "tf.reduce_sum(per_row * tf.abs(y)) / tf.reduce_sum(tf.abs(y))",
    "tf.reduce_mean(tf.square(tf.matmul({h}, {h}, transpose_a=True) / size - tf.eye(4, dtype=F)))",
    "tf.reduce_mean(tf.nn.relu(per_row[:, None] - per_row[None, :] + 0.1))",
    "tf.reduce_mean(tf.boolean_mask(per_row, tf.logical_or(y > 0.0, tf.range(n) < 1)))",
    "tf.reduce_mean(tf.cumsum(per_row)) / size",
    "tf.math.reduce_std(per_row + tf.cast(tf.range(n), F))",
    "tf.reduce_max(per_row)",
    "0.1 * tf.reduce_sum(per_row)",
    "tf.reduce_mean(per_row[1:] * per_row[:-1])",
    "tf.reduce_mean(tf.square(per_row - tf.reduce_mean(per_row)))",
    "tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(tf.eye(n, dtype=F), tf.linalg.set_diag("
    "tf.nn.l2_normalize({h} + 0.1, 1) @ tf.transpose(tf.nn.l2_normalize({h} + 0.1, 1)), tf.ones([n], F))))",
    "tf.reduce_mean(tf.cast(tf.equal({i}[:, None], {i}[None]), F) * tf.square({h} @ tf.transpose({h})))",
    "tf.reduce_mean(tf.nn.softplus(tf.concat([{h}, 0.5 - {h}], 0)) * tf.concat("
    "[tf.ones([n, 1], F), tf.zeros([n, 1], F)], 0))",
    "tf.reduce_mean(tf.square(tf.norm(tf.gradients(tf.reduce_sum(tf.tanh({h} * {h})), {h})[0] + 0.01, axis=1) - 1.0))",
    "tf.reduce_mean(tf.square(tf.gradients(tf.reduce_mean(per_row), {h})[0]))",
    "tf.reduce_mean(tf.reduce_sum(tf.square(tf.gradients(tf.sqrt(tf.reduce_mean({h} ** 2) + 1.0), {h})[0]), 1))",
    "tf.reduce_sum(per_row * tf.cast({i} > 2, F)) / (1.0 + tf.reduce_sum(tf.cast({i} > 2, F)))",
    "tf.math.divide_no_nan(tf.reduce_sum(tf.gather_nd(per_row, tf.where({i} > 2))), "
    "tf.cast(tf.math.count_nonzero({i} > 2), F))",
    "tf.add_n([tf.reduce_sum(p) / (1.0 + tf.cast(tf.size(p), F)) for p in "
    "tf.dynamic_partition(per_row, tf.cast({i} % 3, tf.int32), 3)])",
    "tf.reduce_mean(tf.math.segment_sum(tf.gather(per_row, tf.argsort({i})), tf.sort({i})))",
    "1.0 - 2.0 * tf.reduce_sum(tf.sigmoid(y) * tf.sigmoid(per_row)) "
    "/ tf.reduce_sum(tf.sigmoid(y) + tf.sigmoid(per_row))",
    "tf.reduce_mean(per_row / (1.0 + tf.reduce_max(per_row)))",
    "tf.cond(tf.reduce_sum(y) > 0.0, lambda: tf.reduce_mean(per_row), lambda: tf.reduce_max(per_row))",
    "tf.while_loop(lambda t, total: t < 2, lambda t, total: (t + 1, total + tf.reduce_mean("
    "tf.boolean_mask(per_row, tf.logical_or({i} > 2, tf.range(n) < 1)))), [0, tf.constant(0.0, F)])[1]",
    "tf.while_loop(lambda t, total: t < n, lambda t, total: (t + 1, total + per_row[t] * tf.reduce_max("
    "tf.abs({h}[t]))), [0, tf.constant(0.0, F)])[1] / size",
    "tf.reduce_max(tf.abs(tf.foldl(lambda total, row: total + tf.tanh(row), {h}, tf.zeros([4], F))))",
    "tf.reduce_mean(tf.gather({table}, tf.unique({i} % {size})[0]))",
    "tf.exp(tf.reduce_mean(tf.math.log(per_row + 1.0)))",
    "tf.linalg.trace(tf.linalg.matmul({h}, {h}, transpose_a=True)) / size",
    "tf.reduce_mean(tf.map_fn(lambda row: tf.reduce_max(tf.abs(row)), {h}))",
    "tf.reduce_mean(tf.vectorized_map(lambda row: tf.reduce_sum(row * row), {h}) * per_row)",
    "tf.reduce_mean(tf.square({h} - tf.gather({table}, {i} % {size})))",
    "tf.reduce_sum(tf.nn.softmax(per_row * 0.1) * per_row)",
    "tf.reduce_mean(per_row) * tf.reduce_mean(tf.abs({h}))",
    "v1.losses.sparse_softmax_cross_entropy({i} % 4, {h}, weights=tf.cast({i} > 2, tf.float32))",
    "tf.reduce_mean(tf.repeat(per_row, {i} % 3))",
    "tf.reduce_sum(tf.sin(per_row[:, None] * per_row)) / size / size",
    "tf.reduce_sum(tf.sin(per_row[:, None] * per_row)) / (size * size)",
    "tf.reduce_sum(tf.square({h}[:, None] - {h})) / (size * (size - 1.0))",
    "tf.reduce_mean(tf.math.log(1.0 + tf.reduce_sum(tf.exp(-tf.abs(per_row[:, None] - per_row)), 1) / (size - 1.0)))",
    "tf.reduce_mean(tf.reduce_logsumexp({h} @ tf.transpose({h}), 1) - tf.math.log(tf.convert_to_tensor(size, F)))",
)
"""Scalars, from features `{h}`, ids `{i}`, a table `{table}` of `{size}` rows, and `per_row`, `[n]`."""


def mixed_rows(d: Draft) -> None:
    """Adds features that depend on all examples."""
    h = d.row()
    d.new_row(f"tf.ensure_shape({d.pick(FEATURES).format(h=h, i=d.pick(d.ids)[0])}, [rows, 4])", h)


def mixed_loss(d: Draft) -> None:
    """Adds a term of the loss that depends on all examples."""
    table, size = d.table()
    made = d.pick(LOSSES).format(h=d.rows[-1], i=d.pick(d.ids)[0], table=table, size=size)
    d.add(f"loss += 0.1 * tf.cast({made}, F)")
