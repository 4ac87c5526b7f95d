"""A recommender in Keras: embedding tables for categories, dense layers for numbers, and the products of all pairs.

It is the model of "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (Naumov et al.
2019), in plain Keras but for one import and one line:

    parallax run --workers 2 examples/recsys/dlrm_keras.py
    python examples/recsys/dlrm_keras.py --workers 2

With no path it learns generated clicks. Real data are files in the layout of Criteo's: a click (0 or 1), 13 numbers and
26 categories of hexadecimal digits a line, separated by tabs, any of them missing:

    parallax run -r cluster.yaml examples/recsys/dlrm_keras.py --data train.txt --test test.txt --rows 1000000

The end prints the area under the ROC curve of held-out examples: 0.5 is chance.
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import parallax.keras

NUMBERS, CATEGORIES = 13, 26


def parse_flags(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-r", "--resource", metavar="FILE", help="the machines; without it, this one")
    add("--workers", type=int, default=2, help="workers on this machine, when there is no resource file")
    add("--data", metavar="FILE", type=Path, help="examples to train on, in the layout of Criteo's")
    add("--test", metavar="FILE", type=Path, help="held-out examples, in the same layout")
    add("--rows", type=int, default=2000, help="of each table; categories are taken modulo this number")
    add("--width", type=int, default=16, help="of a table's rows")
    add("--batch", type=int, default=256, help="examples of all workers together")
    add("--steps", type=int, default=200, help="batches of an epoch")
    add("--epochs", type=int, default=2)
    flags = parser.parse_args(argv)
    if bool(flags.data) != bool(flags.test):
        parser.error("--data and --test belong together")
    return flags


def main() -> None:
    flags = parse_flags()
    parallax.keras.use(flags.resource, parallax.Config(workers=flags.workers))
    keras.utils.set_random_seed(1)
    if flags.data:
        train, test, best = lines_of(flags.data, flags.rows), lines_of(flags.test, flags.rows), ""
    else:
        (train, _), (test, area_of) = clicks(1, flags.rows), clicks(2, flags.rows)
        best = f" (of what made the clicks: {area_of(20 * flags.batch):.3f})"
    model = dlrm(flags.rows, flags.width)
    model.compile(keras.optimizers.Adagrad(0.05), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    model.fit(batches(train, flags), steps_per_epoch=flags.steps, epochs=flags.epochs, verbose=2)
    _, area = model.evaluate(batches(test, flags), steps=20, verbose=0)
    print(f"Held-out area under the curve: {area:.3f}{best}")


def dlrm(rows: int, width: int) -> keras.Model:
    """The model: numbers [n, 13] and categories [n, 26] to the probability of a click [n, 1]."""
    numbers, categories = keras.Input((NUMBERS,)), keras.Input((CATEGORIES,), dtype="int32")
    vectors = [keras.layers.Dense(width, activation="relu")(keras.layers.Dense(64, activation="relu")(numbers))]
    for place in range(CATEGORIES):
        vectors.append(keras.layers.Embedding(rows, width, name=f"category_{place}")(categories[:, place]))
    stacked = keras.ops.stack(vectors, axis=1)
    pairs = np.flatnonzero(np.triu(np.ones([len(vectors)] * 2), 1))
    chosen = keras.ops.take(keras.layers.Flatten()(keras.layers.Dot(axes=2)([stacked, stacked])), pairs, axis=1)
    hidden = keras.layers.Dense(64, activation="relu")(keras.layers.Concatenate()([vectors[0], chosen]))
    return keras.Model([numbers, categories], keras.layers.Dense(1, activation="sigmoid")(hidden))


def batches(examples, flags: argparse.Namespace) -> tf.data.Dataset:
    """Batches ((numbers, categories), click) of a generator's examples, again and again."""
    kinds = ((tf.TensorSpec([NUMBERS]), tf.TensorSpec([CATEGORIES], tf.int32)), tf.TensorSpec([1]))
    return tf.data.Dataset.from_generator(examples, output_signature=kinds).repeat().batch(flags.batch).prefetch(2)


def lines_of(path: Path, rows: int):
    """A generator function of a file's examples; numbers are taken as log(1 + number), what is missing as zero."""

    def examples() -> Iterator:
        with path.open(encoding="ascii") as lines:
            for line in lines:
                click, *fields = line.rstrip("\n").split("\t")
                numbers = [np.log1p(max(float(one or 0), 0.0)) for one in fields[:NUMBERS]]
                categories = [int(one or "0", 16) % rows for one in fields[NUMBERS:]]
                yield (np.array(numbers, np.float32), np.array(categories, np.int32)), np.array([click], np.float32)

    return examples


def clicks(seed: int, rows: int):
    """(a generator function of drawn examples, what gives the best possible area for so many of them)."""
    taste = np.random.default_rng(0)
    per_row, per_number = taste.normal(0, 0.6, [CATEGORIES, rows]), taste.normal(0, 0.3, NUMBERS)

    def drawn() -> Iterator:
        rng = np.random.default_rng(seed)
        while True:
            numbers = rng.normal(size=NUMBERS).astype(np.float32)
            categories = np.minimum(rng.zipf(1.3, CATEGORIES) - 1, rows - 1).astype(np.int32)
            score = per_row[np.arange(CATEGORIES), categories].sum() / 2 + numbers @ per_number
            yield (numbers, categories), np.array([rng.random() < 1 / (1 + np.exp(-score))], np.float32), score

    def best(count: int) -> float:
        found = ((score, click[0] > 0) for _, click, score in itertools.islice(drawn(), count))
        scores, is_click = map(np.array, zip(*found, strict=True))
        return float((scores[is_click, None] > scores[~is_click]).mean())

    return (lambda: (example[:2] for example in drawn())), best


if __name__ == "__main__":
    main()
