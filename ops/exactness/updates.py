"""Grammar productions from features to updates: losses, gradients and their changes, updates and later ops.

Losses are means over the batch. Gradients are changed only in ways on which one process and N workers can agree.
"""

from __future__ import annotations

from ops.exactness.draft import Draft
from ops.exactness.inputs import Production
from ops.exactness.layers import sampled_loss
from ops.exactness.surroundings import SURROUNDINGS

PLAIN_LOSS = "loss = tf.reduce_mean(per_row)"
PLAIN_PAIRS = "pairs = [(g, v) for g, v in opt.compute_gradients(loss) if g is not None]"
PLAIN_UPDATE = "train = opt.apply_gradients(pairs, global_step=step)"
PLAIN_OPTIMIZER = "opt = v1.train.GradientDescentOptimizer(0.3)"
ON_VALUES = """
def on_values(change, gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)
"""


def loss(d: Draft) -> None:
    """Adds the loss, from the features written last."""
    h = d.rows[-1]
    w = d.weight(4, 1)
    d.add(f"per_row = tf.square(({h} @ {w})[:, 0] - y)", "per_row", is_kept=True)
    if d.chance(0.2):
        d.add(d.pick(("per_row = tf.sqrt(per_row + 1.0)", "per_row = tf.nn.softplus(per_row)")))
    if d.chance(0.15):
        d.add("per_row = per_row * tf.cast(i0 > 2, F)")
    d.feeds["y"] = "rng.randn(rows)"
    kind = d.rng.rand()
    if kind < 0.55:
        d.add("loss = tf.reduce_mean(per_row)", is_kept=True, plain=PLAIN_LOSS)
    elif kind < 0.65:
        d.add("loss = tf.reduce_sum(per_row) / size", is_kept=True, plain=PLAIN_LOSS)
    elif kind < 0.75:
        d.add(
            "loss = v1.losses.compute_weighted_loss(per_row, reduction=v1.losses.Reduction.MEAN)",
            is_kept=True,
            plain=PLAIN_LOSS,
        )
    elif kind < 0.85:
        d.add("labels = i0 % 4\n")
        d.add(
            f"loss = tf.reduce_mean(per_row) + tf.reduce_mean("
            f"tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits={h}))",
            is_kept=True,
            plain=PLAIN_LOSS,
        )
    elif kind < 0.93:
        d.add(
            "loss = tf.reduce_mean(tf.reshape(per_row, [-1, 1]) * tf.ones([1, 2], F))", is_kept=True, plain=PLAIN_LOSS
        )
    else:
        mask = d.pick(("tf.cast(i0 > 2, F)", "tf.cast(y > -1.0, F)"))
        d.add(
            f"mask = {mask}\nloss = tf.reduce_sum(per_row * mask) / tf.reduce_sum(mask)", is_kept=True, plain=PLAIN_LOSS
        )
    _more_loss(d, w)


def _more_loss(d: Draft, w: str) -> None:
    h = d.rows[-1]
    if d.tables and d.chance(0.1):
        d.add(f"loss += 0.01 * tf.nn.l2_loss({d.pick(d.tables)[0]})")
    if d.chance(0.1):
        d.add(f"loss += 0.01 * tf.nn.l2_loss({w})")
    if d.tables and d.chance(0.1):
        d.add(f"loss += 0.1 * tf.reduce_mean(tf.reduce_sum(tf.square({d.row()}), 1))")
    if d.is_float32 and d.chance(0.3):
        sampled_loss(d)
    if d.tape:
        return
    if d.chance(0.06):
        d.add(
            f"slope = tf.gradients(tf.reduce_sum(tf.tanh({h} @ {w})), {h})[0]\n"
            "loss += 0.1 * tf.reduce_mean(tf.reduce_sum(tf.square(slope), 1))"
        )
    elif d.chance(0.05):
        d.add(
            f"@tf.function\ndef slope_of(x):\n    return tf.gradients(tf.reduce_sum(tf.tanh(x @ {w})), x)[0]\n\n"
            f"loss += 0.1 * tf.reduce_mean(tf.reduce_sum(tf.square(slope_of({h})), 1))"
        )
    elif d.chance(0.05):
        d.add(
            f"fast = {w} - 0.1 * tf.gradients(loss, {w})[0]\nloss = tf.reduce_mean(tf.square(({h} @ fast)[:, 0] - y))"
        )


def gradients(d: Draft) -> None:
    """Adds `pairs`, of gradients and variables, and the optimizer."""
    rate = d.pick(
        (
            "0.3",
            "0.3",
            "0.3",
            "v1.train.exponential_decay(0.3, step, 2, 0.7)",
            "v1.train.polynomial_decay(0.3, step, 5)",
        )
    )
    d.add(f"rate = {rate}", "rate", "0.3")
    d.add(f"opt = v1.train.{d.optimizer('rate')}", is_kept=True, plain=PLAIN_OPTIMIZER)
    if d.tape:
        d.add(
            "variables = v1.trainable_variables()\n"
            "pairs = [(g, v) for g, v in zip(tape.gradient(loss, variables), variables) if g is not None]",
            is_kept=True,
            plain=PLAIN_PAIRS,
        )
    elif d.chance(0.3):
        d.add(
            "variables = v1.trainable_variables()\n"
            "pairs = [(g, v) for g, v in zip(tf.gradients(loss, variables), variables) if g is not None]",
            is_kept=True,
            plain=PLAIN_PAIRS,
        )
    else:
        d.add(PLAIN_PAIRS, is_kept=True)
    for _ in range(d.pick((0, 0, 1, 1, 1, 2))):
        d.add(d.pick(_CHANGES))
    if not d.resource:  # no update may run before all gradients have read the variable that it writes
        d.add(_BARRIER, is_kept=True)


def _values(change: str) -> str:
    return f"pairs = [(on_values(lambda t: {change}, g), v) for g, v in pairs]"


_BARRIER = """\
parts = [p for g, _ in pairs for p in ([g.values, g.indices] if isinstance(g, tf.IndexedSlices) else [g])]
with v1.control_dependencies(parts):
    pairs = [(on_values(tf.identity, g), v) for g, v in pairs]"""
_CLIPPED = """\
clipped, norm = tf.clip_by_global_norm([g for g, _ in pairs], {limit})
pairs = [(c, v) for c, (_, v) in zip(clipped, pairs)]"""
_CHANGES = (
    _CLIPPED.format(limit=0.2),
    _CLIPPED.format(limit=0.05),
    _CLIPPED.format(limit=1.0),
    "pairs = [(tf.clip_by_norm(g, 0.1), v) for g, v in pairs]",
    _values("tf.clip_by_value(t, -0.02, 0.02)"),
    _values("t * 0.5"),
    _values("t / 128.0 * 64.0"),
    "pairs = [(tf.convert_to_tensor(g), v) for g, v in pairs]",
    "pairs = [(tf.convert_to_tensor(g) + 0.01 * v, v) for g, v in pairs]",
    "finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(g))) for g, _ in pairs])\n"
    + _values("t * tf.cast(finite, t.dtype)"),
    "norm = tf.linalg.global_norm([g for g, _ in pairs])\n" + _values("t / (norm + 1.0)"),
    _values("t / tf.reduce_max(tf.abs(t) + 0.001)"),
    _values("tf.sign(t) * tf.minimum(tf.abs(t), 0.03)"),
    "pairs = [(tf.clip_by_norm(tf.convert_to_tensor(g), 0.1, axes=[0]), v) for g, v in pairs]",
)


def _applied(d: Draft) -> None:
    d.add(PLAIN_UPDATE, is_kept=True)


def _by_hand(d: Draft) -> None:
    sparse = d.pick(
        (
            "v1.scatter_sub(v, g.indices, 0.3 * g.values)",
            "v1.assign_sub(v, 0.3 * tf.convert_to_tensor(g))",
            "v.scatter_sub(tf.IndexedSlices(0.3 * g.values, g.indices))",
        )
    )
    d.add(
        f"""
        changes = []
        for g, v in pairs:
            if isinstance(g, tf.IndexedSlices):
                changes.append({sparse})
            else:
                changes.append(v1.assign_sub(v, 0.3 * g))
        with v1.control_dependencies(changes):
            train = tf.group(v1.assign_add(step, 1))
        """,
        is_kept=True,
        plain=PLAIN_UPDATE,
    )


def _row_wise(d: Draft) -> None:
    d.add(
        """
        changes = []
        for g, v in pairs:
            if not isinstance(g, tf.IndexedSlices):
                changes.append(v1.assign_sub(v, 0.3 * g))
                continue
            ones = v1.ones_initializer()
            acc = v1.get_variable(v.op.name + "_acc", [v.shape[0], 1], F, initializer=ones, trainable=False)
            with v1.control_dependencies(
                [v1.scatter_add(acc, g.indices, tf.reduce_mean(tf.square(g.values), 1, keepdims=True))]
            ):
                scaled = 0.3 * g.values * tf.math.rsqrt(tf.gather(acc.read_value(), g.indices))
                changes.append(v1.scatter_sub(v, g.indices, scaled))
        with v1.control_dependencies(changes):
            train = tf.group(v1.assign_add(step, 1))
        """,
        is_kept=True,
        plain=PLAIN_UPDATE,
    )


def _hand_momentum(d: Draft) -> None:
    d.add(
        """
        changes = []
        for g, v in pairs:
            m = v1.get_variable(v.op.name + "_m", v.shape, F, initializer=v1.zeros_initializer(), trainable=False)
            m_next = v1.assign(m, 0.9 * m.read_value() + tf.convert_to_tensor(g))
            changes.append(v1.assign_sub(v, 0.3 * m_next))
        with v1.control_dependencies(changes):
            train = tf.group(v1.assign_add(step, 1))
        """,
        is_kept=True,
        plain=PLAIN_UPDATE,
    )


def _every_k(d: Draft) -> None:
    add = d.pick(("v1.assign_add(a, tf.convert_to_tensor(g))", "add_to(a, g)"))
    d.add(
        f"""
        def add_to(a, g):
            return a.scatter_add(g) if isinstance(g, tf.IndexedSlices) else v1.assign_add(a, g)

        sums = [
            v1.get_variable(v.op.name + "_sum", v.shape, F, initializer=v1.zeros_initializer(), trainable=False)
            for _, v in pairs
        ]
        calls = v1.get_variable("calls", [], tf.int64, initializer=v1.zeros_initializer(), trainable=False)
        with v1.control_dependencies([{add} for a, (g, _) in zip(sums, pairs)]):
            count = v1.assign_add(calls, 1)

        def update():
            means = [a.read_value() / 2.0 for a in sums]
            applied = opt.apply_gradients([(m, v) for m, (_, v) in zip(means, pairs)])
            with v1.control_dependencies([applied]):
                return tf.group(*[v1.assign(a, tf.zeros_like(a)) for a in sums])

        with v1.control_dependencies([count]):
            applied = tf.cond(tf.equal(count % 2, 0), update, tf.no_op)
        with v1.control_dependencies([applied]):
            train = tf.group(v1.assign_add(step, 1))
        """,
        is_kept=True,
        plain=PLAIN_UPDATE,
    )


def _conditional(d: Draft) -> None:
    predicate = d.pick(
        (
            "step % 2 < 1",
            "tf.reduce_all([tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(g))) for g, _ in pairs])",
            "tf.linalg.global_norm([g for g, _ in pairs]) < 0.5",
        )
    )
    d.add(
        f"""
        do = {predicate}
        applied = tf.cond(do, lambda: opt.apply_gradients(pairs), tf.no_op)
        with v1.control_dependencies([applied]):
            train = tf.group(v1.assign_add(step, 1))
        """,
        is_kept=True,
        plain=PLAIN_UPDATE,
    )


UNCONDITIONAL: tuple[tuple[float, Production], ...] = (
    (10, _applied),
    (2, _by_hand),
    (0.8, _row_wise),
    (0.8, _hand_momentum),
)
"""Updates for reference variables too, which cannot be passed into functional conditionals."""
UPDATES: tuple[tuple[float, Production], ...] = (*UNCONDITIONAL, (0.8, _every_k), (0.8, _conditional))


def _averages(d: Draft) -> None:
    d.add(
        """
        average = v1.train.ExponentialMovingAverage(0.9)
        with v1.control_dependencies([train]):
            train = average.apply(v1.trainable_variables())
        """
    )


def _renormalised(d: Draft) -> None:
    if not d.tables:
        return
    table, rows = d.pick(d.tables)
    ids, bound = d.pick(d.ids)
    d.add(
        f"""
        touched = {ids if bound <= rows else f"{ids} % {rows}"}
        with v1.control_dependencies([train]):
            unit = tf.nn.l2_normalize(tf.gather({table}.read_value(), touched), 1)
            train = tf.group(v1.scatter_update({table}, touched, unit))
        """
    )


def _count(d: Draft) -> None:
    seen = d.name("seen")
    d.add(
        f"""
        {seen} = v1.get_variable("{seen}", [], F, initializer=v1.zeros_initializer(), trainable=False)
        with v1.control_dependencies([train]):
            train = tf.group(v1.assign_add({seen}, 1.0))
        """
    )


def _max_norm(d: Draft) -> None:
    if not d.tables:
        return
    table, _ = d.pick(d.tables)
    d.add(
        f"""
        with v1.control_dependencies([train]):
            train = tf.group(v1.assign({table}, tf.clip_by_norm({table}.read_value(), 1.0, axes=[1])))
        """
    )


def _average_loss(d: Draft) -> None:
    shown = d.name("shown")
    d.add(
        f"""
        {shown} = v1.get_variable("{shown}", [], F, initializer=v1.zeros_initializer(), trainable=False)
        train = tf.group(train, v1.assign({shown}, 0.9 * {shown} + 0.1 * loss))
        """
    )


def _second(d: Draft) -> None:
    table, ids = d.looked_up()
    w, second = d.weight(4, 1), d.name("second")
    d.add(
        f"""
        other = tf.reduce_mean(tf.square(tf.gather({table}, {ids}) @ {w} - 1.0))
        {second} = v1.train.{d.optimizer("0.2")}.minimize(other, var_list=[{w}, {table}])
        """,
        is_kept=True,
    )
    d.turns.append(second)


EXTRAS: tuple[tuple[float, Production], ...] = (
    (2, _averages),
    (1, _renormalised),
    (1, _count),
    (1, _max_norm),
    (0.5, _average_loss),
    (1.5, _second),
    *SURROUNDINGS,
)
