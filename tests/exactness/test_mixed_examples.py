"""Graphs of scripts by layouts: N workers with unequal shares are one process on the global batch, in every case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ops.exactness.draft import Program, Statement
from ops.exactness.interactions import FEATURES, LOSSES
from ops.exactness.runs import Built
from ops.exactness.trial import Outcome, try_program
from parallax.analysis.graph_to_plan import analyse
from parallax.base.errors import GraphError

pytestmark = pytest.mark.rotates(days=3)

PLAIN, ROUTES = "tf.reduce_mean(per_row)", ["alltoall"]


def program_of(feature: str = "{h}", loss: str = PLAIN, more: str = "", **feeds: str) -> Program:
    """A program of three workers, whose batches have 6, 8 and 5 rows where the batch is open."""
    return Program(
        title="A program.",
        workers=3,
        feeds=(("ids", "rng.randint(0, 13, [rows])"), ("y", "rng.randn(rows)"), *feeds.items()),
        statements=(
            Statement('ids = v1.placeholder(tf.int64, [rows], name="ids")'),
            Statement('y = v1.placeholder(F, [rows], name="y")'),
            Statement("n = tf.shape(ids)[0] if rows is None else rows"),
            Statement("size = tf.cast(n, F) if rows is None else float(n)"),
            Statement('emb = v1.get_variable("emb", [13, 4], F)'),
            Statement('w = v1.get_variable("w", [4, 1], F)'),
            Statement(f"h = {feature.format(h='tf.gather(emb, ids)', i='ids')}"),
            Statement("per_row = tf.square((h @ w)[:, 0] - y)"),
            Statement(f"loss = tf.cast({loss.format(h='h', i='ids', table='emb', size=13)}, F) + 0.1 * {PLAIN}"),
            Statement("train = v1.train.AdagradOptimizer(0.3).minimize(loss)"),
            *([Statement(more)] if more else []),
        ),
    )


def outcome(**options: str) -> Outcome:
    """How such a program ends."""
    return try_program(program_of(**options).source(), ROUTES, layouts=True)[ROUTES[0]]


@pytest.mark.rotates
@pytest.mark.parametrize("feature", FEATURES)
def test_features_of_all_examples_are_one_process_s(feature: str) -> None:
    assert outcome(feature=feature).kind == "equal"


@pytest.mark.rotates
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_all_examples_are_one_process_s(loss: str) -> None:
    assert outcome(loss=loss).kind == "equal"


QUEUE = """
queue = v1.FIFOQueue(8, [tf.int64, F])
feeding = queue.enqueue([ids, y])
ids, y = queue.dequeue()
ids.set_shape([rows])
y.set_shape([rows])
"""


def test_masked_means_of_a_queue_s_batch_are_those_of_the_global_batch() -> None:
    made = program_of(loss="tf.reduce_mean(tf.boolean_mask(per_row, ids > 4))")
    statements = (*made.statements[:2], Statement(QUEUE), *made.statements[2:])
    source = replace(made, statements=statements, result="[feeding, train]").source()
    assert try_program(source, ROUTES, layouts=True)[ROUTES[0]].kind == "equal"


def test_moving_averages_are_of_the_global_batch_and_metrics_of_a_worker_s() -> None:
    more = """
past = v1.get_variable("past", [4], F, initializer=v1.zeros_initializer(), trainable=False)
moved = v1.assign(past, 0.9 * past.read_value() + 0.1 * tf.reduce_mean(h, 0))
seen = v1.metrics.mean(per_row)
train = tf.group(train, moved, seen[1])
""".strip()
    assert outcome(more=more).kind == "equal"


def test_gradients_of_a_whole_tensor_beside_a_worker_s_share_are_summed_over_the_same_axes() -> None:
    assert outcome(feature="{h} + tf.gather({h}, tf.argsort({i})) * {h}").kind == "equal"


def test_a_gradient_that_all_workers_have_is_not_summed_over_the_owners_of_its_rows() -> None:
    other = "tf.reduce_mean(tf.gather(emb, ids) @ w)"
    more = f"second = v1.train.GradientDescentOptimizer(0.2).minimize({other}, var_list=[emb])"
    loss = f"({PLAIN} + 0.01 * tf.nn.l2_loss(emb))"
    program = replace(program_of("tf.gather(emb, tf.sort({i}))", loss, more), result="[train, second]")
    assert try_program(program.source(), ROUTES, layouts=True)[ROUTES[0]].kind == "equal"


@pytest.mark.parametrize(
    "term, found",
    [
        ("tf.reduce_mean(tf.square(u * w[0, 0]))", ("equal", "")),
        (
            "tf.reduce_mean(tf.concat([u, per_row], 0))",
            ("foreign", "The batches of one step must have the same length"),
        ),
    ],
)
def test_batches_that_meet_are_of_one_length_and_others_need_not_be(term: str, found: tuple[str, str]) -> None:
    u = 'v1.placeholder(F, [rows], name="u")'
    ended = outcome(loss=f"(lambda u: {term})({u})", u="rng.randn(rows + 2)")
    assert (ended.kind, found[1] in ended.message) == (found[0], True)


FIXED = {
    "batch statistics": "tf.reduce_mean(tf.square(per_row - tf.reduce_mean(per_row)))",
    "a sum by the batch's length": "tf.sqrt(tf.reduce_sum(per_row) / float(rows) + 1.0)",
    "zeros of the batch's length": "tf.sqrt(tf.reduce_mean(tf.stack([per_row, tf.zeros([rows], F)], 1)) + 1.0)",
    "a loss with weights": "tf.sqrt(v1.losses.compute_weighted_loss(per_row) + 1.0)",
    "flat rows": "tf.sqrt(tf.reduce_mean(tf.reshape(tf.reshape(h, [4 * rows]), [rows, 4])) + 9.0)",
    "in-batch negatives": LOSSES[0],
}


@pytest.mark.parametrize("case", FIXED)
def test_a_fixed_batch_is_opened_where_constants_are_told_apart(case: str) -> None:
    program = replace(program_of(loss=FIXED[case]), is_open=False)
    assert analyse(Built.of(program.source()).graph, layouts=True).captured.is_opened
    assert try_program(program.source(), ROUTES, layouts=True)[ROUTES[0]].kind == "equal"


@pytest.mark.parametrize("divisor", ["float(4 * rows)", "tf.cast(4 * rows, F)"])
def test_a_sum_by_a_multiple_of_a_fixed_batch_is_one_process_s(divisor: str) -> None:
    program = replace(program_of(loss=f"tf.reduce_sum(tf.square(h)) / {divisor}"), is_open=False)
    assert try_program(program.source(), ROUTES)[ROUTES[0]].kind == "equal"


def test_losses_of_a_fixed_batch_stay_means_where_a_constant_may_be_the_batch_s_or_none() -> None:
    program = replace(program_of(loss="tf.reduce_mean(per_row * tf.constant(np.arange(rows) % 2, F))"), is_open=False)
    graph = Built.of(program.source()).graph
    assert "takes may be the batch size, be computed from it, or be unrelated" in analyse(graph).captured.means
    with pytest.raises(GraphError, match="layouts=True.* cannot be changed, .*Leave the first dimension"):
        analyse(graph, layouts=True)
