"""Programs as people write them, in small: whole networks with the optimizers and loops that users wrote themselves.

As in models.py, a model is built for a batch of `rows` rows in the default graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tests.equality.models import ROWS, WIDTH, ids, table

v1 = tf.compat.v1
STEPS = 3
"""Positions of a sequence."""
EPSILON = 1e-3
"""Added to square roots of second moments: large, so that what is noise stays as small as it is."""


def _weight(name: str, *shape: int, value: float | None = None) -> Any:
    initializer = v1.glorot_uniform_initializer(seed=len(name)) if value is None else v1.constant_initializer(value)
    return v1.get_variable(name, list(shape), initializer=initializer)


def _zeros(name: str, shape: Sequence[int], dtype: Any = tf.float32) -> Any:
    return v1.get_variable(name, shape, dtype, initializer=v1.zeros_initializer(), trainable=False)


def _dense(x: Any, size: int, name: str) -> Any:
    kernel, bias = _weight(f"{name}/kernel", x.shape[-1], size), _weight(f"{name}/bias", size, value=0.1)
    return (tf.matmul(x, kernel) if len(x.shape) == 2 else tf.tensordot(x, kernel, 1)) + bias


def _lengths(rows: int) -> Any:
    """How many of STEPS positions an example has."""
    return 1 + v1.placeholder(tf.int32, [rows], name="other_ids") % STEPS


def _labels(rows: int, classes: int) -> Any:
    return v1.placeholder(tf.int64, [rows], name="labels") % classes


def _targets(rows: int) -> Any:
    return v1.placeholder(tf.float32, [rows, 1], name="y")[:, 0]


def _features(rows: int) -> Any:
    """Features `[rows, WIDTH]` that nothing trains."""
    x = tf.cast(ids(rows), tf.float32)
    return tf.stack([tf.sin(x * (1.0 + place)) for place in range(WIDTH)], 1)


def _cross_entropy(labels: Any, logits: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _op(tensor: Any) -> Any:
    return tensor if isinstance(tensor, tf.Operation) else tensor.op


def _normalised(x: Any, name: str) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    scaled = (x - mean) * tf.math.rsqrt(variance + EPSILON)
    return scaled * _weight(f"{name}/gamma", WIDTH, value=1.0) + _weight(f"{name}/beta", WIDTH, value=0.0)


def _attention(x: Any, mask: Any, rows: int) -> Any:
    """Two heads, masked; a key has no bias, as its gradient would be nothing but noise."""
    q, v = _dense(x, WIDTH, "query"), _dense(x, WIDTH, "value")
    k = tf.tensordot(x, _weight("key/kernel", WIDTH, WIDTH), 1)
    q, k, v = (tf.transpose(tf.reshape(t, [rows, STEPS, 2, WIDTH // 2]), [0, 2, 1, 3]) for t in (q, k, v))
    scores = tf.matmul(q, k, transpose_b=True) / 2.0**0.5 - 1e9 * (1.0 - mask[:, None, None, :])
    mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), [0, 2, 1, 3])
    return _normalised(x + _dense(tf.reshape(mixed, [rows, STEPS, WIDTH]), WIDTH, "out"), "norm")


def _adam_with_decay(pairs: Sequence[tuple[Any, Any]], rate: Any, step: Any) -> Any:
    """Adam, and a decay of all weights but biases and those of norms; counts the step."""
    time = tf.cast(step.read_value(), tf.float32) + 1.0
    corrected = rate * tf.sqrt(1.0 - 0.999**time) / (1.0 - 0.9**time)
    writes = []
    for gradient, variable in pairs:
        name, g = variable.op.name, tf.convert_to_tensor(gradient)
        m, v = _zeros(f"{name}/m", variable.shape), _zeros(f"{name}/v", variable.shape)
        next_m, next_v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * tf.square(g)
        update = corrected * next_m / (tf.sqrt(next_v) + EPSILON)
        if not name.endswith(("bias", "gamma", "beta")):
            update += rate * 0.1 * variable
        writes += [v1.assign_sub(variable, update), v1.assign(m, next_m), v1.assign(v, next_v)]
    with v1.control_dependencies(writes):
        return tf.group(v1.assign_add(step, 1))


def attention(rows: int) -> Any:
    """An encoder with masked attention; clipped gradients are kept in the user's variables for every second batch."""
    x, mask = ids(rows, columns=STEPS), tf.sequence_mask(_lengths(rows), STEPS, tf.float32)
    emb, places = table(), table("places", (5, WIDTH))
    h = tf.nn.embedding_lookup(emb, x) * WIDTH**0.5 + tf.slice(places, [0, 0], [STEPS, -1])
    h = _attention(h, mask, rows)
    pooled = tf.reduce_sum(h * mask[:, :, None], 1) / tf.reduce_sum(mask, 1, keepdims=True)
    loss = tf.reduce_mean(_cross_entropy(_labels(rows, 3), _dense(pooled, 3, "head")))
    step, batches = v1.train.get_or_create_global_step(), _zeros("batches", [], tf.int64)
    rate = 0.02 * tf.minimum(1.0, tf.cast(step + 1, tf.float32) / 2.0)
    trained = v1.trainable_variables()
    kept = [_zeros(f"kept/{v.op.name}", v.shape) for v in trained]
    gradients = tf.gradients(loss, trained)
    adds = [
        v1.scatter_add(k, g.indices, g.values) if isinstance(g, tf.IndexedSlices) else v1.assign_add(k, g)
        for k, g in zip(kept, gradients, strict=True)
    ]
    with v1.control_dependencies([tf.convert_to_tensor(a) for a in adds]):
        counted = tf.convert_to_tensor(v1.assign_add(batches, 1))

    def update() -> Any:
        whole, _ = tf.clip_by_global_norm([k.read_value() / 2.0 for k in kept], 0.5)
        with v1.control_dependencies([_adam_with_decay(list(zip(whole, trained, strict=True)), rate, step)]):
            return tf.group(*(v1.assign(k, tf.zeros_like(k)) for k in kept))

    return _op(tf.cond(tf.equal(counted % 2, 0), update, tf.no_op))


def recommender(rows: int) -> Any:
    """Attention over what a user has looked at, masked; three tables; what a metric counts during training."""
    past, item = ids(rows, columns=STEPS), _labels(rows, ROWS)
    lengths = _lengths(rows)
    mask = tf.sequence_mask(lengths, STEPS, tf.float32)
    items, kinds, users = table("items"), table("kinds", (4, WIDTH)), table("users", (STEPS + 1, WIDTH))

    def rows_of(of: Any) -> Any:
        return tf.concat([tf.nn.embedding_lookup(items, of), tf.nn.embedding_lookup(kinds, of % 4)], -1)

    asked, seen = rows_of(item), rows_of(past)
    spread = tf.tile(asked[:, None, :], [1, STEPS, 1])
    scores = _dense(tf.sigmoid(_dense(tf.concat([spread, seen, spread - seen, spread * seen], -1), 3, "one")), 1, "two")
    weights = tf.nn.softmax(tf.where(mask > 0, scores[:, :, 0], tf.fill(tf.shape(mask), -(2.0**31))))
    wanted = tf.reduce_sum(weights[:, :, None] * seen, 1)
    mean = tf.reduce_sum(seen * mask[:, :, None], 1) / tf.reduce_sum(mask, 1, keepdims=True)
    joined = tf.concat([tf.nn.embedding_lookup(users, lengths), asked, wanted, mean * asked], 1)
    hidden = _dense(joined, 5, "three")
    hidden = tf.maximum(0.0, hidden) + _weight("slope", 5, value=0.2) * tf.minimum(0.0, hidden)
    logits = _dense(hidden, 2, "four")
    chosen = tf.cast(_targets(rows) > 0, tf.int64)
    loss = tf.reduce_mean(_cross_entropy(chosen, logits))
    _, auc = v1.metrics.auc(chosen, tf.nn.softmax(logits)[:, 1], num_thresholds=5)
    made = v1.train.AdagradOptimizer(0.1)
    gradients, variables = zip(*made.compute_gradients(loss), strict=True)
    train = made.apply_gradients(zip(tf.clip_by_global_norm(gradients, 0.3)[0], variables, strict=True))
    return tf.group(train, auc)


def factorization(rows: int) -> Any:
    """One table for all fields: first and second order and a deep part; Ftrl on the first, Adagrad on the rest."""
    x = ids(rows, columns=3) % 3 + tf.constant([0, 3, 6], tf.int64)
    values = tf.abs(_targets(rows))[:, None] * tf.constant([[1.0, 0.5, 0.25]])
    with v1.variable_scope("linear"):
        first, bias = table("first", (9, 1)), _weight("bias", value=0.0)
    with v1.variable_scope("deep"):
        second = table("second", (9, WIDTH))
        looked_up = tf.nn.embedding_lookup(second, x)
        weighed = looked_up * values[:, :, None]
        deep = _dense(tf.nn.relu(_dense(tf.reshape(weighed, [rows, -1]), 4, "one")), 1, "two")[:, 0]
    linear = tf.reduce_sum(tf.nn.embedding_lookup(first, x)[:, :, 0] * values, 1) + bias
    pairs = 0.5 * tf.reduce_sum(tf.square(tf.reduce_sum(weighed, 1)) - tf.reduce_sum(tf.square(weighed), 1), 1)
    clicked = tf.cast(_labels(rows, 2), tf.float32)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicked, logits=linear + pairs + deep))
    loss += 0.01 * tf.reduce_mean(tf.reduce_sum(tf.square(looked_up), [1, 2]))
    one, other = v1.train.FtrlOptimizer(0.2, l1_regularization_strength=0.001), v1.train.AdagradOptimizer(0.1)
    of_linear, of_deep = (v1.trainable_variables(scope) for scope in ("linear", "deep"))
    return tf.group(one.minimize(loss, var_list=of_linear), other.minimize(loss, var_list=of_deep))


def translation(rows: int) -> Any:
    """A recurrent encoder with lengths, a decoder behind a first token, weights of targets, a clip, a decaying rate."""
    source, lengths = ids(rows, columns=STEPS), _lengths(rows)
    target = (source * 2 + 1) % ROWS
    emb_in, emb_out = table("source"), table("target")
    given = tf.concat([tf.fill([rows, 1], tf.constant(1, tf.int64)), target[:, :-1]], 1)
    w_in, w_out = (_weight(f"{side}/cell", 2 * WIDTH, WIDTH) for side in ("in", "out"))

    def cell(weight: Any, state: Any, x: Any) -> Any:
        return tf.tanh(tf.concat([state, x], 1) @ weight)

    inputs = tf.transpose(tf.nn.embedding_lookup(emb_in, source), [1, 0, 2])

    def step_of(time: Any, state: Any) -> Any:
        return time + 1, tf.where((time < lengths)[:, None], cell(w_in, state, inputs[time]), state)

    _, state = tf.while_loop(lambda time, _: time < STEPS, step_of, [0, tf.zeros([rows, WIDTH])])
    outputs = []
    for x in tf.unstack(tf.nn.embedding_lookup(emb_out, given), axis=1):
        state = cell(w_out, state, x)
        outputs.append(state)
    losses = _cross_entropy(target, tf.stack(outputs, 1) @ _weight("projection", WIDTH, ROWS))
    weights = tf.sequence_mask(lengths, STEPS, tf.float32)
    loss = tf.reduce_sum(losses * weights) / (tf.reduce_sum(weights) + 1e-12)
    step, trained = v1.train.get_or_create_global_step(), v1.trainable_variables()
    rate = tf.cond(step < 2, lambda: 0.5, lambda: v1.train.exponential_decay(0.5, step - 2, 2, 0.5, staircase=True))
    clipped, norm = tf.clip_by_global_norm(tf.gradients(loss, trained), 0.3)
    v1.summary.scalar("norm", norm)
    v1.summary.scalar("norm_after", tf.linalg.global_norm(clipped))
    made = v1.train.GradientDescentOptimizer(rate)
    return made.apply_gradients(list(zip(clipped, trained, strict=True)), global_step=step)


def adversaries_clipped(rows: int) -> Any:
    """A critic whose weights are cut after each of its steps, and a maker; their ops take turns."""
    real = _features(rows)
    noise = tf.cos(real[:, :2] * 5.0)
    with v1.variable_scope("maker"):
        made = _dense(tf.nn.leaky_relu(_dense(noise, 4, "one")), WIDTH, "two")

    def critic(of: Any) -> Any:
        with v1.variable_scope("critic", reuse=v1.AUTO_REUSE):
            return tf.reduce_mean(tf.math.softplus(_dense(tf.tanh(_dense(of, 4, "one")), 1, "two")))

    loss = critic(made) - critic(real)
    makers, critics = (v1.trainable_variables(scope) for scope in ("maker", "critic"))
    optimizers = [v1.train.RMSPropOptimizer(0.02, epsilon=EPSILON) for _ in range(2)]
    step = optimizers[0].minimize(loss, var_list=critics)
    with v1.control_dependencies([step]):
        cut = [v1.assign(v, tf.clip_by_value(v.read_value(), -0.3, 0.3)) for v in critics]
    return [tf.group(*cut), optimizers[1].minimize(-critic(made), var_list=makers)]


def word_vectors(rows: int) -> Any:
    """Sampled pairs by hand, with a decaying rate; which words are near is computed during training."""
    emb, out, bias = table(), table("out"), table("bias", (ROWS,))
    x, near = ids(rows), _labels(rows, ROWS)
    h, others = tf.nn.embedding_lookup(emb, x), tf.constant([1, 4, 9], tf.int64)
    right = tf.reduce_sum(h * tf.nn.embedding_lookup(out, near), 1) + tf.nn.embedding_lookup(bias, near)
    wrong = tf.matmul(h, tf.nn.embedding_lookup(out, others), transpose_b=True) + tf.nn.embedding_lookup(bias, others)
    losses = tf.nn.softplus(-right) + tf.reduce_sum(tf.nn.softplus(wrong), 1)
    step = v1.train.get_or_create_global_step()
    made = v1.train.AdagradOptimizer(v1.train.exponential_decay(0.5, step, 2, 0.9))
    gradients, variables = zip(*made.compute_gradients(tf.reduce_mean(losses)), strict=True)
    unit = emb / tf.sqrt(tf.reduce_sum(tf.square(emb), 1, keepdims=True))
    tf.matmul(tf.nn.embedding_lookup(unit, tf.constant([1, 2])), unit, transpose_b=True, name="similarity")
    clipped, _ = tf.clip_by_global_norm(gradients, 0.3)
    return made.apply_gradients(zip(clipped, variables, strict=True), global_step=step)


def pictures(rows: int) -> Any:
    """A convolution, momentum with a rate by steps, the squares of all weights, an accuracy during training."""
    x = tf.reshape(tf.tile(_features(rows), [1, WIDTH]), [rows, WIDTH, WIDTH, 1])
    h = tf.nn.relu(tf.nn.conv2d(x, _weight("filters", 3, 3, 1, 3), 1, "SAME"))
    h = tf.reduce_mean(tf.nn.max_pool2d(h, 2, 2, "SAME"), [1, 2])
    labels, logits = _labels(rows, 3), _dense(h, 3, "head")
    trained = v1.trainable_variables()
    loss = tf.reduce_mean(_cross_entropy(labels, logits)) + 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in trained])
    step = v1.train.get_or_create_global_step()
    rate = v1.train.piecewise_constant(step, [1, 3], [0.3, 0.1, 0.03])
    accuracy = tf.reduce_mean(tf.cast(tf.nn.in_top_k(targets=labels, predictions=logits, k=2), tf.float32))
    return tf.group(v1.train.MomentumOptimizer(rate, 0.9).minimize(loss, global_step=step), accuracy)


def target_network(rows: int) -> Any:
    """Values of actions are learnt from a copy of the network that follows slowly; each gradient is clipped."""
    x, done = _features(rows), _labels(rows, 3)

    def values(name: str, of: Any) -> Any:
        with v1.variable_scope(name, reuse=v1.AUTO_REUSE):
            return _dense(tf.tanh(_dense(of, 4, "one")), 3, "two")

    later = tf.reverse(x, [1])
    best = tf.one_hot(tf.argmax(values("online", later), 1), 3)
    aim = _targets(rows) + 0.9 * tf.reduce_sum(values("target", later) * best, 1)
    error = tf.reduce_sum(values("online", x) * tf.one_hot(done, 3), 1) - tf.stop_gradient(aim)
    loss = tf.reduce_mean(tf.where(tf.abs(error) < 1.0, 0.5 * tf.square(error), tf.abs(error) - 0.5))
    online, target = (v1.trainable_variables(scope) for scope in ("online", "target"))
    made = v1.train.AdamOptimizer(0.02, epsilon=EPSILON)
    pairs = [(tf.clip_by_norm(g, 0.5), v) for g, v in made.compute_gradients(loss, online)]
    with v1.control_dependencies([made.apply_gradients(pairs)]):
        moved = [v1.assign(b, 0.1 * a.read_value() + 0.9 * b.read_value()) for a, b in zip(online, target, strict=True)]
    return tf.group(*moved)


def two_domains(rows: int) -> Any:
    """One loss on the examples that a mask chooses, behind layers of their own; others by weighed losses."""
    h = tf.tanh(_dense(tf.reduce_mean(tf.nn.embedding_lookup(table(), ids(rows, columns=STEPS)), 1), WIDTH, "both"))
    y = _targets(rows)
    is_first = y > 0.3

    @tf.custom_gradient
    def reversed_gradient(x: Any) -> Any:
        return tf.identity(x), lambda dy: -0.5 * dy

    labels = _labels(rows, 3)
    chosen = _dense(tf.tanh(_dense(tf.boolean_mask(h, is_first), 4, "one")), 3, "two")
    loss = tf.reduce_mean(_cross_entropy(tf.boolean_mask(labels, is_first), chosen))
    told = _dense(reversed_gradient(h), 1, "domain")[:, 0]
    weights = tf.cast(labels > 0, tf.float32)
    loss += v1.losses.log_loss(tf.cast(is_first, tf.float32), tf.sigmoid(told), weights=weights)
    loss += v1.losses.mean_squared_error(y, told)
    return v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def sharpness_aware(rows: int) -> Any:
    """Weights go up the gradient, another gradient is taken there, and they come back before the update."""
    x, y = _features(rows), _targets(rows)
    weights = [_weight("one", WIDTH, 4), _weight("two", 4, 1)]

    def loss(one: Any, two: Any) -> Any:
        return tf.reduce_mean(tf.square((tf.tanh(x @ one) @ two)[:, 0] - y))

    first = tf.gradients(loss(*weights), weights)
    norm = tf.linalg.global_norm(first)
    steps = [0.1 * g / norm for g in first]
    with v1.control_dependencies([v1.assign_add(v, d) for v, d in zip(weights, steps, strict=True)]):
        moved = [v.read_value() for v in weights]
        second = tf.gradients(loss(*moved), moved)
    with v1.control_dependencies(second):
        back = [v1.assign_sub(v, d) for v, d in zip(weights, steps, strict=True)]
    with v1.control_dependencies(back):
        return v1.train.GradientDescentOptimizer(0.2).apply_gradients(list(zip(second, weights, strict=True)))


def two_tasks(rows: int) -> Any:
    """A gradient of one task is freed of what conflicts with the other's; layers' steps are scaled by their norms."""
    h = tf.tanh(_features(rows) @ _weight("shared", WIDTH, 4))
    own = [_weight("one", 4, 1), _weight("two", 4, 3)]
    (shared,) = v1.trainable_variables("shared")
    losses = [
        tf.reduce_mean(tf.square((h @ own[0])[:, 0] - _targets(rows))),
        tf.reduce_mean(_cross_entropy(_labels(rows, 3), h @ own[1])),
    ]
    (one,), (two,) = (tf.gradients(loss, [shared]) for loss in losses)
    conflict = tf.minimum(tf.reduce_sum(one * two), 0.0) / tf.reduce_sum(tf.square(two))
    pairs = [(one - conflict * two + two, shared), *zip(tf.gradients(tf.add_n(losses), own), own, strict=True)]
    ratios = [tf.norm(v) / (tf.norm(g) + EPSILON) for g, v in pairs]
    return tf.group(*(v1.assign_sub(v, 0.02 * r * g) for r, (g, v) in zip(ratios, pairs, strict=True)))


MODELS: dict[str, Callable[[int], Any]] = {
    "attention": attention,
    "recommender": recommender,
    "factorization": factorization,
    "translation": translation,
    "adversaries, clipped": adversaries_clipped,
    "word vectors": word_vectors,
    "pictures": pictures,
    "target network": target_network,
    "two domains": two_domains,
    "sharpness-aware": sharpness_aware,
    "two tasks": two_tasks,
}
KEEP_THEIRS = ("attention", "sharpness-aware")
"""The models that keep gradients over several batches, or take one gradient after another's update."""
