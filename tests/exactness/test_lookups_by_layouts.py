"""Lookups of labels with samples behind them, and of partitioned variables, are one process's without a gather."""

from __future__ import annotations

import pytest

from ops.exactness.draft import Program, Statement
from ops.exactness.runs import Built
from ops.exactness.trial import try_program
from parallax.analysis.stages import analyse

ROUTES = ["alltoall"]
LABELS = "tf.reshape(words, [-1, 1])"
SAMPLES = """
samples = tf.constant([1, 5, 7, 5], tf.int64)
drawn = (samples, 0.1 * tf.cast(labels + 1, F), tf.constant([0.2, 0.3, 0.1, 0.3], F))
""".strip()
CLASSES = """
w_out = v1.get_variable("w_out", [13, 4], F{parts})
b_out = v1.get_variable("b_out", [13], F{parts})
""".strip()
BY_PARTS = ", partitioner=v1.fixed_size_partitioner(3)"


def program_of(*statements: str, parts: str = "", is_open: bool = True) -> Program:
    """A program of three workers, whose batches of words have 6, 8 and 5 rows where the batch is open."""
    return Program(
        title="A program.",
        workers=3,
        is_open=is_open,
        feeds=(("words", "rng.randint(0, 13, [rows, 3])"), ("weights", "rng.rand(rows, 3)")),
        statements=(
            Statement(f'words = v1.placeholder(tf.int64, [rows, {"None" if is_open else 3}], name="words")'),
            Statement(f'weights = v1.placeholder(F, [rows, {"None" if is_open else 3}], name="weights")'),
            Statement(f'emb = v1.get_variable("emb", [13, 4], F{parts})'),
            Statement('h = v1.nn.embedding_lookup(emb, words, partition_strategy="div")'),
            *map(Statement, "\n".join(statements).splitlines()),
            Statement("train = v1.train.AdagradOptimizer(0.3).minimize(loss)"),
        ),
    )


def sampled(loss: str, hits: bool, parts: str = "") -> tuple[str, ...]:
    """A loss over some classes, of every word."""
    more = f'remove_accidental_hits={hits}, sampled_values=drawn, partition_strategy="div"'
    return (
        CLASSES.format(parts=parts),
        f"labels = {LABELS}",
        SAMPLES,
        f"losses = v1.nn.{loss}(w_out, b_out, labels, tf.reshape(h, [-1, 4]), 4, 13, {more})",
        "loss = tf.reduce_mean(losses * tf.reshape(weights, [-1]))",
    )


MASKED = """
scores = tf.reduce_sum(h, 2) - (1.0 - weights) * 3.0
loss = tf.reduce_mean(tf.square(tf.nn.softmax(scores)) * weights)
""".strip()

CASES = {
    "sampled softmax": program_of(*sampled("sampled_softmax_loss", False)),
    "sampled softmax, hits removed": program_of(*sampled("sampled_softmax_loss", True)),
    "sampled softmax of a fixed batch": program_of(*sampled("sampled_softmax_loss", True), is_open=False),
    "NCE": program_of(*sampled("nce_loss", False)),
    "partitioned variables": program_of("loss = tf.reduce_mean(tf.square(h) * weights[:, :, None])", parts=BY_PARTS),
    "a mask of another placeholder": program_of(MASKED),
}


@pytest.mark.parametrize("case", CASES)
def test_examples_of_lookups_stay_with_their_worker(case: str) -> None:
    source = CASES[case].source()
    analysed = analyse(Built.of(source).graph)
    assert analysed.captured.by_layouts and not any("all-gathered" in note for note in analysed.spec.notes)
    assert try_program(source, ROUTES, layouts=True)[ROUTES[0]].kind == "equal"


def test_samples_of_partitioned_classes_are_gathered_and_equal() -> None:
    program = program_of(*sampled("sampled_softmax_loss", False, BY_PARTS), parts=BY_PARTS)
    assert try_program(program.source(), ROUTES, layouts=True)[ROUTES[0]].kind == "equal"
