"""Several tables under one dense layer, of any sizes: the models on which plans are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.bench.race.models import Built, Table
from ops.bench.race.models.draws import Uniform, generator, zipf


@dataclass(frozen=True, slots=True)
class Generated:
    """A model that multiplies the concatenated rows of all tables by a dense layer, and moves the products to a target.

    Attributes:
        tables_number: number of tables; each has twice the rows of the one before.
        rows: rows of the first table.
        width: elements of a row.
        ids: ids per worker, step and table.
        outputs: outputs of the dense layer, whose inputs are the concatenated rows of all tables.
        skew: exponent of the ids' Zipf distribution.
    """

    tables_number: int = 2
    rows: int = 10_000
    width: int = 64
    ids: int = 256
    outputs: int = 64
    skew: float = 1.2

    @property
    def unit(self) -> str:
        """The unit of throughput: examples, of one id per table."""
        return "examples"

    @property
    def units(self) -> int:
        """Ids per worker, step and table."""
        return self.ids

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables."""
        return tuple(Table(f"table_{n}", self.rows << n, self.width, (f"ids_{n}",)) for n in range(self.tables_number))

    def build(self) -> Built:
        """Builds the mean squared distance to a fixed target, minimized by Adagrad."""
        import tensorflow as tf

        v1 = tf.compat.v1
        feeds, looked_up = {}, []
        for table in self.tables:
            (name,) = table.ids
            feeds[name] = v1.placeholder(tf.int32, [self.ids], name=name)
            shape = [table.rows, table.width]
            variable = v1.get_variable(table.name, shape, initializer=Uniform(table.name, 0.1))
            looked_up.append(tf.nn.embedding_lookup(variable, feeds[name]))
        inputs = self.tables_number * self.width
        bound = (3.0 / inputs) ** 0.5
        layer = v1.get_variable("layer", [inputs, self.outputs], initializer=Uniform("layer", bound))
        loss = tf.reduce_mean(tf.square(tf.linalg.matmul(tf.concat(looked_up, axis=1), layer) - 0.5))
        return Built(loss, v1.train.AdagradOptimizer(0.05), feeds)

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Draws Zipf ids."""
        draw = generator(worker, step)
        return {table.ids[0]: zipf(draw, self.skew, table.rows, [self.ids]) for table in self.tables}
