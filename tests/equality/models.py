"""Small graphs that train, one function each: the constructs that users write, in sizes that can be checked by eye.

A model is built for a batch of `rows` rows in the default graph; its placeholders are fed by name, and its training op
is the last of the collection TRAIN_OP, or the ops that MODELS' builder returns, run in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from parallax import optimizers

v1 = tf.compat.v1
ROWS, WIDTH = 11, 4

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "GradientDescent": lambda: v1.train.GradientDescentOptimizer(0.5),
    "Momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "Nesterov": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Adagrad": lambda: v1.train.AdagradOptimizer(0.5),
    "Adam": lambda: v1.train.AdamOptimizer(0.05),
    "RMSProp": lambda: v1.train.RMSPropOptimizer(0.05),
    "CenteredRMSProp": lambda: v1.train.RMSPropOptimizer(0.05, momentum=0.5, centered=True),
    "Ftrl": lambda: v1.train.FtrlOptimizer(0.5, l1_regularization_strength=0.001),
    "ProximalAdagrad": lambda: v1.train.ProximalAdagradOptimizer(0.5, l1_regularization_strength=0.001),
    "Adadelta": lambda: v1.train.AdadeltaOptimizer(0.5),
    "RowWiseAdagrad": lambda: optimizers.RowWiseAdagradOptimizer(0.5),
    "LazyAdam": lambda: optimizers.LazyAdamOptimizer(0.05),
    "AdmittedFtrl": lambda: optimizers.AdmittedFtrlOptimizer(0.5, l1=0.001, l2=0.01, admit_after=2),
    "AdmittedFtrl by odds": lambda: optimizers.AdmittedFtrlOptimizer(0.5, l1=0.001, admit_probability=0.4),
}


def ids(rows: int, name: str = "ids", dtype: Any = tf.int64, columns: int | None = None) -> Any:
    """A batch of ids, `[rows]` or `[rows, columns]`."""
    return v1.placeholder(dtype, [rows] if columns is None else [rows, columns], name=name)


def table(name: str = "emb", shape: tuple[int, ...] = (ROWS, WIDTH), **options: Any) -> Any:
    return v1.get_variable(name, list(shape), **options)


def dense(x: Any, name: str = "w") -> Any:
    """One output of each row: a dense variable."""
    return tf.linalg.matmul(x, v1.get_variable(name, [x.shape[-1], 1]))


def squared(output: Any, rows: int) -> Any:
    """The mean squared distance to the fed targets `y`."""
    y = v1.placeholder(tf.float32, [rows, 1], name="y")
    return tf.reduce_mean(tf.square(output - y), name="loss")


def two_lookups(rows: int, optimizer: str, clip: bool) -> None:
    """Two lookups of one table, a bias by row, a dense weight; every optimizer; with or without the global norm."""
    emb, bias, x = table(), table("bias", (ROWS,)), ids(rows)
    h, again = tf.nn.embedding_lookup(emb, x), tf.nn.embedding_lookup(emb, (x * 3) % ROWS)
    w = v1.get_variable("w", [WIDTH, 1])
    loss = squared(h @ w + tf.square(again) @ w + tf.expand_dims(tf.gather(bias, x), 1), rows)
    made = OPTIMIZERS[optimizer]()
    pairs = made.compute_gradients(loss)
    if clip:
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.5)
        pairs = list(zip(clipped, [v for _, v in pairs], strict=True))
    made.apply_gradients(pairs, global_step=v1.train.get_or_create_global_step())


def moving_averages(rows: int) -> Any:
    """Moving averages over a table and a dense weight, updated after the step."""
    loss = squared(dense(tf.nn.embedding_lookup(table(), ids(rows))), rows)
    train = v1.train.AdamOptimizer(0.05).minimize(loss)
    average = v1.train.ExponentialMovingAverage(0.9)
    with v1.control_dependencies([train]):
        return average.apply(v1.trainable_variables())


def read_of_the_average(rows: int) -> Any:
    """A lookup in the moving average of a table, during training."""
    emb, x = table(), ids(rows)
    loss = squared(dense(tf.nn.embedding_lookup(emb, x)), rows)
    train = v1.train.AdagradOptimizer(0.5).minimize(loss)
    average = v1.train.ExponentialMovingAverage(0.9)
    with v1.control_dependencies([train]):
        update = average.apply([emb])
    tf.identity(tf.nn.embedding_lookup(average.average(emb), x), name="averaged")
    return update


def multi_hot(rows: int, safe: bool, combiner: str, clip: bool = False) -> None:
    """embedding_lookup_sparse over bags of ids, some rows empty in the safe form; it merges ids before it gathers."""
    found = tf.sparse.from_dense(ids(rows, columns=3))
    emb = table()
    if safe:
        h = v1.nn.safe_embedding_lookup_sparse(emb, found, combiner=combiner)
    else:
        h = v1.nn.embedding_lookup_sparse(emb, found, None, combiner=combiner)
    made = v1.train.AdagradOptimizer(0.5)
    gradients, variables = zip(
        *made.compute_gradients(squared(dense(tf.ensure_shape(h, [rows, WIDTH])), rows)), strict=True
    )
    clipped = tf.clip_by_global_norm(gradients, 0.1)[0] if clip else gradients
    made.apply_gradients(zip(clipped, variables, strict=True))


def positions(rows: int, mixed: bool) -> None:
    """Rows looked up by position, the same for every batch, added to each row's own; clipped by the global norm."""
    emb, x = table(), tf.reshape(ids(rows), [rows // 2, 2])
    h = tf.nn.embedding_lookup(emb, x)
    place = tf.nn.embedding_lookup(emb if mixed else table("place", (2, WIDTH)), tf.range(2))
    made = v1.train.AdamOptimizer(0.05)
    loss = squared(dense(tf.reshape(tf.tanh(h + place), [rows, WIDTH])), rows)
    gradients, variables = zip(*made.compute_gradients(loss), strict=True)
    made.apply_gradients(zip(tf.clip_by_global_norm(gradients, 0.1)[0], variables, strict=True))


def clipped(loss: Any, optimizer: Any = None, norm: float = 0.1) -> Any:
    """A train op that clips by the global norm, which sees every single row."""
    made = optimizer or v1.train.AdagradOptimizer(0.5)
    gradients, variables = zip(*made.compute_gradients(loss), strict=True)
    return made.apply_gradients(zip(tf.clip_by_global_norm(gradients, norm)[0], variables, strict=True))


def tokens_in_front(rows: int, time_major: bool) -> Any:
    """A constant token in front of every example's ids, as the input of a decoder has it; the batch is fixed."""
    emb, x = table(), ids(rows, columns=3)
    if time_major:
        steps = tf.concat([tf.fill([1, rows], tf.constant(2, tf.int64)), tf.transpose(x)], 0)
        h = tf.transpose(tf.nn.embedding_lookup(emb, steps), [1, 0, 2])
    else:
        h = tf.nn.embedding_lookup(emb, tf.concat([tf.fill([rows, 1], tf.constant(2, tf.int64)), x], 1))
    return clipped(squared(dense(tf.reshape(tf.tanh(h), [rows, -1])), rows))


def tokens_apart(rows: int) -> Any:
    """The constant token is looked up by itself, and its row put before those of each example."""
    emb, x = table(), ids(rows, columns=3)
    first = tf.nn.embedding_lookup(emb, tf.fill([rows], 2))
    h = tf.concat([tf.expand_dims(first, 1), tf.nn.embedding_lookup(emb, x)], 1)
    return clipped(squared(dense(tf.reshape(tf.tanh(h), [rows, -1])), rows))


def tiled_positions(rows: int, mixed: bool) -> Any:
    """Positions tiled over the batch before they are looked up: each example has its own rows."""
    emb, x = table(), ids(rows, columns=3)
    place = tf.nn.embedding_lookup(emb if mixed else table("place", (5, WIDTH)), tf.tile([[0, 1, 2]], [rows, 1]))
    return clipped(squared(dense(tf.reshape(tf.tanh(tf.nn.embedding_lookup(emb, x) + place), [rows, -1])), rows))


def places_of_rows(rows: int) -> Any:
    """Positions looked up once and tiled afterwards, in a batch as long as there are positions."""
    emb, x = table(), tf.concat([ids(rows, columns=3)] * 2, 1)
    place = tf.tile(tf.expand_dims(tf.nn.embedding_lookup(table("place", (6, WIDTH)), tf.range(6)), 0), [rows, 1, 1])
    return clipped(squared(dense(tf.reshape(tf.tanh(tf.nn.embedding_lookup(emb, x) + place), [rows, -1])), rows))


def merged_ids(rows: int, change: Callable[[Any], Any]) -> Any:
    """Ids made unique and changed before the lookup, and rows given back to the examples; clipped."""
    emb, x = table(), ids(rows)
    seen, place = tf.unique(tf.concat([tf.constant([0], tf.int64), x], 0))  # the id of padding comes first
    chosen = change(seen)
    rows_of = tf.nn.embedding_lookup(emb, chosen)
    missing = tf.zeros([tf.size(seen) - tf.size(chosen), WIDTH])
    if chosen is not seen and chosen.shape.rank == 1:
        rows_of = tf.concat([missing, rows_of], 0)
    h = tf.gather(rows_of, place[1:])
    return clipped(squared(dense(tf.reshape(h, [rows, WIDTH])), rows))


def sorted_ids(rows: int, by_place: bool) -> Any:
    """Ids made unique and sorted; each example finds its row by search."""
    emb, x = table(), ids(rows)
    seen = tf.unique(x)[0]
    ordered = tf.gather(seen, tf.argsort(seen)) if by_place else tf.sort(seen)
    h = tf.gather(tf.nn.embedding_lookup(emb, ordered), tf.searchsorted(ordered, x))
    return clipped(squared(dense(tf.reshape(h, [rows, WIDTH])), rows))


def masked(rows: int, kind: str) -> Any:
    """A mean over what is not masked; the workers have unequal parts of it."""
    emb, x = table(), ids(rows)
    losses = tf.square(dense(tf.nn.embedding_lookup(emb, x)) - v1.placeholder(tf.float32, [rows, 1], name="y"))[:, 0]
    kept = x > 3
    mask = tf.cast(kept, tf.float32)
    loss = {
        "divided": lambda: tf.reduce_sum(losses * mask) / tf.maximum(tf.reduce_sum(mask), 1.0),
        "chosen": lambda: tf.reduce_mean(tf.boolean_mask(losses, kept)),
        "weighed": lambda: v1.losses.compute_weighted_loss(losses, mask),
        "mean by mean": lambda: tf.reduce_mean(losses * mask) / (tf.reduce_mean(mask) + 0.01),
        "with another": lambda: (
            tf.math.divide_no_nan(tf.reduce_sum(losses * mask), tf.reduce_sum(mask)) + 0.3 * tf.reduce_mean(losses)
        ),
    }[kind]()
    return clipped(loss)


def bags_and_rows(rows: int) -> None:
    """Rows of a bag and rows of ids on one table, clipped by the global norm."""
    emb, x = table(), ids(rows, columns=3)
    bags = v1.nn.embedding_lookup_sparse(emb, tf.sparse.from_dense(x), None, combiner="mean")
    h = tf.ensure_shape(bags, [rows, WIDTH]) + tf.nn.embedding_lookup(emb, x[:, 1])
    made = v1.train.AdagradOptimizer(0.5)
    gradients, variables = zip(*made.compute_gradients(squared(dense(h), rows)), strict=True)
    made.apply_gradients(zip(tf.clip_by_global_norm(gradients, 0.1)[0], variables, strict=True))


def sampled(rows: int, loss: Callable[..., Any]) -> None:
    """Candidate sampling with weights and biases by row, and an embedding on the input side."""
    h = tf.nn.embedding_lookup(table(), ids(rows))
    w, b = table("softmax_w"), table("softmax_b", (ROWS,))
    labels = tf.reshape(ids(rows, "labels"), [-1, 1])
    losses = loss(weights=w, biases=b, labels=labels, inputs=h, num_sampled=5, num_classes=ROWS)
    made = v1.train.AdagradOptimizer(0.3)
    gradients, variables = zip(*made.compute_gradients(tf.reduce_mean(losses)), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 0.7)
    made.apply_gradients(zip(clipped, variables, strict=True))


def partitioned(rows: int, parts: int, strategy: str) -> None:
    """One logical table in several TensorFlow variables, looked up both ways."""
    emb = table(partitioner=v1.fixed_size_partitioner(parts))
    h = v1.nn.embedding_lookup(emb, ids(rows), partition_strategy=strategy)
    v1.train.AdamOptimizer(0.05).minimize(squared(dense(tf.reshape(h, [rows, WIDTH])), rows))


def samples_in_parts(rows: int) -> None:
    """Ids of a batch of any length and equal samples, in one lookup of a partitioned table, clipped together."""
    emb = table(partitioner=v1.fixed_size_partitioner(3))
    x = v1.placeholder(tf.int64, [None], name="ids")
    both = v1.nn.embedding_lookup(emb, tf.concat([x, [1, 3, 4, 6]], 0))
    h = both[: tf.shape(x)[0]]
    near = tf.reduce_mean(tf.square(tf.linalg.matmul(h, both[tf.shape(x)[0] :], transpose_b=True)))
    optimizer = v1.train.AdagradOptimizer(0.3)
    gradients, variables = zip(*optimizer.compute_gradients(squared(dense(h), rows) + near), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
    optimizer.apply_gradients(zip(clipped, variables, strict=True))


def inside_a_function(rows: int) -> None:
    """The lookup is in a tf.function, its gradient in another function."""
    emb = table()

    @tf.function
    def look_up(x: Any) -> Any:
        return tf.nn.embedding_lookup(emb, x) * 2.0

    v1.train.AdagradOptimizer(0.5).minimize(squared(dense(look_up(ids(rows))), rows))


def function_clipped(rows: int) -> Any:
    """The lookup is in a tf.function; all that autodiff gives outside of it is clipped by the global norm."""
    emb = table()

    @tf.function
    def look_up(x: Any) -> Any:
        return tf.nn.embedding_lookup(emb, x) * 2.0

    return clipped(squared(dense(look_up(ids(rows))), rows))


def inside_a_conditional(rows: int) -> None:
    """The lookup is in one branch of a conditional that all workers take alike."""
    emb, x = table(), ids(rows)
    step = v1.train.get_or_create_global_step()
    h = tf.cond(step % 2 < 1, lambda: tf.nn.embedding_lookup(emb, x), lambda: tf.nn.embedding_lookup(emb, x) * 0.5)
    v1.train.AdagradOptimizer(0.5).minimize(squared(dense(tf.reshape(h, [rows, WIDTH])), rows), global_step=step)


def inside_a_loop(rows: int) -> None:
    """The lookup is in the body of a loop: TensorFlow makes its gradient dense."""
    emb, x = table(), ids(rows, columns=3)

    def body(i: Any, total: Any) -> Any:
        return i + 1, total + tf.nn.embedding_lookup(emb, x[:, i])

    _, h = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.zeros([rows, WIDTH])])
    v1.train.AdagradOptimizer(0.5).minimize(squared(dense(h), rows))


def old_control_flow(rows: int) -> None:
    """Switch and Merge, Enter and Exit, on both a lookup and a dense weight."""
    v1.disable_control_flow_v2()
    try:
        inside_a_conditional(rows)
    finally:
        v1.enable_control_flow_v2()


def tape(rows: int) -> None:
    """GradientTape inside a graph, clipped by the global norm."""
    emb, x = table(), ids(rows)
    w = v1.get_variable("w", [WIDTH, 1])
    with tf.GradientTape() as record:
        loss = squared(tf.nn.embedding_lookup(emb, x) @ w, rows)
    gradients, _ = tf.clip_by_global_norm(record.gradient(loss, [emb, w]), 0.3)
    v1.train.AdagradOptimizer(0.5).apply_gradients(zip(gradients, [emb, w], strict=True))


def post_processed(rows: int, change: Callable[[Any, Any], Any]) -> None:
    """Gradients changed one by one before they are applied."""
    emb = table()
    loss = squared(dense(tf.nn.embedding_lookup(emb, ids(rows))), rows)
    made = v1.train.AdagradOptimizer(0.5)
    made.apply_gradients([(change(g, v), v) for g, v in made.compute_gradients(loss)])


def _on_values(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def change(gradient: Any, variable: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
        return function(gradient)

    return change


def _merged_first(gradient: Any, variable: Any) -> Any:
    """Merges equal rows before it clips: another number than TensorFlow's own clipping gives."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, place = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(rows))
    norm = tf.sqrt(tf.reduce_sum(tf.square(values)))
    return tf.IndexedSlices(values * tf.minimum(1.0, 0.1 / norm), rows, gradient.dense_shape)


def _decayed(gradient: Any, variable: Any) -> Any:
    """Weight decay of the touched rows only."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient + 0.1 * variable
    values = gradient.values + 0.1 * tf.gather(variable, gradient.indices)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def rows_of_some(rows: int) -> None:
    """Rows of a part of the ids alone, on each worker of another number; their gradient is divided by its mean."""
    emb, x = table(), ids(rows)
    kept = x > 3
    y = v1.placeholder(tf.float32, [rows, 1], name="y")
    wrong = dense(tf.nn.embedding_lookup(emb, tf.boolean_mask(x, kept))) - tf.boolean_mask(y, kept)
    made = v1.train.AdagradOptimizer(0.5)
    pairs = made.compute_gradients(tf.reduce_mean(tf.square(wrong)))
    by_mean = _on_values(lambda t: t / tf.reduce_mean(tf.abs(t)))
    made.apply_gradients([(by_mean(g, v) if v is emb else g, v) for g, v in pairs])


def _made_dense(gradient: Any, variable: Any) -> Any:
    return tf.convert_to_tensor(gradient)


def learning_rate(rows: int, kind: str) -> None:
    """Learning rates that change: decayed by the step, fed, or fed without a shape."""
    step = v1.train.get_or_create_global_step()
    rate = {
        "decayed": lambda: v1.train.exponential_decay(0.5, step, 2, 0.7),
        "fed": lambda: v1.placeholder(tf.float32, [], name="rate"),
        "shapeless": lambda: v1.placeholder(tf.float32, name="rate"),
    }[kind]()
    loss = squared(dense(tf.nn.embedding_lookup(table(), ids(rows))), rows)
    v1.train.AdagradOptimizer(rate).minimize(loss, global_step=step)


def alternating(rows: int, same: bool) -> list[Any]:
    """Two training ops, on the same table or on different ones."""
    first, x = table(), ids(rows)
    second = first if same else table("other")
    one = squared(dense(tf.nn.embedding_lookup(first, x), "w1"), rows)
    two = tf.reduce_mean(tf.square(dense(tf.nn.embedding_lookup(second, (x * 5) % ROWS), "w2") - 1.0))
    made = v1.train.AdagradOptimizer(0.5)
    return [made.minimize(one, var_list=[first, "w1"] if False else None), v1.train.AdamOptimizer(0.05).minimize(two)]


def chained(rows: int) -> Any:
    """The second training op waits for the first and reads what it wrote."""
    emb, x = table(), ids(rows)
    first = v1.train.AdagradOptimizer(0.5).minimize(squared(dense(tf.nn.embedding_lookup(emb, x), "w1"), rows))
    with v1.control_dependencies([first]):
        again = tf.nn.embedding_lookup(emb, tf.identity(x))
        loss = tf.reduce_mean(tf.square(dense(again, "w2") - 1.0))
        return v1.train.AdagradOptimizer(0.5, name="second").minimize(loss)


def several_tables(rows: int) -> None:
    """Three tables of one width, one of another, one of rank 3, one of float64; int32 and int64 ids."""
    x, z = ids(rows), ids(rows, "other_ids", tf.int32)
    h = tf.nn.embedding_lookup(table("a"), x) + tf.nn.embedding_lookup(table("b", (7, WIDTH)), z % 7)
    h += tf.nn.embedding_lookup(table("c", (5, WIDTH)), x % 5)
    wide = tf.nn.embedding_lookup(table("d", (9, 6)), z % 9)
    deep = tf.reshape(tf.nn.embedding_lookup(table("e", (6, 2, 3)), x % 6), [rows, 6])
    double = tf.cast(tf.nn.embedding_lookup(table("f", (8, 2), dtype=tf.float64), x % 8), tf.float32)
    both = tf.concat([h, wide * deep, double], 1)
    made = v1.train.AdamOptimizer(0.05)
    gradients, variables = zip(*made.compute_gradients(squared(dense(both), rows)), strict=True)
    made.apply_gradients(zip(gradients, variables, strict=True))


def tied(rows: int) -> None:
    """The embedding is the output projection too: gathered in one place and read whole in another."""
    emb = table()
    h = tf.tanh(tf.nn.embedding_lookup(emb, ids(rows)))
    logits = tf.matmul(h, emb, transpose_b=True)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids(rows, "labels"), logits=logits)
    v1.train.AdagradOptimizer(0.5).minimize(tf.reduce_mean(losses))


def looked_up_twice(rows: int) -> None:
    """The ids of the second lookup come from the rows of the first."""
    first, second = table(), table("other")
    h = tf.nn.embedding_lookup(first, ids(rows))
    again = tf.nn.embedding_lookup(second, tf.argmax(h, axis=1))
    v1.train.AdagradOptimizer(0.5).minimize(squared(dense(h + again), rows))


def by_hand(rows: int, slices: bool) -> Any:
    """Plain gradients and plain assigns, no optimizer."""
    emb, x = table(), ids(rows)
    w = v1.get_variable("w", [WIDTH, 1])
    g_emb, g_w = tf.gradients(squared(tf.nn.embedding_lookup(emb, x) @ w, rows), [emb, w])
    with v1.control_dependencies([g_emb.values, g_w]):  # reads of reference variables may see a write that runs before
        g_w = tf.identity(g_w)
        g_emb = tf.IndexedSlices(tf.identity(g_emb.values), tf.identity(g_emb.indices), g_emb.dense_shape)
    if slices:
        update = v1.scatter_sub(emb, g_emb.indices, 0.5 * g_emb.values)
    else:
        update = v1.assign_sub(emb, 0.5 * tf.convert_to_tensor(g_emb))
    return tf.group(update, v1.assign_sub(w, 0.5 * g_w))


def frozen_lookup(rows: int) -> None:
    """A second lookup of the table through which no gradient flows."""
    emb, x = table(), ids(rows)
    h = tf.nn.embedding_lookup(emb, x) * tf.stop_gradient(tf.nn.embedding_lookup(emb, (x * 7) % ROWS))
    v1.train.MomentumOptimizer(0.1, 0.9).minimize(squared(dense(h), rows))


def linear(rows: int) -> None:
    """The gradient does not depend on the rows: it is a constant."""
    h = tf.nn.embedding_lookup(table(), ids(rows))
    v1.train.AdagradOptimizer(0.5).minimize(tf.reduce_mean(h) + squared(dense(tf.ones([rows, WIDTH])), rows))


def two_losses(rows: int) -> None:
    """Gradients of two calls of tf.gradients, joined by the user."""
    emb, x = table(), ids(rows)
    h = tf.nn.embedding_lookup(emb, x)
    w = v1.get_variable("w", [WIDTH, 1])
    (one,) = tf.gradients(squared(h @ w, rows), [emb])
    (two,) = tf.gradients(tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, (x * 2) % ROWS))), [emb])
    joined = tf.IndexedSlices(tf.concat([one.values, two.values], 0), tf.concat([one.indices, two.indices], 0))
    v1.train.AdagradOptimizer(0.5).apply_gradients([(joined, emb)])


def whole_regulariser(rows: int) -> None:
    """A penalty on the whole table makes its gradient dense."""
    emb = table()
    loss = squared(dense(tf.nn.embedding_lookup(emb, ids(rows))), rows) + 0.01 * tf.nn.l2_loss(emb)
    v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def loss_scaling(rows: int) -> None:
    """Scaled loss, gradients scaled back, and the step skipped when a gradient is not finite."""
    emb = table()
    loss = squared(dense(tf.nn.embedding_lookup(emb, ids(rows))), rows)
    made = v1.train.AdagradOptimizer(0.5)
    pairs = [(_on_values(lambda t: t / 128.0)(g, v), v) for g, v in made.compute_gradients(loss * 128.0)]
    finite = [tf.reduce_all(tf.math.is_finite(g.values if isinstance(g, tf.IndexedSlices) else g)) for g, _ in pairs]
    factor = tf.cast(tf.reduce_all(finite), tf.float32)
    made.apply_gradients([(_on_values(lambda t: t * factor)(g, v), v) for g, v in pairs])


def max_norm(rows: int) -> None:
    """embedding_lookup with max_norm clips the rows that it gathers."""
    h = tf.nn.embedding_lookup(table(), ids(rows), max_norm=0.5)
    v1.train.AdagradOptimizer(0.5).minimize(squared(dense(h), rows))


def gathered_nd(rows: int) -> None:
    """tf.gather_nd in place of a lookup."""
    h = tf.gather_nd(table(), tf.expand_dims(ids(rows), 1))
    v1.train.AdagradOptimizer(0.5).minimize(squared(dense(h), rows))


def without_record(rows: int) -> Any:
    """The graph comes from a file: nobody recorded its gradients."""
    original = tf.Graph()
    with original.as_default():
        v1.set_random_seed(3)
        two_lookups(rows, "Adam", clip=True)
        meta = v1.train.export_meta_graph()
    v1.train.import_meta_graph(meta)
    return v1.get_default_graph().get_operation_by_name("Adam")


def _zeros_first(rng: Any, shape: tuple[int, ...]) -> Any:
    found = rng.randint(0, ROWS, size=shape)
    found[:, 0] = rng.randint(1, ROWS, size=shape[0])  # no bag is empty
    return found


FEEDS: dict[str, Callable[[Any, int], Any]] = {
    "ids": lambda rng, rows: rng.randint(0, ROWS, size=[rows]),
    "bags": lambda rng, rows: _zeros_first(rng, (rows, 3)),
    "other_ids": lambda rng, rows: rng.randint(0, ROWS, size=[rows]).astype(np.int32),
    "labels": lambda rng, rows: rng.randint(0, ROWS, size=[rows]),
    "y": lambda rng, rows: rng.randn(rows, 1).astype(np.float32),
}
"""What a placeholder of that name is fed; `rate` is the same scalar everywhere, `ids` of rank 2 are bags."""

MODELS: dict[str, Callable[[int], Any]] = {
    "moving averages": moving_averages,
    "read of the average": read_of_the_average,
    **{f"bags, {c}": lambda rows, c=c: multi_hot(rows, False, c) for c in ("sum", "mean", "sqrtn")},
    "bags, safe": lambda rows: multi_hot(rows, True, "mean"),
    "bags, clipped": lambda rows: multi_hot(rows, False, "mean", clip=True),
    "bags and rows": bags_and_rows,
    "positions": lambda rows: positions(rows, False),
    "positions, mixed": lambda rows: positions(rows, True),
    "tokens in front": lambda rows: tokens_in_front(rows, False),
    "tokens in front, time major": lambda rows: tokens_in_front(rows, True),
    "tokens apart": tokens_apart,
    "tiled positions": lambda rows: tiled_positions(rows, False),
    "tiled positions, mixed": lambda rows: tiled_positions(rows, True),
    "tiled rows of positions": places_of_rows,
    "unique, buckets": lambda rows: merged_ids(rows, lambda u: u % 4),
    "unique, shifted": lambda rows: merged_ids(rows, lambda u: u + 0),
    "unique, cut": lambda rows: merged_ids(rows, lambda u: u[1:]),
    "unique, masked": lambda rows: merged_ids(rows, lambda u: tf.boolean_mask(u, u > 0)),
    "unique, sorted": lambda rows: sorted_ids(rows, False),
    "unique, sorted by place": lambda rows: sorted_ids(rows, True),
    **{
        f"masked, {k}": lambda rows, k=k: masked(rows, k)
        for k in ("divided", "chosen", "weighed", "mean by mean", "with another")
    },
    "sampled softmax": lambda rows: sampled(rows, v1.nn.sampled_softmax_loss),
    "nce": lambda rows: sampled(rows, v1.nn.nce_loss),
    "partitioned, mod": lambda rows: partitioned(rows, 3, "mod"),
    "partitioned, div": lambda rows: partitioned(rows, 2, "div"),
    "samples in parts": samples_in_parts,
    "function": inside_a_function,
    "function, clipped": function_clipped,
    "conditional": inside_a_conditional,
    "old conditional": old_control_flow,
    "loop": inside_a_loop,
    "tape": tape,
    "clip by value": lambda rows: post_processed(rows, _on_values(lambda t: tf.clip_by_value(t, -0.01, 0.01))),
    "clip by norm": lambda rows: post_processed(rows, _on_values(lambda t: tf.clip_by_norm(t, 0.05))),
    "clip rows": lambda rows: post_processed(rows, _on_values(lambda t: tf.clip_by_norm(t, 0.02, axes=[1]))),
    "divide by mean": lambda rows: post_processed(rows, _on_values(lambda t: t / tf.reduce_mean(tf.abs(t)))),
    "divide by mean of some": rows_of_some,
    "divide by max": lambda rows: post_processed(rows, _on_values(lambda t: t / tf.reduce_max(tf.abs(t)))),
    "merged first": lambda rows: post_processed(rows, _merged_first),
    "decay": lambda rows: post_processed(rows, _decayed),
    "made dense": lambda rows: post_processed(rows, _made_dense),
    "sorted rows": lambda rows: post_processed(rows, _on_values(lambda t: t * tf.sort(tf.reshape(t, [-1]))[0])),
    **{f"rate, {k}": lambda rows, k=k: learning_rate(rows, k) for k in ("decayed", "fed", "shapeless")},
    "alternating, same": lambda rows: alternating(rows, True),
    "alternating, other": lambda rows: alternating(rows, False),
    "chained": chained,
    "several tables": several_tables,
    "tied": tied,
    "looked up twice": looked_up_twice,
    "by hand, slices": lambda rows: by_hand(rows, True),
    "by hand, dense": lambda rows: by_hand(rows, False),
    "frozen lookup": frozen_lookup,
    "linear": linear,
    "two losses": two_losses,
    "whole regulariser": whole_regulariser,
    "loss scaling": loss_scaling,
    "max norm": max_norm,
    "gather_nd": gathered_nd,
    "without record": without_record,
}
