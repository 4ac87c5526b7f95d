"""A script may feed constants, such as the state in which a recurrence begins, and fetch them without a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.base.errors import SessionError
from parallax.plans.plan import one_host
from parallax.runtime.worker.session.names import Names
from parallax.settings.config import Config
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform
from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1

WORDS, STEPS = 11, 3
WIDE = 200
"""Of a state that is no constant: TensorFlow fills a shape with zeros where there are more than a thousand."""
FEEDS = {
    "words": lambda rng, rows: rng.randint(0, WORDS, [rows, STEPS]),
    "labels": lambda rng, rows: rng.randint(0, WORDS, [rows, STEPS]),
}


def minimize_language_model(rows: int | None, dim: int, make_state: Callable[[Any, int], Any]) -> Any:
    """Truncated backpropagation through time: the state of the last batch is fed as the first one's."""
    words, labels = (v1.placeholder(tf.int32, [rows, STEPS], name=name) for name in ("words", "labels"))
    length = rows or tf.shape(words)[0]
    state = make_state(length, dim)
    embedded = tf.nn.embedding_lookup(v1.get_variable("embedding", [WORDS, dim]), words)
    weights, outputs = v1.get_variable("weights", [2 * dim, dim]), []
    for step in range(STEPS):
        state = tf.tanh(tf.concat([embedded[:, step], state], 1) @ weights)
        outputs.append(state)
    logits = tf.stack(outputs, 1) @ v1.get_variable("projection", [dim, WORDS])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_sum(losses) / tf.cast(length, tf.float32)
    variables = v1.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.5)
    return v1.train.GradientDescentOptimizer(0.5).apply_gradients(zip(gradients, variables, strict=True))


STATES: dict[str, Callable[[Any, int], Any]] = {
    "a small constant": lambda length, dim: tf.zeros([length, dim], name="state"),
    "a large one": lambda length, dim: tf.zeros([length, dim], name="state"),
    "a copy": lambda length, dim: tf.identity(tf.zeros([length, dim]), name="state"),
    "a trained row": lambda length, dim: tf.broadcast_to(v1.get_variable("row", [dim]), [length, dim], name="state"),
    "a default": lambda length, dim: v1.placeholder_with_default(
        tf.zeros([length, dim]), [length if isinstance(length, int) else None, dim], name="state"
    ),
}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("is_fed", [False, True])
@pytest.mark.parametrize("kind", STATES)
def test_the_state_that_a_recurrence_begins_with_may_be_fed(kind: str, is_fed: bool, is_open: bool) -> None:
    dim = WIDE if kind == "a large one" else 4
    feeds = {**FEEDS, "state": lambda rng, rows: rng.randn(rows, dim)} if is_fed else FEEDS
    found = tried(lambda rows: minimize_language_model(rows, dim, STATES[kind]), feeds, is_open=is_open)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())


def open_names(dim: int, make_state: Callable[[Any, int], Any]) -> Names:
    """The session's names of a worker's graph, which the script built for a fixed batch."""
    graph = tf.Graph()
    with graph.as_default():
        minimize_language_model(6, dim, make_state)
    analysed = analyse(graph)
    captured = analysed.captured
    assert captured.is_opened
    rewrites = rewrites_of(analysed, plan_for(analysed, one_host(2), Config()))
    return Names(captured.view, transform(captured.view, rewrites, Worker(0, 2, 7)), fixed=captured.fixed)


@pytest.mark.parametrize("dim", [4, WIDE])
def test_a_state_is_fetched_without_a_batch(dim: int) -> None:
    names = open_names(dim, lambda length, dim: tf.zeros([length, dim], name="state"))
    found = names.resolve(("state:0",), ())
    assert not found.collectives
    assert names.run_view.ancestors(["state"], frozenset(found.empty)).isdisjoint({"words", "labels"})
    assert all(len(value) == 6 for value in found.empty.values())


def test_a_constant_is_refused_as_a_feed_where_another_one_is_made_of_it() -> None:
    names = open_names(4, lambda length, dim: tf.identity(tf.zeros([length, dim], name="zeros"), name="state"))
    with pytest.raises(SessionError, match="'zeros:0' cannot be fed: 'state:0' is computed from it.*Feed 'state:0'"):
        names.resolve(("Sum:0",), ("zeros:0", "words:0", "labels:0"))
    assert names.resolve(("Sum:0",), ("state:0", "words:0", "labels:0")).copies.keys() == {"state:0"}
