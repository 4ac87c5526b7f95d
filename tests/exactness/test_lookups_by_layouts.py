"""Lookups of labels with samples behind them, and of partitioned variables, are one process's without a gather."""

from __future__ import annotations

import pytest

from ops.exactness.draft import Program, Statement
from ops.exactness.runs import Built
from ops.exactness.trial import try_program
from parallax.analysis.graph_to_plan import analyse

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

EXPERTS = """
gate = tf.cast(words[:, 0] % 3, tf.int32)
parts = tf.dynamic_partition(tf.reduce_sum(h, 1), gate, 3)
places = tf.dynamic_partition(tf.range(tf.shape(words)[0]), gate, 3)
mixed = tf.dynamic_stitch(places, [tf.tanh(part * (k + 1.0)) for k, part in enumerate(parts)])
loads = [tf.cast(tf.shape(part)[0], F) for part in parts]
loss = tf.reduce_mean(tf.square(mixed)) + 0.1 * tf.add_n([load * tf.reduce_sum(p) for load, p in zip(loads, parts)])
""".strip()
MEANS_OF_PARTS = """
loss += tf.add_n([tf.reduce_mean(tf.concat([part, tf.ones([1, 4], F)], 0)) for part in parts])
loss += tf.reduce_sum(tf.cast(tf.range(tf.shape(parts[1])[0]), F)[:, None] * parts[1])
""".strip()

CASES = {
    "a mixture of experts": program_of(EXPERTS),
    "sampled softmax": program_of(*sampled("sampled_softmax_loss", False)),
    "sampled softmax, hits removed": program_of(*sampled("sampled_softmax_loss", True)),
    "sampled softmax of a fixed batch": program_of(*sampled("sampled_softmax_loss", True), is_open=False),
    "NCE": program_of(*sampled("nce_loss", False)),
    "partitioned variables": program_of("loss = tf.reduce_mean(tf.square(h) * weights[:, :, None])", parts=BY_PARTS),
    "a mask of another placeholder": program_of(MASKED),
}


@pytest.mark.rotates
@pytest.mark.parametrize("case", CASES)
def test_examples_of_lookups_stay_with_their_worker(case: str) -> None:
    source = CASES[case].source()
    analysed = analyse(Built.of(source).graph)
    assert analysed.captured.by_layouts and not any("all-gathered" in note for note in analysed.spec.notes)
    assert try_program(source, ROUTES, layouts=True)[ROUTES[0]].kind == "equal"


def test_means_of_what_is_dealt_out_by_its_values_are_equal() -> None:
    program = program_of(EXPERTS, MEANS_OF_PARTS)
    assert try_program(program.source(), ROUTES)[ROUTES[0]].kind == "equal"
    means = program_of(EXPERTS, "loss += 0.1 * tf.add_n([tf.exp(tf.reduce_mean(part)) for part in parts])")
    assert try_program(means.source(), ROUTES, layouts=True)[ROUTES[0]].kind == "equal"


IDS_BEHIND_ZEROS = """
padded = tf.pad(words[:, 0], [[2, 0]])
rows = tf.gather(emb, padded)
loss = tf.reduce_mean(tf.square(rows[2:])) + tf.reduce_sum(rows[:2] * 0.3) + 0.1 * tf.cast(tf.size(padded), F)
loss += tf.reduce_mean(rows * rows)
""".strip()


def test_zeros_before_the_ids_of_a_batch_are_ids_too() -> None:
    program = program_of(IDS_BEHIND_ZEROS)
    assert try_program(program.source(), ROUTES, layouts=True)[ROUTES[0]].kind == "equal"


BY_PYTHON = """
errors = tf.reduce_mean(tf.square(h), [1, 2])
count = lambda found: np.float64(np.median(found) + 0.1 * len(found))
weight = tf.reshape(tf.numpy_function(count, [errors], F), [])
loss = tf.reduce_mean(errors * (1.0 + tf.stop_gradient(weight)))
""".strip()


def test_python_code_of_a_step_computes_of_the_global_batch() -> None:
    program = program_of(BY_PYTHON)
    assert try_program(program.source(), ROUTES, layouts=True)[ROUTES[0]].kind == "equal"


def test_samples_of_partitioned_classes_are_gathered_and_equal() -> None:
    program = program_of(*sampled("sampled_softmax_loss", False, BY_PARTS), parts=BY_PARTS)
    assert try_program(program.source(), ROUTES, layouts=True)[ROUTES[0]].kind == "equal"
