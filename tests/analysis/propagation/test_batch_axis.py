"""Along which axis a tensor is joined: the one process has the workers' one after the other; None where unproven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.propagation.axis_part import MIXED
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.propagate import walked
from parallax.analysis.reading.capture import capture

v1 = tf.compat.v1
ROWS = 6


def _of_distinct(x: Any, rows_of: Callable[[Any], Any]) -> Any:
    u, at = tf.unique(tf.cast(x[:, 0, 0], tf.int32))
    return tf.gather(rows_of(u), at)


def _masked_bags(x: Any, w: Any, numbers: Any = None) -> Any:
    numbers = tf.tile(tf.range(ROWS)[:, None], [1, 3]) if numbers is None else tf.reshape(numbers, [ROWS, 3])
    ids, mask = tf.cast(x[:, :, 0], tf.int32), x[:, :, 1] > 0.0
    rows = tf.gather(w, tf.boolean_mask(ids, mask))
    return tf.math.unsorted_segment_sum(rows, tf.boolean_mask(numbers, mask), ROWS)


def _time_major_product(x: Any, w: Any) -> Any:
    return tf.reshape(tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, 4]) @ w, [3, -1, 4])


def _recurrent(x: Any, w: Any, start: Any = None, until: Callable[[Any, Any], Any] = lambda t, _: t < 3) -> Any:
    start = tf.zeros([ROWS, 4]) if start is None else start
    return tf.while_loop(until, lambda t, h: (t + 1, tf.tanh(x[:, t] @ w + h)), [tf.constant(0), start])[1]


def _nested(x: Any, w: Any) -> Any:
    def body(t: Any, h: Any) -> Any:
        inner = tf.while_loop(lambda i, _: i < 2, lambda i, g: (i + 1, g + x[:, t] * w[0]), [tf.constant(0), h])
        return t + 1, inner[1]

    return tf.while_loop(lambda t, _: t < 3, body, [tf.constant(0), tf.zeros([ROWS, 4])])[1]


def _turned(x: Any, w: Any) -> Any:
    """Joined along the first axis and along the second in turn."""
    square = x[:, :1, 0] * tf.ones([1, ROWS])
    return tf.while_loop(lambda t, _: t < 3, lambda t, h: (t + 1, tf.transpose(h)), [tf.constant(0), square])[1]


def _branches(x: Any, w: Any, predicate: Any = None) -> Any:
    predicate = tf.reduce_sum(w) > 0.0 if predicate is None else predicate
    return tf.cond(predicate, lambda: x * 2.0, lambda: tf.zeros([ROWS, 3, 4]))


LOOPS: dict[str, tuple[Callable[[Any, Any], Any], int | None]] = {
    "a recurrent network": (_recurrent, 0),
    "a recurrent network that starts at the batch": (lambda x, w: _recurrent(x, w, x[:, 0]), 0),
    "as many iterations as the batch says": (lambda x, w: _recurrent(x, w, None, lambda t, h: h[0, 0] < 3.0), None),
    "as many iterations as drawn": (lambda x, w: _recurrent(x, w, None, lambda *_: tf.random.uniform([]) < 0.5), None),
    "a start that is one for all rows": (lambda x, w: _recurrent(x[:1], w, tf.zeros([1, 4])), None),
    "a loop within a loop": (_nested, 0),
    "another axis in every iteration": (_turned, None),
    "a scan over time": (lambda x, w: tf.scan(lambda a, e: a + e @ w, tf.transpose(x, [1, 0, 2])), 1),
    "a map over time": (lambda x, w: tf.map_fn(lambda e: e @ w, tf.transpose(x, [1, 0, 2])), 1),
    "a map over the batch": (lambda x, w: tf.map_fn(lambda e: e @ w, x), None),
    "a branch for all workers": (_branches, 0),
    "a branch for each worker": (lambda x, w: _branches(x, w, tf.reduce_sum(x) > 0.0), None),
}


JOINED: dict[str, tuple[Callable[[Any, Any], Any], int | None]] = {
    "a fed tensor": (lambda x, w: x, 0),
    "elementwise with what is equal": (lambda x, w: tf.tanh(x * 2.0 + w[0]), 0),
    "transposed": (lambda x, w: tf.transpose(x, [1, 2, 0]), 2),
    "a new axis in front": (lambda x, w: x[None], 1),
    "a cut along another axis": (lambda x, w: x[:, 1], 0),
    "after an ellipsis": (lambda x, w: tf.transpose(x)[..., 0:1, :], 2),
    "a cut along the batch": (lambda x, w: x[1:], None),
    "flattened": (lambda x, w: tf.reshape(x, [-1]), 0),
    "flattened with time first": (lambda x, w: tf.reshape(tf.transpose(x, [1, 0, 2]), [-1]), MIXED),
    "rows of whole length": (lambda x, w: tf.reshape(x, [-1, 4]), 0),
    "put behind one another along time": (lambda x, w: tf.concat([x, x], 1), 0),
    "put behind one another along the batch": (lambda x, w: tf.concat([x, x], 0), MIXED),
    "a constant among rows of the batch": (lambda x, w: tf.concat([x, tf.ones([1, 3, 4])], 0), None),
    "multiplied by a matrix": (lambda x, w: tf.reshape(x, [-1, 4]) @ w, 0),
    "multiplied by itself": (lambda x, w: tf.matmul(x, x, transpose_b=True), 0),
    "its columns' products": (lambda x, w: tf.matmul(x[:, 0], x[:, 0], transpose_a=True), None),
    "a mean over time": (lambda x, w: tf.reduce_mean(x, 1), 0),
    "a mean over the batch": (lambda x, w: tf.reduce_mean(x, 0), None),
    "a softmax over columns": (lambda x, w: tf.nn.softmax(x), 0),
    "a softmax over the batch": (lambda x, w: tf.nn.softmax(tf.transpose(x)), None),
    "sorted over the batch": (lambda x, w: tf.sort(x, 0), None),
    "stacked": (lambda x, w: tf.stack([x, x], 1), 0),
    "looked up": (lambda x, w: tf.gather(w, tf.cast(x[:, :, 0], tf.int32)), 0),
    "tiled over time": (lambda x, w: tf.tile(x, [1, 2, 1]), 0),
    "reversed over the batch": (lambda x, w: tf.reverse(x, [0]), None),
    "with random numbers of a known shape": (lambda x, w: x * tf.random.uniform([ROWS, 3, 4]), 0),
    "time and batch made one axis": (lambda x, w: tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, 4]) @ w, MIXED),
    "time-major rows, multiplied and put back": (_time_major_product, 1),
    "rows of distinct elements given back": (lambda x, w: _of_distinct(x, lambda u: tf.tanh(tf.gather(w, u))), 0),
    "rows of distinct elements in two cuts": (
        lambda x, w: _of_distinct(x, lambda u: tf.concat([tf.gather(w, u[:1]), tf.gather(w, u[1:])], 0)),
        0,
    ),
    "rows of distinct elements in another order": (
        lambda x, w: _of_distinct(x, lambda u: tf.concat([tf.gather(w, u[1:]), tf.gather(w, u[:1])], 0)),
        None,
    ),
    "chosen by a mask": (lambda x, w: tf.boolean_mask(x, x[:, :, 0] > 0.0), 0),
    "bags of what a mask has chosen": (_masked_bags, 0),
    "bags by numbers of time": (lambda x, w: _masked_bags(x, w, tf.tile(tf.range(ROWS)[None], [3, 1])), None),
    "halves of two": (lambda x, w: tf.split(tf.tanh(tf.concat([x, x + 1.0], 0)), 2)[1], 0),
    "batches folded into a row": (lambda x, w: tf.reshape(x, [3, 24]), None),
    "one against all others": (lambda x, w: x[:, None, 0] - x[None, :, 0], None),
}


@pytest.mark.parametrize("case", JOINED)
def test_the_axis_of_the_batch_is_followed_as_far_as_it_is_proven(case: str) -> None:
    build, expected = JOINED[case]
    assert axis_of(build) == expected


@pytest.mark.parametrize("case", LOOPS)
@pytest.mark.parametrize("control_flow", ["old", "new"])
def test_the_axis_of_the_batch_is_proven_of_every_iteration_or_not_at_all(case: str, control_flow: str) -> None:
    build, expected = LOOPS[case]
    change, back = v1.disable_control_flow_v2, v1.enable_control_flow_v2
    (change if control_flow == "old" else back)()
    try:
        assert axis_of(build) == expected
    finally:
        back()


def axis_of(build: Callable[[Any, Any], Any]) -> int | None:
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [ROWS, 3, 4], name="x")
        w = v1.get_variable("w", [4, 4], use_resource=True)
        tensor = tf.identity(build(x, w), name="found")
    captured = capture(graph)
    states = walked(captured, (), {}).states
    return BatchAxes(captured.view, states).of(tensor.name)
