"""The model of examples/nlp/translation.py with vocabularies of realistic size and the example's optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ops.bench.race.models.nmt import NMT

LEARNING_RATE = 0.004


@dataclass(frozen=True, slots=True)
class Translation(NMT):
    """The network of `nmt` with narrower words, more cells and the example's sentence lengths; attributes as in `NMT`.

    Gradients are not clipped, as in all models of a race.
    """

    source_words: int = 8000
    target_words: int = 8000
    width: int = 256
    state: int = 128
    batch_size: int = 32
    source_length: int = 12
    target_length: int = 12

    def optimizer(self) -> Any:
        """Returns Adam, whose updates are made by row where the result is the same."""
        import tensorflow as tf

        return tf.compat.v1.train.AdamOptimizer(LEARNING_RATE)
