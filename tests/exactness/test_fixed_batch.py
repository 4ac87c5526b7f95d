"""In graphs for a fixed batch, constant ids that meet loops, bags or halves of a batch under a clip are told apart."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ops.exactness.draft import Program, Statement
from ops.exactness.trial import try_program
from parallax.analysis.reading import record
from parallax.analysis.stages import analyse
from tests.equality import models

record.install()

_LOOP = """
_, h = tf.while_loop(
    lambda t, _: t < 3, lambda t, h: (t + 1, tf.tanh(h @ u + tf.gather(emb, bags[:, t]))), [0, tf.zeros([n, 4], F)]
)
h = h + tf.gather(emb, tf.fill([n], 1))
"""
EQUAL = {
    "a token beside a loop's result": _LOOP,
    "a token beside a scan over time": """
        tokens = tf.concat([tf.fill([n, 1], tf.constant(0, tf.int64)), bags], 1)
        time_major = tf.transpose(tf.gather(emb, tokens), [1, 0, 2])
        h = tf.transpose(tf.scan(lambda h, x: tf.tanh(h @ u + x), time_major, tf.zeros([n, 4], F)), [1, 0, 2])[:, -1]
        h = h * tf.gather(emb, tf.ones([n], tf.int64))
    """,
    "positions beside a time-major product": """
        flat = tf.reshape(tf.transpose(tf.gather(emb, bags), [1, 0, 2]), [3 * n, 4]) @ u
        h = tf.reshape(flat, [3, n, 4])[1] + tf.gather(emb, tf.tile([2], [n]))
    """,
    "a half of tokens": "h = tf.split(tf.concat([tf.gather(emb, tf.fill([n], 3)), tf.gather(emb, ids)], 0), 2)[1]",
    "a cut of two tokens": """
        token = tf.gather(emb, tf.fill([n], 3))
        h = tf.concat([token, token @ u], 0)[:n] + tf.gather(emb, ids)
    """,
    "a token beside masked bags": """
        m = bags > 2
        row = tf.boolean_mask(tf.tile(tf.range(n)[:, None], [1, 3]), m)
        h = tf.math.unsorted_segment_sum(tf.gather(emb, tf.boolean_mask(bags, m)), row, n)
        h = h + tf.gather(emb, tf.tile([1], [n]))
    """,
    "a token beside bags of a sparse tensor": """
        bag = v1.nn.embedding_lookup_sparse(emb, tf.sparse.from_dense(tf.maximum(bags, 1)), None, combiner="mean")
        h = tf.ensure_shape(bag, [n, 4]) + tf.gather(emb, tf.tile([1], [n]))
    """,
    "merged ids in two cuts": """
        seen, at = tf.unique(ids)
        h = tf.gather(tf.concat([tf.gather(emb, seen[:1]), tf.gather(emb, seen[1:])], 0), at)
    """,
    "a token beside merged ids": """
        seen, at = tf.unique(ids)
        h = tf.gather(tf.tanh(tf.gather(emb, seen)), at) + tf.gather(emb, tf.fill([n], 1))
    """,
}
REFUSED = {
    "merged ids in two cuts, one in buckets": """
        seen, at = tf.unique(ids)
        h = tf.gather(tf.concat([tf.gather(emb, seen[:2] % 5), tf.gather(emb, seen[2:])], 0), at)
    """,
    "merged ids in two cuts that meet": """
        seen, at = tf.unique(ids)
        both = tf.concat([tf.gather(emb, seen[:2]), tf.gather(emb, seen[1:])], 0)
        h = tf.gather(both, at)
    """,
}


def outcome(text: str, route: str, old: bool = False) -> tuple[str, str]:
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    program = Program(
        title="A fixed batch.",
        workers=3,
        feeds=(
            ("ids", "rng.randint(0, 11, [rows])"),
            ("bags", "rng.randint(0, 11, [rows, 3])"),
            ("y", "rng.randn(rows)"),
        ),
        is_open=False,
        control_flow_v2=not old,
        statements=(
            Statement('ids = v1.placeholder(tf.int64, [rows], name="ids")'),
            Statement('bags = v1.placeholder(tf.int64, [rows, 3], name="bags")'),
            Statement('y = v1.placeholder(F, [rows], name="y")'),
            Statement('emb = v1.get_variable("emb", [11, 4], F)'),
            Statement('u, w = v1.get_variable("u", [4, 4], F), v1.get_variable("w", [4, 1], F)'),
            Statement("n = rows"),
            Statement("\n".join(line[indent:] for line in lines)),
            Statement("loss = tf.reduce_mean(tf.square((h @ w)[:, 0] - y)) + 0.01 * tf.nn.l2_loss(u)"),
            Statement("gradients, variables = zip(*v1.train.AdagradOptimizer(0.3).compute_gradients(loss))"),
            Statement("clipped, _ = tf.clip_by_global_norm(gradients, 0.1)"),
            Statement("train = v1.train.AdagradOptimizer(0.3).apply_gradients(zip(clipped, variables))"),
        ),
    )
    (found,) = try_program(program.source(), [route], layouts=False).values()
    return found.kind, found.message


@pytest.mark.parametrize("case", EQUAL)
def test_constant_ids_of_every_example_are_told_from_those_of_all(case: str) -> None:
    assert outcome(EQUAL[case], "hybrid") == ("equal", "")


@pytest.mark.parametrize("case", [case for case in EQUAL if "loop" in case or "scan" in case])
def test_loops_of_the_old_kind_are_no_different(case: str) -> None:
    assert outcome(EQUAL[case], "allgather", old=True) == ("equal", "")


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_told_is_refused(case: str) -> None:
    assert outcome(REFUSED[case], "hybrid")[0] == "refused"


def test_evidence_names_gradients_as_the_script_does() -> None:
    found = []
    for layouts in (False, True):
        graph = tf.Graph()
        with graph.as_default():
            models.two_lookups(6, "Adagrad", True)
        analysed = analyse(graph, layouts=layouts)
        assert analysed.captured.is_opened == layouts
        found.append({variable.name: variable.evidence for variable in analysed.spec.variables})
    assert found[0] == found[1]
