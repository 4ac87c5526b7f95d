"""Graphs that leave the batch of placeholders open and fix it elsewhere: by zeros of a state, or by another input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.base.errors import SessionError
from parallax.plans.plan import one_host
from parallax.runtime.worker.session.names import Names
from parallax.settings.config import Config
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform
from tests.exactness.loss_trials import Feed, tried
from tests.exactness.recurrent_cell import Cell

v1 = tf.compat.v1


def minimize(outputs: Any, labels: Any) -> Any:
    predictions = (outputs @ v1.get_variable("w", [4, 1]))[:, 0]
    return v1.train.AdagradOptimizer(0.1).minimize(tf.sqrt(tf.reduce_mean(tf.square(predictions - labels))))


def read_sequences() -> tuple[Any, Any]:
    return v1.placeholder(tf.float32, [None, 3, 4], name="x"), v1.placeholder(tf.float32, [None], name="y")


def unroll_from_zeros(rows: int) -> Any:
    x, y = read_sequences()
    state = tf.zeros([rows, 4])
    for step in range(3):
        state = tf.tanh(tf.concat([x[:, step], state], 1) @ v1.get_variable(f"w{step}", [8, 4]))
    return minimize(state, y)


def loop_from_zeros(rows: int) -> Any:
    x, y = read_sequences()
    return minimize(v1.nn.dynamic_rnn(Cell(), x, initial_state=tf.zeros([rows, 4]), dtype=tf.float32)[1], y)


def add_rows(rows: int) -> Any:
    x, y = read_sequences()
    return minimize(x[:, 0] + tf.ones([rows, 4]) * 0.3, y)


def read_fixed_rows(rows: int) -> Any:
    x = v1.placeholder(tf.float32, [rows, 3, 4], name="x")
    return minimize(tf.reduce_sum(x, 1), v1.placeholder(tf.float32, [None], name="y"))


def pick_by_number(rows: int) -> Any:
    x, y = read_sequences()
    columns = tf.cast(tf.abs(y) * 3.0, tf.int32) % 4
    picked = tf.gather_nd(tf.reduce_sum(x, 1), tf.stack([tf.range(rows), columns], 1))
    return minimize(tf.tile(picked[:, None], [1, 4]), y)


def add_positions(rows: int) -> Any:
    """A table of as many positions as examples: the batch stays open."""
    x, y = v1.placeholder(tf.float32, [None, None, 4], name="x"), v1.placeholder(tf.float32, [None], name="y")
    rows_by_step = tf.transpose(x, [1, 0, 2]) + v1.get_variable("positions", [rows, 1, 4])
    return minimize(tf.reduce_sum(rows_by_step, 0), y)


PROGRAMS: Mapping[str, Callable[[int], Any]] = {
    "an unrolled recurrence from zeros": unroll_from_zeros,
    "a loop from zeros": loop_from_zeros,
    "rows of ones": add_rows,
    "an input of fixed length": read_fixed_rows,
    "numbers of examples": pick_by_number,
}
FEEDS: Mapping[str, Feed] = {"x": lambda rng, rows: rng.randn(rows, 3, 4), "y": lambda rng, rows: rng.randn(rows)}


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_open_batch_that_the_graph_fixes_is_that_of_a_fixed_graph(program: str, is_old: bool) -> None:
    found = tried(PROGRAMS[program], FEEDS, is_open=False, control_flow_v2=not is_old, rows=6)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


def test_positions_beside_an_open_batch_do_not_fix_it() -> None:
    feeds: dict[str, Feed] = {**FEEDS, "x": lambda rng, rows: rng.randn(rows, 6, 4)}
    found = tried(lambda rows: add_positions(6), feeds, is_open=True, rows=6)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


def test_a_median_of_columns_says_nothing_of_the_batch_length() -> None:
    """Its code reshapes flags of the columns to a shape that it computes."""

    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(tf.float32, [rows, 3, 4], name="x"), v1.placeholder(tf.float32, [rows], name="y")
        return minimize(x[:, 0] - keras.ops.median(tf.reshape(x, [-1, 4]), axis=0), y)

    found = tried(build, FEEDS, is_open=True, rows=6)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


def test_a_batch_of_another_length_is_refused_where_workers_communicate() -> None:
    """An agent picks actions for one state by the graph that it trains with batches."""
    graph = tf.Graph()
    with graph.as_default():
        train = pick_by_number(6)
    analysed = analyse(graph)
    view = analysed.captured.view
    rewrites = rewrites_of(analysed, plan_for(analysed, one_host(2), Config()))
    names = Names(view, transform(view, rewrites, Worker(0, 2, 7)), fixed=analysed.captured.fixed)
    one, six = ({"x:0": np.zeros([rows, 3, 4]), "y:0": np.zeros([rows])} for rows in (1, 6))
    assert names.resolve(("Sum:0",), ["x:0"]).feeds({"x:0": one["x:0"]})
    run = names.resolve((train.name,), list(one))
    assert run.feeds(six).keys() == six.keys()
    with pytest.raises(SessionError, match=r"'y:0' must be fed 6 examples .* got the shape \(1,\)"):
        run.feeds(one)


def test_shapes_with_as_many_columns_as_examples_are_opened() -> None:
    """TensorFlow flattens logits `[rows, 6]`, also of six examples, by constants that it makes of their shape."""

    def build(rows: int) -> Any:
        x = v1.placeholder(tf.float32, [rows, 3, 4], name="x")[:, 0]
        logits = tf.concat([x @ v1.get_variable("w", [4, 4]), x[:, :2]], 1)
        labels = tf.stop_gradient(tf.nn.softmax(tf.concat([x, x[:, :2]], 1)))
        losses = v1.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(losses))

    found = tried(build, {"x": FEEDS["x"]}, is_open=False, rows=6)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


@pytest.mark.parametrize("cut", ["a slice", "brackets"])
def test_a_batch_that_is_cut_to_its_longest_text_is_opened(cut: str) -> None:
    """As in R-Net and QANet, whose slices have the batch size beside a computed length."""

    def build(rows: int | None) -> Any:
        assert rows is not None
        words = v1.placeholder(tf.int32, [rows, 6], name="words")
        longest = tf.reduce_max(tf.reduce_sum(tf.cast(words > 3, tf.int32), 1)) + 1
        words = tf.slice(words, [0, 0], [rows, longest]) if cut == "a slice" else words[:rows, :longest]
        found = tf.gather(v1.get_variable("table", [9, 4]), words)
        return v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square(tf.reduce_sum(found, 1))))

    outcome = tried(build, {"words": lambda rng, rows: rng.randint(0, 9, [rows, 6])}, is_open=False, rows=7)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome
