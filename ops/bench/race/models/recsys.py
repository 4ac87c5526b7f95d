"""A recommendation model: many tables of mixed rows and widths under a small network, on generated clicks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ops.bench.race.models import Built, Table
from ops.bench.race.models.draws import Uniform, generator, glorot, zipf

LEARNING_RATE = 0.05


@dataclass(frozen=True, slots=True)
class RecSys:
    """A click model: each categorical feature has a table and a fixed number of ids per example, whose rows are summed.

    Rows grow from feature to feature by a constant factor. Widths cycle through the powers of two, and ids per example
    through 1 to `most_ids`. Clicks follow a fixed rule of ids and numbers, with noise.

    Attributes:
        features: number of categorical features, and of tables.
        numbers: number of numerical features.
        fewest_rows: rows of the first table.
        most_rows: rows of the last table.
        narrowest: the smallest width of a row, a power of two.
        widest: the largest width of a row, a power of two.
        most_ids: the most ids per example and feature.
        hidden: units of the first dense layer; the second has half of them.
        batch_size: examples per worker and step.
        skew: exponent of the ids' Zipf distribution.
    """

    features: int = 26
    numbers: int = 13
    fewest_rows: int = 100
    most_rows: int = 200_000
    narrowest: int = 8
    widest: int = 64
    most_ids: int = 10
    hidden: int = 128
    batch_size: int = 128
    skew: float = 1.05

    @property
    def unit(self) -> str:
        """The unit of throughput: examples, which are impressions, clicked or not."""
        return "examples"

    @property
    def units(self) -> int:
        """Examples per worker and step."""
        return self.batch_size

    @property
    def tables(self) -> tuple[Table, ...]:
        """One table per feature."""
        growth = (self.most_rows / self.fewest_rows) ** (1.0 / max(1, self.features - 1))
        widths = [2**power for power in range(self.narrowest.bit_length() - 1, self.widest.bit_length())]
        return tuple(
            Table(f"table_{i:02}", round(self.fewest_rows * growth**i), widths[i % len(widths)], (f"ids_{i:02}",))
            for i in range(self.features)
        )

    def build(self) -> Built:
        """Builds the mean cross entropy of the clicks, minimized by Adagrad."""
        import tensorflow as tf

        v1 = tf.compat.v1
        numbers = v1.placeholder(tf.float32, [self.batch_size, self.numbers], name="numbers")
        clicks = v1.placeholder(tf.float32, [self.batch_size], name="clicks")
        feeds, pooled = {"numbers": numbers, "clicks": clicks}, [numbers]
        for feature, table in enumerate(self.tables):
            (name,) = table.ids
            ids = v1.placeholder(tf.int32, [self.batch_size, self._ids_of(feature)], name=name)
            initial = Uniform(table.name, table.width**-0.5)
            rows = v1.get_variable(table.name, [table.rows, table.width], initializer=initial)
            pooled.append(tf.reduce_sum(tf.nn.embedding_lookup(rows, ids), axis=1))
            feeds[name] = ids
        scope = v1.get_variable_scope()
        with v1.variable_scope(scope, custom_getter=glorot(scope), auxiliary_name_scope=False):
            logits = self._dense_layers(tf.concat(pooled, axis=1))
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=clicks, logits=logits))
        return Built(loss, v1.train.AdagradOptimizer(LEARNING_RATE), feeds)

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Draws Zipf ids, normal numbers, and clicks."""
        draw = generator(worker, step)
        numbers = draw.standard_normal([self.batch_size, self.numbers], np.float32)
        feeds, score = {"numbers": numbers}, numbers[:, 0] - 0.5 * numbers[:, -1]
        for feature, table in enumerate(self.tables):
            (name,) = table.ids
            ids = zipf(draw, self.skew, table.rows, [self.batch_size, self._ids_of(feature)])
            score += _taste(feature, ids).mean(axis=1)
            feeds[name] = ids
        noise = draw.standard_normal(self.batch_size) * 0.5
        return feeds | {"clicks": (score + noise > 0).astype(np.float32)}

    def _ids_of(self, feature: int) -> int:
        """Returns the number of a feature's ids per example."""
        return 1 + 7 * feature % self.most_ids

    def _dense_layers(self, inputs: Any) -> Any:
        """Builds two ReLU layers and a logit: [batch, ...] to [batch]."""
        import tensorflow as tf

        v1 = tf.compat.v1
        for layer, units in enumerate((self.hidden, self.hidden // 2, 1)):
            weights = v1.get_variable(f"weights_{layer}", [int(inputs.shape[1]), units])
            bias = v1.get_variable(f"bias_{layer}", [units], initializer=v1.zeros_initializer())
            outputs = tf.linalg.matmul(inputs, weights) + bias
            inputs = tf.nn.relu(outputs)
        return tf.squeeze(outputs, axis=1)


def _taste(feature: int, ids: np.ndarray) -> np.ndarray:
    """Returns each id's contribution to the score, in [-1, 1): the hidden rule."""
    mixed = (ids.astype(np.uint64) + np.uint64(1000 * feature)) * np.uint64(2654435761) % np.uint64(2**32)
    return np.asarray(mixed / 2.0**31 - 1.0, np.float32)
