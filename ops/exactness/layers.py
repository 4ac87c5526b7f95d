"""Grammar productions for the features of layers: attention, scans, statistics, noise, sampled softmax.

As in inputs.py, a row of the result depends only on the same row of the batch. The shapes of random numbers do not
include the batch, so that one process and N workers can draw the same numbers.
"""

from __future__ import annotations

from ops.exactness.draft import Draft
from ops.exactness.inputs import Production


def _sequence(d: Draft) -> None:
    table, ids, columns = d.bag()
    x, name = d.name("x"), d.name("h")
    made = d.pick(
        (
            f"tf.reduce_mean(tf.nn.softmax({x} @ tf.transpose({x}, [0, 2, 1])) @ {x}, 1)",
            f"tf.reduce_sum(tf.einsum('bij,bjd->bid', tf.nn.softmax({x} @ tf.transpose({x}, [0, 2, 1])), {x}), 1)",
            f"tf.scan(lambda s, t: tf.tanh(s + t), tf.transpose({x}, [1, 0, 2]))[-1]",
            f"tf.foldl(lambda s, t: s * 0.5 + t, tf.transpose({x}, [1, 0, 2]))",
            f"tf.reduce_sum(tf.nn.conv1d({x}, {d.weight(8, 4)}[None, :4], 1, 'SAME'), 1)",
            f"tf.reduce_sum(tf.sequence_mask({d.ids[0][0]} % {columns} + 1, {columns}, F)[:, :, None] * {x}, 1)",
            f"tf.gather({x}, {d.ids[0][0]} % {columns}, batch_dims=1)",
            f"tf.reverse_sequence({x}, {d.ids[0][0]} % {columns} + 1, seq_axis=1)[:, 0]",
            f"tf.math.cumsum({x}, 1)[:, -1]",
            f"tf.reduce_sum(tf.map_fn(lambda row: row * tf.nn.softmax(row, axis=0), {x}), 1)",
        )
    )
    d.add(f"{x} = tf.nn.embedding_lookup({table}, {ids})\n{name} = {made}", name, d.rows[0] if d.rows else "")
    d.rows.append(name)


def _whole_table(d: Draft) -> None:
    table, rows = d.table()
    ids, bag = f"{d.ids[0][0]} % {rows}", f"tf.maximum({d.bags[0][0]} % {rows}, 1)"
    d.new_row(
        d.pick(
            (
                f"tf.one_hot({ids}, {rows}, dtype=F) @ {table}",
                f"tf.reduce_sum(tf.one_hot({bag}, {rows}, dtype=F), 1) @ {table}",
                f"tf.nn.embedding_lookup({table} * 0.5, {ids})",
                f"tf.transpose(tf.gather(tf.transpose({table}), {ids}, axis=1))",
            )
        )
    )


def _noise(d: Draft) -> None:
    h = d.row()
    d.new_row(
        d.pick(
            (
                f"{h} + tf.random.stateless_uniform([4], [1, 2], dtype=F)",
                f"{h} * tf.random.uniform([4], 0.5, 1.0, dtype=F, seed=5)",
                f"{h} + 0.1 * tf.random.normal([4], dtype=F)",
                f"{h} * tf.nn.dropout(tf.ones([4], F), rate=0.3)",
            )
        ),
        h,
    )


def _statistics(d: Draft) -> None:
    """Normalizes features by averages over past batches, like layers that do not use this batch's statistics."""
    if not d.resource:  # reads must precede the update of this step
        return
    h, mean, spread, name = d.row(), d.name("mean"), d.name("spread"), d.name("h")
    d.add(
        f"""
        {mean} = v1.get_variable("{mean}", [4], F, initializer=v1.zeros_initializer(), trainable=False)
        {spread} = v1.get_variable("{spread}", [4], F, initializer=v1.ones_initializer(), trainable=False)
        past_{mean}, past_{spread} = {mean}.read_value(), {spread}.read_value()
        {name} = ({h} - past_{mean}) * tf.math.rsqrt(past_{spread} + 0.1)
        of_batch = tf.stop_gradient({h})
        for moved, change in (
            ({mean}, past_{mean} - tf.reduce_mean(of_batch, 0)),
            ({spread}, past_{spread} - tf.reduce_mean(tf.square(of_batch - past_{mean}), 0)),
        ):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign_sub(moved, 0.1 * change))
        """,
        name,
        h,
    )
    d.rows.append(name)


def _dealt(d: Draft) -> None:
    """Partitions rows by their ids, or processes them one by one, and combines them again."""
    h, ids, name, at = d.row(), d.pick(d.ids)[0], d.name("h"), d.name("at")
    bag, _, columns = d.pick(d.bags)
    w = d.weight(4, 4)
    parts = f"""\
of_{at} = tf.cast({ids} % 2, tf.int32)
{at} = tf.dynamic_partition(tf.range(n), of_{at}, 2)
left, right = tf.dynamic_partition({h}, of_{at}, 2)
"""
    table, rows = d.table()
    rows_of = f"{at} = tf.where({ids} > 2)\n"
    made = d.pick(
        (
            f"{parts}{name} = tf.dynamic_stitch({at}, [tf.tanh(left @ {w}), right])",
            f"{parts}{name} = tf.scatter_nd({at}[1][:, None], right @ {w}, [n, 4]) + {h}",
            f"{parts}{name} = tf.gather(tf.concat([left @ {w}, right], 0), tf.math.invert_permutation("
            f"tf.concat({at}, 0)))",
            f"{rows_of}{name} = tf.scatter_nd({at}, tf.gather_nd({h}, {at}) @ {w}, tf.shape({h}, tf.int64)) + {h}",
            f"{rows_of}{name} = tf.tensor_scatter_nd_update({h}, {at}, tf.tanh(tf.gather_nd({h}, {at})))",
            f"{at} = tf.boolean_mask(tf.range(n), {ids} > 2)\n"
            f"{name} = tf.tensor_scatter_nd_add({h}, {at}[:, None], tf.boolean_mask({h}, {ids} > 2) @ {w})",
            f"{name} = tf.math.segment_sum(tf.reshape(tf.gather({table}, {bag} % {rows}), [-1, 4]), "
            f"tf.repeat(tf.range(n), {columns}))",
            f"{at} = tf.RaggedTensor.from_tensor({bag} % {rows}, padding=0)\n"
            f"{name} = tf.reduce_sum(tf.ragged.map_flat_values(tf.gather, {table}, {at}), 1)",
            f"{at} = tf.RaggedTensor.from_row_lengths(tf.repeat({h}, {ids} % 3 + 1, axis=0), {ids} % 3 + 1)\n"
            f"{name} = tf.reduce_mean({at}, 1)",
            f"{at} = tf.math.bincount(tf.cast({bag} % 4, tf.int32), minlength=4, maxlength=4, axis=-1, dtype=F)\n"
            f"{name} = {h} * {at}",
            f"{name} = tf.vectorized_map(lambda row: tf.tanh(row) * tf.reduce_sum(row), {h})",
            f"{name} = tf.map_fn(lambda pair: pair[0] * tf.cast(pair[1], F), ({h}, {ids}), fn_output_signature=F)",
            f"{name} = tf.map_fn(lambda k: tf.tanh({h}[k]) + tf.cast({ids}[k], F), tf.range(n), fn_output_signature=F)",
            f"{name} = tf.map_fn(lambda row: tf.cond(row[0] > 0.0, lambda: tf.tanh(row), lambda: row * 0.5), {h})",
            f"{name} = tf.concat([tf.math.top_k({h}, 2)[0], tf.sort({h}, 1)[:, :2]], 1)",
            f"{name} = tf.gather({h}, tf.argsort({h}, 1)[:, ::-1], batch_dims=1)",
            f"_, {name} = tf.while_loop(lambda t, kept: t < {columns}, lambda t, kept: (t + 1, tf.where("
            f"{bag}[:, t, None] > 2, tf.tanh(kept @ {w}), kept)), [tf.constant(0), {h}])",
            f"_, {name} = tf.while_loop(lambda t, kept: t < tf.cast(tf.reduce_max({bag}) % 3 + 1, tf.int32), "
            f"lambda t, kept: (t + 1, kept * 0.5 + {h}), [tf.constant(0), {h}])",
        )
    )
    d.add(f"{made}\n{name} = tf.ensure_shape({name}, [rows, 4])", name, h)
    d.rows.append(name)


def _checked(d: Draft) -> None:
    h, name = d.row(), d.name("h")
    check = d.pick(
        (
            f"{name} = tf.debugging.check_numerics({h}, 'h')",
            f"with v1.control_dependencies([v1.assert_less({d.ids[0][0]}, tf.constant(99, tf.int64))]):\n"
            f"    {name} = tf.identity({h})",
            f"{name} = tf.ensure_shape({h}, [rows, 4])",
            f"{name} = tf.switch_case(tf.cast(step % 2, tf.int32), [lambda: {h} * 2.0, lambda: {h} + 1.0])",
            f"{name} = v1.case([(step > 1, lambda: {h} * 2.0)], default=lambda: {h} * 3.0)",
            f"@tf.custom_gradient\ndef turned_{name}(x):\n"
            f"    return tf.tanh(x), lambda dy: -0.5 * tf.convert_to_tensor(dy)\n\n"
            f"{name} = turned_{name}({h})",
            # Multiplied, because its gradient must be dense here.
            f"@tf.recompute_grad\ndef again_{name}(x):\n    return tf.tanh(x * x)\n\n{name} = again_{name}({h}) * 1.0",
        )
    )
    d.add(check, name, h)
    d.rows.append(name)


def sampled_loss(d: Draft) -> None:
    """Adds a loss over sampled classes, which exists for float32 only; no sample depends on the batch."""
    name, h = d.name("classes"), d.rows[-1]
    loss = d.pick(("sampled_softmax_loss", "nce_loss"))
    partitioner = ", partitioner=v1.fixed_size_partitioner(2)" if d.chance(0.3) else ""
    seed = ", seed=3" if loss == "sampled_softmax_loss" else ""
    sampled = ""
    if d.chance(0.5):
        sampled = (
            ", sampled_values=tf.random.log_uniform_candidate_sampler("
            "i0[:, None], num_true=1, num_sampled=5, unique=True, range_max=13, seed=4)"
        )
    d.add(
        f"""
        {name} = v1.get_variable("{name}", [13, 4], F{partitioner})
        loss += 0.1 * tf.reduce_mean(v1.nn.{loss}(
            list({name}) if {bool(partitioner)} else {name}, tf.zeros([13], F), i0[:, None], {h}, 5, 13,
            partition_strategy="div"{seed}{sampled}))
        """
    )


LAYERS: tuple[tuple[float, Production], ...] = ((2, _noise), (1, _statistics), (3, _checked), (3, _dealt))
SEQUENCES: tuple[tuple[float, Production], ...] = ((4, _sequence), (1.5, _whole_table))
