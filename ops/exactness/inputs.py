"""Grammar productions that turn batches into features: ids, lookups, and computations by row.

All keep rows apart: a row of the result depends only on the same row of the batch and on variables. So the loss, a mean
over rows, does not depend on how rows are distributed to workers.
"""

from __future__ import annotations

from collections.abc import Callable

from ops.exactness.draft import Draft

Production = Callable[[Draft], object]


def _ids_from(d: Draft) -> None:
    ids, bound = d.pick(d.ids)
    name = d.name("i")
    changed = d.pick(
        (
            f"({ids} * 3 + 1) % {bound}",
            f"tf.where({ids} > 3, {ids}, tf.zeros_like({ids}))",
            f"tf.maximum({ids} - 2, 0)",
            f"tf.cast(tf.cast({ids}, tf.int32), tf.int64)",
            f"tf.zeros_like({ids}) + 2",
            "tf.fill([n], tf.constant(1, tf.int64))",
            f"tf.reshape(tf.stack([{ids}, {ids}], 1)[:, :1], [-1])",
        )
    )
    d.add(f"{name} = {changed}", name, ids)
    d.ids.append((name, bound))


def _ids_of_a_bag(d: Draft) -> None:
    bag, bound, columns = d.pick(d.bags)
    name = d.name("i")
    d.add(f"{name} = {bag}[:, {d.rng.randint(columns)}]", name, d.ids[0][0])
    d.ids.append((name, bound))


def _bag_from(d: Draft) -> None:
    bag, bound, columns = d.pick(d.bags)
    name = d.name("s")
    changed = d.pick(
        (
            f"tf.concat([tf.fill([n, 1], tf.constant(0, tf.int64)), {bag}[:, :-1]], 1)",
            f"tf.concat([tf.zeros_like({bag}[:, :1]) + 1, {bag}[:, :-1]], axis=-1)",
            f"tf.pad({bag}[:, 1:], [[0, 0], [0, 1]])",
            f"tf.tile(tf.range({columns}, dtype=tf.int64)[None], [n, 1])",
            f"tf.zeros_like({bag}) + tf.range({columns}, dtype=tf.int64)",
            f"tf.reverse({bag}, [1])",
            f"tf.sort({bag}, axis=1)",
            f"({bag} + {d.ids[0][0]}[:, None]) % {bound}",
            f"tf.transpose(tf.transpose({bag}))",
            f"tf.where({bag} > 2, {bag}, tf.ones_like({bag}))",
            f"tf.boolean_mask({bag}, tf.constant({[True] * columns}), axis=1)",
        )
    )
    d.add(f"{name} = {changed}", name, bag)
    d.bags.append((name, max(bound, columns), columns))


def _lookup(d: Draft) -> None:
    table, ids = d.looked_up()
    d.new_row(
        d.pick(
            (
                f"tf.nn.embedding_lookup({table}, {ids})",
                f"tf.gather({table}, {ids})",
                f"1.0 * tf.gather_nd({table}, ({ids})[:, None])",
                f"tf.nn.embedding_lookup({table}, tf.cast({ids}, tf.int32))",
                f"tf.nn.embedding_lookup({table}, {ids}, max_norm=0.5)",
                f"tf.reshape(tf.nn.embedding_lookup({table}, tf.reshape({ids}, [-1, 1])), [-1, 4])",
                f"tf.stop_gradient(tf.gather({table}, {ids})) * tf.gather({table}, {ids})",
                f"tf.squeeze(tf.gather({table}, ({ids})[:, None]), 1)",
            )
        )
    )


def _unique(d: Draft) -> None:
    table, ids = d.looked_up()
    u, name = d.name("u"), d.name("h")
    gathered = d.pick(
        (
            f"tf.gather(tf.gather({table}, {u}), at_{u})",
            f"tf.gather(tf.nn.embedding_lookup({table}, tf.sort({u})), tf.gather(tf.argsort(tf.argsort({u})), at_{u}))",
            f"tf.gather(tf.gather({table}, {u} % 5), at_{u})",
            f"tf.gather(tf.concat([tf.gather({table}, {u}[:1]), tf.gather({table}, {u}[1:])], 0), at_{u})",
            f"tf.gather(tf.gather({table}, tf.where({u} > 3, {u}, tf.zeros_like({u}))), at_{u})",
        )
    )
    d.add(f"{u}, at_{u} = tf.unique({ids})\n{name} = {gathered}", name, d.rows[0] if d.rows else "")
    d.rows.append(name)


def _in_function(d: Draft) -> None:
    table, ids = d.looked_up()
    f = d.name("look_up")
    body = d.pick((f"tf.gather({table}, x) * 2.0", f"tf.nn.embedding_lookup({table}, x)"))
    name = d.name("h")
    d.add(f"@tf.function\ndef {f}(x):\n    return {body}\n\n{name} = {f}({ids})", name, d.rows[0] if d.rows else "")
    d.rows.append(name)


def _in_conditional(d: Draft) -> None:
    table, ids = d.looked_up()
    name = d.name("h")
    d.add(
        f"{name} = tf.cond(step % 2 < 1, lambda: tf.gather({table}, {ids}), lambda: tf.gather({table}, {ids}) * 0.5)\n"
        f"{name} = tf.reshape({name}, [-1, 4])",
        name,
        d.rows[0] if d.rows else "",
    )
    d.rows.append(name)


def _in_loop(d: Draft) -> None:
    table, ids, columns = d.bag()
    bag, name = d.name("b"), d.name("h")
    d.add(
        f"""
        {bag} = {ids}
        _, {name} = tf.while_loop(
            lambda t, total: t < {columns},
            lambda t, total: (t + 1, total + tf.gather({table}, {bag}[:, t])),
            [tf.constant(0), tf.zeros([n, 4], F)],
        )
        """,
        name,
        d.rows[0] if d.rows else "",
    )
    d.rows.append(name)


def _recurrent(d: Draft) -> None:
    table, ids, columns = d.bag()
    x, u, w, name = d.name("x"), d.weight(4, 4), d.weight(4, 4), d.name("h")
    d.add(
        f"""
        {x} = tf.gather({table}, {ids})
        _, {name} = tf.while_loop(
            lambda t, state: t < {columns},
            lambda t, state: (t + 1, tf.tanh({x}[:, t] @ {u} + state @ {w})),
            [tf.constant(0), tf.zeros([n, 4], F)],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([rows, 4])],
        )
        """,
        name,
        d.rows[0] if d.rows else "",
    )
    d.rows.append(name)


def _bag(d: Draft) -> None:
    table, ids, columns = d.bag()
    q = f"tf.nn.embedding_lookup({table}, {ids})"
    d.new_row(
        d.pick(
            (
                f"tf.reduce_mean({q}, 1)",
                f"tf.reduce_sum({q}, axis=1)",
                f"tf.reduce_max({q}, 1)",
                f"tf.reshape({q}, [-1, {4 * columns}]) @ {d.weight(4 * columns, 4)}",
                f"tf.reduce_sum({q} * tf.cast({ids} > 2, F)[:, :, None], 1)",
                f"tf.reduce_sum({q} * tf.nn.softmax({q} @ {d.weight(4, 1)}, axis=1), 1)",
                f"tf.reduce_mean({q} + tf.gather({d.table()[0]}, tf.range({columns})), 1)",
                f"tf.concat(tf.unstack({q}, {columns}, 1), 1)[:, 1:5]",
                f"tf.add_n(tf.split({q}, {columns}, 1))[:, 0]",
                f"tf.squeeze(tf.matmul({q}, {q}, transpose_a=True)[:, :1], 1)",
            )
        )
    )


def _sparse_bag(d: Draft) -> None:
    table, ids, columns = d.bag()
    bags = d.name("bags")
    safe = d.chance(0.5)  # zeros are left out, and some bags are empty
    whole = f"tf.sparse.from_dense(tf.maximum({ids}, 1))"
    d.add(f"{bags} = {f'tf.sparse.from_dense({ids})' if safe else whole}")
    weights = d.pick(("None", "None", f"{bags}.with_values(tf.cast({bags}.values % 3 + 1, F))"))
    combiner = d.pick(("sum", "mean", "sqrtn"))
    look_up = "safe_embedding_lookup_sparse" if safe else "embedding_lookup_sparse"
    d.new_row(
        d.pick(
            (
                f'tf.ensure_shape(v1.nn.{look_up}({table}, {bags}, {weights}, combiner="{combiner}"), [rows, 4])',
                f'tf.ensure_shape(v1.nn.{look_up}({table}, {bags}, {weights}, combiner="{combiner}"), [rows, 4])',
                f"tf.reduce_sum(tf.nn.embedding_lookup({table}, tf.RaggedTensor.from_sparse({whole})), 1)",
                f"tf.sparse.sparse_dense_matmul(tf.cast({bags}, F), {d.weight(columns, 4)})",
                f"tf.ensure_shape(tf.sparse.reduce_sum(tf.cast({bags}, F), 1, keepdims=True), [rows, 1]) * 0.1 + "
                f"tf.gather({table}, ({ids})[:, 0])",
                f"tf.reduce_sum(tf.gather({table}, tf.sparse.to_dense({bags})), 1)",
            )
        )
    )


def _masked_bag(d: Draft) -> None:
    table, ids, columns = d.bag()
    m, name = d.name("m"), d.name("h")
    d.add(
        f"""
        {m} = ({ids}) > 2
        row_{m} = tf.boolean_mask(tf.tile(tf.range(n)[:, None], [1, {columns}]), {m})
        {name} = tf.math.unsorted_segment_sum(tf.gather({table}, tf.boolean_mask({ids}, {m})), row_{m}, n)
        {name} = tf.ensure_shape({name}, [rows, 4])
        """,
        name,
        d.rows[0] if d.rows else "",
    )
    d.rows.append(name)


def _partitioned(d: Draft) -> None:
    name = d.name("part")
    parts, strategy, rows = (
        d.pick((2, 3)),
        d.pick(("mod", "div")),
        d.pick((14, 14, 14, 13)),
    )  # 13 may be cut into 7 and 6
    ids, bound = d.pick(d.ids)
    d.add(f'{name} = v1.get_variable("{name}", [{rows}, 4], F, partitioner=v1.fixed_size_partitioner({parts}))', name)
    d.new_row(f'tf.reshape(v1.nn.embedding_lookup({name}, {ids} % {rows}, partition_strategy="{strategy}"), [-1, 4])')


def _from_state(d: Draft) -> None:
    """A step from a state that a script may feed, as between the batches of a truncated recurrence."""
    h, u, w, state = d.row(), d.weight(4, 4), d.weight(4, 4), d.name("state")
    made = d.pick(
        (
            f'tf.zeros([n, 4], F, name="{state}")',
            f'tf.fill([n, 4], tf.constant(0.1, F), name="{state}")',
            f'tf.identity(tf.ones([n, 4], F), name="{state}")',
            f'v1.placeholder_with_default(tf.zeros([n, 4], F), [rows, 4], name="{state}")',
        )
    )
    if d.chance(0.6):
        d.feeds[state] = "rng.randn(rows, 4)"
    d.add(f"{state} = {made}", state)
    d.new_row(f"tf.tanh({h} @ {u} + {state} @ {w})", h)


def _scale_by_scalar(d: Draft) -> None:
    """Features times a scalar of which the script states no shape."""
    h, factor = d.row(), d.name("factor")
    d.feeds[factor] = "0.7"
    d.add(f'{factor} = v1.placeholder(F, name="{factor}")', factor)
    d.new_row(f"tf.ensure_shape({h} * {factor}, [rows, 4])", h)


def _positions(d: Draft) -> None:
    table, _ = d.table()
    h = d.row()
    d.new_row(
        d.pick(
            (
                f"{h} + tf.gather({table}, [0, 1])[1]",
                f"{h} * tf.gather({table}, 2)",
                f"{h} + tf.reduce_mean(tf.gather({table}, tf.range(3)), 0)",
                f"{h} + tf.gather({table}, tf.tile([1], [n]))",
                f"{h} + tf.nn.embedding_lookup({table}, tf.ones([n], tf.int32) * 3)",
            )
        ),
        h,
    )


def _dense(d: Draft) -> None:
    h = d.row()
    other = d.row()
    w = d.weight(8, 4) if d.chance(0.4) else d.weight(4, 4)
    if "[8, 4]" in d.statements[-1].text:
        d.new_row(f"tf.tanh(tf.concat([{h}, {other}], 1) @ {w})", h)
        return
    bias = d.name("bias")
    d.add(f'{bias} = v1.get_variable("{bias}", [4], F, initializer=v1.zeros_initializer())', bias)
    d.new_row(
        d.pick(
            (
                f"tf.tanh({h} @ {w} + {bias})",
                f"tf.nn.relu({h} @ {w} + {bias})",
                f"tf.nn.bias_add(tf.matmul({h}, {w}), {bias})",
                f"tf.tensordot({h}, {w}, 1) * {bias} + {h}",
                f"tf.einsum('bi,ij->bj', {h}, {w}) + {bias}",
                f"tf.split(tf.tanh(tf.concat([{h}, {other}], 0) @ {w} + {bias}), 2)[0]",
            )
        ),
        h,
    )


def _by_row(d: Draft) -> None:
    h, other = d.row(), d.row()
    d.new_row(
        d.pick(
            (
                f"{h} + {other}",
                f"{h} * tf.sigmoid({other})",
                f"{h} * {h}",
                f"tf.concat([{h}, {other}], 1)[:, 2:6]",
                f"tf.pad({h}, [[0, 0], [0, 2]])[:, 1:5]",
                f"tf.reshape(tf.transpose(tf.reshape({h}, [-1, 2, 2]), [0, 2, 1]), [-1, 4])",
                f"tf.nn.l2_normalize({h} + 0.1, 1)",
                f"tf.gather(tf.gather({h}, tf.reverse(tf.range(n), [0])), tf.reverse(tf.range(n), [0]))",
                f"tf.gather(tf.gather({h}, tf.argsort({d.ids[0][0]})), "
                f"tf.math.invert_permutation(tf.argsort({d.ids[0][0]})))",
                f"tf.where({h} > 0, {h}, {other})",
                f"tf.stop_gradient({other}) + {h}",
                f"tf.stack([{h}, {other}], 1)[:, 0]",
                f"tf.concat([{h}, {other}], 0)[:n]",
                f"tf.clip_by_value({h}, -0.4, 0.4)",
                f"tf.map_fn(lambda row: row * 2.0, {h})",
                f"tf.identity({h}) - tf.reduce_mean({h}, 1, keepdims=True)",
                f"tf.cond(step % 3 < 2, lambda: {h} * 2.0, lambda: {other})",
            )
        ),
        h,
    )


def _function(d: Draft) -> None:
    h, other = d.row(), d.row()
    f, name = d.name("f"), d.name("h")
    body = d.pick(("a * a + b", "tf.concat([a, a], 1)[:, 2:6] * b", "a * tf.tanh(b)", "tf.nn.l2_normalize(a + b, 1)"))
    d.add(f"@tf.function\ndef {f}(a, b):\n    return {body}\n\n{name} = {f}({h}, {other})", name, h)
    d.rows.append(name)


def _joined_tables(d: Draft) -> None:
    first, rows = d.table()
    name, ids = d.name("emb"), d.pick(d.ids)[0]
    d.add(f'{name} = v1.get_variable("{name}", [{rows}, 4], F)', name)
    d.new_row(
        d.pick(
            (
                f"tf.gather({first} + {name}, {ids} % {rows})",
                f"tf.gather(tf.concat([{first}, {name}], 1), {ids} % {rows})[:, 2:6]",
                f"tf.gather(tf.concat([{first}, {name}], 0), {ids} % {rows})",
                f"tf.gather(tf.concat([tf.zeros([1, 4], F), {name}[1:]], 0), {ids} % {rows})",
            )
        )
    )


def _tied(d: Draft) -> None:
    table, ids = d.looked_up()
    h = d.row()
    d.new_row(f"{h} + tf.matmul({h}, {table}, transpose_b=True)[:, 1:5]", h)


IDS: tuple[tuple[float, Production], ...] = ((2, _ids_from), (1, _ids_of_a_bag), (3, _bag_from))
LOOKUPS: tuple[tuple[float, Production], ...] = (
    (5, _lookup),
    (2, _unique),
    (2, _in_function),
    (1.5, _in_conditional),
    (1, _in_loop),
    (1, _recurrent),
    (5, _bag),
    (2, _sparse_bag),
    (2, _masked_bag),
    (1.5, _partitioned),
    (1, _joined_tables),
)
FEATURES: tuple[tuple[float, Production], ...] = (
    (3, _dense),
    (5, _by_row),
    (1, _function),
    (1.5, _positions),
    (1, _from_state),
    (0.7, _scale_by_scalar),
    (0.7, _tied),
)
