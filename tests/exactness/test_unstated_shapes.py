"""Placeholders without a shape, as TensorFlow 1 allows: rates, weights of losses, masks, features and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1


def normal(*dims: int) -> Feed:
    return lambda rng, rows: rng.randn(rows, *dims)


def pick_class(rng: Any, rows: int) -> Any:
    return rng.randint(0, 3, [rows])


def pick_one_hot(rng: Any, rows: int) -> Any:
    return np.eye(3)[pick_class(rng, rows)]


def rate(rng: Any, rows: int) -> Any:
    return np.float32(0.7)


def positive(rng: Any, rows: int) -> Any:
    return np.abs(rng.randn(rows))


def project(features: Any, units: int, name: str = "w") -> Any:
    return features @ v1.get_variable(name, [features.shape[-1], units])


def find_errors(x: Any, y: Any) -> Any:
    return tf.square(project(tf.nn.relu(project(x, 4, "hidden")), 1)[:, 0] - y)


def unstated(name: str, dtype: Any = tf.float32) -> Any:
    return v1.placeholder(dtype, name=name)


def read_vectors(rows: int | None) -> tuple[Any, Any]:
    """Features `[rows, 4]`, and labels `[rows]`."""
    return v1.placeholder(tf.float32, [rows, 4], name="x"), v1.placeholder(tf.float32, [rows], name="y")


def weigh_losses(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    return tf.reduce_mean(find_errors(x, y) + unstated("extra") * tf.abs(y))


def weigh_a_loss(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    return tf.sqrt(tf.reduce_mean(find_errors(x, y))) + unstated("extra") * tf.reduce_mean(tf.abs(project(x, 1, "v")))


def scale_hidden_units(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    scaled = x / (1.0 - unstated("extra") * 0.5)
    scaled.set_shape([rows, 4])
    return tf.sqrt(tf.reduce_mean(find_errors(scaled, y)))


def average_by_mask(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    mask = unstated("extra")
    return tf.reduce_sum(mask * find_errors(x, y)) / tf.reduce_sum(mask)


def average_by_default_mask(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    mask = v1.placeholder_with_default(tf.ones([rows or tf.shape(x)[0]]), None, name="extra")
    return tf.reduce_sum(mask * find_errors(x, y)) / tf.reduce_sum(mask)


def add_features(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    return tf.sqrt(tf.reduce_mean(find_errors(tf.concat([x, unstated("extra")], 1)[:, 1:5] + x, y)))


def classify_one_hot(rows: int | None) -> Any:
    x, _ = read_vectors(rows)
    return tf.reduce_mean(v1.nn.softmax_cross_entropy_with_logits(logits=project(x, 3), labels=unstated("extra")))


def classify(rows: int | None) -> Any:
    x, _ = read_vectors(rows)
    labels = unstated("extra", tf.int32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=project(x, 3), labels=labels))


def classify_by_one_hot(rows: int | None) -> Any:
    x, _ = read_vectors(rows)
    return -tf.reduce_sum(tf.one_hot(unstated("extra", tf.int32), 3) * tf.nn.log_softmax(project(x, 3)))


def convolve(rows: int | None) -> Any:
    images = tf.reshape(unstated("extra"), [-1, 4, 4, 1])
    hidden = tf.nn.relu(tf.nn.conv2d(images, v1.get_variable("kernel", [3, 3, 1, 2]), 2, "SAME"))
    return tf.sqrt(tf.reduce_mean(tf.square(project(tf.reshape(hidden, [-1, 8]), 1) - read_vectors(rows)[1][:, None])))


def look_up(rows: int | None) -> Any:
    _, y = read_vectors(rows)
    embedded = tf.nn.embedding_lookup(v1.get_variable("embedding", [9, 4]), unstated("extra", tf.int32))
    embedded.set_shape([rows, 4])
    return tf.sqrt(tf.reduce_mean(tf.square(project(embedded, 1)[:, 0] - y)))


def decay_weights(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    return tf.sqrt(tf.reduce_mean(find_errors(x, y))) + unstated("extra") * tf.nn.l2_loss(v1.trainable_variables()[0])


def regress(rows: int | None) -> Any:
    x, _ = read_vectors(rows)
    return v1.losses.mean_squared_error(unstated("extra"), project(x, 1))


CONDITIONAL = "labels of a loss that checks its weights"
LOSSES: Mapping[str, tuple[Callable[[int | None], Any], Feed | None]] = {
    "a weight of losses": (weigh_losses, rate),
    "weights of losses": (weigh_losses, positive),
    "a weight of a loss": (weigh_a_loss, rate),
    "a rate": (scale_hidden_units, rate),
    "a mask": (average_by_mask, positive),
    "a mask with a default": (average_by_default_mask, None),
    "a mask in place of a default": (average_by_default_mask, positive),
    "images": (convolve, normal(16)),
    "ids": (look_up, lambda rng, rows: rng.randint(0, 9, [rows])),
    "a weight of variables": (decay_weights, rate),
    "features": (add_features, normal(4)),
    "labels of one-hot rows": (classify_one_hot, pick_one_hot),
    "labels that are classes": (classify, pick_class),
    "labels made one-hot": (classify_by_one_hot, pick_class),
    CONDITIONAL: (regress, normal(1)),
}


def scale_in_a_loop(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    _, h = v1.nn.dynamic_rnn(Cell(unstated("extra")), tf.stack([x, tf.abs(x)], 1), dtype=tf.float32)
    return tf.sqrt(tf.reduce_mean(find_errors(h, y)))


def end_sequences(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    lengths = unstated("extra", tf.int32)
    _, h = v1.nn.dynamic_rnn(Cell(0.5), tf.stack([x, tf.abs(x)], 1), sequence_length=lengths, dtype=tf.float32)
    return tf.sqrt(tf.reduce_mean(find_errors(h, y)))


def scale_in_a_branch(rows: int | None) -> Any:
    x, y = read_vectors(rows)
    scale = unstated("extra")
    scaled = tf.cond(tf.reduce_sum(x) > 0.0, lambda: x * scale, lambda: tf.abs(x))
    scaled.set_shape([rows, 4])
    return tf.sqrt(tf.reduce_mean(find_errors(scaled, y)))


CONTROL_FLOW: Mapping[str, tuple[Callable[[int | None], Any], Feed]] = {
    "a factor in a loop": (scale_in_a_loop, rate),
    "lengths of sequences": (end_sequences, lambda rng, rows: rng.randint(1, 3, [rows])),
    "a factor in a branch": (scale_in_a_branch, rate),
}


def minimize(find_loss: Callable[[int | None], Any]) -> Callable[[int | None], Any]:
    return lambda rows: v1.train.AdagradOptimizer(0.1).minimize(find_loss(rows))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(("case", "is_old"), [*((case, False) for case in LOSSES), (CONDITIONAL, True)])
def test_what_is_fed_to_a_placeholder_without_a_shape_is_each_workers(case: str, is_old: bool, is_open: bool) -> None:
    find_loss, feed = LOSSES[case]
    feeds = {"x": normal(4), "y": normal()} | ({} if feed is None else {"extra": feed})
    found = tried(minimize(find_loss), feeds, is_open=is_open, control_flow_v2=not is_old)
    assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("case", CONTROL_FLOW)
def test_loops_and_branches_read_placeholders_without_a_shape(case: str, is_old: bool, is_open: bool) -> None:
    find_loss, feed = CONTROL_FLOW[case]
    feeds = {"x": normal(4), "y": normal(), "extra": feed}
    found = tried(minimize(find_loss), feeds, is_open=is_open, control_flow_v2=not is_old)
    assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())


@pytest.mark.parametrize("is_open", [False, True])
def test_dropout_with_a_rate_without_a_shape_gathers_nothing(is_open: bool) -> None:
    graph = tf.Graph()
    with graph.as_default():
        x, y = read_vectors(None if is_open else 6)
        hidden = v1.nn.dropout(tf.nn.relu(project(x, 4, "hidden")), unstated("keep"))
        v1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(project(hidden, 1)[:, 0] - y)))
    assert plan_for(analyse(graph), one_host(2), Config()).notes == ()


def make_names(build: Callable[[], Any]) -> Names:
    """The session's names of a worker's graph."""
    graph = tf.Graph()
    with graph.as_default():
        build()
    analysed = analyse(graph)
    rewrites = rewrites_of(analysed, plan_for(analysed, one_host(2), Config()))
    return Names(analysed.captured.view, transform(analysed.captured.view, rewrites, Worker(0, 2, 7)))


def test_labels_with_an_axis_too_many_are_refused() -> None:
    """One process would compare the predictions `[rows]` with labels `[rows, 1]` in all pairs."""
    names = make_names(lambda: minimize(weigh_losses)(None))
    feeds = {"x:0": np.zeros([2, 4]), "y:0": np.zeros([2]), "extra:0": np.zeros([2, 1])}
    run = names.resolve(("Mean:0",), feeds)
    with pytest.raises(
        SessionError, match=r"'extra:0' has no shape. The ops that read it show rank 0 to 1, .*\(2, 1\)"
    ):
        run.feeds(feeds)
    for value in (np.zeros([]), np.zeros([2])):
        assert run.feeds({**feeds, "extra:0": value}).keys() == feeds.keys()


def test_a_constant_that_has_chosen_a_branch_is_refused_as_a_feed() -> None:
    def build() -> Any:
        x, y = read_vectors(None)
        is_scaled = tf.equal(tf.constant(0, name="mode"), 1)
        scaled = tf.cond(is_scaled, lambda: x * 2.0, lambda: x)
        return minimize(lambda rows: tf.reduce_mean(find_errors(scaled, y)))(None)

    names = make_names(build)
    with pytest.raises(SessionError, match="'mode:0' cannot be fed: a conditional compares it"):
        names.resolve(("Mean:0",), ["mode:0", "x:0", "y:0"])


def test_a_scalar_is_refused_where_ops_need_examples() -> None:
    names = make_names(lambda: minimize(average_by_mask)(None))
    feeds = {"x:0": np.zeros([2, 4]), "y:0": np.zeros([2]), "extra:0": np.zeros([])}
    run = names.resolve(("truediv:0",), feeds)
    with pytest.raises(SessionError, match=r"'extra:0' has no shape.*every feed must have; got the shape \(\)"):
        run.feeds(feeds)
    assert run.feeds({**feeds, "extra:0": np.zeros([2])}).keys() == feeds.keys()
