"""Ids of the batch and ids that all workers have alike, in one lookup under a clip, are told apart or refused."""

from __future__ import annotations

import pytest

from ops.exactness.draft import Program, Statement
from ops.exactness.trial import try_program

_PARTS = 'v1.get_variable("emb", [13, 4], F, partitioner=v1.fixed_size_partitioner(3))'
_IN_PARTS = 'h = v1.nn.embedding_lookup({}, tf.concat([ids, [1, 5, 6, 11]], 0), partition_strategy="{}")'
_LOSS = "tf.reduce_mean(tf.square((h[:n] @ w)[:, 0] - y)) + tf.reduce_mean(tf.square(h[:n] @ tf.transpose(h[n:])))"
EQUAL = {
    "parts in turn": f"emb = {_PARTS}\n{_IN_PARTS.format('list(emb)', 'mod')}",
    "parts by ranges": f"emb = {_PARTS}\n{_IN_PARTS.format('list(emb)', 'div')}",
}
MASKED = """
emb = v1.get_variable("emb", [13, 4], F)
both = tf.concat([ids, [1, 5, 6, 11]], 0)
g = tf.gather(emb, tf.boolean_mask(both, both > 4))
h = tf.concat([tf.gather(emb, ids) + tf.reduce_sum(g), tf.zeros([4, 4], F)], 0)
"""


def outcome(text: str, route: str) -> tuple[str, str]:
    program = Program(
        title="Samples.",
        workers=3,
        feeds=(("ids", "rng.randint(0, 13, [rows])"), ("y", "rng.randn(rows)")),
        is_open=True,
        statements=(
            Statement('ids = v1.placeholder(tf.int64, [rows], name="ids")'),
            Statement('y = v1.placeholder(F, [rows], name="y")'),
            Statement('w = v1.get_variable("w", [4, 1], F)'),
            Statement("n = tf.shape(ids)[0]"),
            Statement(text.strip("\n")),
            Statement(f"loss = {_LOSS}"),
            Statement("gradients, variables = zip(*v1.train.AdagradOptimizer(0.3).compute_gradients(loss))"),
            Statement("clipped, _ = tf.clip_by_global_norm(gradients, 0.1)"),
            Statement("train = v1.train.AdagradOptimizer(0.3).apply_gradients(zip(clipped, variables))"),
        ),
    )
    (found,) = try_program(program.source(), [route], layouts=False).values()
    return found.kind, found.message


@pytest.mark.rotates
@pytest.mark.parametrize("case", EQUAL)
@pytest.mark.parametrize("route", ["alltoall", "allgather", "allreduce"])
def test_equal_samples_dealt_out_to_the_parts_of_a_table_are_there_once(case: str, route: str) -> None:
    assert outcome(EQUAL[case], route) == ("equal", "")


def test_equal_samples_chosen_by_a_mask_of_all_are_refused() -> None:
    kind, message = outcome(MASKED, "allgather")
    assert (kind, "does not show how that number grows with the batch" in message) == ("refused", True)
