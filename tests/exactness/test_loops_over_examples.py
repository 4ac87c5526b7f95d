"""Loops over the examples of a batch: each worker iterates over its own ones, unless they interact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.reading.construction import record
from tests.exactness.loss_trials import tried

v1, F = tf.compat.v1, tf.float32
record.install()
pytestmark = pytest.mark.rotates(days=3)

FEEDS = {"x": lambda rng, rows: rng.randn(rows, 4), "y": lambda rng, rows: rng.randn(rows, 3)}
Loss = Callable[[Any, Any, Any], Any]


def project(row: Any, w: Any) -> Any:
    return tf.linalg.matvec(w, row, transpose_a=True)


def miss(row: Any, label: Any, w: Any) -> Any:
    return tf.reduce_sum(tf.square(project(row, w) - label))


def summed(term: Callable[[Any, Any, Any, Any], Any], first: int = 0, start: Any = 0.0) -> Loss:
    """A mean of terms that a loop sums: of (index, rows, labels, weights)."""

    def loss(x: Any, y: Any, w: Any) -> Any:
        rows = tf.shape(x)[0]
        turns = lambda i, s: (i + 1, s + term(i, x, y, w))  # noqa: E731
        return tf.while_loop(lambda i, s: i < rows, turns, [first, start])[1] / tf.cast(rows, F)

    return loss


def read_arrays(x: Any, y: Any, w: Any) -> Any:
    rows = tf.shape(x)[0]
    xs, ys = (tf.TensorArray(F, rows).unstack(one) for one in (x, y))
    total = summed(lambda i, x, y, w: miss(xs.read(i), ys.read(i), w))
    return total(x, y, w)


def adapt(x: Any, y: Any, w: Any) -> Any:
    """Weights that are adapted to each example before its loss is taken, as MAML does."""

    def of_pair(pair: Any) -> Any:
        (found,) = tf.gradients(miss(*pair, w), w)
        return miss(*pair, w - 0.05 * found)

    return tf.reduce_mean(tf.map_fn(of_pair, (x, y), F))


def penalize(x: Any, y: Any, w: Any) -> Any:
    found = tf.map_fn(lambda row: tf.tanh(project(row, w)), x)
    (slopes,) = tf.gradients(found * found, x)
    return tf.reduce_mean(tf.square(found - y)) + 0.1 * tf.reduce_mean(tf.square(slopes))


def of_hidden_rows(x: Any, y: Any, w: Any) -> Any:
    hidden = tf.tanh(x @ w)
    of_row = lambda i: tf.reduce_sum(tf.square(hidden[i] - y[i])) + hidden[i, 0]  # noqa: E731
    return tf.reduce_mean(tf.map_fn(of_row, tf.range(tf.shape(x)[0]), dtype=F))


def within(pair_loss: Callable[[Any, Any, Any], Any]) -> Loss:
    return lambda x, y, w: tf.reduce_mean(tf.map_fn(lambda pair: pair_loss(*pair, w), (x, y), F))


def normalize(x: Any, y: Any, w: Any) -> Any:
    found = tf.map_fn(lambda row: project(row, w), x)
    scale = tf.math.rsqrt(tf.math.reduce_variance(found, 0) + 0.1)
    return tf.reduce_mean(tf.square((found - tf.reduce_mean(found, 0)) * scale - y))


def run_inside(x: Any, label: Any, w: Any) -> Any:
    """As many turns of an inner loop as the example says."""
    turns = tf.cast(tf.abs(x[0]) * 3.0, tf.int32) + 1
    state = tf.while_loop(lambda k, h: k < turns, lambda k, h: (k + 1, tf.tanh(h + project(x, w))), [0, tf.zeros([3])])
    return tf.reduce_sum(tf.square(state[1] - label))


def choose(x: Any, label: Any, w: Any) -> Any:
    return tf.cond(x[0] > 0, lambda: miss(x, label, w), lambda: tf.reduce_sum(tf.abs(project(x, w))))


def add_in_a_branch(x: Any, y: Any, w: Any) -> Any:
    pairs = tf.stack([x @ w, y], 1)
    rows = tf.shape(x)[0]
    array = tf.TensorArray(F, rows).unstack(pairs)

    def turn(i: Any, total: Any) -> Any:
        pair = array.read(i)
        added = lambda: total + tf.reduce_sum(tf.square(pair[0] - pair[1]))  # noqa: E731
        return i + 1, tf.cond(pair[1, 0] > 0, added, lambda: total)

    return tf.while_loop(lambda i, s: i < rows, turn, [0, 0.0])[1] / tf.cast(rows, F)


def read_reversed(x: Any, y: Any, w: Any) -> Any:
    """An array of all examples, read by the index of the global batch."""
    rows = tf.shape(x)[0]
    xs, ys = tf.TensorArray(F, rows).unstack(tf.reverse(x, [0])), tf.TensorArray(F, rows).unstack(y)
    return summed(lambda i, x, y, w: miss(xs.read(i), ys.read(i), w))(x, y, w)


def take_from_the_end(x: Any, y: Any, w: Any) -> Any:
    """The last row with the first label, and so on."""
    rows, pop = tf.shape(x)[0], tf.raw_ops.TensorListPopBack

    def turn(i: Any, total: Any, left: Any) -> Any:
        left, row = pop(input_handle=left, element_shape=[4], element_dtype=F)
        return i + 1, total + miss(row, y[i], w), left

    start = [0, 0.0, tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=[4])]
    return tf.while_loop(lambda i, s, left: i < rows, turn, start)[1] / tf.cast(rows, F)


APART: dict[str, Loss] = {
    "a map": lambda x, y, w: tf.reduce_mean(tf.square(tf.map_fn(lambda row: tf.tanh(project(row, w)), x) - y)),
    "pairs": within(miss),
    "a branch": within(choose),
    "an inner loop": within(run_inside),
    "the global length": lambda x, y, w: tf.reduce_sum(
        tf.map_fn(lambda pair: miss(*pair, w) / tf.cast(tf.shape(x)[0], F), (x, y), F)
    ),
    "a total of the batch": lambda x, y, w: (
        lambda total: tf.reduce_mean(tf.map_fn(lambda row: tf.reduce_sum(tf.square(project(row, w))) / total, x))
    )(tf.reduce_sum(tf.exp(x @ w))),
    "a fold": lambda x, y, w: tf.reduce_mean(tf.square(tf.foldl(lambda a, row: a + project(row, w), x, tf.zeros([3])))),
    "statistics of a map": normalize,
    "arrays": read_arrays,
    "adapted weights": adapt,
    "rows by their index": of_hidden_rows,
}
WITH_FUNCTIONAL_LOOPS: dict[str, Loss] = {
    "a gradient's penalty": penalize,
    "weights by the index": summed(lambda i, x, y, w: tf.cast(i + 1, F) * miss(x[i], y[i], w)),
    "a sum in a branch": add_in_a_branch,
}
MIXED: dict[str, Loss] = {
    "each with all": lambda x, y, w: tf.reduce_mean(
        tf.map_fn(lambda row: tf.reduce_mean(tf.square(project(row, w)[None] - x @ w)), x)
    ),
    "the next one": summed(lambda i, x, y, w: miss(x[tf.minimum(i + 1, tf.shape(x)[0] - 1)], y[i], w)),
    "from the other end": summed(lambda i, x, y, w: miss(x[tf.shape(x)[0] - 1 - i], y[i], w)),
    "a reversed array": read_reversed,
    "from the end of a list": take_from_the_end,
    "from the second on": summed(lambda i, x, y, w: miss(x[i], y[i], w), first=1),
    "a recurrence": lambda x, y, w: tf.reduce_mean(
        tf.square(tf.scan(lambda a, row: 0.5 * a + project(row, w), x, tf.zeros([3])) - y)
    ),
}


def outcome_of(loss: Loss, **how: Any) -> Any:
    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(F, [rows, 4], name="x"), v1.placeholder(F, [rows, 3], name="y")
        w = v1.get_variable("w", [4, 3], initializer=v1.glorot_uniform_initializer(seed=1))
        return v1.train.GradientDescentOptimizer(0.05).minimize(loss(x, y, w))

    return tried(build, FEEDS, **how)


@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("case", APART)
def test_workers_iterate_over_their_own_examples(case: str, control_flow_v2: bool) -> None:
    found = outcome_of(APART[case], control_flow_v2=control_flow_v2)
    assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())


@pytest.mark.parametrize("case", WITH_FUNCTIONAL_LOOPS)
def test_workers_iterate_over_their_own_examples_in_functional_loops(case: str) -> None:
    found = outcome_of(WITH_FUNCTIONAL_LOOPS[case])
    assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())


@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("case", ["pairs", "rows by their index", "statistics of a map"])
def test_loops_of_fixed_batches_are_opened(case: str, control_flow_v2: bool) -> None:
    """But not over a literal number of indices, which may equal the batch size by chance."""
    found = outcome_of(APART[case], control_flow_v2=control_flow_v2, is_open=False)
    has_note = any("may be the batch size" in note for note in found.notes)
    assert (found.kind, found.message, has_note) == ("equal", "", case == "rows by their index")
    assert not found.gathers


@pytest.mark.parametrize("case", ["pairs", "a fold", "arrays", "rows by their index"])
def test_a_worker_without_examples_adds_nothing(case: str) -> None:
    assert outcome_of(APART[case], rows=1).kind == "equal"


@pytest.mark.parametrize("case", MIXED)
def test_examples_that_interact_are_gathered(case: str) -> None:
    found = outcome_of(MIXED[case])
    assert (found.kind, found.message, bool(found.gathers)) == ("equal", "", True)


def test_the_number_of_iterations_is_that_of_the_global_batch() -> None:
    def loss(x: Any, y: Any, w: Any) -> Any:
        rows = tf.shape(x)[0]
        turns = lambda i, s: (i + 1, s + tf.reduce_sum(tf.square(w)))  # noqa: E731
        count, total = tf.while_loop(lambda i, s: i < rows, turns, [0, 0.0])
        return total / tf.square(tf.cast(count, F))

    found = outcome_of(loss)
    assert (found.kind, found.message, found.gathers) == ("equal", "", ())


def test_two_numbers_of_a_node_of_a_fixed_batch_are_opened_apart() -> None:
    """The shape of a list's elements and its length, as of all pairs in a loop's gradient."""
    found = outcome_of(MIXED["each with all"], is_open=False)
    assert (found.kind, found.message) == ("equal", "")
