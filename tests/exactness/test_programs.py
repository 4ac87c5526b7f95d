"""Programs that once ended in other values or foreign errors, each as short as it shows."""

from __future__ import annotations

from typing import Any

import pytest

from ops.exactness.draft import Program, Statement
from ops.exactness.trial import try_program

_TABLE = 'emb = v1.get_variable("emb", [13, 4], F)\nw = v1.get_variable("w", [4, 1], F)'
_CTC = (
    "tf.reduce_mean(tf.nn.ctc_loss(tf.cast(ids[:, None] % 3, tf.int32), tf.transpose(tf.gather(emb, bags), [1, 0, 2]),"
    " tf.ones_like(ids, tf.int32), 3 * tf.ones_like(ids, tf.int32), blank_index=3))"
)
_ERRORS = "errors = tf.square((tf.gather(emb, ids) @ w)[:, 0] - y)"
_CLIP = """
def clipped(gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(clipped(gradient.values), gradient.indices, gradient.dense_shape)
    return tf.clip_by_value(gradient, -0.02, 0.02)
"""
_IN_COND = """
same = tf.zeros_like(ids) + 2
h = tf.cond(step % 2 < 1, lambda: tf.gather(emb, same), lambda: tf.gather(emb, same) * 0.5)
loss = tf.reduce_mean(tf.square((h @ w)[:, 0] - y))
"""


_OF_ALL_GRADIENTS = """
with v1.control_dependencies([part for g, _ in pairs for part in ([g.values] if hasattr(g, "values") else [g])]):
    pairs = [
        (tf.IndexedSlices(tf.identity(g.values), g.indices, g.dense_shape) if hasattr(g, "values") else g, v)
        for g, v in pairs
    ]
train = opt.apply_gradients(pairs, global_step=step)
table = v1.get_variable("table", [13, 4], F)
weights = v1.get_variable("weights", [4, 1], F)
apart = tf.reduce_mean(tf.square(tf.gather(table, ids) @ weights - 1.0))
second = v1.train.AdagradOptimizer(0.2).minimize(apart, var_list=[weights, table])
"""


def outcome(*texts: str, after: str = "train = opt.apply_gradients(pairs, global_step=step)", **options: Any) -> Any:
    """How a program of three workers ends, and by which message.

    Args:
        texts: lines that give `loss`.
        after: lines that apply the gradients `pairs`.
        options: of the program.
    """
    program = Program(
        title="A program.",
        workers=3,
        feeds=(
            ("ids", "rng.randint(0, 13, [rows])"),
            ("bags", "rng.randint(0, 13, [rows, 3])"),
            ("y", "rng.randn(rows)"),
        ),
        statements=(
            Statement('ids = v1.placeholder(tf.int64, [rows], name="ids")'),
            Statement('bags = v1.placeholder(tf.int64, [rows, 3], name="bags")'),
            Statement('y = v1.placeholder(F, [rows], name="y")'),
            Statement("step = v1.train.get_or_create_global_step()"),
            *(Statement(text.strip("\n")) for text in (_TABLE, *texts)),
            Statement(_CLIP.strip("\n")),
            Statement("opt = v1.train.AdagradOptimizer(0.3)"),
            Statement("pairs = [(clipped(g), v) for g, v in opt.compute_gradients(loss) if g is not None]"),
            Statement(after.strip("\n")),
        ),
        **options,
    )
    (found,) = try_program(program.source(), ["hybrid"]).values()
    return found.kind, found.message


@pytest.mark.parametrize(
    "text",
    [
        f"loss = {_CTC}",
        f"@tf.function\ndef f(ids, bags):\n    return {_CTC}\nloss = f(ids, bags)",
        f"{_ERRORS}\nloss = tf.reduce_mean(tf.gather(errors, tf.where(y > 0)[:, 0]))",
    ],
    ids=["functions as ops of functions", "functions as ops in a function", "chosen by a column of places"],
)
def test_programs_equal_one_process(text: str) -> None:
    assert outcome(text, dtype="float32") == ("equal", "")


def test_ids_that_autodiff_puts_together_of_branches_are_those_of_every_example() -> None:
    assert outcome(_IN_COND) == ("equal", "")
    assert outcome(_IN_COND, control_flow_v2=False) == ("equal", "")


def test_rows_of_a_gradient_that_are_rows_again_are_refused() -> None:
    kind, message = outcome(
        "again = tf.gather(tf.gather_nd(emb, ids[:, None]), tf.range(tf.shape(ids)[0]))\n"
        "loss = tf.reduce_mean(tf.square((again @ w)[:, 0] - y))"
    )
    assert (kind, "consists of nested IndexedSlices" in message) == ("refused", True)
    assert outcome(
        "again = tf.gather(1.0 * tf.gather_nd(emb, ids[:, None]), tf.range(tf.shape(ids)[0]))\n"
        "loss = tf.reduce_mean(tf.square((again @ w)[:, 0] - y))",
        dtype="float32",
    ) == ("equal", "")


def test_a_step_of_its_own_tables_computes_nothing_of_another_step_with_which_it_shares_messages() -> None:
    steps = {"after": _OF_ALL_GRADIENTS, "result": "[train, second]", "is_open": False, "optimizes": False}
    assert outcome(f"{_ERRORS}\nloss = tf.reduce_mean(errors)", **steps) == ("equal", "")
