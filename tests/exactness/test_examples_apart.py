"""Ops that treat each example by itself, and whose rules say so: nothing is gathered for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
FEEDS = {"x": lambda rng, rows: rng.randn(rows, 3), "y": lambda rng, rows: rng.randint(0, 4, [rows])}
Program = Callable[[Any, Any, Any, Any], Any]
"""(the batch `[rows, 3]`, classes `[rows]`, a matrix `[3, 4]`, a table `[11, 3]`) -> what is to be small."""


def over_time(x: Any, w: Any) -> Any:
    return tf.stack([x @ w, tf.sin(x) @ w, tf.cos(x) @ w])


def mirrored(x: Any, w: Any, *paddings: Any, mode: str) -> Any:
    padded = tf.pad(tf.reshape(x @ w, [-1, 2, 2]), [[0, 0], *paddings], mode)
    return tf.reduce_sum(tf.sin(padded), 2)


def counted(sparse: Any) -> Any:
    return tf.reduce_sum(tf.sparse.to_dense(tf.cast(sparse, tf.float32)), 1)


def greedy(x: Any, y: Any, w: Any, table: Any) -> Any:
    found, likelihoods = tf.nn.ctc_greedy_decoder(over_time(x, w), tf.cast(y % 3 + 1, tf.int32))
    return tf.reduce_sum(over_time(x, w), [0, 2]) - counted(found[0]) - likelihoods[:, 0]


def asserted(x: Any, y: Any, w: Any, table: Any) -> Any:
    check = tf.debugging.Assert(tf.reduce_all(y < 4), [tf.strings.format("Classes are {}", [y])])
    with tf.control_dependencies([check]):
        return x @ w


def by_beams(x: Any, y: Any, w: Any, table: Any) -> Any:
    found, likelihoods = tf.nn.ctc_beam_search_decoder(over_time(x, w), tf.cast(y % 3 + 1, tf.int32), 5, 2)
    return tf.reduce_sum(over_time(x, w), [0, 2]) - counted(found[0]) - counted(found[1]) - likelihoods[:, 1]


def of_sparse_labels(x: Any, y: Any, w: Any, table: Any) -> Any:
    labels = tf.cast(tf.stack([y % 3, tf.where(x[:, 0] > 0.0, y % 3, y * 0 + 3)], 1), tf.int32)
    places = tf.where(labels < 3)
    sparse = tf.SparseTensor(places, tf.gather_nd(labels, places), tf.shape(labels, tf.int64))
    lengths = tf.fill([tf.shape(x)[0]], 3)
    return v1.nn.ctc_loss(sparse, over_time(x, w), lengths, ignore_longer_outputs_than_inputs=True)


def at_places(flat: Any) -> Any:
    """As where a feed-forward network leaves out padding: of the tokens of all texts."""
    places = tf.where(flat > 0.0)
    return tf.reshape(tf.scatter_nd(places, tf.sin(tf.gather_nd(flat, places)), tf.shape(flat, tf.int64)), [-1, 4])


def crossed(x: Any, y: Any, w: Any, table: Any) -> Any:
    """Sparse features with dense ones."""
    chosen = tf.where(tf.concat([x > 0.0, tf.ones_like(y[:, None], tf.bool)], 1))
    ids = tf.tile(y[:, None], [1, 4]) + tf.range(4, dtype=tf.int64)
    features = tf.SparseTensor(chosen, tf.gather_nd(ids, chosen), tf.shape(ids, tf.int64))
    found = tf.sparse.cross_hashed([features, y[:, None] % 2], 11)
    return tf.nn.embedding_lookup_sparse(table, found, None, combiner="mean")


def crossed_texts(x: Any, y: Any, w: Any, table: Any) -> Any:
    texts = tf.strings.as_string(y)[:, None], tf.strings.as_string(tf.cast(x[:, :1] > 0.0, tf.int32))
    return tf.nn.embedding_lookup_sparse(table, tf.sparse.cross_hashed(texts, 11), None, combiner="sum")


def entries_of(x: Any, y: Any) -> tuple[Any, Any]:
    """Ids of each example, in no order, and the places of all."""
    ids = tf.stack([y + 5, y, y + 2], 1)
    places = tf.where(tf.concat([x[:, :2] > 0.0, tf.ones_like(y[:, None], tf.bool)], 1))
    return places, tf.SparseTensor(places, tf.gather_nd(ids, places), tf.shape(ids, tf.int64))


def sorted_flags(x: Any, y: Any, w: Any, table: Any) -> Any:
    return tf.cast(tf.sparse.to_indicator(entries_of(x, y)[1], 11), tf.float32) @ table


def sorted_weights(x: Any, y: Any, w: Any, table: Any) -> Any:
    """Pairs of ids and weights, as in libsvm's format."""
    places, ids = entries_of(x, y)
    weights = tf.SparseTensor(places, tf.gather_nd(tf.sin(x), places), ids.dense_shape)
    return tf.sparse.to_dense(v1.sparse_merge(ids, weights, 11), validate_indices=False) @ table


def from_first_entries(x: Any, y: Any, w: Any, table: Any) -> Any:
    """Entries of examples, by the number of each example's first one."""
    flat = tf.reshape(tf.tanh(x @ w), [-1])
    return tf.gather(flat, tf.range(0, tf.size(flat), 4) + tf.cast(y, tf.int32))


def square(x: Any, w: Any) -> Any:
    """A positive definite matrix of each example."""
    rows = tf.reshape(x @ w, [-1, 2, 2])
    return tf.matmul(rows, rows, transpose_a=True) + tf.eye(2)


def quantized(x: Any, y: Any, w: Any, table: Any) -> Any:
    limits = tf.reduce_min(table), tf.reduce_max(table)
    return tf.quantization.fake_quant_with_min_max_vars(x @ w, *limits, num_bits=4)


def joined_texts(x: Any, y: Any, w: Any, table: Any) -> Any:
    texts = tf.strings.join([tf.strings.as_string(y), tf.strings.as_string(tf.cast(x[:, 0] > 0.0, tf.int32))], "_")
    return tf.gather(table, tf.strings.to_hash_bucket_fast(tf.strings.substr(texts, 0, 3), 11))


def images(x: Any, w: Any) -> Any:
    """An image of each example, `[batch, 3, 2, 2]`."""
    return tf.reshape(tf.concat([x @ w, tf.sin(x) @ w, tf.cos(x) @ w], 1), [-1, 3, 2, 2])


def cropped(x: Any, y: Any, w: Any, table: Any) -> Any:
    """Two crops of each image, by boxes that are learned."""
    boxes = tf.sort(tf.sigmoid(tf.reshape(tf.concat([x @ w, tf.sin(x @ w)], 1), [-1, 4])))
    own = tf.repeat(tf.range(tf.shape(x)[0]), 2)
    return tf.reshape(tf.image.crop_and_resize(images(x, w), boxes, own, [2, 2]), [tf.shape(x)[0], -1])


def morphed(x: Any, y: Any, w: Any, table: Any) -> Any:
    structure = tf.reshape(w[:2], [2, 2, 2])
    return tf.nn.dilation2d(images(x, w), structure, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1])


def three_diagonals(x: Any, y: Any, w: Any, table: Any) -> Any:
    diagonals = x, tf.square(x) + 3.0, tf.sin(x)
    return tf.linalg.tridiagonal_solve(diagonals, x @ w[:, :3], diagonals_format="sequence")


def views(x: Any, y: Any, w: Any, table: Any) -> Any:
    """Two views of each example, through the weights together."""
    both, count = tf.tanh(tf.concat([x, tf.sin(x), tf.gather(table, y)], 0) @ w), tf.shape(x)[0]
    return both[:count] * both[count : 2 * count] - tf.exp(both[count:][:count, 1:2]) + both[2 * count :, None, 0]


def scored(x: Any, y: Any, w: Any, table: Any) -> Any:
    """The score of each example's tag at its first position, by an index that is concatenated in turn."""
    scores = tf.reshape(x @ w, [-1, 2, 2])
    first = tf.range(tf.shape(y)[0])[:, None]
    places = tf.concat([tf.concat([first, tf.zeros_like(first)], -1), tf.cast(y[:, None] % 2, tf.int32)], -1)
    return tf.gather_nd(scores, places)


APART: dict[str, Program] = {
    "scores of tags": scored,
    "views of examples": views,
    "normalized over channels": lambda x, y, w, table: tf.nn.local_response_normalization(images(x, w), 1),
    "dilated": morphed,
    "cropped": cropped,
    "scaled": lambda x, y, w, table: tf.image.resize(images(x, w), [5, 3], "lanczos3"),
    "padded to a size": lambda x, y, w, table: tf.image.resize_with_crop_or_pad(images(x, w), 5, 1),
    "frames added up": lambda x, y, w, table: tf.signal.overlap_and_add(images(x, w)[..., 0], 1),
    "cross products": lambda x, y, w, table: tf.linalg.cross(x, tf.gather(table, y)),
    "medians": lambda x, y, w, table: x @ w - tf.raw_ops.NthElement(input=tf.stop_gradient(x @ w), n=1)[:, None],
    "three diagonals": three_diagonals,
    "the largest": lambda x, y, w, table: tf.reduce_sum(tf.math.top_k(x @ w, 2)[0], 1),
    "from first entries": from_first_entries,
    "reflected": lambda x, y, w, table: mirrored(x, w, [1, 1], [1, 1], mode="REFLECT"),
    "repeated at the edges": lambda x, y, w, table: mirrored(x, w, [1, 1], [0, 1], mode="SYMMETRIC"),
    "decoded": greedy,
    "checked by an assertion with a message": asserted,
    "decoded by beams": by_beams,
    "sparse labels": of_sparse_labels,
    "crossed": crossed,
    "crossed texts": crossed_texts,
    "sorted flags": sorted_flags,
    "sorted weights": sorted_weights,
    "determinants": lambda x, y, w, table: tf.linalg.logdet(square(x, w)) + tf.linalg.det(square(0.3 * x, w)),
    "decompositions": lambda x, y, w, table: (
        tf.reduce_sum(tf.linalg.eigvalsh(square(x, w)), 1) + tf.linalg.qr(square(x, w))[1][:, 0, 0]
    ),
    "solutions": lambda x, y, w, table: (
        tf.linalg.solve(square(x, w), x[:, :2, None])
        + tf.linalg.triangular_solve(tf.linalg.cholesky(square(x, w)), x[:, 1:, None])
    ),
    "solutions for one matrix": lambda x, y, w, table: tf.linalg.solve(
        tf.matmul(w, w, transpose_b=True) + tf.eye(3), tf.transpose(x)
    ),
    "products of all axes but some": lambda x, y, w, table: tf.einsum(
        "...i,...ij->...j", x, tf.einsum("...i,jk->...ij", tf.sin(x), w)
    ),
    "quantized": quantized,
    "joined texts": joined_texts,
    "special functions": lambda x, y, w, table: tf.math.igamma(tf.exp(x[:, :1]), tf.math.softplus(x @ w)),
    "places among edges": lambda x, y, w, table: (
        x @ w * tf.cast(tf.searchsorted([-0.5, 0.0, 0.5], x[:, 0]), tf.float32)[:, None]
    ),
    "without an axis": lambda x, y, w, table: tf.squeeze((x @ w)[:, None]) @ tf.transpose(w) - x,
    "without axes, then a vector": lambda x, y, w, table: tf.squeeze(tf.reduce_sum(x @ w, 1, keepdims=True)) - 0.1,
    "numbers of examples above their classes, transposed": lambda x, y, w, table: tf.gather_nd(
        tf.nn.softmax(x @ w), tf.transpose(tf.stack([tf.range(tf.shape(x, tf.int64)[0]), y]))
    ),
    "copies of examples, regrouped from flat ones": lambda x, y, w, table: tf.nn.softmax(
        tf.reshape(tf.tile(tf.reshape(x @ w, [-1]), [2]), [2 * tf.shape(x)[0], 4])
    ),
    "a grid for each example": lambda x, y, w, table: tf.matmul(
        tf.reshape(x @ w, [-1, 2, 2]),
        tf.reshape(tf.tile(tf.range(6.0), [tf.shape(x)[0]]), [tf.shape(x)[0], 2, -1]),
    ),
    "entries of examples, by flat position, and back": lambda x, y, w, table: at_places(tf.reshape(x @ w, [-1])),
    "a column of what had more axes": lambda x, y, w, table: (
        tf.nn.softmax(tf.squeeze((x @ w)[..., None, None]))[:, 0] * tf.squeeze(tf.squeeze((x @ w)[..., None])[:, 1:2])
    ),
}


@pytest.mark.parametrize("case", APART)
def test_nothing_is_gathered_for_ops_on_examples(case: str) -> None:
    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(tf.float32, [rows, 3], name="x"), v1.placeholder(tf.int64, [rows], name="y")
        w, table = v1.get_variable("w", [3, 4]), v1.get_variable("table", [11, 3])
        loss = tf.reduce_mean(tf.square(APART[case](x, y, w, table)))
        return v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    found = tried(build, FEEDS)
    assert (found.kind, found.message, found.gathers) == ("equal", "", ())


def test_slices_of_an_axis_of_open_length_gather_nothing() -> None:
    """All words but the first, of texts of any length, as in models of the next click."""

    def build(rows: int | None) -> Any:
        ids = v1.placeholder(tf.int64, [None, None], name="ids")
        rows_of_ids = tf.gather(v1.get_variable("table", [11, 3]), ids)
        first = tf.square(rows_of_ids[:, 1:, 0])
        again = tf.reshape(first, [-1, tf.shape(rows_of_ids[:, 1:])[1]]) * rows_of_ids[:, :-1, 1]
        return v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(again - 1.0)))

    found = tried(build, {"ids": lambda rng, rows: rng.randint(0, 11, [rows, 5])})
    assert (found.kind, found.message, found.gathers) == ("equal", "", ())


def test_a_recurrence_over_parts_of_examples_gathers_nothing() -> None:
    """An RNN over the characters of words, of texts and words of any length."""

    def build(rows: int | None) -> Any:
        ids = v1.placeholder(tf.int64, [None, None, None], name="ids")
        characters = tf.gather(v1.get_variable("table", [11, 2]), ids)
        lengths = tf.shape(characters)
        words = tf.reshape(characters, [lengths[0] * lengths[1], lengths[2], 2])
        kernel = v1.get_variable("kernel", [5, 3])

        def turn(t: Any, h: Any) -> Any:
            return t + 1, tf.tanh(tf.concat([words[:, t], h], 1) @ kernel)

        start = tf.constant(0), tf.zeros([tf.shape(words)[0], 3])
        _, last = tf.while_loop(lambda t, _: t < lengths[2], turn, start)
        texts = tf.reduce_sum(tf.reshape(last, [lengths[0], lengths[1], 3]), 1)
        return v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(texts - 1.0)))

    found = tried(build, {"ids": lambda rng, rows: rng.randint(0, 11, [rows, 4, 3])})
    assert (found.kind, found.message, found.gathers) == ("equal", "", ())


def test_matrices_of_sequences_whose_lengths_have_two_names_gather_nothing() -> None:
    def build(rows: int | None) -> Any:
        x, y = (v1.placeholder(tf.float32, [rows, None, 2, 2], name=name) for name in "xy")
        w = v1.get_variable("w", [2, 2])
        heads = tf.matmul(tf.tensordot(x, w, 1), tf.tensordot(y, w, 1))
        return v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(heads - 1.0)))

    found = tried(build, dict.fromkeys("xy", lambda rng, rows: rng.randn(rows, 5, 2, 2)))
    assert (found.kind, found.message, found.gathers) == ("equal", "", ())


OF_SEQUENCES: dict[str, Callable[[Any, Any], Any]] = {
    "a split": lambda x, lengths: tf.multiply(*tf.split(x, 2, axis=2)),
    "parts of some widths": lambda x, lengths: tf.split(x, [1, 3], axis=2)[1],
    "a reversal": lambda x, lengths: tf.reverse_sequence(x, lengths, 1),
    "heads chosen by the best place": lambda x, lengths: tf.matmul(
        tf.one_hot(tf.argmax(x, 2), 3)[..., None], x[..., None, :]
    )[:, :, 0],
    "an order of each": lambda x, lengths: tf.gather(x, tf.argsort(x[:, :, 0]), batch_dims=1),
}


@pytest.mark.parametrize("case", OF_SEQUENCES)
def test_ops_on_sequences_keep_the_length_that_all_have(case: str) -> None:
    """Flattened to rows, the sequences and their gradients are of as many examples: as in GPT-2's projections."""

    def project(x: Any, name: str) -> Any:
        w = v1.get_variable(name, [x.shape[2], 4])
        return tf.reshape(tf.reshape(x, [-1, x.shape[2]]) @ w, [tf.shape(x)[0], tf.shape(x)[1], 4])

    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, None, 3], name="x")
        lengths = v1.placeholder(tf.int32, [rows], name="lengths")
        found = project(OF_SEQUENCES[case](project(x, "w"), lengths), "v")
        return v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(tf.square(found - 1.0)))

    feeds = {"x": lambda rng, rows: rng.randn(rows, 6, 3), "lengths": lambda rng, rows: rng.randint(1, 7, [rows])}
    found = tried(build, feeds)
    assert (found.kind, found.gathers) == ("equal", ()), found


@pytest.mark.parametrize("beside", ["positions", "first positions", "one position for all", "a mask of matrices"])
def test_words_that_are_taken_out_of_texts_of_open_length_stay_with_their_workers(beside: str) -> None:
    """As a Transformer's layers do without padding: all lengths follow from that of the texts."""

    def build(rows: int | None) -> Any:
        ids = v1.placeholder(tf.int64, [rows, None], name="ids")
        rows, longest = tf.shape(ids)[0], tf.shape(ids)[1]
        h = tf.gather(v1.get_variable("emb", [11, 4]), ids)
        if beside == "positions":
            h += tf.gather(v1.get_variable("positions", [9, 4]), tf.tile(tf.range(longest)[None], [rows, 1]))
        elif beside != "a mask of matrices":
            h += v1.get_variable("positions", [9 if beside == "first positions" else 1, 4])[:longest]
        else:
            mask = tf.linalg.band_part(tf.ones([longest, longest]), -1, 0)
            h += tf.matmul(tf.matmul(h, h, transpose_b=True) * mask[None], h)
        words = tf.cast(tf.where(tf.reshape(ids, [-1]) > 2), tf.int32)
        taken = tf.tanh(tf.gather_nd(tf.reshape(h, [-1, 4]), words) @ v1.get_variable("w", [4, 4]))
        back = tf.reshape(tf.scatter_nd(words, taken, [rows * longest, 4]), [rows, longest, 4])
        return v1.train.AdagradOptimizer(0.3).minimize(tf.sqrt(tf.reduce_mean(tf.square(tf.reduce_sum(back, 1) - 1.0))))

    found = tried(build, {"ids": lambda rng, rows: rng.randint(0, 11, [rows, 6])})
    assert (found.kind, found.message, found.gathers) == ("equal", "", ())
