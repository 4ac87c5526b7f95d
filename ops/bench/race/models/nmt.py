"""The network of examples/nlp/translation.py: LSTM encoder and decoder with attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.nlp.translation_model import Sizes, translation_nats
from ops.bench.race.models import Built, Table
from ops.bench.race.models.draws import generator, glorot, zipf

LEARNING_RATE = 0.1
PADDING, BEGINNING = 0, 1


@dataclass(frozen=True, slots=True)
class NMT:
    """A translation model with two tables of words and a dense projection onto all target words.

    Sentences have Zipf ids and random lengths from half of the longest to the longest, and are padded.

    Attributes:
        source_words: rows of the source's table.
        target_words: rows of the target's table, and of the projection.
        width: elements of a row.
        state: cells of a layer, and width of the projection.
        layers: layers of the encoder, and of the decoder.
        batch_size: sentences per worker and step.
        source_length: words of the longest source.
        target_length: words of the longest target.
        smoothing: label smoothing.
        skew: exponent of the words' Zipf distribution.
    """

    source_words: int = 16_000
    target_words: int = 4_000
    width: int = 512
    state: int = 64
    layers: int = 2
    batch_size: int = 32
    source_length: int = 8
    target_length: int = 8
    smoothing: float = 0.1
    skew: float = 1.1

    @property
    def unit(self) -> str:
        """The unit of throughput: target words, padding included."""
        return "words"

    @property
    def units(self) -> int:
        """Target words per worker and step."""
        return self.batch_size * self.target_length

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of source and target words."""
        return (
            Table("source_embedding", self.source_words, self.width, ("source",)),
            Table("target_embedding", self.target_words, self.width, ("previous",)),
        )

    def build(self) -> Built:
        """Builds the mean nats per target word; padding counts with 0."""
        import tensorflow as tf

        v1 = tf.compat.v1
        source, target = [self.batch_size, self.source_length], [self.batch_size, self.target_length]
        feeds = {
            "source": v1.placeholder(tf.int32, source, name="source"),
            "source_weights": v1.placeholder(tf.float32, source, name="source_weights"),
            "previous": v1.placeholder(tf.int32, target, name="previous"),
            "target": v1.placeholder(tf.int32, target, name="target"),
            "target_weights": v1.placeholder(tf.float32, target, name="target_weights"),
        }
        sizes = (self.source_words, self.target_words, self.width, self.state, self.layers)
        scope = v1.get_variable_scope()
        with v1.variable_scope(scope, custom_getter=glorot(scope), auxiliary_name_scope=False):
            nats = translation_nats(Sizes(*sizes, smoothing=self.smoothing), **feeds)
        # Padding counts, so that all workers divide by the same number.
        return Built(tf.reduce_mean(nats), self.optimizer(), feeds)

    def optimizer(self) -> Any:
        """Returns Adagrad."""
        import tensorflow as tf

        return tf.compat.v1.train.AdagradOptimizer(LEARNING_RATE)

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Draws Zipf words above the marks, and pads them after random lengths."""
        draw = generator(worker, step)
        source, source_weights = self._sentences(draw, self.source_words, self.source_length)
        target, target_weights = self._sentences(draw, self.target_words, self.target_length)
        previous = np.concatenate([np.full([self.batch_size, 1], BEGINNING, np.int32), target[:, :-1]], axis=1)
        return {
            "source": source,
            "source_weights": source_weights,
            "previous": previous,
            "target": target,
            "target_weights": target_weights,
        }

    def _sentences(self, draw: np.random.Generator, words: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws ids and weights, [batch_size, longest] each."""
        lengths = draw.integers((longest + 1) // 2, longest + 1, [self.batch_size, 1])
        weights = np.arange(longest) < lengths
        ids = zipf(draw, self.skew, words - 2, weights.shape) + 2
        return np.where(weights, ids, PADDING).astype(np.int32), weights.astype(np.float32)
