"""The model of examples/nlp/word2vec.py: skip-gram with negative sampling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples.nlp.word2vec import Batch, skip_gram_nats
from ops.bench.race.models import Built, Table
from ops.bench.race.models.draws import Uniform, generator, zipf

LEARNING_RATE, FIRST_SQUARES = 0.1, 1e-8


@dataclass(frozen=True, slots=True)
class Word2Vec:
    """A skip-gram model of two tables, without dense variables; words and negatives have a Zipf distribution.

    Attributes:
        words: rows of each table.
        width: elements of a row.
        batch_size: pairs per worker and step.
        negatives: negatives per pair.
        skew: exponent of the words' Zipf distribution.
    """

    words: int = 70_000
    width: int = 200
    batch_size: int = 512
    negatives: int = 5
    skew: float = 1.0

    @property
    def unit(self) -> str:
        """The unit of throughput: pairs of a word and a context word."""
        return "pairs"

    @property
    def units(self) -> int:
        """Pairs per worker and step."""
        return self.batch_size

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of words and of contexts."""
        return (
            Table("words", self.words, self.width, ("center_ids",)),
            Table("contexts", self.words, self.width, ("context_ids", "negative_ids")),
        )

    def build(self) -> Built:
        """Builds the mean nats per pair, minimized by Adagrad."""
        import tensorflow as tf

        v1 = tf.compat.v1
        pairs = [self.batch_size]
        feeds = {
            "center_ids": v1.placeholder(tf.int32, pairs, name="center_ids"),
            "context_ids": v1.placeholder(tf.int32, pairs, name="context_ids"),
            "negative_ids": v1.placeholder(tf.int32, [*pairs, self.negatives], name="negative_ids"),
        }
        bound = 0.5 / self.width
        words = v1.get_variable("words", [self.words, self.width], initializer=Uniform("words", bound))
        contexts = v1.get_variable("contexts", [self.words, self.width], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(skip_gram_nats(words, contexts, Batch(*feeds.values())))
        optimizer = v1.train.AdagradOptimizer(LEARNING_RATE, initial_accumulator_value=FIRST_SQUARES)
        return Built(loss, optimizer, feeds)

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Draws Zipf words."""
        draw = generator(worker, step)
        shapes = {"center_ids": [], "context_ids": [], "negative_ids": [self.negatives]}
        return {name: zipf(draw, self.skew, self.words, [self.batch_size, *more]) for name, more in shapes.items()}
