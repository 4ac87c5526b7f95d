"""Rows drawn by their owner are bit for bit those of the whole tensor that TensorFlow draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.graph.ownership import Ownership
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.random_rows import DrawnTensor, random_rows

v1 = tf.compat.v1
SEEDS = (2**31 - 7, -5)
UNEVEN = Ownership((0, 2, 2, 0, 2), 4)  # holder 1 has none, and nor has 3
FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


def whole_of(distribution: str, shape: list[int], dtype: Any) -> Any:
    given = {"shape": tf.constant(shape), "seed": SEEDS[0], "seed2": SEEDS[1]}
    if distribution == "uniform_int":
        return tf.raw_ops.RandomUniformInt(minval=tf.constant(-3, dtype), maxval=tf.constant(2**30, dtype), **given)
    ops = {
        "uniform": tf.raw_ops.RandomUniform,
        "normal": tf.raw_ops.RandomStandardNormal,
        "truncated_normal": tf.raw_ops.TruncatedNormal,
    }
    return ops[distribution](dtype=dtype, **given)


def agree(whole: Any, parts: dict[int, Any], ownership: Ownership, runs: int = 1) -> None:
    """Each holder's rows are those of the whole, in every run."""
    with v1.Session() as sess:
        for _ in range(runs):
            found, held = sess.run([whole, parts])
            for holder, rows in held.items():
                wanted = [r for r in range(len(found)) if ownership.holder(r) == holder]
                assert rows.shape == (len(wanted), *found.shape[1:])
                np.testing.assert_array_equal(rows.view(np.uint8), found[wanted].view(np.uint8))


@pytest.mark.parametrize("distribution", ["uniform", "normal", "truncated_normal"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("row_shape", [(), (1,), (3,), (4,), (5, 7), (130,)], ids=str)
def test_owned_rows_of_floats_are_those_of_the_whole(distribution: str, dtype: Any, row_shape: tuple[int, ...]) -> None:
    with tf.Graph().as_default():
        for ownership, total in ((Ownership.even(3), 101), (UNEVEN, 23)):
            whole = whole_of(distribution, [total, *row_shape], dtype)
            drawn = DrawnTensor(distribution, dtype, (total, *row_shape))
            parts = {h: random_rows(drawn, ownership, h, seeds=SEEDS) for h in range(ownership.holders)}
            agree(whole, parts, ownership)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64], ids=lambda dtype: dtype.name)
def test_owned_rows_of_integers_are_those_of_the_whole(dtype: Any) -> None:
    with tf.Graph().as_default():
        bounds = [tf.constant(-3, dtype), tf.constant(2**30, dtype)]
        for ownership, total, width in ((Ownership.even(2), 50, 5), (UNEVEN, 23, 3)):
            whole = whole_of("uniform_int", [total, width], dtype)
            drawn = DrawnTensor("uniform_int", dtype, (total, width))
            parts = {h: random_rows(drawn, ownership, h, SEEDS, (), bounds) for h in range(ownership.holders)}
            agree(whole, parts, ownership)


def test_a_second_run_draws_on_where_tensorflow_does() -> None:
    with tf.Graph().as_default():
        ownership = Ownership.even(2)
        whole = whole_of("truncated_normal", [9, 3], tf.float32)
        drawn = DrawnTensor("truncated_normal", tf.float32, (9, 3))
        agree(whole, {h: random_rows(drawn, ownership, h, seeds=SEEDS) for h in range(2)}, ownership, runs=3)


@pytest.mark.parametrize("distribution", ["uniform", "normal", "truncated_normal"])
def test_stateless_streams_are_entered_at_the_rows(distribution: str) -> None:
    ops = {
        "uniform": tf.random.stateless_uniform,
        "normal": tf.random.stateless_normal,
        "truncated_normal": tf.random.stateless_truncated_normal,
    }
    with tf.Graph().as_default() as graph:
        whole = ops[distribution]([41, 6], (3, 5))
        op = next(op for op in graph.get_operations() if op.type.startswith("Stateless") and op.type.endswith("V2"))
        drawn = DrawnTensor(distribution, tf.float32, (41, 6))
        stream = (op.inputs[1], op.inputs[2])
        agree(op.outputs[0], {h: random_rows(drawn, UNEVEN, h, stream=stream) for h in range(4)}, UNEVEN, runs=2)
        assert whole.shape == [41, 6]


@pytest.mark.parametrize("distribution", ["uniform", "normal", "truncated_normal"])
def test_the_last_row_of_a_table_of_many_values(distribution: str) -> None:
    """Too many to draw them all: TensorFlow's stateless ops enter the stream of the same seeds there."""
    total, width = 3 * 10**9, 8
    of_group = {"uniform": 1, "normal": 1, "truncated_normal": 4 * 256 // 4}[distribution]
    op = {
        "uniform": tf.raw_ops.StatelessRandomUniformV2,
        "normal": tf.raw_ops.StatelessRandomNormalV2,
        "truncated_normal": tf.raw_ops.StatelessTruncatedNormalV2,
    }[distribution]
    with tf.Graph().as_default(), v1.Session() as sess:
        key = tf.constant(np.array([SEEDS[0]], np.uint64))
        counter = tf.constant(np.array([(total - 1) * (width // 4) * of_group, SEEDS[1] % 2**64], np.uint64))
        wanted = op(shape=[1, width], key=key, counter=counter, alg=1)
        found = native_ops().parallax_random_rows(
            stream=[],
            bounds=[],
            dtype=tf.float32,
            distribution=distribution,
            seeds=SEEDS,
            total=total,
            turn=total,
            slots=[total - 1],
            shape=[1, width],
        )
        np.testing.assert_array_equal(*sess.run([wanted, found]))


@pytest.mark.slow
def test_rows_of_a_table_of_published_size() -> None:
    """793,470 rows of 512, whole 1.6 GB."""
    with tf.Graph().as_default():
        drawn = DrawnTensor("uniform", tf.float32, (793_470, 512))
        whole, ownership = whole_of("uniform", list(drawn.shape), tf.float32), Ownership.even(48)
        agree(whole, {holder: random_rows(drawn, ownership, holder, seeds=SEEDS) for holder in (0, 47)}, ownership)
