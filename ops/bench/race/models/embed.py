"""One table and one dense layer: minimal compute, so that the exchange dominates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.bench.race.models import Built, Table
from ops.bench.race.models.draws import Uniform, generator, zipf


@dataclass(frozen=True, slots=True)
class Embed:
    """A model that looks up rows, multiplies them by a dense layer, and moves the products to a target.

    Attributes:
        rows: rows of the table.
        width: elements of a row, and width of the layer.
        ids: ids per worker and step.
        skew: exponent of the ids' Zipf distribution.
    """

    rows: int = 100_000
    width: int = 256
    ids: int = 640
    skew: float = 1.3

    @property
    def unit(self) -> str:
        """The unit of throughput: examples, of one id each."""
        return "examples"

    @property
    def units(self) -> int:
        """Ids per worker and step."""
        return self.ids

    @property
    def tables(self) -> tuple[Table, ...]:
        """The table."""
        return (Table("embedding", self.rows, self.width, ("ids",)),)

    def build(self) -> Built:
        """Builds the mean squared distance to a fixed target, minimized by gradient descent."""
        import tensorflow as tf

        v1 = tf.compat.v1
        ids = v1.placeholder(tf.int32, [self.ids], name="ids")
        table = v1.get_variable("embedding", [self.rows, self.width], initializer=Uniform("embedding", 0.1))
        bound = (3.0 / self.width) ** 0.5
        layer = v1.get_variable("layer", [self.width, self.width], initializer=Uniform("layer", bound))
        rows = tf.nn.embedding_lookup(table, ids)
        loss = tf.reduce_mean(tf.square(tf.linalg.matmul(rows, layer) - 0.5)) * self.width
        return Built(loss, v1.train.GradientDescentOptimizer(0.05), {"ids": ids})

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Draws Zipf ids."""
        return {"ids": zipf(generator(worker, step), self.skew, self.rows, [self.ids])}
