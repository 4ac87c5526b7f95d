"""What examples/nlp/translation.py trains, at the width of real vocabularies, by its own optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ops.bench.race.models.nmt import NMT

LEARNING_RATE = 0.004


@dataclass(frozen=True, slots=True)
class Translation(NMT):
    """The network of `nmt` with narrower words, more cells and sentences as long as the example's; attributes as there.

    Its gradients are not clipped, as those of no model of a race are.
    """

    source_words: int = 8000
    target_words: int = 8000
    width: int = 256
    state: int = 128
    batch_size: int = 32
    source_length: int = 12
    target_length: int = 12

    def optimizer(self) -> Any:
        """Adam, which is made by row where that is the same."""
        import tensorflow as tf

        return tf.compat.v1.train.AdamOptimizer(LEARNING_RATE)
