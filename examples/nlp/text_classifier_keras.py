"""A text classifier in Keras: an embedding table, the mean of a text's words, and two dense layers.

The script is plain Keras but for one import and one line. It trains in one process, or on several workers:

    python examples/nlp/text_classifier_keras.py --workers 1
    parallax run --workers 2 examples/nlp/text_classifier_keras.py

With no path it tells comments, docstrings and code of Python's own library apart by their words. Real data are folders
of text files, a folder for each class, as the film reviews of aclImdb have them:

    parallax run -r cluster.yaml examples/nlp/text_classifier_keras.py --train aclImdb/train --test aclImdb/test

The end prints the share of held-out texts whose class is found, and some texts with what was found.
"""

import argparse
import io
import re
import sysconfig
import tokenize
from collections import Counter
from pathlib import Path
from random import Random

import keras
import numpy as np

import parallax.keras

WORD = re.compile(r"[A-Za-z]+")
KINDS = {tokenize.COMMENT: "comment", tokenize.STRING: "docstring", tokenize.NAME: "code"}


def parse_flags(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-r", "--resource", metavar="FILE", help="the machines; without it, this one")
    add("--workers", type=int, default=2, help="workers on this machine, when there is no resource file")
    add("--train", metavar="FOLDER", type=Path, help="has a folder of text files for each class")
    add("--test", metavar="FOLDER", type=Path, help="the same, of texts that are held out")
    add("--vocab", type=int, default=8000, help="words with a vector of their own, the most frequent")
    add("--words", type=int, default=64, help="of a text that are looked at, the first")
    add("--width", type=int, default=64, help="of a vector")
    add("--batch", type=int, default=64, help="texts of all workers together")
    add("--epochs", type=int, default=3)
    flags = parser.parse_args(argv)
    if (flags.train is None) != (flags.test is None):
        parser.error("--train and --test belong together")
    return flags


def main() -> None:
    flags = parse_flags()
    parallax.keras.use(flags.resource, parallax.Config(workers=flags.workers))
    keras.utils.set_random_seed(1)
    train = texts_in(flags.train) if flags.train else texts_of_python()
    test = texts_in(flags.test) if flags.test else [train.pop() for _ in range(len(train) // 5)]
    kinds = sorted({kind for kind, _ in train})
    counted = Counter(word for _, text in train for word in words_of(text))
    number = {word: place for place, (word, _) in enumerate(counted.most_common(flags.vocab - 2), start=2)}

    def arrays(texts):
        """(ids [n, words], 0 where a text has ended and 1 for rare words; classes [n])."""
        ids = np.zeros([len(texts), flags.words], np.int32)
        for row, (_, text) in enumerate(texts):
            found = [number.get(word, 1) for word in words_of(text)][: flags.words]
            ids[row, : len(found)] = found
        return ids, np.array([kinds.index(kind) for kind, _ in texts], np.int32)

    model = keras.Sequential(
        [
            keras.layers.Embedding(flags.vocab, flags.width, mask_zero=True, name="words"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(len(kinds), activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adagrad(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(*arrays(train), batch_size=flags.batch, epochs=flags.epochs, validation_data=arrays(test), verbose=2)
    ids, classes = arrays(test)
    found = model.predict(ids, verbose=0).argmax(axis=1)
    for row in range(3):
        print(f"{kinds[found[row]]:10} {' '.join(words_of(test[row][1])[:12])}")
    print(f"Held-out texts: {len(test)}, of which {100 * np.mean(found == classes):.1f} % are found.")


def words_of(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def texts_in(folder: Path) -> list[tuple[str, str]]:
    """(class, text) of every text file, in an order that is the same in every process."""
    files = sorted(folder.glob("*/*.txt"))
    found = [(file.parent.name, file.read_text(encoding="utf-8", errors="replace")) for file in files]
    Random(1).shuffle(found)
    return found


def texts_of_python() -> list[tuple[str, str]]:
    """(kind, text) of comments, docstrings and statements of five words and more in Python's own library."""
    found = []
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        line: list[str] = []
        for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING) and len(words_of(token.string)) >= 5:
                found.append((KINDS[token.type], token.string))
            elif token.type == tokenize.NAME:
                line.append(token.string)
            elif token.type == tokenize.NEWLINE:
                found += [("code", " ".join(line))] if len(line) >= 5 else []
                line = []
    Random(1).shuffle(found)
    return found


if __name__ == "__main__":
    main()
