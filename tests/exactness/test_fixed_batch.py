"""Graphs for a fixed batch: sums of it, and constant ids that meet loops, bags or halves of a batch under a clip."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ops.exactness.draft import Program, Statement
from ops.exactness.trial import Outcome, try_program
from parallax.analysis.graph_to_plan import analyse
from parallax.analysis.reading.capture import capture
from parallax.analysis.reading.construction import record
from tests.equality import models
from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
record.install()

_LOOP = """
_, h = tf.while_loop(
    lambda t, _: t < 3, lambda t, h: (t + 1, tf.tanh(h @ u + tf.gather(emb, bags[:, t]))), [0, tf.zeros([n, 4], F)]
)
h = h + tf.gather(emb, tf.fill([n], 1))
"""
EQUAL = {
    "a token beside a loop's result": _LOOP,
    "a token beside a scan over time": """
        tokens = tf.concat([tf.fill([n, 1], tf.constant(0, tf.int64)), bags], 1)
        time_major = tf.transpose(tf.gather(emb, tokens), [1, 0, 2])
        h = tf.transpose(tf.scan(lambda h, x: tf.tanh(h @ u + x), time_major, tf.zeros([n, 4], F)), [1, 0, 2])[:, -1]
        h = h * tf.gather(emb, tf.ones([n], tf.int64))
    """,
    "positions beside a time-major product": """
        flat = tf.reshape(tf.transpose(tf.gather(emb, bags), [1, 0, 2]), [3 * n, 4]) @ u
        h = tf.reshape(flat, [3, n, 4])[1] + tf.gather(emb, tf.tile([2], [n]))
    """,
    "a half of tokens": "h = tf.split(tf.concat([tf.gather(emb, tf.fill([n], 3)), tf.gather(emb, ids)], 0), 2)[1]",
    "a cut of two tokens": """
        token = tf.gather(emb, tf.fill([n], 3))
        h = tf.concat([token, token @ u], 0)[:n] + tf.gather(emb, ids)
    """,
    "segments of repeated numbers": "h = tf.math.segment_sum("
    "tf.reshape(tf.gather(emb, bags), [-1, 4]), tf.repeat(tf.range(n), 3)) + tf.gather(emb, tf.fill([n], 3))",
    "a token beside masked bags": """
        m = bags > 2
        row = tf.boolean_mask(tf.tile(tf.range(n)[:, None], [1, 3]), m)
        h = tf.math.unsorted_segment_sum(tf.gather(emb, tf.boolean_mask(bags, m)), row, n)
        h = h + tf.gather(emb, tf.tile([1], [n]))
    """,
    "a token beside bags of a sparse tensor": """
        bag = v1.nn.embedding_lookup_sparse(emb, tf.sparse.from_dense(tf.maximum(bags, 1)), None, combiner="mean")
        h = tf.ensure_shape(bag, [n, 4]) + tf.gather(emb, tf.tile([1], [n]))
    """,
    "merged ids in two cuts": """
        seen, at = tf.unique(ids)
        h = tf.gather(tf.concat([tf.gather(emb, seen[:1]), tf.gather(emb, seen[1:])], 0), at)
    """,
    "a token beside merged ids": """
        seen, at = tf.unique(ids)
        h = tf.gather(tf.tanh(tf.gather(emb, seen)), at) + tf.gather(emb, tf.fill([n], 1))
    """,
    "merged ids in two cuts, one in buckets": """
        seen, at = tf.unique(ids)
        h = tf.gather(tf.concat([tf.gather(emb, seen[:2] % 5), tf.gather(emb, seen[2:])], 0), at)
    """,
    "merged ids in two cuts that meet": """
        seen, at = tf.unique(ids)
        both = tf.concat([tf.gather(emb, seen[:2]), tf.gather(emb, seen[1:])], 0)
        h = tf.gather(both, at)
    """,
}
CLOSED = ("a token beside a scan over time", "a token beside masked bags")
"""Cases of which the batch is not opened."""


def outcome(text: str, route: str, old: bool = False) -> Outcome:
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    program = Program(
        title="A fixed batch.",
        workers=3,
        feeds=(
            ("ids", "rng.randint(0, 11, [rows])"),
            ("bags", "rng.randint(0, 11, [rows, 3])"),
            ("y", "rng.randn(rows)"),
        ),
        is_open=False,
        control_flow_v2=not old,
        statements=(
            Statement('ids = v1.placeholder(tf.int64, [rows], name="ids")'),
            Statement('bags = v1.placeholder(tf.int64, [rows, 3], name="bags")'),
            Statement('y = v1.placeholder(F, [rows], name="y")'),
            Statement('emb = v1.get_variable("emb", [11, 4], F)'),
            Statement('u, w = v1.get_variable("u", [4, 4], F), v1.get_variable("w", [4, 1], F)'),
            Statement("n = rows"),
            Statement("\n".join(line[indent:] for line in lines)),
            Statement("loss = tf.reduce_mean(tf.square((h @ w)[:, 0] - y)) + 0.01 * tf.nn.l2_loss(u)"),
            Statement("gradients, variables = zip(*v1.train.AdagradOptimizer(0.3).compute_gradients(loss))"),
            Statement("clipped, _ = tf.clip_by_global_norm(gradients, 0.1)"),
            Statement("train = v1.train.AdagradOptimizer(0.3).apply_gradients(zip(clipped, variables))"),
        ),
    )
    (found,) = try_program(program.source(), [route]).values()
    return found


def is_told(found: Outcome) -> bool:
    """Whether the plan says that losses are taken for means, where the batch is not opened."""
    return any("is assumed to be a mean" in note for note in found.notes)


@pytest.mark.rotates
@pytest.mark.parametrize("case", EQUAL)
def test_constant_ids_of_every_example_are_told_from_those_of_all(case: str) -> None:
    found = outcome(EQUAL[case], "hybrid")
    assert found.kind == "equal" or (case in CLOSED and is_told(found)), found.message


@pytest.mark.parametrize("case", [case for case in EQUAL if "loop" in case or "scan" in case])
def test_loops_of_the_old_kind_are_no_different(case: str) -> None:
    found = outcome(EQUAL[case], "allgather", old=True)
    assert found.kind == "equal" or is_told(found), found.message


_MINIMIZED = "train = v1.train.AdagradOptimizer(0.3).minimize(loss)"
_CUBES = "loss = tf.reduce_mean(per_row) + tf.reduce_mean(tf.square(tf.gradients(tf.reduce_sum(h ** 3), h)[0]))"
OPENED = {
    "gradients of a tape": """
        with tf.GradientTape() as tape:
            h = tf.gather(emb, ids)
            loss = tf.sqrt(tf.reduce_mean(tf.square((h @ w)[:, 0] - y)))
        pairs = list(zip(tape.gradient(loss, [emb, w]), [emb, w]))
        train = v1.train.AdagradOptimizer(0.3).apply_gradients(pairs)
    """,
    "a loss that must stay below a number": f"""
        loss = tf.sqrt(tf.reduce_mean(tf.square((tf.gather(emb, ids) @ w)[:, 0] - y)))
        {_MINIMIZED}
        train = tf.group(train, v1.Assert(loss < 1e30, [loss]))
    """,
    "zeros that are cast": f"""
        zeros, targets = (tf.cast(one, tf.float32) for one in (tf.zeros_like(y), y))
        errors = (tf.cast(tf.gather(emb, ids) @ w, tf.float32)[:, 0] - targets - zeros) ** 2
        loss = tf.sqrt(tf.reduce_sum(errors * tf.abs(targets)) / tf.reduce_sum(tf.abs(targets)))
        {_MINIMIZED}
    """,
    "a penalty of a loss's gradients": f"""
        h = tf.gather(emb, ids)
        per_row = tf.square((h @ w)[:, 0] - y)
        {_CUBES}
        {_MINIMIZED}
    """,
    "constants of a tensor, beside a width as long as the batch": f"""
        six = v1.get_variable("six", [n, 4], F)
        bag = tf.gather(emb, bags) + tf.gather(six, tf.zeros_like(bags) + tf.range(3, dtype=tf.int64))
        h = tf.reduce_sum(bag, 1) / tf.cast(tf.size(bags), F)
        loss = tf.sqrt(tf.reduce_mean(tf.square((h @ w)[:, 0] - y)))
        {_MINIMIZED}
    """,
    "updates that wait for a function's gradient": """
        looked_up = tf.function(lambda x: tf.gather(emb, x))
        loss = tf.sqrt(tf.reduce_mean(tf.square((looked_up(ids) @ w)[:, 0] - y)))
        pairs = v1.train.AdagradOptimizer(0.3).compute_gradients(loss)
        with tf.control_dependencies([pairs[0][0].values, pairs[1][0]]):
            pairs = [(tf.convert_to_tensor(g), v) for g, v in pairs]
        train = v1.train.AdagradOptimizer(0.3).apply_gradients(pairs)
    """,
    "a gathered loss beside an old gradient of rows": f"""
        sums = tf.sparse.reduce_sum(tf.cast(tf.sparse.from_dense(bags), F), 1, keepdims=True)
        h = tf.gather(emb, ids) * tf.sigmoid(sums)
        loss = tf.reduce_mean(tf.square((h @ w)[:, 0] - y)) + tf.reduce_max(h)
        {_MINIMIZED}
    """,
    "rows that a call gives, which an update written out takes": """
        h = tf.function(lambda x: tf.gather(emb, x) * 2.0)(ids)
        loss = tf.reduce_mean(tf.square((h @ w)[:, 0] - y))
        found = v1.train.GradientDescentOptimizer(0.3).compute_gradients(loss)
        train = tf.group([v1.assign_sub(v, 0.3 * tf.convert_to_tensor(g)) for g, v in found])
    """,
    "a conditional of the batch beside the loss": """
        h = tf.gather(emb, ids)
        beside = tf.cond(tf.reduce_max(ids) > 9, lambda: tf.gather(emb, ids), lambda: tf.gather(emb, ids) * 0.5)
        past = v1.get_variable("past", [4], F, initializer=v1.zeros_initializer(), trainable=False)
        moved = v1.assign_add(past, tf.reduce_mean(tf.stop_gradient(tf.reshape(beside, [-1, 4])), 0))
        loss = tf.reduce_mean(tf.square((h @ w)[:, 0] - y))
        with v1.control_dependencies([moved]):
            train = v1.train.GradientDescentOptimizer(0.3).minimize(loss)
    """,
    "rows of a conditional that a script has made whole": """
        h = tf.cond(tf.reduce_max(ids) > 9, lambda: tf.gather(emb, ids), lambda: tf.gather(emb, ids) * 0.5)
        loss = tf.reduce_mean(tf.square((tf.reshape(h, [-1, 4]) @ w)[:, 0] - y))
        opt = v1.train.GradientDescentOptimizer(0.3)
        train = opt.apply_gradients([(tf.convert_to_tensor(g), v) for g, v in opt.compute_gradients(loss)])
    """,
    "a call beside what is derived, by the name of a scope that has more": f"""
        called = tf.function(lambda a, b: tf.nn.l2_normalize(a + b, 1))
        h = tf.squeeze(tf.gather(emb, (tf.zeros_like(ids) + 2)[:, None]), 1)
        tables = [v1.get_variable(name, [8, 4], F) for name in ("upper", "lower")]
        h = called(h, h) + h + tf.gather(tf.concat(tables, 0), ids % 8)
        loss = tf.reduce_mean(tf.square((h @ w)[:, 0] - y))
        {_MINIMIZED}
    """,
    "sorted rows of a product, for which old gradients wait": f"""
        h, at = tf.gather(emb, ids), tf.where(ids > 2)
        product = tf.gather_nd(h, at) @ v1.get_variable("u", [4, 4], F)
        h = tf.ensure_shape(tf.scatter_nd(at, product, tf.shape(h, tf.int64)) + h, [rows, 4])
        h = tf.ensure_shape(tf.gather(h, tf.argsort(h[:, 0])), [rows, 4]) + tf.one_hot(ids, 4, dtype=F) + h
        loss = tf.reduce_mean(tf.square((h @ w)[:, 0] - y))
        {_MINIMIZED}
    """,
    "numbers that are as large as the batch, or one by it": f"""
        h = tf.gather(emb, ids)
        past = v1.get_variable("past", [4], F, initializer=v1.zeros_initializer(), trainable=False)
        moved = v1.assign_sub(past, (past - tf.reduce_mean(h, 0)) / 6.0)
        per_row = tf.square((tf.minimum(h / 6.0, 6.0) @ w)[:, 0] - y)
        loss = tf.reduce_mean(per_row / (tf.reduce_mean(per_row) / 6.0 + 6e-6)) + 1.0 / 6.0 * tf.reduce_mean(per_row)
        loss += tf.reduce_logsumexp(tf.reduce_mean(h, 0) / 6.0) + tf.reduce_sum(h**2) / rows / 6.0
        {_MINIMIZED}
        train = tf.group(train, moved)
    """,
    "gradients of a sum, and its penalty, by the length of the batch": """
        h = tf.gather(emb, ids)
        slopes = tf.gradients(tf.reduce_sum(tf.tanh(h)) / rows, h)[0] * 5.0
        opt = v1.train.AdagradOptimizer(0.3)
        found = opt.compute_gradients(tf.reduce_sum(tf.square((h @ w)[:, 0] - y)) + tf.reduce_sum(tf.square(slopes)))
        rowed = tf.IndexedSlices(found[0][0].values / rows, found[0][0].indices, found[0][0].dense_shape)
        train = opt.apply_gradients([(rowed, found[0][1]), (found[1][0] / rows, found[1][1])])
    """,
    "as many examples as tensors have axes": f"""
        h = tf.tile(tf.reshape(tf.transpose(tf.gather(emb, bags)[:, :, None, :, None, None], [0, 2, 1, 3, 5, 4]),
            [rows, 3, 4, 1, 1, 1]), [1, 1, 1, 1, 1, 2])
        loss = tf.sqrt(tf.reduce_mean(tf.square((tf.reduce_mean(h, [1, 3, 4, 5]) @ w)[:, 0] - y)))
        {_MINIMIZED}
    """,
    "labels of two batches, of which one are ones and the others zeros": f"""
        h = tf.gather(emb, ids)
        signs = tf.concat([tf.ones([rows, 1], F), tf.zeros([rows, 1], F)], 0)
        loss = tf.sqrt(tf.reduce_mean(tf.nn.softplus(tf.concat([h, 0.5 - h], 0)) * signs)) + tf.reduce_mean(h @ w)
        {_MINIMIZED}
    """,
    "a dataset's map before the batch": f"""
        batches = tf.data.Dataset.from_tensors((ids, y)).map(lambda i, t: (i, t * 2.0)).repeat()
        iterator = v1.data.make_initializable_iterator(batches)
        feeding = iterator.initializer
        ids, y = iterator.get_next()
        loss = tf.sqrt(tf.reduce_mean(tf.square((tf.gather(emb, ids) @ w)[:, 0] - y)))
        {_MINIMIZED}
    """,
    "as many examples as a queue is asked for": f"""
        queue = v1.FIFOQueue(99, [tf.int64, F], [[], []])
        feeding = queue.enqueue_many([ids, y])
        ids, y = queue.dequeue_many(rows)
        loss = tf.sqrt(tf.reduce_mean(tf.square((tf.gather(emb, ids) @ w)[:, 0] - y)))
        {_MINIMIZED}
    """,
}
"""Programs of which the batch is opened, from `ids`, `bags`, `y`, `emb` and `w` to `train`."""


@pytest.mark.rotates
@pytest.mark.parametrize("case", OPENED)
def test_what_a_script_asks_of_autodiff_is_asked_again(case: str) -> None:
    text = textwrap.dedent(OPENED[case]).strip()
    program = Program(
        title="A fixed batch.",
        workers=3,
        feeds=(
            ("ids", "rng.randint(0, 11, [rows])"),
            ("bags", "rng.randint(0, 11, [rows, 3])"),
            ("y", "rng.randn(rows)"),
        ),
        is_open=False,
        statements=(
            Statement('ids = v1.placeholder(tf.int64, [rows], name="ids")'),
            Statement('bags = v1.placeholder(tf.int64, [rows, 3], name="bags")'),
            Statement('y = v1.placeholder(F, [rows], name="y")'),
            Statement('emb, w = v1.get_variable("emb", [11, 4], F), v1.get_variable("w", [4, 1], F)'),
            Statement("n = 6"),
            Statement(text),
        ),
        result="[feeding, train]" if "feeding" in text else "[train]",
    )
    (found,) = try_program(program.source(), ["hybrid"]).values()
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


def test_a_one_shot_iterator_and_widths_as_long_as_the_batch_leave_it_to_be_opened() -> None:
    rows, graph = 6, tf.Graph()
    with graph.as_default():
        data = tf.data.Dataset.from_tensors((tf.ones([rows, 6, 6, 4]), tf.ones([rows]))).map(lambda x, y: (x * 2.0, y))
        images, y = v1.data.make_one_shot_iterator(data.repeat()).get_next()
        groups = tf.reshape(images, [-1, 6, 6, 2, 2])
        mean, variance = tf.nn.moments(groups, [1, 2, 4], keepdims=True)
        x = tf.reshape((groups - mean) / tf.sqrt(variance + 1e-3), [rows, -1])
        w = v1.get_variable("w", [144, 1])
        v1.train.AdagradOptimizer(0.3).minimize(tf.reduce_mean(tf.square((x @ w)[:, 0] - y)))
    captured = capture(graph)
    assert (captured.by_layouts, captured.means) == (True, "")


def test_gradients_of_a_tape_that_has_not_watched_all_are_not_asked_again() -> None:
    graph = tf.Graph()
    with graph.as_default():
        w, y = v1.get_variable("w", [4, 1], use_resource=True), v1.placeholder(tf.float32, [6, 4])
        outside = y @ w
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(outside - y @ w))
        (gradient,) = tape.gradient(loss, [w])
        v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, w)])
    assert "not all gradients come from tf.gradients" in analyse(graph).captured.means


SUMS: dict[str, Callable[[Any, int], Any]] = {
    "a sum": lambda rows, n: tf.reduce_sum(rows),
    "a sum of sums": lambda rows, n: 0.03 * tf.reduce_sum(tf.reduce_sum(tf.square(rows), 1)),
    "squares of looked-up rows": lambda rows, n: tf.reduce_mean(rows) + 0.3 * tf.nn.l2_loss(rows),
    "a sum of as many columns": lambda rows, n: tf.reduce_sum(rows @ tf.ones([4, n])),
    "a mean of sums": lambda rows, n: tf.reduce_mean(tf.reduce_sum(rows, 1)),
    "a sum by the length": lambda rows, n: tf.reduce_sum(rows) / n,
    "a sum times the inverse length": lambda rows, n: tf.reduce_sum(tf.square(rows)) * (1.0 / n),
    "a sum by four times the length": lambda rows, n: 0.5 * (tf.reduce_sum(tf.square(rows)) * (1.0 / (4 * n))),
    "means of as many columns": lambda rows, n: tf.reduce_sum(tf.reduce_mean(rows @ tf.ones([4, n]), 0)),
    "a penalty of a weight": lambda rows, n: tf.reduce_mean(rows) + tf.nn.l2_loss(v1.get_variable("w", [5])),
}

APART = ("a sum of as many columns", "means of as many columns")
"""No op combines the columns with examples: there may be as many by chance."""


@pytest.mark.parametrize("case", SUMS)
def test_sums_of_a_fixed_batch_are_the_one_process_s(case: str) -> None:
    def build(rows: int | None) -> Any:
        assert rows is not None
        table, ids = v1.get_variable("table", [11, 4]), v1.placeholder(tf.int64, [rows], name="ids")
        return v1.train.GradientDescentOptimizer(0.1).minimize(SUMS[case](tf.gather(table, ids), rows))

    found = tried(build, {"ids": lambda rng, rows: rng.randint(0, 11, [rows])}, is_open=False)
    if case in APART:
        assert found.kind == "told" and "may be the batch size" in found.notes[0], found
    else:
        assert (found.kind, found.message) == ("equal", "")


SCALED: dict[str, Callable[[Any, int], Any]] = {
    "half a sum by the length": lambda rows, n: tf.reduce_sum(tf.square(rows)) / (2 * n),
    "the inverse of twice the length by a sum": lambda rows, n: 1.0 / (2 * n) * tf.reduce_sum(tf.square(rows)),
    "terms by twice the length": lambda rows, n: tf.reduce_sum(tf.square(rows) / (2 * n)),
    "a weight by the length": lambda rows, n: 0.3 / n * tf.reduce_sum(tf.square(rows)),
    "a sum by ten times the length": lambda rows, n: tf.reduce_sum(tf.square(rows)) / (10.0 * n),
    "a sum by a part of the length": lambda rows, n: tf.reduce_sum(tf.square(rows)) / (0.7 * n),
    "weights of half the inverse length": lambda rows, n: tf.reduce_sum(
        tf.square(rows) * np.full([n, 1], 0.5 / n, "float32")
    ),
    "weights filled with the inverse length": lambda rows, n: tf.reduce_sum(tf.square(rows) * tf.fill([n, 1], 1.0 / n)),
    "an unrelated divisor": lambda rows, n: tf.reduce_sum(tf.square(rows)) / 100.0,
}


@pytest.mark.parametrize("case", SCALED)
def test_a_multiple_of_the_length_divides_sums_of_the_global_batch(case: str) -> None:
    def build(rows: int | None) -> Any:
        ids = v1.placeholder(tf.int64, [rows], name="ids")
        rows_of = tf.gather(v1.get_variable("table", [11, 4]), ids)
        return v1.train.GradientDescentOptimizer(0.1).minimize(SCALED[case](rows_of, rows or 0))

    found = tried(build, {"ids": lambda rng, rows: rng.randint(0, 11, [rows])}, is_open=False, rows=7)
    assert (found.kind, found.message) == ("equal", "")


SCALED_GRADIENTS: dict[str, Callable[[Any, int], tuple[float, Any]]] = {
    "half by the length": lambda gradient, n: (0.1, gradient / (2 * n)),
    "a part by the length": lambda gradient, n: (0.1, gradient * (0.3 / n)),
    "a rate by the length": lambda gradient, n: (0.1 / n, gradient),
    "a rate of a momentum by the length": lambda gradient, n: (0.1 / n, gradient),
    "a short rate": lambda gradient, n: (0.03, gradient),
}


@pytest.mark.parametrize("case", SCALED_GRADIENTS)
def test_a_multiple_of_the_length_divides_gradients_of_the_global_batch(case: str) -> None:
    def build(rows: int | None) -> Any:
        w = v1.get_variable("w", [4, 1])
        loss = tf.reduce_sum(tf.square(v1.placeholder(tf.float32, [rows, 4], name="x") @ w - 0.1))
        rate, gradient = SCALED_GRADIENTS[case](tf.gradients(loss, w)[0], rows or 0)
        optimizer = v1.train.GradientDescentOptimizer(rate)
        if "momentum" in case:
            optimizer = v1.train.MomentumOptimizer(rate, 0.9)
        return optimizer.apply_gradients([(gradient, w)])

    found = tried(build, {"x": lambda rng, rows: rng.randn(rows, 4)}, is_open=False, rows=7)
    is_told = case.startswith(("a part", "a rate"))
    assert (found.kind, len(found.notes)) == ("told" if "momentum" in case else "equal", is_told)


def test_losses_across_a_fixed_batch_are_there_beside_batch_norm() -> None:
    """The old gradients of the batch norm, whose constants have the old length, are part of no result."""

    def build(rows: int | None) -> Any:
        x, w = v1.placeholder(tf.float32, [rows, 4], name="x"), v1.get_variable("w", [4, 1])
        image = tf.reshape(x @ v1.get_variable("before", [4, 4]), [-1, 1, 1, 4])
        h = v1.nn.fused_batch_norm(image, tf.ones([4]), tf.zeros([4]), epsilon=0.1)[0][:, 0, 0]
        loss = tf.reduce_logsumexp(tf.square(tf.ensure_shape(h, [rows, 4]) @ w)[:, 0])
        train = v1.train.GradientDescentOptimizer(0.3).minimize(loss)
        return tf.group(train, v1.summary.scalar("loss", loss))

    found = tried(build, {"x": lambda rng, rows: rng.randn(rows, 4).astype("float32")}, is_open=False)
    assert (found.kind, found.message) == ("equal", "")


def test_evidence_names_gradients_as_the_script_does() -> None:
    found = []
    for layouts in (False, True):
        graph = tf.Graph()
        with graph.as_default():
            models.two_lookups(6, "Adagrad", True)
        analysed = analyse(graph, layouts=layouts)
        assert analysed.captured.is_opened == layouts
        found.append({variable.name: variable.evidence for variable in analysed.spec.variables})
    assert found[0] == found[1]


def test_gradients_are_there_by_the_names_that_the_script_fetches() -> None:
    graph = tf.Graph()
    with graph.as_default():
        table, w = v1.get_variable("table", [11, 4]), v1.get_variable("w", [4, 1])
        rows = tf.nn.embedding_lookup(table, v1.placeholder(tf.int64, [6], name="ids")) @ w
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        of_rows, of_w = (g for g, _ in optimizer.compute_gradients(tf.reduce_mean(rows**2), [table, w]))
        optimizer.apply_gradients([(of_rows, table), (of_w, w)])
    view = analyse(graph).captured.view
    names = [tensor.name for tensor in (of_rows.values, of_rows.indices, of_rows.dense_shape, of_w)]
    assert {name.partition(":")[0] for name in names} <= view.nodes.keys()
    assert view.shape(of_w.name) == (4, 1) and view.shape(of_rows.values.name) == (None, 4)


def test_lookups_whose_shapes_have_two_types_give_one_gradient() -> None:
    def build(rows: int | None) -> Any:
        ids = v1.placeholder(tf.int64, [rows], name="ids")
        emb = v1.get_variable("emb", [13, 4])

        @tf.function
        def look_up(x: Any) -> Any:
            return tf.gather(emb, x) * 2.0

        loss = tf.reduce_mean(tf.square(tf.gather_nd(emb, ids[:, None]) + look_up(ids)))
        opt = v1.train.GradientDescentOptimizer(0.3)
        ((gradient, _),) = opt.compute_gradients(loss)
        with v1.control_dependencies([gradient.values, gradient.indices]):
            kept = tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
        return opt.apply_gradients([(kept, emb)])

    assert tried(build, {"ids": lambda rng, rows: rng.randint(0, 13, [rows])}, is_open=False).kind == "equal"


F64 = tf.float64
DERIVED_FROM_LENGTH: dict[str, Callable[[Any, int], Any]] = {
    "places in reverse": lambda v, n: tf.reduce_mean(v * tf.gather(tf.sin(v), n - 1 - tf.range(n))),
    "a covariance of centered pairs": lambda v, n: (
        tf.reduce_sum((np.eye(n) - 1 / n) @ tf.cast(v, F64)[:, None]) / (n - 1) ** 2
    ),
    "a matrix of shares": lambda v, n: tf.reduce_mean(tf.square((tf.eye(n) - tf.ones([n, n]) / n) @ v[:, None])),
    "a sum by a power": lambda v, n: tf.reduce_sum(tf.square(v)) * tf.pow(float(n), -1.0),
    "the rest of a mean": lambda v, n: tf.square((1 - 1 / n) * tf.reduce_mean(v) + 1.0),
    "a corrected variance": lambda v, n: tf.sqrt(tf.math.reduce_variance(v) * (n / (n - 1))),
    "a mean beside one more": lambda v, n: tf.square(1 / (n + 1) * v[0] + (1 - 1 / (n + 1)) * tf.reduce_mean(v)),
    "a sum by the root": lambda v, n: tf.reduce_sum(tf.sin(v)) / n**0.5,
    "a mean of widths of all pairs": lambda v, n: (
        tf.reduce_sum(tf.square(v[:, None] - v[None])[..., None] * [1.0, 2.0, 3.0]) / (3 * n * n)
    ),
    "a logarithm of a sum by the length": lambda v, n: tf.reduce_logsumexp(v) / n,
    "half a variance without bias": lambda v, n: tf.reduce_sum(tf.square(v - tf.reduce_mean(v))) / (2 * (n - 1)),
    "a mean by twice the length": lambda v, n: tf.reduce_mean(tf.square(v)) * (2 * n),
    "a penalty by the length": lambda v, n: tf.reduce_mean(v) + tf.nn.l2_loss(v1.get_variable("u", [3])) / n,
    "a sum by nine times the length": lambda v, n: tf.reduce_sum(tf.square(v)) / (9 * n),
    "a weight by the length": lambda v, n: 0.7 / n * tf.reduce_sum(tf.square(v)),
    "terms by nine times the length": lambda v, n: tf.reduce_sum(tf.square(v) / (9 * n)),
    "bits for each entry": lambda v, n: tf.reduce_sum(tf.square(v)) / (n * 4 * math.log(2)),
    "the last example": lambda v, n: tf.square(v[n - 1]) + tf.reduce_mean(v),
    "all but the last": lambda v, n: tf.reduce_mean(tf.square(v[: n - 1] - v[1:])),
    "halves": lambda v, n: tf.reduce_mean(v[: n // 2]) - tf.reduce_mean(v[n // 2 :]),
    "thirds": lambda v, n: tf.reduce_mean(tf.nn.relu(v[: n // 3] - v[n // 3 : 2 * (n // 3)] + v[2 * (n // 3) :])),
    "the larger half": lambda v, n: tf.reduce_sum(tf.math.top_k(v, n // 2)[0]),
    "pairs of neighbors": lambda v, n: tf.reduce_mean(
        tf.gather(v, np.arange(0, n, 2)) * tf.gather(v, np.arange(1, n, 2))
    ),
    "parts of pairs": lambda v, n: tf.reduce_mean(tf.gather_nd(v, np.arange(0, n, 2)[:, None]) ** 2),
    "pairs above a diagonal": lambda v, n: tf.reduce_mean(
        tf.boolean_mask(v[:, None] * v, np.triu(np.ones([n, n]), 1) > 0)
    ),
    "the hardest": lambda v, n: tf.reduce_mean(tf.math.top_k(v, int(0.7 * n))[0]),
    "a place that is marked": lambda v, n: tf.reduce_sum(tf.one_hot(n - 1, n) * tf.square(v)),
    "a range that falls": lambda v, n: tf.reduce_mean(v * tf.gather(tf.sin(v), tf.range(n - 1, -1, -1))),
    "a backward scan": lambda v, n: tf.reduce_mean(tf.scan(lambda a, b: 0.8 * a + b, v, 0.0, reverse=True)),
    "a half by a roll": lambda v, n: tf.reduce_mean(v * tf.roll(v, n // 2, 0)),
    "a band of pairs": lambda v, n: tf.reduce_mean(tf.linalg.band_part(tf.sin(v[:, None] * v), n // 2, 0)),
    "more than a half": lambda v, n: tf.cond(
        tf.reduce_sum(tf.cast(v > 0, tf.int32)) > n // 2, lambda: tf.reduce_mean(v), lambda: tf.reduce_sum(v) / n
    ),
    "each example by itself": lambda v, n: tf.add_n([k * one for k, one in enumerate(tf.unstack(v))]),
}
UNRELATED_TO_LENGTH: dict[str, Callable[[Any, int], Any]] = {
    "pixels by a number": lambda v, n: tf.reduce_mean(tf.square(v)),
    "neighbors": lambda v, n: tf.reduce_mean(tf.square(v[:-1] - v[1:])),
    "the first example": lambda v, n: tf.square(v[0] - v[1]) + tf.square(v[-1]),
    "weights of sums": lambda v, n: 0.5 * tf.reduce_sum(tf.square(v)) + 0.01 * tf.reduce_sum(v) / n,
    "halves of sums": lambda v, n: 1.0 / (2 * n) * tf.reduce_sum(tf.square(v)) + tf.reduce_sum(v) / (2 * n),
    "a number of entries": lambda v, n: 1 / n * tf.reduce_sum(v) + tf.reduce_sum(v[:, None] * tf.ones([5])) / (5 * n),
    "a sum of sums": lambda v, n: tf.reduce_sum([tf.reduce_sum(tf.square(v)), tf.nn.l2_loss(v)]) / 3.0 / n,
    "short weights of sums": lambda v, n: tf.reduce_sum(v) / 100.0 + 0.02 * tf.reduce_sum(tf.square(v)),
    "a decay of a mean": lambda v, n: tf.square(0.92 * tf.reduce_mean(v) + 0.08),
    "a weight of a mean": lambda v, n: 0.1 * tf.reduce_mean(tf.square(v)) * (n - 1),
    "the largest": lambda v, n: tf.reduce_sum(tf.math.top_k(v, 2)[0]),
    "columns": lambda v, n: tf.reduce_mean(tf.gather(v[:, None] * tf.ones([7]), 5, axis=1)),
    "largest columns": lambda v, n: tf.reduce_sum(tf.math.top_k(v[:, None] * tf.range(7.0), 5)[0]),
    "the next example": lambda v, n: tf.reduce_mean(v * tf.roll(v, 1, 0)),
    "a triangle of pairs": lambda v, n: tf.reduce_mean(tf.linalg.band_part(tf.sin(v[:, None] * v), 0, -1)),
    "any example": lambda v, n: tf.cond(
        tf.reduce_sum(tf.cast(v > 0, tf.int32)) > 0, lambda: tf.reduce_mean(v), lambda: tf.reduce_sum(v) / n
    ),
    "a forward scan": lambda v, n: tf.reduce_mean(tf.scan(lambda a, b: 0.8 * a + b, v, 0.0)),
}


FOLLOWS_LENGTH: dict[str, Callable[[Any, int], Any]] = {
    "a mean of all pairs": lambda v, n: tf.reduce_sum(tf.square(v[:, None] - v[None])) / (n * (n - 1)),
    "a variance without bias": lambda v, n: tf.reduce_sum(tf.square(v - tf.reduce_mean(v))) / (n - 1),
    "a variance by a cast": lambda v, n: tf.reduce_sum(tf.square(v - tf.reduce_mean(v))) / tf.cast(n - 1, tf.float32),
    "a mean in logarithms": lambda v, n: tf.square(tf.reduce_logsumexp(v) - math.log(n)),
    "a mean of sums without one": lambda v, n: tf.reduce_mean(tf.reduce_sum(v[:, None] * v, 1) / (n - 1)),
    "a mean of squares of pairs": lambda v, n: tf.reduce_sum(tf.square(v[:, None] - v[None])) / float(n * n),
    "a mean of half of the pairs": lambda v, n: tf.reduce_sum(tf.square(v[:, None] - v[None])) / (n * (n - 1) / 2),
    "a product with one over the pairs": lambda v, n: 1.0 / (n * (n - 1)) * tf.reduce_sum(tf.sin(v[:, None] * v)),
    "terms in logarithms": lambda v, n: tf.reduce_mean(tf.square(math.log(n) - tf.reduce_logsumexp(v * v[:, None], 1))),
}


@pytest.mark.parametrize("case", FOLLOWS_LENGTH)
def test_numbers_computed_from_the_batch_length_are_those_of_the_global_batch(case: str) -> None:
    def build(rows: int | None) -> Any:
        values = tf.reduce_sum(v1.placeholder(tf.float32, [rows, 4], name="x") * v1.get_variable("w", [4]), 1)
        return v1.train.GradientDescentOptimizer(0.1).minimize(FOLLOWS_LENGTH[case](values, rows or 0))

    found = tried(build, {"x": lambda rng, rows: rng.randn(rows, 4)}, is_open=False, rows=7)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


@pytest.mark.parametrize("case", [*DERIVED_FROM_LENGTH, *UNRELATED_TO_LENGTH])
def test_constants_derived_from_the_batch_length_are_distinguished(case: str) -> None:
    rows, loss_of = 12, {**DERIVED_FROM_LENGTH, **UNRELATED_TO_LENGTH}[case]
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [rows, 4])
        x = x / 12.0 if case == "pixels by a number" else x
        values = tf.reduce_sum(x * v1.get_variable("w", [4]), 1)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss_of(values, rows))
    captured = capture(graph)
    assert captured.is_opened == (case in UNRELATED_TO_LENGTH)
    assert captured.is_opened or "takes may be the batch size, be computed from it, or" in captured.means


SUMS_OF_PAIRS: dict[str, Callable[[Any, Any, int], Any]] = {
    "a sum twice by the length": lambda pairs, rows, n: tf.reduce_sum(pairs) / n / n,
    "a mean of sums by the length": lambda pairs, rows, n: tf.reduce_mean(tf.reduce_sum(pairs, 1) / n),
    "squares of sums by the length": lambda pairs, rows, n: tf.reduce_mean(tf.square(tf.reduce_sum(pairs, 0) / n)),
    "neighbors by the length": lambda pairs, rows, n: tf.reduce_mean(tf.square(pairs @ rows / n)),
    "products by the length": lambda pairs, rows, n: tf.reduce_mean(tf.einsum("bi,ci->b", rows, tf.tanh(rows)) / n),
    "shares of neighbors": lambda pairs, rows, n: tf.reduce_mean(tf.square(tf.nn.softmax(pairs) @ rows)),
    "logarithms of sums by the length": lambda pairs, rows, n: (
        tf.reduce_sum(rows[:, 0] - tf.math.log(tf.cumsum(tf.exp(rows[:, 1])))) / n
    ),
    "a cumulative sum by the length": lambda pairs, rows, n: tf.reduce_mean(tf.square(tf.cumsum(rows) / n)),
}


@pytest.mark.parametrize("case", SUMS_OF_PAIRS)
def test_sums_over_one_of_two_batch_axes_are_divided_by_the_length_of_the_global_batch(case: str) -> None:
    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, 4], name="x") @ v1.get_variable("w", [4, 3])
        pairs = tf.exp(-0.2 * tf.reduce_sum(tf.square(x[:, None] - x[None]), 2))
        return v1.train.GradientDescentOptimizer(0.1).minimize(SUMS_OF_PAIRS[case](pairs, x, rows or 0))

    found = tried(build, {"x": lambda rng, rows: rng.randn(rows, 4)}, is_open=False, rows=7)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


TERMS: dict[str, Callable[[Any, int], Any]] = {
    "a mean by the length": lambda v, n: tf.reduce_mean(tf.square(v)) / n,
    "a part of a mean by the length": lambda v, n: tf.reduce_mean(tf.square(v) - tf.sigmoid(v) / n),
    "a mean beside another by the length": lambda v, n: tf.reduce_mean(tf.square(v)) - tf.reduce_mean(v) / n,
    "a mean by the inverse length": lambda v, n: tf.reduce_mean(tf.square(v)) + 1.0 / n * tf.reduce_mean(v),
}
NOT_TERMS: dict[str, Callable[[Any, int], Any]] = {
    "a temperature": lambda v, n: tf.reduce_mean(
        tf.nn.softmax_cross_entropy_with_logits(labels=tf.fill([n, 2], 0.5), logits=v[:, None] * [1.0, 2.0] / n)
    ),
    "a scale": lambda v, n: tf.reduce_mean(tf.square(v / n)),
    "a multiple": lambda v, n: tf.reduce_mean(tf.square(v)) / (3 * n),
    "a short weight": lambda v, n: tf.reduce_mean(tf.square(v)) + 0.02 * tf.reduce_mean(v),
}


@pytest.mark.parametrize("case", [*TERMS, *NOT_TERMS])
def test_a_long_length_that_divides_a_term_of_a_mean_leaves_the_batch_fixed(case: str) -> None:
    """As the TOP1 loss of GRU4Rec does; few numbers are as large as the batch by chance."""
    rows, loss_of = 48 if "inverse" in case else 50, {**TERMS, **NOT_TERMS}[case]
    with tf.Graph().as_default() as graph:
        values = tf.reduce_sum(v1.placeholder(tf.float32, [rows, 4]) * v1.get_variable("w", [4]), 1)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss_of(values, rows))
    captured = capture(graph)
    assert captured.is_opened == (case in NOT_TERMS), captured.means


def test_a_weight_of_examples_is_no_divisor_of_their_sum_before_all_axes_are_open() -> None:
    """The weight 0.1 of ten rows is one over their number; numbers of the rows are a constant of fixed length."""

    def build(rows: int | None) -> Any:
        h = v1.placeholder(tf.float32, [rows, 4], name="x") @ v1.get_variable("w", [4, 4])
        weights = 0.1 * tf.cast(tf.range(2 * (rows or 0)), tf.float32)[:, None]
        weighted = tf.concat([h, h], 0) * tf.cast(tf.range(2 * (rows or 0)), tf.float32)[:, None] * 0.1
        loss = tf.reduce_mean(tf.square(weighted - 1.0)) + tf.reduce_mean(tf.concat([h, h], 0) * weights)
        return v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    found = tried(build, {"x": lambda rng, n: rng.randn(n, 4)}, is_open=False)
    assert (found.kind, found.notes) == ("equal", ()), found


def test_an_open_length_of_a_table_is_none_of_the_batch() -> None:
    """As of slices of an adjacency matrix, by which a graph convolution multiplies the rows of all nodes."""

    def build(rows: int | None) -> Any:
        kept = tf.boolean_mask(v1.get_variable("table", [11, 4]), tf.range(11) < 9)
        nodes = tf.tanh(tf.split(kept, [4, 5])[0])
        found = tf.gather(nodes, v1.placeholder(tf.int64, [rows], name="ids"))
        loss = tf.reduce_mean(found) + tf.nn.l2_loss(found) / (rows or 1)
        return v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    found = tried(build, {"ids": lambda rng, rows: rng.randint(0, 4, [rows])}, is_open=False, rows=7)
    assert (found.kind, found.notes) == ("equal", ()), found


@pytest.mark.parametrize("case", ["halves", "the larger half"])
def test_a_half_of_the_batch_as_long_as_a_width_is_no_width(case: str) -> None:
    rows = 12
    with tf.Graph().as_default() as graph:
        values = tf.reduce_sum(v1.placeholder(tf.float32, [rows, rows // 2]) * v1.get_variable("w", [rows // 2]), 1)
        v1.train.GradientDescentOptimizer(0.1).minimize(DERIVED_FROM_LENGTH[case](values, rows))
    captured = capture(graph)
    assert not captured.is_opened and "takes may be the batch size, be computed from it, or" in captured.means


def discriminate(images: Any) -> Any:
    with v1.variable_scope("critic", reuse=v1.AUTO_REUSE):
        return tf.nn.leaky_relu(images @ v1.get_variable("w", [3, 4])) @ v1.get_variable("v", [4, 1])


def is_real(scores: Any, label: Any) -> Any:
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=scores))


def generative(rows: int) -> list[Any]:
    """Two updates in turn; the generator's reads no images."""
    images, noise = (v1.placeholder(tf.float32, [rows, n], name=name) for name, n in (("images", 3), ("noise", 4)))
    fake = tf.tanh(noise @ v1.get_variable("generator/w", [4, 3]))
    real, made = (is_real(discriminate(one), tf.fill([rows, 1], 1.0 - n)) for n, one in enumerate((images, fake)))
    of_critic, others = [], []
    for one in v1.trainable_variables():
        (of_critic if one.op.name.startswith("critic") else others).append(one)
    fooled = is_real(discriminate(fake), tf.ones([rows, 1]))
    minimize = v1.train.AdagradOptimizer(0.1).minimize
    return [minimize(real + made, var_list=of_critic), minimize(fooled, var_list=others)]


def test_an_update_is_fed_no_more_than_by_the_script() -> None:
    feeds = {"images": lambda rng, rows: rng.randn(rows, 3), "noise": lambda rng, rows: rng.randn(rows, 4)}
    found = tried(generative, feeds, is_open=False)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


def test_a_run_takes_no_element_that_the_script_does_not_take() -> None:
    """Rows made as long as those of a queue's elements, in an update that reads none of them."""

    def build(rows: int) -> list[Any]:
        y, z = (v1.placeholder(tf.float32, [rows], name=name) for name in "yz")
        queue = v1.FIFOQueue(8, [tf.float32])
        enqueue, element = queue.enqueue([y]), queue.dequeue()
        element.set_shape([rows])
        a, b = v1.get_variable("a", [8, 4]), v1.get_variable("b", [4])
        tokens = tf.gather(a, tf.zeros_like(element, tf.int32) + 2)
        from_queue = tf.reduce_mean(tf.square(tf.reduce_sum(tokens, 1) - element))
        other = tf.reduce_mean(tf.nn.softplus(tf.linalg.matvec(tokens, b)) + tf.nn.softplus(z * b[0]))
        minimize = v1.train.GradientDescentOptimizer(0.1).minimize
        return [enqueue, minimize(from_queue, var_list=[a]), enqueue, minimize(other, var_list=[b])]

    found = tried(build, dict.fromkeys("yz", lambda rng, rows: rng.randn(rows)), is_open=False)
    assert (found.kind, found.message) == ("equal", "")


def test_an_update_that_reads_no_input_needs_none() -> None:
    def build(rows: int) -> list[Any]:
        x, w, table = (
            v1.placeholder(tf.float32, [rows, 3], name="x"),
            v1.get_variable("w", [3]),
            v1.get_variable("t", [8]),
        )
        token = tf.gather(table, tf.zeros_like(x[:, 0], tf.int32) + 2)
        minimize = v1.train.AdagradOptimizer(0.1).minimize
        return [
            minimize(tf.sqrt(tf.reduce_sum(tf.square(tf.linalg.matvec(x, w) - 1.0))), var_list=[w]),
            minimize(tf.reduce_mean(tf.square(token - 1.0)), var_list=[table]),
        ]

    found = tried(build, {"x": lambda rng, rows: rng.randn(rows, 3)}, is_open=False)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())
    graph = tf.Graph()
    with graph.as_default():
        _, of_table = build(6)
    captured = analyse(graph).captured
    assert captured.is_opened and "x" not in captured.view.ancestors([of_table.name])


def two_updates(rows: int, target: Any) -> list[Any]:
    """Updates with different inputs, whose predictions have one target."""
    updates = []
    for name, width in (("x", 3), ("z", 4)):
        weights = v1.get_variable(f"of_{name}", [width, 1])
        batch = v1.placeholder(tf.float32, [rows, width], name=name)
        loss = tf.sqrt(tf.reduce_sum(tf.square(batch @ weights - target)))
        updates.append(v1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[weights]))
    return updates


OF_TWO_UPDATES = {"x": lambda rng, rows: rng.randn(rows, 3), "z": lambda rng, rows: rng.randn(rows, 4)}


def test_a_constant_of_updates_with_different_inputs_is_as_long_as_each() -> None:
    found = tried(lambda rows: two_updates(rows, tf.ones([rows, 1])), OF_TWO_UPDATES, is_open=False)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


def test_a_batch_without_an_input_that_all_runs_read_is_kept_and_the_op_is_named() -> None:
    def build(rows: int) -> list[Any]:
        return two_updates(rows, tf.fill([rows, 1], v1.get_variable("target", [], trainable=False), name="targets"))

    (note,) = tried(build, OF_TWO_UPDATES, is_open=False).notes
    assert "since op 'targets' would take the batch size from an input that not all of its runs read" in note


def test_what_no_update_reads_does_not_keep_the_batch() -> None:
    """A measure of the tiled rows and of another input, which only a user may fetch."""

    def build(rows: int) -> Any:
        x, z = v1.placeholder(tf.float32, [rows, 3], name="x"), v1.placeholder(tf.float32, [rows, 3], name="z")
        tiled = tf.tile(v1.get_variable("w", [1, 3]), [rows, 1])
        tf.reduce_mean(tiled * z, name="measure")
        return v1.train.GradientDescentOptimizer(0.1).minimize(tf.sqrt(tf.reduce_sum(tf.square(tiled - x))))

    found = tried(build, dict.fromkeys("xz", lambda rng, rows: rng.randn(rows, 3)), is_open=False)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


def test_a_prediction_needs_no_labels() -> None:
    graph = tf.Graph()
    with graph.as_default():
        labels = v1.placeholder(tf.float32, [6, 1], name="labels")
        words = v1.placeholder(tf.float32, [6, 5, 3], name="words")
        state, w = tf.zeros([6, 4]), v1.get_variable("w", [7, 4])
        for time in range(5):
            state = tf.tanh(tf.concat([words[:, time], state], 1) @ w)
        predictions = tf.identity(state @ v1.get_variable("v", [4, 1]), name="predictions")
        loss = tf.reduce_sum(tf.square(predictions - labels)) / 6
        v1.train.AdamOptimizer(0.01).minimize(loss)
    captured = analyse(graph).captured
    needed = captured.view.ancestors(["predictions"])
    assert captured.is_opened and "words" in needed and "labels" not in needed
