"""Graphs with loops and branches that were built for a fixed batch are opened: N workers are one process."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import tensorflow as tf

from ops.exactness.draft import Program, Statement
from ops.exactness.runs import Built
from ops.exactness.trial import try_program
from parallax.analysis.graph_to_plan import analyse
from parallax.analysis.reading.capture import capture
from parallax.analysis.reading.construction import record
from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
record.install()

ROUTE = "allgather"
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


def repeated(turn: str, start: str = "e[:, 0]") -> str:
    """A feature after some turns of a loop."""
    return f"_, h = tf.while_loop(lambda t, s: t < 4, lambda t, s: (t + 1, {turn}), [tf.constant(0), {start}])"


FEATURES = {
    "a fold whose rows are turned round twice": "back = tf.reverse(tf.range(n), [0])\n"
    "h = tf.foldl(lambda s, t: s * 0.5 + t, tf.transpose(e, [1, 0, 2]))\n"
    "h = tf.gather(tf.gather(h, back), back) + h",
    "a cell along sequences of any length": CELL
    + "_, h = v1.nn.dynamic_rnn(Cell(), e, sequence_length=ids[:, 0] % 4 + 1, dtype=F)",
    "a cell with a state of zeros": CELL + "_, h = v1.nn.dynamic_rnn(Cell(), e, initial_state=Cell().zero_state(n, F))",
    "the outputs of a cell": CELL + "h = tf.reduce_mean(v1.nn.dynamic_rnn(Cell(), e, dtype=F)[0], 1)",
    "cells in both directions": CELL
    + "_, (s, r) = v1.nn.bidirectional_dynamic_rnn(Cell(), Cell(), e, sequence_length=ids[:, 0] % 4 + 1, dtype=F)\n"
    + "h = s + 2.0 * r",
    "a loop in a branch": """
        turns = [lambda t, s: t < 2, lambda t, s: (t + 1, tf.tanh(s @ w)), [tf.constant(0), x[0]]]
        h = tf.cond(tf.reduce_sum(e) > 0.0, lambda: tf.while_loop(*turns)[1], lambda: x[1])
    """,
    "a branch": "h = tf.cond(tf.reduce_sum(e) > 0.0, lambda: e[:, 0] @ w, lambda: e[:, 1])",
    "a sum beside examples": """
        turn = lambda t, s, a: (t + 1, s @ w, a + tf.reduce_sum(s, 0))
        _, h, total = tf.while_loop(lambda t, s, a: t < 3, turn, [tf.constant(0), e[:, 0], w[1]])
        h = h * tf.tanh(total)
    """,
    "a map of what a map gives": """
        weighed = tf.map_fn(lambda row: row * tf.nn.softmax(row, axis=0), e)
        h = tf.map_fn(tf.abs, tf.where(e[:, 0] > 0.0, e[:, 0], tf.reduce_sum(weighed, 1)))
    """,
    "a recurrence beside a table of as many rows": repeated("tf.tanh(x[t] + s @ w)")
    + """
        parts = v1.get_variable("parts", [13, 4], F, partitioner=v1.fixed_size_partitioner(2))
        h = h + v1.nn.embedding_lookup(parts, ids[:, 0], partition_strategy="div")
    """.replace("\n        ", "\n"),
    "a recurrence from zeros": repeated("tf.tanh(x[t] + s @ w)", "tf.zeros([n, 4], F)"),
    "a reshape to the batch": repeated("tf.reshape(tf.tanh(x[t] + s @ w), [n, 4])", "tf.zeros([n, 4], F)"),
    "a scan": "h = tf.reduce_mean(tf.scan(lambda s, r: tf.tanh(r + s @ w), x, tf.zeros([n, 4], F)), 0)",
    "a loop in a loop": repeated(
        "tf.while_loop(lambda u, r: u < 2, lambda u, r: (u + 1, tf.tanh(r @ w + x[t])), [tf.constant(0), s])[1]"
    ),
    "a map of examples": "h = tf.map_fn(lambda r: tf.tanh(r) * 0.5, e[:, 0] @ w)",
    "a fold of examples": "h = e[:, 1] + tf.foldl(lambda s, r: tf.tanh(s + r), e[:, 0] @ w)",
    "a choice of branches": "h = tf.switch_case(tf.argmax(w[0], output_type=tf.int32) % 2, "
    "[lambda: e[:, 0] @ w, lambda: e[:, 1] + tf.zeros([n, 4], F)])",
    "segments of masked ids": "h = tf.math.unsorted_segment_sum(tf.gather(emb, tf.boolean_mask(ids, ids > 2)), "
    "tf.boolean_mask(tf.tile(tf.range(n)[:, None], [1, 4]), ids > 2), n)",
    "half a batch by number": "h = e[:, 0] * tf.cast(tf.cumsum(tf.cast(ids[:, 1] > 2, tf.int64)) < "
    "tf.cast(n, tf.int64) // 2, F)[:, None]",
    "columns that a turn appends": """
        start, shapes = [tf.constant(0), tf.zeros([n, 1, 4], F)], [tf.TensorShape([]), tf.TensorShape([n, None, 4])]
        turn = lambda t, s: (t + 1, tf.concat([s, tf.tanh(s[:, -1:] @ w + e[:, :1])], 1))
        _, h = tf.while_loop(lambda t, s: t < 3, turn, start, shape_invariants=shapes)
        h = tf.reduce_sum(h, 1)
    """,
    "all axes of one dropped in a turn": repeated("tf.tanh(tf.squeeze(s[:, None, :, None]) @ w)"),
    "a function in a loop": "f = tf.function(lambda a: tf.tanh(a @ w))\n" + repeated("f(s)"),
}


def source_of(features: str, is_old: bool) -> str:
    """A program of three workers with a feature `h` `[batch, 4]`, clipped, with a loss that is no plain mean."""
    return Program(
        title="A program.",
        workers=3,
        rows=6,
        is_open=False,
        control_flow_v2=not is_old,
        feeds=(("ids", "rng.randint(0, 13, [rows, 4])"), ("y", "rng.randn(rows)")),
        statements=(
            Statement('ids = v1.placeholder(tf.int64, [rows, 4], name="ids")'),
            Statement('y = v1.placeholder(F, [rows], name="y")'),
            Statement("n = rows"),
            Statement('emb = v1.get_variable("emb", [13, 4], F)'),
            Statement('w = v1.get_variable("w", [4, 4], F)'),
            Statement("e = tf.gather(emb, ids)"),
            Statement("x = tf.transpose(e, [1, 0, 2])"),
            Statement(textwrap.dedent(features).strip()),
            Statement("per_row = tf.square(tf.reduce_sum(h, 1) - y)"),
            Statement("loss = tf.reduce_mean(per_row) + tf.sqrt(tf.reduce_mean(per_row) + 1.0)"),
            Statement("gradients, variables = zip(*v1.train.AdagradOptimizer(0.3).compute_gradients(loss))"),
            Statement("clipped, _ = tf.clip_by_global_norm(gradients, 0.1)"),
            Statement("train = v1.train.AdagradOptimizer(0.3).apply_gradients(zip(clipped, variables))"),
        ),
    ).source()


STAY_CLOSED = ("a function in a loop",)
"""With functional loops: a call in the body of a function is none of the ops that are looked at."""
AMBIGUOUS = ("half a batch by number",)
"""A number that is no axis's length may be equal by chance."""


@pytest.mark.rotates
@pytest.mark.parametrize("features", FEATURES)
def test_loops_of_the_old_style_are_opened(features: str) -> None:
    source = source_of(FEATURES[features], is_old=True)
    assert (capture(Built.of(source).graph).means != "") == (features in AMBIGUOUS)
    (found,) = try_program(source, [ROUTE]).values()
    assert found.kind == ("told" if features in AMBIGUOUS else "equal"), found


@pytest.mark.rotates
@pytest.mark.parametrize("features", [one for one in FEATURES if one not in STAY_CLOSED])
def test_functional_loops_are_opened(features: str) -> None:
    source = source_of(FEATURES[features], is_old=False)
    assert (capture(Built.of(source).graph).means != "") == (features in AMBIGUOUS)
    (found,) = try_program(source, [ROUTE]).values()
    assert found.kind == ("told" if features in AMBIGUOUS else "equal"), found


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("is_asked_twice", [True, False])
def test_examples_of_a_loop_stay_with_their_workers(is_open: bool, is_asked_twice: bool) -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None if is_open else 5, 4, 3], name="x")
        w = tf.compat.v1.get_variable("w", [3, 3], use_resource=True)
        start = [tf.constant(0), tf.zeros_like(x[:, 0])]
        _, h = tf.while_loop(lambda t, s: t < 4, lambda t, s: (t + 1, tf.tanh(x[:, t] @ w + s @ w)), start)
        loss = tf.reduce_mean(tf.square(h))
        if is_asked_twice:  # as for a summary of the gradient's norm
            tf.linalg.global_norm(tf.gradients(loss, [w]))
        tf.compat.v1.train.AdamOptimizer().minimize(loss)
    assert analyse(graph).spec.notes == ()


MADE = [
    "s @ w + tf.zeros([n, 4], F)",
    "tf.gather(s, tf.range(n)) @ w",
    "tf.where(s > 0.0, s @ w, tf.zeros_like(s))",
    "s @ w * tf.tile(w[:1], [n, 1])",
    "tf.linalg.matvec(tf.eye(4, batch_shape=[n], dtype=F) * w, s)",
    "tf.while_loop(lambda k, z: k < 2, lambda k, z: (k + 1, z @ w + tf.ones([n, 4], F)), [0, s])[1]",
]


@pytest.mark.rotates
@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("turn", MADE)
def test_lengths_of_the_batch_that_a_turn_makes_enter_the_loop(turn: str, is_old: bool) -> None:
    source = source_of(repeated(turn), is_old)
    assert capture(Built.of(source).graph).means == ""
    (found,) = try_program(source, [ROUTE]).values()
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


@pytest.mark.parametrize("is_old", [True, False])
def test_a_divisor_in_a_turn_keeps_the_batch_closed(is_old: bool) -> None:
    assert "which cannot be changed" in capture(Built.of(source_of(repeated("s @ w / n"), is_old)).graph).means


def test_a_loop_may_read_an_array_until_a_flag_of_its_own_is_set() -> None:
    """As `raw_rnn`, which ends when all sequences have."""

    def build(rows: int | None) -> Any:
        x, w = v1.placeholder(tf.float32, [rows, 5, 3], name="x"), v1.get_variable("w", [3, 3])
        array = tf.TensorArray(tf.float32, 5).unstack(tf.transpose(x, [1, 0, 2]))

        def turn(t: Any, state: Any, done: Any) -> Any:
            return t + 1, tf.tanh(state @ w + array.read(t)), tf.logical_or(done, t > 2)

        first = [0, tf.zeros_like(x[:, 0]), tf.zeros_like(x[:, 0, 0], tf.bool)]
        state = tf.while_loop(lambda t, state, done: tf.logical_not(tf.reduce_all(done)), turn, first)[1]
        return v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(state - 1.0)))

    found = tried(build, {"x": lambda rng, rows: rng.randn(rows, 5, 3)}, control_flow_v2=False)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


@pytest.mark.parametrize("is_open", [True, False])
def test_rows_of_tables_have_a_width_in_loops_whose_variables_have_no_shape(is_open: bool) -> None:
    """A decoder that reads its own words: no shape of a loop variable is known once the batch is open."""

    def build(rows: int | None) -> Any:
        table, w = v1.get_variable("table", [5, 4]), v1.get_variable("w", [8, 4])
        x = v1.placeholder(tf.float32, [rows, 4], name="x")

        def turn(t: Any, state: Any, words: Any) -> Any:
            state = tf.tanh(tf.concat([tf.nn.embedding_lookup(table, words), state], 1) @ w)
            return t + 1, state, tf.argmax(state, 1, output_type=tf.int32)

        shapes = [tf.TensorShape([]), tf.TensorShape([rows, 4]), tf.TensorShape([rows])]
        first = [0, x, tf.fill([rows or tf.shape(x)[0]], 1)]
        _, state, _ = tf.while_loop(lambda t, *_: t < 3, turn, first, shape_invariants=shapes)
        return v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(state - 1.0)))

    feeds = {"x": lambda rng, rows: rng.randn(rows, 4)}
    found = tried(build, feeds, is_open=is_open, rows=7, control_flow_v2=False)
    assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())


@pytest.mark.parametrize("is_open", [True, False])
def test_an_array_that_grows_in_a_loop_has_no_length_before(is_open: bool) -> None:
    """The outputs of `raw_rnn`; the fixed graph's gradients of its losses are derived again."""

    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(tf.float32, [rows, 3], name="x"), v1.placeholder(tf.int32, [rows, 4], name="y")
        w, v = v1.get_variable("w", [3, 3]), v1.get_variable("v", [3, 2])
        lengths = tf.reduce_sum(y[:, 1:], 1) + 1
        array, longest = tf.TensorArray(tf.float32, size=0, dynamic_size=True), tf.reduce_max(lengths)
        turns = lambda t, *_: t < longest, lambda t, s, found: (t + 1, tf.tanh(s @ w), found.write(t, s))
        states = tf.while_loop(*turns, [0, x, array])[2].stack()
        steps, batch, width = tf.unstack(tf.shape(states))
        logits = tf.reshape(tf.reshape(states, [-1, width]) @ v, [steps, batch, 2])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.transpose(y)[:steps], logits)
        mask = tf.cast(tf.transpose(tf.sequence_mask(lengths, steps)), tf.float32)
        loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
        return v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    feeds = {"x": lambda rng, rows: rng.randn(rows, 3), "y": lambda rng, rows: rng.randint(0, 2, [rows, 4])}
    found = tried(build, feeds, is_open=is_open, rows=10)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


@pytest.mark.parametrize("is_open", [True, False])
def test_shapes_of_loop_variables_are_known_to_ops_that_need_them(is_open: bool) -> None:
    """The gradient of a matrix' diagonal, as in a Kalman filter."""

    def build(rows: int | None) -> Any:
        x, w = v1.placeholder(tf.float32, [rows, 2], name="x"), v1.get_variable("w", [2, 2])

        def turn(t: Any, state: Any, factor: Any) -> Any:
            factor = tf.linalg.set_diag(factor, tf.linalg.diag_part(factor) + 1.0)
            factor = w @ tf.transpose(factor) / 5.0
            return t + 1, tf.tanh(state @ factor), factor

        _, state, _ = tf.while_loop(lambda t, *_: t < 3, turn, [0, x, w])
        return v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(state - 1.0)))

    found = tried(build, {"x": lambda rng, rows: rng.randn(rows, 2)}, is_open=is_open, rows=7)
    assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())


def _losses_of_step(y: Any, e: Any, k: Any, t: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y[:, t], logits=e[:, t] @ k)


def _add_in_turns(y: Any, e: Any, k: Any, reduce: Any, start: Any, turns: int = 4) -> Any:
    turn = lambda t, _: t < turns, lambda t, a: (t + 1, a + reduce(_losses_of_step(y, e, k, t)))
    return tf.while_loop(*turn, [0, start])[1]


def _outputs_of_cell(y: Any, e: Any, k: Any) -> Any:
    cell: dict[str, Any] = {"tf": tf, "F": tf.float32, "w": tf.eye(4) * 0.5}
    exec(textwrap.dedent(CELL), cell)
    outputs = v1.nn.dynamic_rnn(cell["Cell"](), e, dtype=tf.float32)[0]
    logits = tf.reshape(tf.reshape(outputs, [-1, 4]) @ k, [-1, 4, 7])
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def _store_sums(y: Any, e: Any, k: Any) -> Any:
    turns = lambda t, _: t < 4, lambda t, a: (t + 1, a.write(t, tf.reduce_sum(_losses_of_step(y, e, k, t))))
    return tf.reduce_sum(tf.while_loop(*turns, [0, tf.TensorArray(tf.float32, 4)])[1].stack())


SUMS = {
    "of a cell's outputs": _outputs_of_cell,
    "that turns add": lambda y, e, k: _add_in_turns(y, e, k, tf.reduce_sum, 0.0),
    "of what turns add to each example": lambda y, e, k: tf.reduce_sum(
        _add_in_turns(y, e, k, tf.identity, _losses_of_step(y, e, k, 0))
    ),
    "that an array holds": _store_sums,
    "of a map of steps": lambda y, e, k: tf.reduce_sum(
        tf.map_fn(lambda x: tf.reduce_sum(tf.square(x @ k)), tf.transpose(e, [1, 0, 2]))
    ),
    "of a branch": lambda y, e, k: tf.cond(
        tf.reduce_sum(k) > 0.0,
        lambda: tf.reduce_sum(_losses_of_step(y, e, k, 0)) * 2.0,
        lambda: tf.reduce_sum(_losses_of_step(y, e, k, 1)),
    ),
}


@pytest.mark.rotates
@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("what", SUMS)
def test_a_sum_that_a_loop_computes_is_divided_by_the_number_of_examples(what: str, control_flow_v2: bool) -> None:
    """As the loss of a language model is, per step of its recurrent net or over all of them."""

    def build(rows: int | None) -> Any:
        ids, y = (v1.placeholder(tf.int32, [rows, 4], name=name) for name in ("ids", "y"))
        e, k = tf.nn.embedding_lookup(v1.get_variable("emb", [50, 4]), ids), v1.get_variable("k", [4, 7])
        loss = SUMS[what](y, e, k) / (rows or tf.cast(tf.shape(y)[0], tf.float32))
        return v1.train.GradientDescentOptimizer(0.3).minimize(loss)

    feeds = {name: lambda rng, rows: rng.randint(0, 7, [rows, 4]) for name in ("ids", "y")}
    for is_open in (False, True):
        found = tried(build, feeds, is_open=is_open, control_flow_v2=control_flow_v2, rows=6)
        assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())


@pytest.mark.parametrize("control_flow_v2", [True, False])
def test_a_mean_that_a_loop_computes_has_no_divisor_of_the_batch(control_flow_v2: bool) -> None:
    """There are as many steps as examples: a divisor of means is their number, not the batch's."""

    def build(rows: int | None) -> Any:
        ids, y = (v1.placeholder(tf.int32, [rows, 4], name=name) for name in ("ids", "y"))
        e, k = tf.nn.embedding_lookup(v1.get_variable("emb", [50, 4]), ids), v1.get_variable("k", [4, 7])
        loss = _add_in_turns(y[:, :3], e, k, tf.reduce_mean, 0.0, turns=3) / 6.0
        return v1.train.GradientDescentOptimizer(0.3).minimize(loss)

    feeds = {name: lambda rng, rows: rng.randint(0, 7, [rows, 4]) for name in ("ids", "y")}
    found = tried(build, feeds, is_open=False, control_flow_v2=control_flow_v2, rows=6)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


def test_a_scan_over_any_number_of_steps_creates_a_list_that_nothing_reads() -> None:
    """Its element shape has the batch length, but of no tensor that is open."""

    def build(rows: int | None) -> Any:
        x, ids = v1.placeholder(tf.float64, [rows, 4], name="x"), v1.placeholder(tf.int64, [rows, None], name="ids")
        steps = tf.transpose(tf.gather(v1.get_variable("table", [50, 4], tf.float64), ids), [1, 0, 2])
        out = tf.scan(lambda state, step: tf.tanh(state + step), steps, initializer=x)[-1]
        return v1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(out - x)))

    feeds = {"x": lambda rng, rows: rng.randn(rows, 4), "ids": lambda rng, rows: rng.randint(0, 50, [rows, 7])}
    outcome = tried(build, feeds, is_open=False, dtype="float64", rows=6)
    assert (outcome.kind, outcome.notes, outcome.gathers) == ("equal", (), ()), outcome
