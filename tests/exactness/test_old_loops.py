"""Loops and conditionals of the old style by layouts: N workers with unequal shares are one process."""

from __future__ import annotations

import textwrap

import pytest

from ops.exactness.draft import Program, Statement
from ops.exactness.trial import try_program

ROUTE = "allgather"


def program_of(features: str, rows: int = 6) -> Program:
    """A program of three workers with a feature `h` `[batch, 4]`; of one row, the last worker has no examples."""
    return Program(
        title="A program.",
        workers=3,
        rows=rows,
        control_flow_v2=False,
        feeds=(("ids", "rng.randint(0, 13, [rows, 4])"), ("y", "rng.randn(rows)")),
        statements=(
            Statement('ids = v1.placeholder(tf.int64, [rows, 4], name="ids")'),
            Statement('y = v1.placeholder(F, [rows], name="y")'),
            Statement("n = tf.shape(ids)[0]"),
            Statement('emb = v1.get_variable("emb", [13, 4], F)'),
            Statement('w = v1.get_variable("w", [4, 4], F)'),
            Statement("e = tf.gather(emb, ids)"),
            Statement("x = tf.transpose(e, [1, 0, 2])"),
            Statement(textwrap.dedent(features).strip()),
            Statement("per_row = tf.square(tf.reduce_sum(h, 1) - y)"),
            Statement("loss = tf.reduce_mean(per_row) + tf.sqrt(tf.reduce_mean(per_row) + 1.0)"),
            Statement("train = v1.train.AdagradOptimizer(0.3).minimize(loss)"),
        ),
    )


def repeated(turn: str, start: str = "e[:, 0]", goes_on: str = "t < 4") -> str:
    """A feature after some turns of a loop."""
    return f"_, h = tf.while_loop(lambda t, s: {goes_on}, lambda t, s: (t + 1, {turn}), [tf.constant(0), {start}])"


CELL = """
class Cell:
    state_size = output_size = 4

    def zero_state(self, batch, dtype):
        return tf.zeros([batch, 4], dtype)

    def get_initial_state(self, inputs=None, batch_size=None, dtype=None):
        return tf.zeros([batch_size, 4], dtype)

    def __call__(self, inputs, state, scope=None):
        state = tf.tanh(inputs + state @ w)
        return state, state
"""

FEATURES = {
    "a cell along sequences of any length": CELL
    + "_, h = v1.nn.dynamic_rnn(Cell(), e, sequence_length=ids[:, 0] % 4 + 1, dtype=F)",
    "a loop in a branch": """
        turns = [lambda t, s: t < 2, lambda t, s: (t + 1, tf.tanh(s @ w)), [tf.constant(0), x[0]]]
        h = tf.cond(tf.reduce_sum(e) > 0.0, lambda: tf.while_loop(*turns)[1], lambda: x[1])
    """,
    "a sum beside examples": """
        turn = lambda t, s, a: (t + 1, s @ w, a + tf.reduce_sum(s, 0))
        _, h, total = tf.while_loop(lambda t, s, a: t < 3, turn, [tf.constant(0), e[:, 0], w[1]])
        h = h * tf.tanh(total)
    """,
    "variables that change places": """
        turn = lambda t, a, b: (t + 1, b + tf.zeros_like(a), a)
        _, h, g = tf.while_loop(lambda t, a, b: t < 3, turn, [tf.constant(0), e[:, 0], tf.zeros([n, 4], F) + w[0]])
        h = h + 2.0 * g
    """,
    "a recurrence": repeated("tf.tanh(x[t] + s @ w)", "tf.zeros_like(x[0])"),
    "a scan": "h = tf.reduce_mean(tf.scan(lambda s, r: tf.tanh(r + s @ w), x, tf.zeros([n, 4], F)), 0)",
    "a map over examples": "h = tf.reduce_mean(tf.map_fn(lambda r: tf.tanh(r @ w), e), 1)",
    "a loop in a loop": repeated(
        "tf.while_loop(lambda u, r: u < 2, lambda u, r: (u + 1, tf.tanh(r @ w + x[t])), [tf.constant(0), s])[1]"
    ),
    "a conditional in a loop": repeated("tf.cond(t < 2, lambda: tf.tanh(s @ w), lambda: s * 0.5)"),
    "a conditional": "h = tf.cond(tf.reduce_sum(e) > 0.0, lambda: tf.tanh(e @ w)[:, 0], lambda: e[:, 1])",
    "one of two means": "h = x[0] + tf.cond(tf.reduce_mean(e) > 9.0, lambda: w[0], lambda: tf.reduce_mean(e, [0, 1]))",
    "a sum of turns": repeated("s + tf.reduce_sum(tf.tanh(x[t] @ w), 0)", "tf.zeros([4], F)")
    + "\nh = x[0] * tf.tanh(h)",
    "means of turns": repeated("s + tf.reduce_mean(tf.tanh(x[t] @ w), 0)", "tf.zeros([4], F)")
    + "\nh = x[0] * tf.tanh(h)",
    "a mean of examples in a turn": repeated("tf.tanh(s @ w - tf.reduce_mean(s, 0))"),
    "as many turns as examples": repeated("0.9 * s @ w", goes_on="t < n"),
    "as many turns as values say": repeated("1.1 * s @ w", goes_on="tf.logical_and(t < 4, tf.reduce_max(s) < 9.0)"),
    "a sum of examples from outside": "m = tf.reduce_sum(e, [0, 1])\n" + repeated("tf.tanh(s @ w - m)"),
    "a length as a number": repeated("tf.tanh(s @ w) / tf.cast(n, F)"),
    "a lookup in a loop": repeated("s + tf.gather(emb, ids[:, t]) @ w", "tf.zeros_like(x[0])"),
    "a lookup in a loop and outside": repeated("s + tf.gather(emb, ids[:, t])"),
    "two lookups in a loop": repeated("s @ w + tf.gather(emb, ids[:, t]) * tf.gather(emb, ids[:, 0])", goes_on="t < 2"),
    "a lookup in a loop in a loop": repeated(
        "tf.while_loop(lambda u, r: u < 2, lambda u, r: (u + 1, r @ w + tf.gather(emb, ids[:, u])), "
        "[tf.constant(0), s])[1]"
    ),
    "a lookup of what all have": repeated("tf.tanh(s @ w) + tf.gather(emb, t)"),
    "a lookup in a conditional": "h = tf.cond(tf.reduce_sum(e) > 0.0, lambda: tf.gather(emb, ids[:, 2]), lambda: x[0])",
    "arrays of unknown shape": """
        a = tf.TensorArray(F, 4, infer_shape=False).unstack(x)
        b = tf.TensorArray(F, 4)
        _, b = tf.while_loop(lambda t, b: t < 4, lambda t, b: (t + 1, b.write(t, a.read(t) @ w)), [tf.constant(0), b])
        h = tf.reduce_sum(b.stack(), 0)
    """,
    "an array whose parts are put one behind the other": """
        a = tf.TensorArray(F, 3, infer_shape=False, element_shape=[None, 4])
        _, a = tf.while_loop(
            lambda t, a: t < 3, lambda t, a: (t + 1, a.write(t, tf.tanh(x[t] @ w))), [tf.constant(0), a]
        )
        h = tf.reduce_sum(tf.reshape(a.concat(), [3, n, 4]), 0)
    """,
    "gradients in a loop": repeated("s - 0.1 * tf.gradients(tf.reduce_sum(tf.square(s @ w)), s)[0]"),
    "noise in a loop": repeated("tf.tanh(s @ w) + 0.0 * tf.random.uniform(tf.shape(s), dtype=F)"),
}


@pytest.mark.rotates
@pytest.mark.parametrize("case", FEATURES)
def test_loops_of_unequal_shares_are_one_process_s(case: str) -> None:
    outcome = try_program(program_of(FEATURES[case]).source(), [ROUTE], layouts=True)[ROUTE]
    assert (outcome.kind, outcome.message) == ("equal", "")


@pytest.mark.parametrize("case", ["a recurrence", "a scan", "a sum of turns", "means of turns", "a lookup in a loop"])
def test_a_worker_without_examples_takes_as_many_turns(case: str) -> None:
    outcome = try_program(program_of(FEATURES[case], rows=1).source(), [ROUTE], layouts=True)[ROUTE]
    assert (outcome.kind, outcome.message) == ("equal", "")
