"""Graphs for a fixed batch whose layers are as wide, or sequences as long, as the batch: N workers are one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.reading.construction import record
from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1, F, ROWS = tf.compat.v1, tf.float32, 6
record.install()


class _Cell:
    """Each state is computed from the sum of what the weights make of the input and of the previous state."""

    state_size = output_size = ROWS

    def __init__(self, w: Any) -> None:
        self._w = w

    def zero_state(self, batch: Any, dtype: Any) -> Any:
        return tf.zeros([batch, ROWS], dtype)

    def get_initial_state(self, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> Any:
        return self.zero_state(batch_size, dtype)

    def __call__(self, x: Any, state: Any, scope: Any = None) -> Any:
        state = tf.tanh(tf.concat([x, state], 1) @ self._w)
        return state, state


def _run_gates(n: Any, e: Any, w: Any) -> Any:
    def turn(t: Any, c: Any, h: Any) -> Any:
        i, f = tf.split(tf.concat([e[:, t], h], 1) @ tf.concat([w, w * 0.5], 1), 2, 1)
        c = c * tf.sigmoid(f) + tf.tanh(i)
        return t + 1, c, tf.tanh(c)

    return tf.while_loop(lambda t, *_: t < 4, turn, [0, tf.zeros([n, ROWS]), tf.zeros([n, ROWS])])[2]


def _run_on_its_own(n: Any, e: Any, w: Any) -> Any:
    cell, state = _Cell(w), tf.zeros([n, ROWS])
    for t in range(4):
        _, state = cell(e[:, t], state)
    return state


def _store_states(n: Any, e: Any, w: Any) -> Any:
    array = tf.TensorArray(F, 4, element_shape=[None if isinstance(n, tf.Tensor) else n, ROWS])
    start = [0, tf.zeros([n, ROWS]), array]
    turns = lambda t, *_: t < 4, lambda t, s, a: (t + 1, _Cell(w)(e[:, t], s)[0], a.write(t, s))
    return tf.reduce_sum(tf.while_loop(*turns, start)[2].stack(), 0)


def _store_in_turn(n: Any, e: Any, w: Any) -> Any:
    """The last tensor is what tells the length of the first: zeros, which nothing else reads."""
    array = tf.TensorArray(F, 2, element_shape=[e.shape[0], ROWS]).write(0, tf.zeros([n, ROWS])).write(1, e[:, 0])
    return tf.reduce_sum(array.stack(), 0)


def _attend(n: Any, e: Any, w: Any) -> Any:
    outputs, last = v1.nn.dynamic_rnn(_Cell(w), e, dtype=F)
    weights = tf.nn.softmax(tf.squeeze(outputs @ last[:, :, None], 2))
    return tf.squeeze(weights[:, None] @ outputs, 1)


def _turn(state: Any, e: Any, w: Any) -> Any:
    return tf.tanh(e[:, 0] + tf.matmul(state, w, transpose_b=True) @ w)


FEATURES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a state": lambda n, e, w: v1.nn.dynamic_rnn(_Cell(w), e, initial_state=tf.zeros([n, ROWS]))[1],
    "outputs": lambda n, e, w: tf.reduce_mean(v1.nn.dynamic_rnn(_Cell(w), e, dtype=F)[0], 1),
    "outputs by row": lambda n, e, w: tf.reduce_sum(
        tf.reshape(tf.reshape(v1.nn.dynamic_rnn(_Cell(w), e, dtype=F)[0], [-1, ROWS]) @ w[:ROWS], [-1, 4, ROWS]), 1
    ),
    "gates": _run_gates,
    "an unrolled loop": _run_on_its_own,
    "an array of states": _store_states,
    "an array without a loop": _store_in_turn,
    "attention": _attend,
    "a scan": lambda n, e, w: tf.scan(
        lambda s, x: tf.tanh(s @ w[:ROWS] + x), tf.transpose(e, [1, 0, 2]), initializer=tf.zeros([n, ROWS])
    )[-1],
    "a state that may be fed": lambda n, e, w: _turn(
        v1.placeholder_with_default(tf.zeros([n, ROWS]), [e.shape[0], ROWS], name="state"), e, w
    ),
    "a declared shape": lambda n, e, w: _turn(tf.ensure_shape(tf.ones([n, ROWS]), [e.shape[0], ROWS]), e, w),
    "a branch": lambda n, e, w: tf.cond(
        tf.reduce_sum(w) > 0.0, lambda: e[:, 0] @ w[ROWS:], lambda: tf.tanh(e[:, 1] @ w[:ROWS])
    ),
}


@pytest.mark.rotates
@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("feature", FEATURES)
def test_layers_as_wide_as_the_batch_is_long_keep_their_width(feature: str, control_flow_v2: bool) -> None:
    """The loss is no mean of examples, so that a batch that stays closed has another one."""

    def build(rows: int | None) -> Any:
        ids, y = v1.placeholder(tf.int32, [rows, 4], name="ids"), v1.placeholder(F, [rows], name="y")
        e = tf.nn.embedding_lookup(v1.get_variable("emb", [50, ROWS]), ids)
        w, k = v1.get_variable("w", [2 * ROWS, ROWS]), v1.get_variable("k", [ROWS, 1])
        h = FEATURES[feature](rows or tf.shape(ids)[0], e, w)
        mean = tf.reduce_mean(tf.square((h @ k)[:, 0] - y))
        return v1.train.GradientDescentOptimizer(0.3).minimize(mean + tf.sqrt(mean + 1.0))

    feeds = {"ids": lambda rng, rows: rng.randint(0, 50, [rows, 4]), "y": lambda rng, rows: rng.randn(rows)}
    for is_open in (False, True):
        found = tried(build, feeds, is_open=is_open, control_flow_v2=control_flow_v2, rows=ROWS)
        assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())


@pytest.mark.rotates
@pytest.mark.parametrize("control_flow_v2", [True, False])
def test_sequences_as_long_as_the_batch_keep_their_length(control_flow_v2: bool) -> None:
    """A language model of as many steps as examples, as of PTB with 20 of each."""

    def build(rows: int | None) -> Any:
        ids, y = (v1.placeholder(tf.int32, [rows, ROWS], name=name) for name in ("ids", "y"))
        n, e = rows or tf.shape(ids)[0], tf.nn.embedding_lookup(v1.get_variable("emb", [50, 4]), ids)
        outputs, _ = v1.nn.dynamic_rnn(_Cell(v1.get_variable("w", [4 + ROWS, ROWS])), e, dtype=F)
        logits = tf.reshape(outputs, [-1, ROWS]) @ v1.get_variable("k", [ROWS, 50])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(y, [-1]), logits=logits)
        loss = tf.reduce_sum(losses * tf.ones([n * ROWS])) / (rows or tf.cast(n, F)) / ROWS
        return v1.train.GradientDescentOptimizer(0.3).minimize(loss)

    feeds = {name: lambda rng, rows: rng.randint(0, 50, [rows, ROWS]) for name in ("ids", "y")}
    found = tried(build, feeds, is_open=False, control_flow_v2=control_flow_v2, rows=ROWS)
    assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())


def _weigh_heads(x: Any, u: Any) -> Any:
    """Attention of as many heads as examples, with a slope for each."""
    heads = tf.transpose(tf.reshape(x[:, : 4 * ROWS], [-1, 2, ROWS, 2]), [0, 2, 1, 3])
    scores = tf.matmul(heads, heads, transpose_b=True)
    slopes = tf.reshape(tf.pow(0.5, tf.cast(tf.range(ROWS), F)), [ROWS, 1, 1])
    weights = tf.nn.softmax(scores - slopes * tf.abs(tf.range(2, dtype=F)[:, None] - tf.range(2, dtype=F)))
    return tf.reduce_mean(tf.transpose(tf.matmul(weights, heads), [0, 2, 1, 3]), [1, 2])


def _mask_later_steps(x: Any, u: Any) -> Any:
    steps = tf.reshape(x, [-1, ROWS, 5])
    mask = tf.linalg.band_part(tf.ones([ROWS, ROWS]), -1, 0)
    weights = tf.nn.softmax(tf.matmul(steps, steps, transpose_b=True) - 9.0 * (1.0 - mask))
    return tf.reduce_max(tf.matmul(weights, steps), 1)


def _run(state: Any, u: Any, iterate: Callable[[Any, Any], Any], **limit: Any) -> Any:
    loop = tf.while_loop(lambda i, h: i < 2 * ROWS, lambda i, h: [i + 1, iterate(i, h)], [0, state], **limit)
    return loop[1]


COUNTS: dict[str, Callable[[Any, Any], Any]] = {
    "heads": _weigh_heads,
    "steps of a row": _mask_later_steps,
    "as many views": lambda x, u: tf.reduce_sum(
        tf.stack([x[:, :5] * i for i in range(ROWS)]) * tf.range(ROWS, dtype=F)[:, None, None], 0
    ),
    "rows of a table": lambda x, u: (
        x[:, :5]
        * tf.reduce_sum(
            tf.gather(v1.get_variable("places", [ROWS, 5]), tf.range(ROWS)) * tf.sin(tf.range(ROWS, dtype=F))[:, None],
            0,
        )
    ),
}
"""Literal numbers that equal the batch size and are those of axes of another length at any batch size."""
AMBIGUOUS: dict[str, Callable[[Any, Any], Any]] = {
    "bins": lambda x, u: tf.reduce_mean(tf.exp(-tf.square(x[:, :5, None] - tf.range(ROWS, dtype=F))), 2) @ u,
    "iterations of a fold": lambda x, u: tf.foldl(lambda h, i: tf.tanh(h @ u), tf.range(ROWS), x[:, :5]),
    "iterations of a scan": lambda x, u: tf.scan(lambda h, i: tf.tanh(h @ u), tf.zeros([ROWS]), x[:, :5])[-1],
    "a map of scales": lambda x, u: tf.reduce_mean(tf.map_fn(lambda s: tf.tanh(x[:, :5] * s @ u), tf.ones([ROWS])), 0),
    "a temperature": lambda x, u: x[:, :5] / tf.sqrt(tf.cast(ROWS, F)),
    "a matrix that subtracts means": lambda x, u: tf.matmul(tf.eye(x.shape[0]) - 1.0 / x.shape[0], x[:, :5]) @ u,
    "the most iterations": lambda x, u: _run(x[:, :5], u, lambda i, h: tf.tanh(h @ u), maximum_iterations=ROWS),
}
"""Numbers that no op relates to the batch, or to another axis; or that may be computed from the batch size."""


@pytest.mark.rotates
@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("feature", [*COUNTS, *AMBIGUOUS])
def test_a_number_that_equals_the_batch_size_is_not_taken_for_it(feature: str, control_flow_v2: bool) -> None:
    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(F, [rows, 30], name="x"), v1.placeholder(F, [rows], name="y")
        h = {**COUNTS, **AMBIGUOUS}[feature](x, v1.get_variable("u", [5, 5]))
        k = v1.get_variable("k", [h.shape[1]])
        mean = tf.reduce_mean(tf.square(tf.linalg.matvec(h, k) - y))
        return v1.train.GradientDescentOptimizer(0.05).minimize(mean + tf.sqrt(mean + 1.0))

    feeds = {"x": lambda rng, rows: rng.randn(rows, 30), "y": lambda rng, rows: rng.randn(rows)}
    found = tried(build, feeds, is_open=False, control_flow_v2=control_flow_v2, rows=ROWS)
    if feature in COUNTS:
        assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())
    else:
        assert found.kind == "told" and "may be the batch size" in found.notes[0], found


def _look_up_parts(x: Any, words: Any) -> Any:
    table = v1.get_variable("table", [13, 5], partitioner=v1.fixed_size_partitioner(3))
    return x[:, :5] * v1.nn.embedding_lookup(table, words[:, 0], partition_strategy="mod")


SUMMED: dict[str, Callable[[Any, Any], Any]] = {
    "rows of a partitioned table": _look_up_parts,
    "counts of words": lambda x, words: (
        tf.math.bincount(words, minlength=13, maxlength=13, axis=-1, dtype=F)[:, :5] * x[:, :5]
    ),
    "rows by experts": lambda x, words: tf.dynamic_stitch(
        tf.dynamic_partition(tf.range(tf.shape(x)[0]), words[:, 0] % 2, 2),
        [scale * part for scale, part in enumerate(tf.dynamic_partition(x[:, :5], words[:, 0] % 2, 2), 1)],
    ),
    "rows by their positions": lambda x, words: tf.one_hot(tf.range(_count(x)), _count(x)) @ x[:, :5],
    "positions turned round twice": lambda x, words: tf.gather(
        tf.gather(x[:, :5], tf.reverse(tf.range(_count(x)), [0])), tf.reverse(tf.range(_count(x)), [0])
    ),
}


def _count(x: Any) -> Any:
    return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


@pytest.mark.parametrize("by_trace", [False, True])
@pytest.mark.parametrize("feature", SUMMED)
def test_a_sum_of_what_ops_with_indices_compute_is_divided_by_the_batch_size(feature: str, by_trace: bool) -> None:
    """Indices do not grow with the batch, and positions along the batch are as many as it has examples."""

    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(F, [rows, 30], name="x"), v1.placeholder(F, [rows], name="y")
        h = SUMMED[feature](x, v1.placeholder(tf.int32, [rows, 4], name="words"))
        errors = (tf.linalg.matvec(tf.reshape(h, [-1, 5]), v1.get_variable("k", [5])) - y)[:, None]
        squares = tf.linalg.trace(tf.matmul(errors, errors, transpose_a=True)) if by_trace else tf.reduce_sum(errors**2)
        mean = squares / tf.cast(_count(x), F)
        return v1.train.GradientDescentOptimizer(0.05).minimize(tf.sqrt(mean + 1.0))

    feeds = {
        "x": lambda rng, rows: rng.randn(rows, 30),
        "y": lambda rng, rows: rng.randn(rows),
        "words": lambda rng, rows: rng.randint(0, 13, [rows, 4]),
    }
    found = tried(build, feeds, is_open=False, rows=ROWS)
    assert (found.kind, found.message, found.notes) == ("equal", "", ()), found
