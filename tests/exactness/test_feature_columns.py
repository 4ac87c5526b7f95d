"""Models on TensorFlow's feature columns: deep ones of embeddings, and wide ones of sparse ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import Feed, tried

v1 = tf.compat.v1
columns = tf.feature_column

FEEDS: Mapping[str, Feed] = {
    "x": lambda rng, rows: rng.randn(rows),
    "ids": lambda rng, rows: rng.randint(0, 9, [rows]),
    "y": lambda rng, rows: rng.randn(rows),
}


def read(rows: int | None) -> tuple[dict[str, Any], Any]:
    """Features by name, and labels `[rows]`."""
    ids, (x, y) = (
        v1.placeholder(tf.int64, [rows], name="ids"),
        (v1.placeholder(tf.float32, [rows], name=n) for n in "xy"),
    )
    return {"x": x, "ids": ids}, y


def minimize_deep(rows: int | None) -> Any:
    features, y = read(rows)
    ids = columns.categorical_column_with_identity("ids", 9)
    buckets = columns.bucketized_column(columns.numeric_column("x"), [-1.0, 0.0, 1.0])
    chosen = [columns.numeric_column("x"), columns.embedding_column(ids, 4), columns.indicator_column(buckets)]
    hidden = v1.feature_column.input_layer(features, chosen)
    errors = tf.square((hidden @ v1.get_variable("w", [9, 1]))[:, 0] - y)
    return v1.train.AdagradOptimizer(0.1).minimize(tf.sqrt(tf.reduce_mean(errors)))


def minimize_wide(rows: int | None) -> Any:
    features, y = read(rows)
    ids, x = columns.categorical_column_with_identity("ids", 9), columns.numeric_column("x")
    buckets = columns.bucketized_column(x, [-1.0, 0.0, 1.0])
    chosen = [x, ids, buckets, columns.crossed_column([ids, buckets], 13)]
    errors = tf.square(v1.feature_column.linear_model(features, chosen)[:, 0] - y)
    return v1.train.FtrlOptimizer(0.1).minimize(tf.sqrt(tf.reduce_mean(errors)))


@pytest.mark.rotates
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("minimize", [minimize_deep, minimize_wide])
def test_models_on_feature_columns_gather_nothing(minimize: Callable[[int | None], Any], is_open: bool) -> None:
    found = tried(minimize, FEEDS, is_open=is_open, rows=6)
    assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())
