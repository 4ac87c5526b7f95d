"""Updates under conditions and with rates that are computed from the batch: those of one process."""

from __future__ import annotations

from typing import Any

import pytest

from ops.exactness.draft import Program, Statement
from ops.exactness.trial import try_program

pytestmark = pytest.mark.rotates(days=3)

_LOSS = "tf.reduce_mean(tf.square((tf.tanh(tf.gather(emb, ids)) @ w)[:, 0] - y))"
_SKIPPED = "train = tf.cond({}, lambda: opt.apply_gradients(pairs), tf.no_op).op"
_WITH_RATE = "train = v1.train.AdagradOptimizer({}).apply_gradients(pairs)"
_SCALED = """
scaled = [(tf.IndexedSlices(g.values * {0}, g.indices, g.dense_shape) if v is emb else g * {0}, v) for g, v in pairs]
train = opt.apply_gradients(scaled)
"""

WHOLE = {
    "a rate from rows by numbers": """
        rows = tf.gather_nd(emb, ids[:, None])
        train = v1.train.AdagradOptimizer(0.1 + tf.reduce_mean(tf.square(rows))).apply_gradients(pairs)
    """,
    "a rate from weights over time": """
        bags = tf.stack([ids, ids // 2, ids // 3], 1)
        weights = tf.nn.softmax(tf.gather(emb, bags), axis=1)
        rate = 0.1 + 0.1 * tf.reduce_mean(tf.square(weights))
        train = v1.train.AdagradOptimizer(rate).apply_gradients(pairs)
    """,
    "if the loss is small": _SKIPPED.format("loss < 0.9"),
    "if the loss and the step are small": _SKIPPED.format("tf.logical_and(0.5 * loss + 1.0 < 2.0, step < 3)"),
    "if the loss is finite": _SKIPPED.format("tf.reduce_all(tf.math.is_finite(loss))"),
    "if every row is near": _SKIPPED.format("tf.reduce_all(tf.abs(y) < 1.9)"),
    "if any row is far": _SKIPPED.format("tf.reduce_any(y > 1.4)"),
    "if the largest is small": _SKIPPED.format("tf.reduce_max(tf.abs(y)) < 1.9"),
    "if the sum is positive": _SKIPPED.format("tf.reduce_sum(y) > 0.0"),
    "a rate from the batch's length": _WITH_RATE.format("0.8 / tf.cast(tf.shape(y)[0], F)"),
    "a rate from the loss": _WITH_RATE.format("0.1 * tf.stop_gradient(loss)"),
    "a rate from the targets": _WITH_RATE.format("0.1 + 0.1 * tf.reduce_mean(tf.square(y))"),
    "gradients by a mean": _SCALED.format("tf.reduce_mean(tf.abs(y))"),
    "clipped by the loss": """
        clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.2 * loss)
        train = opt.apply_gradients(zip(clipped, [v for _, v in pairs]))
    """,
    "a loss over a mask": """
        kept = tf.cast(y > 0.0, F)
        loss = tf.reduce_sum(kept * tf.square((tf.gather(emb, ids) @ w)[:, 0] - y)) / tf.reduce_sum(kept)
        pairs = opt.compute_gradients(loss)
        train = tf.cond(loss < 0.9, lambda: opt.apply_gradients(pairs), tf.no_op).op
    """,
    "a sum divided by the length": """
        loss = tf.reduce_sum(tf.square((tf.gather(emb, ids) @ w)[:, 0] - y)) / tf.cast(tf.shape(y)[0], F)
        pairs = opt.compute_gradients(loss)
        train = tf.cond(loss < 0.9, lambda: opt.apply_gradients(pairs), tf.no_op).op
    """,
}
OF_ALL_EXAMPLES = {
    "a rate from a token of each row that the loss takes too": """
        token = tf.gather(emb, tf.tile([2], [tf.shape(y)[0]]))
        loss = tf.reduce_mean(tf.square(((tf.gather(emb, ids) + token) @ w)[:, 0] - y))
        rate = 0.1 + 0.1 * tf.reduce_mean(tf.square(tf.stop_gradient(token)))
        train = v1.train.AdagradOptimizer(rate).minimize(loss)
    """,
    "if the first row is near": _SKIPPED.format("y[0] < 0.9"),
    "a rate from a median": _WITH_RATE.format("0.1 + tf.square(tf.sort(y)[0])"),
    "a rate from a gradient of each example": """
        loss = tf.reduce_mean(tf.square((features := tf.gather(emb, ids)) @ w))
        rate = tf.reduce_max(tf.abs(tf.gradients(loss, features)[0]))
        train = v1.train.AdagradOptimizer(rate).apply_gradients(pairs)
    """,
}


def outcome(text: str, is_open: bool, route: str, **others: Any) -> tuple[str, str]:
    (found,) = try_program(source_of(text, is_open, **others), [route], layouts=True).values()
    return found.kind, found.message


def source_of(text: str, is_open: bool, **others: Any) -> str:
    program = Program(
        title="A batch decides.",
        workers=3,
        feeds=(("ids", "rng.randint(0, 11, [rows])"), ("y", "rng.randn(rows)")),
        is_open=is_open,
        **others,
        statements=(
            Statement('ids = v1.placeholder(tf.int64, [rows], name="ids")'),
            Statement('y = v1.placeholder(F, [rows], name="y")'),
            Statement('emb = v1.get_variable("emb", [11, 4], F)'),
            Statement('w = v1.get_variable("w", [4, 1], F)'),
            Statement("step = tf.cast(v1.train.get_or_create_global_step().read_value(), tf.int32)"),
            Statement(f"loss = {_LOSS}"),
            Statement("opt = v1.train.AdagradOptimizer(0.3)"),
            Statement("pairs = opt.compute_gradients(loss)"),
            Statement("\n".join(_dedented(text))),
        ),
    )
    return program.source()


def _dedented(text: str) -> list[str]:
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return [line[indent:] for line in lines]


@pytest.mark.rotates
@pytest.mark.parametrize("case", WHOLE | OF_ALL_EXAMPLES)
def test_what_is_computed_from_the_batch_is_computed_from_the_global_batch(case: str) -> None:
    assert outcome((WHOLE | OF_ALL_EXAMPLES)[case], True, "hybrid") == ("equal", "")


@pytest.mark.parametrize("case", ["a rate from rows by numbers", "if any row is far", "gradients by a mean"])
def test_rows_that_all_workers_gather_are_no_different(case: str) -> None:
    assert outcome(WHOLE[case], True, "allgather") == ("equal", "")


@pytest.mark.parametrize("case", ["if the loss is small", "if every row is near", "clipped by the loss"])
def test_conditionals_of_the_old_kind_and_reference_variables_are_no_different(case: str) -> None:
    assert outcome(WHOLE[case], True, "hybrid", control_flow_v2=False, resource=False) == ("equal", "")


def test_a_mask_that_comes_out_of_a_queue_batch_by_batch_is_put_together() -> None:
    queued = """
        queue = v1.FIFOQueue(8, [tf.int64, F])
        feeding = queue.enqueue([ids, y])
        ids, y = queue.dequeue()
        ids.set_shape([rows])
        y.set_shape([rows])
        mask = tf.cast(y > 0.0, F)
        loss = tf.reduce_sum(mask * tf.square((tf.gather(emb, ids) @ w)[:, 0] - y)) / tf.reduce_sum(mask)
        train = tf.group(opt.minimize(loss))
    """
    assert outcome(queued, True, "hybrid", result="[feeding, train]") == ("equal", "")


@pytest.mark.parametrize(
    "case", ["if the loss is small", "if every row is near", "if the sum is positive", "clipped by the loss"]
)
def test_a_batch_of_fixed_size_decides_as_well(case: str) -> None:
    assert outcome(WHOLE[case], False, "hybrid") == ("equal", "")


def test_a_gradient_by_what_goes_round_in_a_loop_is_of_the_global_batch() -> None:
    descent = """
        def body(t, f):
            inner = tf.reduce_mean(tf.square((tf.gather(emb, ids) @ f)[:, 0] - y))
            return t + 1, f - 0.3 * tf.gradients(inner, f)[0]
        _, fast = tf.while_loop(lambda t, _: t < 3, body, [tf.constant(0), w + 0.0])
        loss = tf.reduce_mean(tf.square((tf.gather(emb, ids) @ fast)[:, 0] - y))
        train = opt.minimize(loss, var_list=[w])
    """
    assert outcome(descent, True, "hybrid", control_flow_v2=False) == ("equal", "")


def test_what_one_process_has_of_the_batch_is_refused_where_losses_are_means() -> None:
    program = source_of(WHOLE["if the loss is small"], True)
    (found,) = try_program(program, ["hybrid"], layouts=False).values()
    assert (found.kind, "either all workers must update it or none" in found.message) == ("refused", True)
