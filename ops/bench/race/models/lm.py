"""The language model of examples/nlp/language_model.py: an LSTM with projection between two tables of words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.nlp.language_model import lstm
from ops.bench.race.models import Built, Table
from ops.bench.race.models.draws import Uniform, generator, glorot, log_uniform, zipf

LEARNING_RATE = 0.5


@dataclass(frozen=True, slots=True)
class LM:
    """A language model with sampled softmax over a vocabulary sorted by frequency; each step starts from a zero state.

    The negatives are drawn outside the graph, from the default log-uniform distribution of tf.nn.sampled_softmax_loss,
    and are fed with their expected counts. There is no clipping: systems would clip different gradients.

    Attributes:
        vocabulary: rows of both tables.
        width: width of a word's embedding, and of the LSTM's projected output.
        state: cells of the LSTM; by default its parameters are about 0.6 of the elements of a step's touched rows.
        batch_size: rows of text per worker and step.
        unroll: words per row of text.
        samples: number of negatives.
        skew: exponent of the words' Zipf distribution.
    """

    vocabulary: int = 20_000
    width: int = 512
    state: int = 20
    batch_size: int = 32
    unroll: int = 8
    samples: int = 128
    skew: float = 1.25

    @property
    def unit(self) -> str:
        """The unit of throughput: words."""
        return "words"

    @property
    def units(self) -> int:
        """Words per worker and step."""
        return self.batch_size * self.unroll

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of input words, and of output words with their biases."""
        told = ("targets", "sampled")
        return (
            Table("embedding", self.vocabulary, self.width, ("inputs",)),
            Table("softmax_w", self.vocabulary, self.width, told),
            Table("softmax_b", self.vocabulary, 1, told),
        )

    def build(self) -> Built:
        """Builds the mean nats of the sampled softmax per word, minimized by Adagrad with accumulators from 1."""
        import tensorflow as tf

        v1 = tf.compat.v1
        inputs = v1.placeholder(tf.int32, [self.batch_size, self.unroll], name="inputs")
        targets = v1.placeholder(tf.int32, [self.batch_size, self.unroll], name="targets")
        sampled = v1.placeholder(tf.int32, [self.samples], name="sampled")
        tries = v1.placeholder(tf.float32, [], name="tries")
        rows, bound = [self.vocabulary, self.width], self.width**-0.5
        embedding = v1.get_variable("embedding", rows, initializer=Uniform("embedding", 1.0))
        softmax_w = v1.get_variable("softmax_w", rows, initializer=Uniform("softmax_w", bound))
        softmax_b = v1.get_variable("softmax_b", rows[:1], initializer=v1.zeros_initializer())

        words = tf.unstack(tf.nn.embedding_lookup(embedding, inputs), axis=1)
        scope = v1.get_variable_scope()
        with v1.variable_scope(scope, custom_getter=glorot(scope), auxiliary_name_scope=False):
            zeros = tf.zeros([self.batch_size, self.state]), tf.zeros([self.batch_size, self.width])
            outputs, _ = lstm(words, *zeros, self.state)
        labels = tf.reshape(targets, [-1, 1])
        nats = tf.nn.sampled_softmax_loss(
            softmax_w,
            softmax_b,
            tf.cast(labels, tf.int64),
            tf.reshape(tf.stack(outputs, axis=1), [-1, self.width]),
            self.samples,
            self.vocabulary,
            sampled_values=(tf.cast(sampled, tf.int64), self._expected(labels, tries), self._expected(sampled, tries)),
        )
        optimizer = v1.train.AdagradOptimizer(LEARNING_RATE, initial_accumulator_value=1.0)
        feeds = {"inputs": inputs, "targets": targets, "sampled": sampled, "tries": tries}
        return Built(tf.reduce_mean(nats), optimizer, feeds)

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Draws Zipf words, each the target of the one before, and the negatives."""
        draw = generator(worker, step)
        words = zipf(draw, self.skew, self.vocabulary, [self.batch_size, self.unroll + 1])
        sampled, tries = log_uniform(draw, self.vocabulary, self.samples)
        return {"inputs": words[:, :-1], "targets": words[:, 1:], "sampled": sampled, "tries": np.float32(tries)}

    def _expected(self, ids: Any, tries: Any) -> Any:
        """Returns each id's expected count in `tries` draws, as TensorFlow's sampler of distinct ids defines it."""
        import tensorflow as tf

        k = tf.cast(ids, tf.float32)
        probability = tf.math.log1p(1.0 / (k + 1.0)) / math.log(self.vocabulary + 1)
        return -tf.math.expm1(tries * tf.math.log1p(-probability))
