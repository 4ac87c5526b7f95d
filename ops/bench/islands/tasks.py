"""Two learnable tasks with batches by worker and step: words of a chain, and clicks of users on items."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from parallax.base.types import Array, Graph

v1 = tf.compat.v1
VOCABULARY, CONTEXT, WIDTH, HIDDEN = 400, 4, 64, 512
USERS, ITEMS, FACTORS, TOP = 20_000, 5_000, 32, 128
HELD_OUT_ROWS = 4096
_SEED = 7

Batch = dict[str, Array]


class Words:
    """A language model of a chain, whose next word mostly depends on two words of the context.

    Attributes:
        name: its name on the command line.
        rows: rows of a worker's batch.
    """

    name, rows = "lm", 64

    def __init__(self) -> None:
        draw = np.random.default_rng(_SEED)
        self._next = draw.integers(0, VOCABULARY, [VOCABULARY, 8])

    def build(self) -> Graph:
        """Returns the graph, with ops `train` and `loss`."""
        with tf.Graph().as_default() as graph:
            words = v1.placeholder(tf.int64, [None, CONTEXT], name="words")
            target = v1.placeholder(tf.int64, [None], name="target")
            vectors = tf.nn.embedding_lookup(v1.get_variable("table", [VOCABULARY, WIDTH]), words)
            hidden = tf.reshape(vectors, [-1, CONTEXT * WIDTH])
            for number in range(2):
                size = int(hidden.shape[-1])
                hidden = tf.nn.relu(hidden @ v1.get_variable(f"w{number}", [size, HIDDEN]))
            logits = hidden @ v1.get_variable("softmax", [HIDDEN, VOCABULARY])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=logits)
            loss = tf.reduce_mean(losses, name="loss")
            v1.train.AdamOptimizer(0.003).minimize(loss, name="train")
        return graph

    def batch(self, seed: list[int], rows: int) -> Batch:
        """Returns rows drawn from a seed."""
        draw = np.random.default_rng([_SEED, *seed])
        words = draw.integers(0, VOCABULARY, [rows, CONTEXT])
        kind = (words[:, 0] % 2 + 2 * (draw.random(rows) < 0.1)).astype(int)
        return {"words:0": words, "target:0": self._next[words[:, -1], kind]}


class Clicks:
    """A click model of two tables and a small network; attributes as in `Words`."""

    name, rows = "recsys", 512

    def __init__(self) -> None:
        draw = np.random.default_rng(_SEED)
        self._users, self._items = (draw.standard_normal([rows, 4]) for rows in (USERS, ITEMS))

    def build(self) -> Graph:
        """Returns the graph, with ops `train` and `loss`."""
        with tf.Graph().as_default() as graph:
            user, item = (v1.placeholder(tf.int64, [None], name=name) for name in ("user", "item"))
            click = v1.placeholder(tf.float32, [None], name="click")
            tables = [v1.get_variable(f"{name}s", [rows, FACTORS]) for name, rows in (("user", USERS), ("item", ITEMS))]
            found = [tf.nn.embedding_lookup(table, ids) for table, ids in zip(tables, (user, item), strict=True)]
            both = tf.concat([*found, found[0] * found[1]], 1)
            hidden = tf.nn.relu(both @ v1.get_variable("top", [3 * FACTORS, TOP]))
            logits = tf.reshape(hidden @ v1.get_variable("last", [TOP, 1]), [-1])
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=click, logits=logits), name="loss")
            v1.train.AdagradOptimizer(0.5).minimize(loss, name="train")
        return graph

    def batch(self, seed: list[int], rows: int) -> Batch:
        """Returns rows drawn from a seed; few users and items are frequent."""
        draw = np.random.default_rng([_SEED, *seed])
        user, item = (np.minimum(draw.zipf(1.3, rows) - 1, most - 1) for most in (USERS, ITEMS))
        click = (self._users[user] * self._items[item]).sum(1) > 0
        return {"user:0": user, "item:0": item, "click:0": click.astype(np.float32)}


TASKS: dict[str, type[Words] | type[Clicks]] = {task.name: task for task in (Words, Clicks)}
"""Tasks by name. The names are TASK_NAMES of command.py, which does not import TensorFlow."""
