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
