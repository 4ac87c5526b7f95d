"""Bags of ids as sparse tensors, and ids that are made distinct, are one process's; each worker keeps its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ops.exactness.runs import Built
from ops.exactness.trial import try_program
from parallax.analysis.graph_to_plan import analyse
from tests.exactness.loss_trials import tried
from tests.exactness.test_lookups_by_layouts import program_of

v1 = tf.compat.v1

BAGS = """
filled = tf.where(weights > 0.4, words, -tf.ones_like(words))
places = tf.where(filled >= 0)
shape = tf.shape(words, out_type=tf.int64)
bags = tf.SparseTensor(places, tf.gather_nd(filled, places), shape)
shares = tf.SparseTensor(places, tf.gather_nd(weights, places) + 0.1, shape)
""".strip()
EACH_HAS_ONE = "words = tf.concat([words, words[:, :1]], 1); weights = tf.concat([weights, weights[:, :1] + 1.0], 1)"
OF_BAGS = "loss = tf.reduce_mean(tf.square(tf.tanh(found) - weights[:, :1]))"
DISTINCT = """
ids, at = tf.unique(tf.reshape(words, [-1]))
rows = tf.gather(emb, ids)
""".strip()
OF_ROWS = "loss = tf.reduce_mean(tf.square(tf.gather(tf.tanh(rows * 2.0), at)) * tf.reshape(weights, [-1, 1]))"

KEPT = {
    **{
        f"bags, {combiner}": (
            EACH_HAS_ONE,
            BAGS,
            f'found = v1.nn.embedding_lookup_sparse(emb, bags, None, combiner="{combiner}")',
            OF_BAGS,
        )
        for combiner in ("sum", "mean", "sqrtn")
    },
    "bags with weights": (
        EACH_HAS_ONE,
        BAGS,
        'found = v1.nn.embedding_lookup_sparse(emb, bags, shares, combiner="sum")',
        OF_BAGS,
    ),
    "bags that may be empty": (BAGS, "found = v1.nn.safe_embedding_lookup_sparse(emb, bags)", OF_BAGS),
    "bags of sums by segment": (
        EACH_HAS_ONE,
        BAGS,
        "found = tf.math.segment_sum(tf.gather(emb, bags.values), bags.indices[:, 0])",
        OF_BAGS,
    ),
    **{
        f"bags of a {kind} by segment": (
            EACH_HAS_ONE,
            BAGS,
            f"found = tf.math.segment_{kind}(tf.gather(emb, bags.values), bags.indices[:, 0])",
            OF_BAGS,
        )
        for kind in ("mean", "max", "min")
    },
    "shares of a softmax over the entries of an example": (
        BAGS,
        "scores = tf.SparseTensor(places, tf.gather(emb, bags.values)[:, 0], shape)",
        "found = tf.sparse.sparse_dense_matmul(tf.sparse.softmax(scores), emb[: tf.shape(words)[1]])",
        OF_BAGS,
    ),
    "sums of the entries of an example": (
        BAGS,
        "scores = tf.SparseTensor(places, tf.gather(emb, bags.values)[:, 0], shape)",
        "found = tf.concat([tf.sparse.reduce_sum(scores, 1, keepdims=True)] * 2, 1)",
        OF_BAGS,
    ),
    "bags without merging": (
        EACH_HAS_ONE,
        BAGS,
        "found = tf.sparse.segment_mean(tf.tanh(emb), bags.values, bags.indices[:, 0])",
        OF_BAGS,
    ),
    "a feature column": (
        'column = tf.feature_column.categorical_column_with_identity("words", 13)',
        "found = v1.feature_column.input_layer("
        '{"words": tf.where(weights > 0.4, words, -tf.ones_like(words))}, [tf.feature_column.embedding_column('
        "column, 4, initializer=lambda *_, **__: tf.reshape(tf.range(52.0) / 30.0 - 0.7, [13, 4]))])",
        "found = tf.cast(found, F)",
        OF_BAGS,
    ),
    "entries of a variable by row and column": (
        "found = tf.gather_nd(emb, tf.stack([words[:, 0], words[:, 1] % 4], 1))[:, None]",
        OF_BAGS,
    ),
    "sums by tiled numbers of what one mask chooses of both": (
        "mask = words > 3",
        "at = tf.boolean_mask(tf.tile(tf.range(tf.shape(words)[0])[:, None], [1, tf.shape(words)[1]]), mask)",
        "rows = tf.gather(emb, tf.boolean_mask(words, mask))",
        "found = tf.math.unsorted_segment_sum(rows, at, tf.shape(words)[0])",
        OF_BAGS,
    ),
    "a function of each example, vectorized": (
        "found = tf.vectorized_map(lambda row: tf.reduce_sum(tf.tanh(row @ emb[:4]), 0), h)",
        OF_BAGS,
    ),
    "distinct ids": (DISTINCT, OF_ROWS),
    "distinct ids of a regularized table": (DISTINCT, f"{OF_ROWS} + 0.1 * tf.nn.l2_loss(emb)"),
    "a regularized table, looked up by targets and histories": (
        "found = tf.gather(emb, words[:, 0]) * tf.reduce_sum(tf.gather(emb, words), 1)",
        f"{OF_BAGS} + 0.1 * tf.nn.l2_loss(emb)",
    ),
    "rows of distinct ids that are added up": (
        DISTINCT,
        "found = tf.reduce_sum(tf.reshape(tf.gather(rows, at), [-1, tf.shape(words)[1], 4]), 1)",
        OF_BAGS,
    ),
}
MASKED = "chosen = tf.boolean_mask(tf.reduce_sum(h, [1, 2]), weights[:, 0] > 0.4)"
KEPT |= {
    "a mean of what a mask chooses": (MASKED, "loss = tf.reduce_mean(tf.square(chosen - 0.3))"),
    "a sum of what a mask chooses by their number": (
        MASKED,
        "loss = tf.reduce_sum(tf.square(chosen)) / tf.cast(tf.shape(chosen)[0], F)",
    ),
    "a mean that some worker has nothing of": (
        "chosen = tf.boolean_mask(h, tf.reduce_sum(words, 1) > 20)",
        "loss = tf.reduce_mean(tf.square(chosen)) + tf.reduce_mean(h)",
    ),
}
GATHERED = {
    "how many distinct ids there are": (DISTINCT, OF_ROWS, "loss += 0.01 * tf.cast(tf.size(ids), F)"),
    "a mean over distinct ids": (DISTINCT, OF_ROWS, "loss += tf.reduce_mean(rows)"),
    "distinct ids in order": (DISTINCT, OF_ROWS, "loss += 0.01 * tf.reduce_sum(tf.gather(emb, tf.sort(ids)[:2]))"),
    "positions as numbers": (DISTINCT, OF_ROWS, "loss += 0.01 * tf.reduce_mean(tf.cast(at, F) * emb[0, 0])"),
    "zeros for distinct ids": (DISTINCT, OF_ROWS, "loss += tf.reduce_mean(tf.zeros([tf.size(ids), 2], F) + emb[0, 0])"),
    "a loop over distinct ids": (
        DISTINCT,
        OF_ROWS,
        "steps = tf.while_loop(lambda i, r: i < 2, lambda i, r: (i + 1, r + tf.tanh(rows)), [0, tf.zeros_like(rows)])",
        "loss += tf.reduce_mean(tf.gather(steps[1], at))",
    ),
    "a mask in a loop": (
        MASKED,
        "total = tf.while_loop(lambda i, s: i < 2, lambda i, s: (i + 1, s + tf.reduce_mean(tf.boolean_mask(h, "
        "weights[:, 0] * tf.cast(i + 1, F) > 0.4))), [0, tf.zeros([], F)])[1]",
        "loss = tf.reduce_mean(h * h) + 0.1 * total",
    ),
    "a branch of distinct ids": (
        DISTINCT,
        OF_ROWS,
        "loss += tf.reduce_mean(tf.cond(tf.size(words) > 3, lambda: rows * 2.0, lambda: rows))",
    ),
    "rows of examples that others name": (
        "numbers = tf.where(weights[:, 0] > 0.2)[:, 0]",
        "others = tf.gather(numbers, tf.minimum(numbers, 2))",
        "loss = tf.reduce_mean(tf.tanh(tf.gather(h, others)) * tf.gather(weights, numbers)[:, :1, None])",
    ),
    "counts of distinct ids": (
        "ids, at, counts = tf.unique_with_counts(words[:, 0])",
        "loss = tf.reduce_mean(tf.gather(emb, ids) * tf.cast(counts, F)[:, None])",
    ),
    "products by segment, where the last example has no entries": (
        BAGS,
        "at = tf.minimum(places[:, 0], tf.shape(words, tf.int64)[0] - 2)",
        "kept = tf.gather(places[:, 0], tf.where(places[:, 0] <= at)[:, 0])",
        "rows = tf.gather(tf.gather(emb, bags.values), tf.where(places[:, 0] <= at)[:, 0])",
        "loss = tf.reduce_mean(h * h) + tf.reduce_mean(tf.math.segment_prod(rows, kept))",
    ),
    "sums of entries over the examples": (
        BAGS,
        "scores = tf.SparseTensor(places, tf.gather(emb, bags.values)[:, 0], shape)",
        "loss = tf.reduce_mean(h * h) + tf.reduce_sum(tf.square(tf.sparse.reduce_sum(scores, 0)))",
    ),
    "places of entries": (BAGS, "loss = tf.reduce_mean(h * h) + 0.01 * emb[0, 0] * tf.cast(tf.reduce_sum(places), F)"),
}


@pytest.mark.rotates
@pytest.mark.parametrize("case", KEPT)
def test_bags_and_distinct_ids_stay_with_their_worker(case: str) -> None:
    source = program_of(*KEPT[case]).source()
    analysed = analyse(Built.of(source).graph)
    assert analysed.captured.by_layouts and not any("all-gathered" in note for note in analysed.spec.notes)
    assert try_program(source, ["alltoall"], layouts=True)["alltoall"].kind == "equal"


@pytest.mark.rotates
@pytest.mark.parametrize("case", GATHERED)
def test_what_depends_on_all_distinct_ids_has_those_of_the_global_batch(case: str) -> None:
    source = program_of(*GATHERED[case]).source()
    assert try_program(source, ["alltoall"], layouts=True)["alltoall"].kind == "equal"


def serialized(rng: np.random.RandomState, rows: int) -> np.ndarray[Any, Any]:
    """Examples with up to three ids, often none, and a target."""

    def example() -> bytes:
        ids = tf.train.Feature(int64_list=tf.train.Int64List(value=rng.randint(0, 11, rng.randint(0, 4))))
        target = tf.train.Feature(float_list=tf.train.FloatList(value=rng.rand(1)))
        features = tf.train.Features(feature={"ids": ids, "target": target})
        return bytes(tf.train.Example(features=features).SerializeToString())

    return np.array([example() for _ in range(rows)], object)


def parsed(length: int | None, takes_shape: bool) -> Any:
    features = {"ids": tf.io.VarLenFeature(tf.int64), "target": tf.io.FixedLenFeature([1], tf.float32)}
    found = v1.io.parse_example(v1.placeholder(tf.string, [length], name="texts"), features)
    rows = v1.nn.safe_embedding_lookup_sparse(v1.get_variable("emb", [11, 4]), found["ids"], combiner="sum")
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.tanh(rows), 1, True) - found["target"]))
    longest = tf.cast(found["ids"].dense_shape[1], tf.float32)
    made = v1.train.AdagradOptimizer(0.3).minimize(loss * longest if takes_shape else loss)
    notes = analyse(tf.compat.v1.get_default_graph()).spec.notes
    assert any("all-gathered" in note for note in notes) == takes_shape, notes
    return made


@pytest.mark.parametrize("takes_shape", [False, True])
def test_examples_are_parsed_by_the_worker_that_has_them(takes_shape: bool) -> None:
    found = tried(lambda length: parsed(length, takes_shape), {"texts": serialized})
    assert (found.kind, found.message) == ("equal", "")


def split(length: int | None) -> Any:
    words = tf.strings.split(v1.placeholder(tf.string, [length], name="texts"), sep=" ")
    ids = tf.strings.to_hash_bucket_fast(words.values, 11)
    rows = tf.tanh(tf.gather(v1.get_variable("emb", [11, 4]), ids))
    found = tf.math.segment_sum(rows, words.value_rowids())
    longest = tf.cast(tf.reduce_max(words.bounding_shape()), tf.float32)
    return v1.train.AdagradOptimizer(0.3).minimize(tf.reduce_mean(tf.square(tf.reduce_sum(found, 1) - longest)))


def test_texts_are_split_by_the_worker_that_has_them() -> None:
    found = tried(
        split,
        {"texts": lambda rng, rows: np.array([" ".join("abcdef"[: rng.randint(1, 6)]) for _ in range(rows)], object)},
    )
    assert (found.kind, found.message) == ("equal", "")


def short(length: int | None) -> Any:
    ids = v1.placeholder(tf.int64, [length, 3], name="ids")
    bags = tf.nn.embedding_lookup_sparse(v1.get_variable("emb", [11, 4]), tf.sparse.from_dense(ids), None, "sum")
    return v1.train.AdagradOptimizer(0.3).minimize(tf.reduce_mean(tf.square(bags)))


@pytest.mark.parametrize("has_entries", [True, False])
def test_a_last_example_without_entries_is_told_in_the_step(has_entries: bool) -> None:
    def ids(rng: np.random.RandomState, rows: int) -> np.ndarray[Any, Any]:
        found = rng.randint(1, 11, [rows, 3]) * np.arange(rows)[:, None].clip(0, 1)
        found[-1] = has_entries * found[-1]
        return found

    found = tried(short, {"ids": ids})
    assert (found.kind == "equal") == has_entries
    assert has_entries or "The last example of a batch has no entry in" in found.message


def looked_up(table: Any, ids: Any) -> Any:
    return tf.reduce_sum(tf.tanh(tf.gather(table, ids)), 1)


def by_second_column(table: Any, ids: Any, y: Any) -> Any:
    places = tf.where(ids > 4)
    return tf.gather(table, places[:, 1] + 1) * tf.gather(y, places[:, 0])[:, None]


def of_neighbours(table: Any, ids: Any, y: Any) -> Any:
    chosen = tf.where(y > 0.3)[:, 0]
    return tf.gather(looked_up(table, ids), tf.maximum(chosen - 1, 0)) - tf.gather(y, chosen)[:, None]


def of_flat_places(table: Any, ids: Any, y: Any) -> Any:
    places = tf.where(tf.reshape(ids, [-1]) > 4)[:, 0]
    return tf.gather(tf.reshape(tf.gather(table, ids), [-1, 4]), places) * tf.gather(y, places // 3)[:, None]


def of_two_columns(table: Any, ids: Any, y: Any) -> Any:
    (first, at), (second, beside) = tf.unique(ids[:, 0]), tf.unique(ids[:, 1])
    return tf.gather(tf.gather(table, first), at) * tf.gather(tf.gather(table, second), beside)


def by_frequency(table: Any, ids: Any, y: Any) -> Any:
    distinct, at = tf.unique(ids[:, 0])
    counts = tf.math.unsorted_segment_sum(tf.ones_like(y), at, tf.size(distinct))
    return tf.gather(table, ids[:, 1]) / tf.gather(counts, at)[:, None]


def of_a_mask_in_a_mask(table: Any, ids: Any, y: Any) -> Any:
    return tf.boolean_mask(tf.boolean_mask(looked_up(table, ids), y > 0.2), tf.boolean_mask(y, y > 0.2) > 0.6)


def of_both_sides(table: Any, ids: Any, y: Any) -> Any:
    rows = looked_up(table, ids)
    return tf.concat([tf.boolean_mask(rows, y > 0.4), tf.boolean_mask(rows, y <= 0.4) * 2.0], 0)


def of_pairs_within_a_mask(table: Any, ids: Any, y: Any) -> Any:
    rows = tf.boolean_mask(looked_up(table, ids), y > 0.2)
    return tf.nn.softmax(tf.matmul(rows, rows, transpose_b=True))


def normalized_within_a_mask(table: Any, ids: Any, y: Any) -> Any:
    rows = tf.boolean_mask(looked_up(table, ids), y > 0.2)
    mean, variance = tf.nn.moments(rows, [0])
    return (rows - mean) / tf.sqrt(variance + 0.1) + rows


@pytest.mark.rotates
@pytest.mark.parametrize(
    "program",
    [
        by_second_column,
        of_neighbours,
        of_flat_places,
        of_two_columns,
        by_frequency,
        of_a_mask_in_a_mask,
        of_both_sides,
        of_pairs_within_a_mask,
        normalized_within_a_mask,
    ],
)
def test_places_and_distinct_ids_in_any_use_are_one_process_s(program: Any) -> None:
    def build(length: int | None) -> Any:
        ids, y = v1.placeholder(tf.int64, [length, 3], name="ids"), v1.placeholder(tf.float32, [length], name="y")
        found = program(v1.get_variable("emb", [13, 4]), ids, y)
        return v1.train.AdagradOptimizer(0.3).minimize(tf.reduce_mean(tf.square(found)))

    feeds = {"ids": lambda rng, rows: rng.randint(0, 13, [rows, 3]), "y": lambda rng, rows: rng.rand(rows)}
    found = tried(build, feeds)
    assert (found.kind, found.message) == ("equal", "")
