"""Losses in which examples of the global batch meet, or stay apart: workers with unequal shares are one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from ops.exactness.trial import Outcome
from tests.exactness.loss_trials import ROWS, tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1

Loss = Callable[[Any, Any, Any], Any]
"""(rows of users `[batch, 4]`, of items `[batch, 4]`, targets `[batch]`) -> the loss."""


def predicted(u: Any, i: Any) -> Any:
    return tf.reduce_sum(u * i, 1)


def per_row(u: Any, i: Any, y: Any) -> Any:
    return tf.square(predicted(u, i) - y)


def at_rank(values: Any) -> Any:
    in_order = tf.sort(values)
    return in_order[tf.shape(in_order)[0] // 2]


def of_sequence(u: Any, i: Any) -> Any:
    """Rows `[2 * batch, 3]`: what a dense layer makes of each of a sequence's two elements."""
    return tf.reshape(tf.tensordot(tf.stack([u, i], 1), tf.ones([4, 3]), 1), [-1, 3])


def labels(y: Any) -> Any:
    return tf.cast(tf.abs(y), tf.int32)


def nearest(u: Any) -> Any:
    return tf.reduce_min(tf.reduce_sum(tf.square(u[:, None] - u[None]), -1) + tf.eye(tf.shape(u)[0]) * 9.0, 1)


def branch(given: Callable[[], Any], y: Any) -> Any:
    """What is given in one branch, by a predicate that is alike on all workers, and zeros in the other."""
    first = v1.train.get_or_create_global_step().read_value() < 3
    return tf.cond(first, given, lambda: tf.zeros_like(given()))


def turns(turn: Callable[[Any, Any], Any], start: Any = 0.0) -> Any:
    """What three turns of a loop make of a tensor; each takes its number."""
    return tf.while_loop(lambda step, _: step < 3, lambda step, now: (step + 1, turn(step, now)), [0, start])[1]


def mean_of_turn(step: Any, u: Any, i: Any, y: Any) -> Any:
    return tf.reduce_mean(per_row(u * tf.cast(step, tf.float32), i, y))


MEET: dict[str, Loss] = {
    "negatives of the batch": lambda u, i, y: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.range(tf.shape(u)[0]), logits=u @ tf.transpose(i))
    ),
    "negatives of the batch, by tensordot": lambda u, i, y: tf.reduce_mean(
        tf.nn.softmax(tf.tensordot(u, i, [[1], [1]]))[:, 0] * y
    ),
    "rows moved on": lambda u, i, y: tf.reduce_mean(tf.square(u - tf.roll(u, 1, 0))),
    "all pairs": lambda u, i, y: tf.reduce_mean(nearest(u)),
    "the hardest": lambda u, i, y: tf.reduce_mean(tf.math.top_k(per_row(u, i, y), 3)[0]),
    "the largest": lambda u, i, y: tf.reduce_max(per_row(u, i, y)),
    "a rank": lambda u, i, y: at_rank(per_row(u, i, y)),
    "a running sum": lambda u, i, y: tf.reduce_mean(tf.square(tf.cumsum(predicted(u, i)) - y)),
    "a running sum of what is chosen": lambda u, i, y: tf.reduce_mean(
        tf.cumsum(tf.boolean_mask(per_row(u, i, y), y > -0.5))
    ),
    "a softmax over the batch": lambda u, i, y: tf.reduce_mean(tf.nn.softmax(y) * per_row(u, i, y)),
    "a norm over the batch": lambda u, i, y: tf.reduce_mean(per_row(tf.nn.l2_normalize(u), i, y)),
    "a baseline that is not trained": lambda u, i, y: tf.reduce_mean(
        (y - tf.stop_gradient(tf.reduce_mean(predicted(u, i)))) * predicted(u, i)
    ),
    "mixed in reverse": lambda u, i, y: tf.reduce_mean(per_row(u + tf.reverse(u, [0]), i, y)),
    "mixed by a shuffle": lambda u, i, y: tf.reduce_mean(
        per_row(u + tf.gather(u, tf.random.shuffle(tf.range(tf.shape(u)[0]))), i, y)
    ),
    "a root of an error that is followed no further": lambda u, i, y: tf.sqrt(
        tf.reduce_mean(tf.map_fn(lambda pair: tf.square(pair[0] - pair[1]), (u, i), tf.float32))
    ),
    "neighbours": lambda u, i, y: tf.reduce_mean(tf.square(u[1:] - u[:-1])),
    "the first example": lambda u, i, y: tf.reduce_mean(per_row(u, i, y)) + predicted(u, i)[0],
    "the smallest of a batch": lambda u, i, y: tf.reduce_mean(tf.sort(per_row(u, i, y))[:2]),
    "the first two by a slice": lambda u, i, y: tf.reduce_mean(tf.slice(per_row(u, i, y), [0], [2])),
    "halves that a reshape makes": lambda u, i, y: tf.reduce_mean(
        tf.square(tf.subtract(*[tf.reshape(u, [2, -1, 4])[place] for place in (0, 1)]))
    ),
    "halves that are unstacked": lambda u, i, y: tf.reduce_mean(
        tf.square(tf.subtract(*tf.unstack(tf.reshape(u, [2, -1, 4]))))
    ),
    "deviations within groups": lambda u, i, y: tf.reduce_mean(
        tf.math.reduce_std(tf.reshape(u, [4, -1, 4]), 0) * tf.reduce_mean(i)
    ),
    "a transform along the batch": lambda u, i, y: tf.reduce_mean(
        tf.abs(tf.signal.fft(tf.cast(tf.transpose(u), tf.complex64)))
    ),
    "a transform along the batch and the row": lambda u, i, y: tf.reduce_mean(
        tf.abs(tf.signal.fft2d(tf.cast(u, tf.complex64)))
    ),
    "sums of classes in order": lambda u, i, y: tf.reduce_mean(tf.square(tf.math.segment_sum(u, tf.sort(labels(y))))),
    "products of classes": lambda u, i, y: tf.reduce_mean(
        tf.math.unsorted_segment_prod(u, tf.cast(y > 0, tf.int32), 2)
    ),
    "halves": lambda u, i, y: tf.reduce_mean(tf.square(tf.subtract(*tf.split(u, 2)))),
    "correlations": lambda u, i, y: tf.reduce_sum(tf.square(tf.einsum("bi,bj->ij", u, i))),
    "groups": lambda u, i, y: tf.add_n(
        [
            tf.reduce_sum(part) / (tf.cast(tf.size(part), tf.float32) + 1.0)
            for part in tf.dynamic_partition(per_row(u, i, y), tf.cast(y > 0, tf.int32), 2)
        ]
    ),
    "a branch's mean over a mask": lambda u, i, y: branch(
        lambda: tf.reduce_mean(tf.boolean_mask(per_row(u, i, y), y > 0.0)), y
    ),
    "a branch's root of a mean": lambda u, i, y: branch(lambda: tf.sqrt(tf.reduce_mean(per_row(u, i, y))), y),
    "the root of a branch's mean": lambda u, i, y: tf.sqrt(branch(lambda: tf.reduce_mean(per_row(u, i, y)), y)),
    "a branch's quotient of sums": lambda u, i, y: branch(
        lambda: tf.reduce_sum(per_row(u, i, y) * tf.abs(y)) / tf.reduce_sum(tf.abs(y)), y
    ),
    "a branch by what is in the batch": lambda u, i, y: tf.cond(
        tf.reduce_any(y > 0), lambda: tf.reduce_mean(per_row(u, i, y)), lambda: 0.0 * tf.reduce_mean(u)
    ),
    "a loop's mean over a mask": lambda u, i, y: turns(
        lambda step, added: added + tf.reduce_mean(tf.boolean_mask(per_row(u, i, y), y > 0.0))
    ),
    "what goes from row to row": lambda u, i, y: tf.reduce_mean(
        tf.scan(lambda kept, new: 0.5 * kept + new, per_row(u, i, y))
    ),
    "rows that are repeated as they say": lambda u, i, y: tf.reduce_mean(
        tf.repeat(per_row(u, i, y), tf.cast(tf.abs(y), tf.int32) + 1)
    ),
    "distinct rows": lambda u, i, y: tf.reduce_mean(tf.gather(v1.get_variable("tags", [9]), tf.unique(labels(y))[0])),
    "means of classes": lambda u, i, y: tf.reduce_mean(
        tf.square(u - tf.gather(tf.math.unsorted_segment_mean(u, tf.cast(y > 0, tf.int32), 2), [0]))
    ),
    "rows that are not the batch's, among its rows": lambda u, i, y: tf.reduce_mean(
        tf.square(tf.concat([u * i, tf.zeros([1, 4])], 0))
    ),
    "the first half": lambda u, i, y: tf.reduce_mean(per_row(u, i, y)[: tf.shape(y)[0] // 2]),
    "weights by how often a class is there": lambda u, i, y: tf.reduce_mean(
        per_row(u, i, y)
        / (1.0 + tf.gather(tf.math.bincount(tf.cast(y > 0, tf.int32), minlength=2, dtype=tf.float32), [0]))
    ),
    "weights by how often a class is there, in whole numbers": lambda u, i, y: tf.reduce_mean(
        per_row(u, i, y)
        / tf.cast(
            1 + tf.gather(tf.math.unsorted_segment_sum(tf.ones_like(y, tf.int32), tf.cast(y > 0, tf.int32), 2), [0]),
            tf.float32,
        )
    ),
    "a choice by whether any target is large": lambda u, i, y: tf.reduce_mean(
        tf.where(tf.reduce_any(y > 1.0), 2.0, 1.0) * per_row(u, i, y)
    ),
    "what examples add to what is alike": lambda u, i, y: tf.reduce_mean(
        tf.square(tf.tensor_scatter_nd_add(tf.zeros([2]), tf.cast(y > 0, tf.int32)[:, None], predicted(u, i)))
    ),
    "a mean over columns for all labels up to the largest": lambda u, i, y: tf.reduce_mean(
        tf.square(predicted(u, i)[:, None] - tf.one_hot(labels(y), tf.reduce_max(labels(y)) + 1))
    ),
    "a mean over a mask that is as long as the longest": lambda u, i, y: tf.reduce_mean(
        predicted(u, i)[:, None] * tf.sequence_mask(labels(y), dtype=tf.float32)
    ),
    "a softmax over columns up to the largest": lambda u, i, y: tf.reduce_mean(
        tf.nn.softmax(tf.one_hot(labels(y), tf.reduce_max(labels(y)) + 1))[:, 0] * per_row(u, i, y)
    ),
    "singular values": lambda u, i, y: tf.reduce_mean(tf.linalg.svd(u, compute_uv=False)) + predicted(u, i)[0],
    "a penalty of distinct rows": lambda u, i, y: (
        tf.reduce_mean(per_row(u, i, y))
        + 0.1 * tf.nn.l2_loss(tf.gather(v1.get_variable("tags", [9]), tf.unique(labels(y))[0]))
    ),
    "columns of a sequence by tensordot": lambda u, i, y: tf.reduce_mean(
        tf.square(tf.matmul(of_sequence(u, i), of_sequence(u, i), transpose_a=True))
    ),
    "a branch's product of means": lambda u, i, y: branch(
        lambda: tf.reduce_mean(per_row(u, i, y)) * tf.reduce_mean(tf.abs(u)), y
    ),
    "a loop's pairs": lambda u, i, y: turns(lambda step, added: added + tf.reduce_mean(tf.square(u @ tf.transpose(u)))),
}
APART: dict[str, Loss] = {
    "a sequence by tensordot": lambda u, i, y: tf.reduce_mean(of_sequence(u, i)),
    "a sequence of which each example is made flat": lambda u, i, y: tf.reduce_mean(
        tf.matmul(tf.reshape(tf.stack([u, i], 1), [tf.shape(y)[0], -1]), tf.ones([8, 1]))
    ),
    "rows": lambda u, i, y: tf.reduce_mean(per_row(u, i, y)),
    "a sum by the size": lambda u, i, y: tf.reduce_sum(per_row(u, i, y)) / tf.cast(tf.shape(y)[0], tf.float32),
    "within an example": lambda u, i, y: tf.reduce_mean(per_row(tf.nn.softmax(u), tf.cumsum(i, 1), y)),
    "the largest of an example": lambda u, i, y: tf.reduce_mean(tf.square(tf.reduce_max(u, 1) - y)),
    "products of an example": lambda u, i, y: tf.reduce_mean(tf.einsum("bi,bj->bij", u, i)),
    "products added up by the length": lambda u, i, y: tf.einsum("bi,bi->", u, i) / tf.cast(tf.shape(y)[0], tf.float32),
    "pairs of an example": lambda u, i, y: tf.reduce_mean(tf.nn.softmax(u[:, :, None] - i[:, None])),
    "put in order": lambda u, i, y: tf.reduce_mean(tf.sort(per_row(u, i, y))),
    "moved on within an example": lambda u, i, y: tf.reduce_mean(per_row(u, tf.roll(i, 1, 1), y)),
    "a branch's mean": lambda u, i, y: branch(lambda: tf.reduce_mean(per_row(u, i, y)), y),
    "a branch's sum by the size": lambda u, i, y: branch(
        lambda: tf.reduce_sum(per_row(u, i, y)) / tf.cast(tf.shape(y)[0], tf.float32), y
    ),
    "rows of a branch": lambda u, i, y: tf.reduce_mean(branch(lambda: per_row(u, i, y), y)),
    "a loop's mean": lambda u, i, y: turns(lambda step, added: added + mean_of_turn(step, u, i, y)),
    "a mean in a loop in a loop": lambda u, i, y: turns(
        lambda step, added: added + turns(lambda other, inner: inner + mean_of_turn(step + other, u, i, y))
    ),
    "a mean in a loop in a branch": lambda u, i, y: branch(
        lambda: turns(lambda step, added: added + mean_of_turn(step, u, i, y)), y
    ),
    "a mean in a branch in a loop": lambda u, i, y: turns(
        lambda step, added: added + tf.cond(step > 1, lambda: mean_of_turn(step, u, i, y), lambda: tf.reduce_mean(u))
    ),
    "a sum by the size in a loop": lambda u, i, y: turns(
        lambda step, added: added + tf.reduce_sum(per_row(u, i, y)) / tf.cast(tf.shape(y)[0], tf.float32)
    ),
    "lengths and numbers of rows in a loop": lambda u, i, y: tf.reduce_mean(
        i * turns(lambda step, rows: rows * tf.cast(tf.range(tf.shape(rows)[0]), tf.float32)[:, None], u)
    ),
    "a map to means": lambda u, i, y: tf.reduce_sum(
        tf.square(tf.map_fn(lambda column: tf.reduce_mean(column * y), tf.transpose(u)))
    ),
    "copies": lambda u, i, y: tf.reduce_mean(tf.tile(per_row(u, i, y), [3])),
    "how often an example has each number": lambda u, i, y: tf.reduce_mean(
        tf.math.bincount(tf.cast(tf.abs(u), tf.int32), minlength=4, maxlength=4, axis=-1, dtype=tf.float32) * i
    ),
    "a slice of each row": lambda u, i, y: tf.reduce_mean(tf.slice(u, [0, 1], [-1, 2]) * tf.abs(y)[:, None]),
    "a transform of each row": lambda u, i, y: tf.reduce_mean(tf.abs(tf.signal.rfft(u, [4])) * tf.abs(y)[:, None]),
    "rows that are taken one by one": lambda u, i, y: tf.reduce_mean(
        tf.vectorized_map(lambda pair: tf.reduce_sum(pair[0] * tf.tanh(pair[1])), (u, i))
    ),
    "penalties": lambda u, i, y: tf.reduce_mean(per_row(u, i, y)) + 0.1 * tf.reduce_mean(tf.norm(u, axis=1)),
    "the longest sequence of a batch": lambda u, i, y: tf.reduce_mean(
        per_row(u * tf.cast(tf.range(1, 5) <= tf.reduce_max(tf.cast(y > 0, tf.int32) + 1), tf.float32), i, y)
    ),
    "a kernel by tensordot": lambda u, i, y: tf.reduce_mean(tf.tensordot(u[:, None], tf.ones([4, 3]), 1)),
    "columns for all labels up to the largest": lambda u, i, y: tf.reduce_mean(
        tf.reduce_sum(tf.one_hot(labels(y), tf.reduce_max(labels(y)) + 1) * predicted(u, i)[:, None], 1)
    ),
    "a sum of rows": lambda u, i, y: 0.1 * tf.reduce_sum(per_row(u, i, y), name="errors"),
    "a loss for each example": lambda u, i, y: 0.1 * per_row(u, i, y),
    "a map over the batch": lambda u, i, y: tf.reduce_mean(
        tf.map_fn(lambda pair: tf.square(pair[0] - pair[1]), (u, i), tf.float32)
    ),
    "samples of each example": lambda u, i, y: tf.reduce_mean(
        tf.reduce_logsumexp(
            tf.reshape(
                per_row(
                    tf.tile(u, [3, 1]) * tf.repeat([1.0, 2.0, 3.0], tf.shape(u)[0])[:, None],
                    tf.tile(i, [3, 1]),
                    tf.tile(y, [3]),
                ),
                [3, -1],
            ),
            0,
        )
    ),
    "steps in front of examples, made flat": lambda u, i, y: tf.reduce_mean(
        tf.square(tf.reshape(tf.matmul(tf.reshape(tf.stack([u, i]), [-1, 4]), tf.eye(4)), [2, -1, 4]))
        * tf.abs(y)[:, None]
    ),
    "a branch by the batch": lambda u, i, y: tf.reduce_mean(
        tf.cond(tf.reduce_sum(y) > 0.0, lambda: per_row(u, i, y), lambda: per_row(i, u, 2.0 * y))
    ),
    "a branch in a branch": lambda u, i, y: branch(
        lambda: tf.reduce_mean(tf.boolean_mask(u, y > 0.0)) + branch(lambda: tf.reduce_mean(per_row(u, i, y)), y), y
    ),
    "one of several branches": lambda u, i, y: tf.reduce_mean(
        tf.switch_case(
            tf.cast(v1.train.get_or_create_global_step().read_value() % 3, tf.int32),
            [lambda: per_row(u, i, y), lambda: tf.abs(y) * tf.reduce_mean(u), lambda: per_row(i, u, y)],
        )
    ),
    "halves that are treated alike": lambda u, i, y: tf.reduce_mean(
        tf.reduce_sum(tf.square(tf.reshape(u * i, [2, -1, 4])), -1)
    ),
}
GATHERING = {
    "put in order": "TopKV2",
    "halves that are treated alike": "Reshape",
}
"""Case of APART -> the op that takes tensors of the global batch all the same: no rule follows examples through it."""


def outcome_of(loss: Loss, rows_of_first: int = ROWS) -> Outcome:
    def build(rows: int | None) -> Any:
        users, items = (v1.get_variable(name, [11, 4]) for name in ("users", "items"))
        ids = v1.placeholder(tf.int64, [rows, 2], name="ids")
        y = v1.placeholder(tf.float32, [rows], name="y")
        taken = [tf.nn.embedding_lookup(table, ids[:, place]) for place, table in enumerate((users, items))]
        return v1.train.AdagradOptimizer(0.1).minimize(loss(*taken, y))

    feeds = {"ids": lambda rng, rows: rng.randint(0, 11, [rows, 2]), "y": lambda rng, rows: rng.randn(rows)}
    return tried(build, feeds, rows=rows_of_first)


@pytest.mark.rotates
@pytest.mark.parametrize("case", MEET)
def test_examples_that_meet_are_those_of_the_global_batch(case: str) -> None:
    found = outcome_of(MEET[case])
    assert (found.kind, found.message) == ("equal", "")


@pytest.mark.rotates
@pytest.mark.parametrize("case", APART)
def test_examples_that_stay_apart_are_gathered_nowhere_but_at_ops_that_take_them_whole(case: str) -> None:
    found = outcome_of(APART[case])
    assert (found.kind, found.message) == ("equal", "")
    said = "".join(found.gathers)
    assert (case in GATHERING) == bool(said) and f"{GATHERING.get(case, '')} '" * bool(said) in said


def test_rows_that_are_dropped_at_random_are_not_gathered() -> None:
    found = outcome_of(lambda u, i, y: tf.reduce_mean(per_row(tf.nn.dropout(u, 0.5), i, y)))
    assert (found.kind, found.gathers) == ("wrong", ())  # each worker draws for its rows


@pytest.mark.parametrize(
    "loss",
    [
        lambda u, i, y: tf.reduce_max(-1.0 - per_row(u, i, y)),
        lambda u, i, y: tf.reduce_mean(tf.math.log(2.0 + tf.reduce_min(per_row(u, i, y)) * per_row(u, i, y))),
        lambda u, i, y: tf.reduce_mean(per_row(u, i, y)) + tf.reduce_sum(u[:2] * i[-1]) * y[0],
        MEET["negatives of the batch"],
        MEET["means of classes"],
        APART["put in order"],
        APART["a branch's mean"],
    ],
    ids=[
        "the largest",
        "the least",
        "examples at both ends",
        "negatives",
        "means of classes",
        "put in order",
        "a branch's mean",
    ],
)
def test_a_worker_without_examples_changes_nothing(loss: Loss) -> None:
    found = outcome_of(loss, rows_of_first=1)
    assert (found.kind, found.message) == ("equal", "")


def test_a_loop_over_examples_has_the_length_of_a_batch_of_several_tensors_of_an_iterator() -> None:
    def build(rows: int | None) -> Any:
        fed = v1.placeholder(tf.int64, [rows], name="ids"), v1.placeholder(tf.float32, [rows], name="y")
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.from_tensors(fed).repeat())
        ids, y = iterator.get_next()
        ids.set_shape([rows])
        y.set_shape([rows])
        h = tf.map_fn(lambda row: row * tf.nn.softmax(row), tf.gather(v1.get_variable("emb", [11, 4]), ids))
        loss = tf.reduce_mean(tf.square((h @ v1.get_variable("w", [4, 1]))[:, 0] - y))
        variables = v1.trainable_variables()
        clipped, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.05)
        train = v1.train.GradientDescentOptimizer(0.3).apply_gradients(zip(clipped, variables, strict=True))
        return [iterator.initializer, train]

    feeds = {"ids": lambda rng, n: rng.randint(0, 11, [n]), "y": lambda rng, n: rng.randn(n)}
    outcome = tried(build, feeds)
    assert (outcome.kind, outcome.message, outcome.notes) == ("equal", "", ())
