"""Tensors joined along any axis, in loops and branches too: workers with unequal shares are one process.

Every program has a variable of its own, and all of them are one graph: what differs is named by the variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf

from ops.exactness.trial import Outcome
from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
F = tf.float64
Program = Callable[[Any, Any], Any]
"""(the batch `[rows, 3, 4]`, a variable `[4, 4]`) -> what is to be small."""


def length_of(x: Any) -> Any:
    return tf.shape(x)[0]


def of_distinct(x: Any, rows_of: Callable[[Any], Any]) -> Any:
    u, at = tf.unique(tf.cast(x[:, 0, 0], tf.int32))
    return tf.gather(rows_of(u), at)


def masked_bags(x: Any, w: Any, numbers: Any = None) -> Any:
    numbers = (
        tf.tile(tf.range(length_of(x))[:, None], [1, 3]) if numbers is None else tf.reshape(numbers, [length_of(x), 3])
    )
    ids, mask = tf.cast(x[:, :, 0], tf.int32), x[:, :, 1] > 0.0
    rows = tf.gather(w, tf.boolean_mask(ids, mask))
    return tf.math.unsorted_segment_sum(rows, tf.boolean_mask(numbers, mask), length_of(x))


def time_major_product(x: Any, w: Any) -> Any:
    return tf.reshape(tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, 4]) @ w, [3, -1, 4])


def recurrent(x: Any, w: Any, start: Any = None, until: Callable[[Any, Any], Any] = lambda t, _: t < 3) -> Any:
    start = tf.zeros([length_of(x), 4], F) if start is None else start
    return tf.while_loop(until, lambda t, h: (t + 1, tf.tanh(x[:, t] @ w + h)), [tf.constant(0), start])[1]


def nested(x: Any, w: Any) -> Any:
    def body(t: Any, h: Any) -> Any:
        inner = tf.while_loop(lambda i, _: i < 2, lambda i, g: (i + 1, g + x[:, t] * w[0]), [tf.constant(0), h])
        return t + 1, inner[1]

    return tf.while_loop(lambda t, _: t < 3, body, [tf.constant(0), tf.zeros([length_of(x), 4], F)])[1]


def turned(x: Any, w: Any) -> Any:
    """Joined along the first axis and along the second in turn."""
    square = x[:, :1, 0] * tf.ones([1, length_of(x)], F)
    return tf.while_loop(lambda t, _: t < 3, lambda t, h: (t + 1, tf.transpose(h)), [tf.constant(0), square])[1]


def branches(x: Any, w: Any, predicate: Any = None) -> Any:
    predicate = tf.reduce_sum(w) > 0.0 if predicate is None else predicate
    return tf.cond(predicate, lambda: x * 2.0, lambda: tf.zeros([length_of(x), 3, 4], F))


LOOPS: dict[str, Program] = {
    "a recurrent network": recurrent,
    "a recurrent network that starts at the batch": lambda x, w: recurrent(x, w, x[:, 0]),
    "as many iterations as the batch says": lambda x, w: recurrent(
        x, w, None, lambda t, h: tf.logical_and(t < 3, h[0, 0] < 0.5)
    ),
    "a start that is one for all rows": lambda x, w: recurrent(
        tf.ensure_shape(x[:1], [1, 3, 4]), w, tf.zeros([1, 4], F)
    ),
    "a loop within a loop": nested,
    "another axis in every iteration": turned,
    "a scan over time": lambda x, w: tf.scan(lambda a, e: a + e @ w, tf.transpose(x, [1, 0, 2])),
    "a map over time": lambda x, w: tf.map_fn(lambda e: e @ w, tf.transpose(x, [1, 0, 2])),
    "a map over the batch": lambda x, w: tf.map_fn(lambda e: e @ w, x),
    "a branch for all workers": branches,
    "a branch for each worker": lambda x, w: branches(x, w, tf.reduce_sum(x) > 0.0),
}


JOINED: dict[str, Program] = {
    "a fed tensor": lambda x, w: x,
    "elementwise with what is equal": lambda x, w: tf.tanh(x * 2.0 + w[0]),
    "transposed": lambda x, w: tf.transpose(x, [1, 2, 0]),
    "a new axis in front": lambda x, w: x[None],
    "a cut along another axis": lambda x, w: x[:, 1],
    "after an ellipsis": lambda x, w: tf.transpose(x)[..., 0:1, :],
    "a cut along the batch": lambda x, w: x[1:],
    "flattened": lambda x, w: tf.reshape(x, [-1]),
    "flattened with time first": lambda x, w: tf.reshape(tf.transpose(x, [1, 0, 2]), [-1]),
    "rows of whole length": lambda x, w: tf.reshape(x, [-1, 4]),
    "put behind one another along time": lambda x, w: tf.concat([x, x], 1),
    "put behind one another along the batch": lambda x, w: tf.concat([x, x], 0),
    "a constant among rows of the batch": lambda x, w: tf.concat([x, tf.ones([1, 3, 4], F)], 0),
    "multiplied by a matrix": lambda x, w: tf.reshape(x, [-1, 4]) @ w,
    "multiplied by itself": lambda x, w: tf.matmul(x, x, transpose_b=True),
    "its columns' products": lambda x, w: tf.matmul(x[:, 0], x[:, 0], transpose_a=True),
    "a mean over time": lambda x, w: tf.reduce_mean(x, 1),
    "a mean over the batch": lambda x, w: tf.reduce_mean(x, 0),
    "a softmax over columns": lambda x, w: tf.nn.softmax(x),
    "a softmax over the batch": lambda x, w: tf.nn.softmax(tf.transpose(x)),
    "sorted over the batch": lambda x, w: tf.sort(x, 0),
    "stacked": lambda x, w: tf.stack([x, x], 1),
    "looked up": lambda x, w: tf.gather(w, tf.cast(x[:, :, 0], tf.int32)),
    "tiled over time": lambda x, w: tf.tile(x, [1, 2, 1]),
    "reversed over the batch": lambda x, w: tf.reverse(x, [0]),
    "time and batch made one axis": lambda x, w: tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, 4]) @ w,
    "time-major rows, multiplied and put back": time_major_product,
    "rows of distinct elements given back": lambda x, w: of_distinct(x, lambda u: tf.tanh(tf.gather(w, u))),
    "rows of distinct elements in two cuts": lambda x, w: of_distinct(
        x, lambda u: tf.concat([tf.gather(w, u[:1]), tf.gather(w, u[1:])], 0)
    ),
    "rows of distinct elements in another order": lambda x, w: of_distinct(
        x, lambda u: tf.concat([tf.gather(w, u[1:]), tf.gather(w, u[:1])], 0)
    ),
    "chosen by a mask": lambda x, w: tf.boolean_mask(x, x[:, :, 0] > 0.0),
    "bags of what a mask has chosen": masked_bags,
    "bags by numbers of time": lambda x, w: masked_bags(x, w, tf.tile(tf.range(length_of(x))[None], [3, 1])),
    "halves of two": lambda x, w: tf.split(tf.tanh(tf.concat([x, x + 1.0], 0)), 2)[1],
    "batches folded into a row": lambda x, w: tf.reshape(x, [2, -1]),
    "one against all others": lambda x, w: x[:, None, 0] - x[None, :, 0],
}


def outcome_of(programs: Mapping[str, Program], control_flow_v2: bool = True) -> Outcome:
    def build(rows: int | None) -> Any:
        x, losses = v1.placeholder(F, [rows, 3, 4], name="x"), []
        for name, program in programs.items():
            w = v1.get_variable(re.sub("[^a-z]", "_", name), [4, 4], F)
            found = tf.reshape(program(x * (1.0 + 0.01 * tf.tanh(w[0])), w), [-1])
            losses.append(tf.reduce_mean(found * tf.cos(tf.cast(tf.range(tf.size(found)), F))))
        return v1.train.AdagradOptimizer(0.1).minimize(tf.add_n(losses))

    feeds = {"x": lambda rng, rows: rng.rand(rows, 3, 4) * 3.0}
    return tried(build, feeds, dtype="float64", control_flow_v2=control_flow_v2)


@pytest.mark.rotates
def test_tensors_joined_along_any_axis_are_the_one_process_s() -> None:
    found = outcome_of(JOINED)
    assert (found.kind, found.message) == ("equal", "")


@pytest.mark.rotates
@pytest.mark.parametrize("control_flow_v2", [True, False])
def test_loops_and_branches_are_the_one_process_s(control_flow_v2: bool) -> None:
    found = outcome_of(LOOPS, control_flow_v2)
    assert (found.kind, found.message) == ("equal", "")


SIZES: dict[str, Callable[[Any], list[Any]]] = {
    "halves": lambda n: [n, n],
    "the rest": lambda n: [n, -1],
    "a third and two": lambda n: [n, 2 * n],
    "all but a third": lambda n: [-1, n],
}


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("case", SIZES)
def test_views_of_a_batch_are_split_by_its_length(case: str, is_open: bool) -> None:
    """As domain adaptation splits the features of source and target examples."""

    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, 4], name="x")
        sizes = SIZES[case](rows or tf.shape(x)[0])
        h = tf.concat([x, -x, x * x][: 2 if case == "halves" else 3], 0) @ v1.get_variable("w", [4, 4])
        one, other = tf.split(h, sizes, 0)
        loss = tf.reduce_mean(tf.square(one @ v1.get_variable("v", [4, 2]))) + tf.reduce_mean(tf.tanh(other))
        return v1.train.AdamOptimizer(0.1).minimize(loss)

    found = tried(build, {"x": lambda rng, n: rng.randn(n, 4)}, is_open=is_open)
    assert (found.kind, found.notes, found.gathers) == ("equal", (), ()), found
