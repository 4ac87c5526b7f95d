"""A language model: LSTM with projection and sampled softmax, the model of the One Billion Word benchmark.

It is the word model of "Exploring the Limits of Language Modeling" (Jozefowicz et al. 2016). Its embedding and softmax
tables have a row for every word, and a step touches few of them. It is written for one device.

    parallax run --workers 2 examples/nlp/language_model.py
    python examples/nlp/language_model.py --workers 2

With no path it learns the language reference that comes with Python, in a minute or two on two cores. Real data are
text files of one sentence a line, words separated by spaces, and a vocabulary, the most frequent word first:

    python examples/nlp/language_model.py -r cluster.yaml --vocab 1b_word_vocab.txt \
        --data 'training-monolingual.tokenized.shuffled/news.en-*' \
        --heldout 'heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050'

The published size (add it to either; the tables may have more rows than the text has words):

        --vocab-size 793470 --width 512 --state 2048 --samples 8192 --unroll 20 --batch 128 --steps 100000

The end shows the held-out perplexity beside that of a unigram model, which knows only how frequent each word is, and
the bytes that the plan predicted beside those that were counted.
"""

import argparse
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tqdm import tqdm

import parallax

BOUNDARIES = ("<S>", "</S>")  # a stream needs one mark between two sentences: the more frequent of these
UNKNOWN = "<UNK>"


def parse_flags(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-r", "--resource", metavar="FILE", help="the machines; without it, this one")
    add("--workers", type=int, help="workers on this machine, when there is no resource file")
    add("--data", metavar="PATTERN", help="text files to train on")
    add("--heldout", metavar="PATTERN", help="text files to evaluate on")
    add("--vocab", metavar="FILE", help="one word a line, or `word count`, most frequent first")
    add("--vocab-size", type=int, metavar="ROWS", help="rows of the tables; default: the words of the vocabulary")
    add("--width", type=int, default=128, help="of a word's embedding, and of the LSTM's projected output")
    add("--state", type=int, default=256, help="cells of the LSTM")
    add("--samples", type=int, default=512, help="words drawn for the sampled softmax")
    add("--unroll", type=int, default=20, help="words of a row in one step")
    add("--batch", type=int, default=32, help="rows per worker")
    add("--steps", type=int, default=1500)
    add("--learning-rate", type=float, default=0.2)
    add("--max-grad-norm", type=float, default=10.0)
    add("--dropout", type=float, default=0.3)
    add("--seed", type=int, default=1)
    flags = parser.parse_args(argv)
    if flags.data and not flags.vocab:
        parser.error("--data needs --vocab FILE, its words sorted by frequency")
    if not flags.data and (flags.vocab or flags.heldout):
        parser.error("--vocab and --heldout belong to --data PATTERN, which is missing")
    return flags


def main() -> None:
    flags = parse_flags()
    sys.stdout.reconfigure(line_buffering=True)  # so that a log can be followed
    text = open_text(flags.data, flags.heldout, flags.vocab, flags.vocab_size)
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(flags.seed)
        model = build_graph(flags, flags.vocab_size or text.vocabulary.size)

    # In the first process this plans, starts the workers and never returns. In a worker it returns the session.
    config = parallax.Config(workers=flags.workers)
    sess, num_workers, worker_id, _ = parallax.parallel_run(graph, flags.resource, sync=True, parallax_config=config)
    with sess:
        train(sess, model, flags, text, worker_id, num_workers)
        perplexities = (
            evaluate(sess, model, text, worker_id, num_workers) if text.heldout else "no held-out text, no perplexity"
        )
        report = sess.exchange_report()
        if worker_id == 0:
            print(perplexities, report, sep="\n")
            print(f"exchanged bytes: {report.predicted_bytes:,} predicted, {report.counted_bytes:,} counted")


class Model(NamedTuple):
    """What a step feeds and fetches."""

    inputs: tf.Tensor  # [batch, unroll] word ids
    targets: tf.Tensor  # [batch, unroll] the word after each input
    weights: tf.Tensor  # [batch, unroll] 1, or 0 where a held-out text has ended; training does not read it
    dropout: tf.Tensor  # a number, 0 unless fed
    state: tuple[tf.Tensor, tf.Tensor]  # cells [batch, state] and output [batch, width] before the first word
    next_state: tuple[tf.Tensor, tf.Tensor]
    loss: tf.Tensor  # sampled softmax, nats per word
    grad_norm: tf.Tensor  # before clipping; it is that of the global batch, so the same on all workers
    train_op: tf.Operation
    heldout_nats: tf.Tensor  # minus log probability of the targets, by the full softmax


def build_graph(flags: argparse.Namespace, rows: int) -> Model:
    """The training step and the evaluation, for one device; the tables have `rows` rows."""
    if flags.samples >= rows:
        sys.exit(f"--samples must be below the rows of the tables, {rows}; got {flags.samples}")
    inputs = tf.placeholder(tf.int32, [flags.batch, flags.unroll], name="inputs")
    targets = tf.placeholder(tf.int32, [flags.batch, flags.unroll], name="targets")
    weights = tf.placeholder(tf.float32, [flags.batch, flags.unroll], name="weights")
    cells = tf.placeholder(tf.float32, [flags.batch, flags.state], name="cells")
    output = tf.placeholder(tf.float32, [flags.batch, flags.width], name="output")
    dropout = tf.placeholder_with_default(0.0, [], name="dropout")

    uniform, bound = tf.random_uniform_initializer, flags.width**-0.5
    embedding = tf.get_variable("embedding", [rows, flags.width], initializer=uniform(-1.0, 1.0))
    softmax_w = tf.get_variable("softmax_w", [rows, flags.width], initializer=uniform(-bound, bound))
    softmax_b = tf.get_variable("softmax_b", [rows], initializer=tf.zeros_initializer())

    words = tf.nn.dropout(tf.nn.embedding_lookup(embedding, inputs), rate=dropout)
    outputs, next_state = lstm(tf.unstack(words, axis=1), cells, output, flags.state)
    outputs = [tf.nn.dropout(step, rate=dropout) for step in outputs]

    labels = tf.reshape(tf.cast(targets, tf.int64), [-1, 1])
    hidden = tf.reshape(tf.stack(outputs, axis=1), [-1, flags.width])
    loss = tf.reduce_mean(tf.nn.sampled_softmax_loss(softmax_w, softmax_b, labels, hidden, flags.samples, rows))
    # As published, Adagrad starts from 1 and the gradient is that of the sum over time. Published is to clip the LSTM's
    # gradients only, and to multiply those of the embedding by the batch size; here one norm clips all.
    optimizer = tf.train.AdagradOptimizer(flags.learning_rate, initial_accumulator_value=1.0)
    gradients, variables = zip(*optimizer.compute_gradients(loss * flags.unroll), strict=True)
    clipped, grad_norm = tf.clip_by_global_norm(gradients, flags.max_grad_norm)
    train_op = optimizer.apply_gradients(zip(clipped, variables, strict=True))

    heldout_nats = full_softmax_nats(outputs, targets, weights, softmax_w, softmax_b)
    state = (cells, output)
    return Model(inputs, targets, weights, dropout, state, next_state, loss, grad_norm, train_op, heldout_nats)


def lstm(
    words: list[tf.Tensor], cells: tf.Tensor, output: tf.Tensor, state: int
) -> tuple[list[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """An LSTM whose output is projected to the width of the words; one output per word, and the state after them."""
    width = int(words[0].shape[1])
    kernel = tf.get_variable("lstm_kernel", [2 * width, 4 * state])
    bias = tf.get_variable("lstm_bias", [4 * state], initializer=tf.zeros_initializer())
    projection = tf.get_variable("lstm_projection", [state, width])
    outputs = []
    for word in words:
        gates = tf.matmul(tf.concat([word, output], axis=1), kernel) + bias
        write, new, keep, show = tf.split(gates, 4, axis=1)
        cells = tf.sigmoid(keep + 1.0) * cells + tf.sigmoid(write) * tf.tanh(new)
        output = tf.matmul(tf.sigmoid(show) * tf.tanh(cells), projection)
        outputs.append(output)
    return outputs, (cells, output)


def full_softmax_nats(
    outputs: list[tf.Tensor], targets: tf.Tensor, weights: tf.Tensor, softmax_w: tf.Variable, softmax_b: tf.Variable
) -> tf.Tensor:
    """Minus the log probability of the targets of weight 1; a step waits for the last, whose scores may be 0.4 GB."""
    table, bias = tf.identity(softmax_w), tf.identity(softmax_b)
    nats = tf.constant(0.0)
    for step, output in enumerate(outputs):
        with tf.control_dependencies([nats]):
            scores = tf.matmul(output, table, transpose_b=True) + bias
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets[:, step], logits=scores)
        nats += tf.reduce_sum(weights[:, step] * losses)
    return nats


class Text(NamedTuple):
    """Lines to train and to evaluate on, opened anew by each call; their words are separated by spaces."""

    train: Callable[[], Iterable[str]]
    heldout: Callable[[], Iterable[str]] | None
    vocabulary: "Vocabulary"


def feed(model: Model, batch: "Batch", state: list[list[np.ndarray]]) -> dict[tf.Tensor, list[np.ndarray]]:
    """A feed is a list with one entry per replica, and so is the last state as it was fetched."""
    arrays = {model.inputs: [batch.inputs], model.targets: [batch.targets], model.weights: [batch.weights]}
    return arrays | dict(zip(model.state, state, strict=True))


def zero_state(model: Model) -> list[list[np.ndarray]]:
    return [[np.zeros(part.shape, np.float32)] for part in model.state]


def train(sess: Any, model: Model, flags: argparse.Namespace, text: Text, worker_id: int, num_workers: int) -> None:
    """Runs `--steps` steps on this worker's share of the text."""
    lines = chain.from_iterable(iter(text.train, None))  # over and over: opening the text never gives None
    sentences = encode(share(lines, worker_id, num_workers), text.vocabulary)
    batches = make_batches(sentences, text.vocabulary.boundary, flags.batch, flags.unroll)
    fetches = [model.train_op, model.loss, model.grad_norm, *model.next_state]
    words_per_step = num_workers * flags.batch * flags.unroll
    steps_per_line = max(1, flags.steps // 10)
    state, mean_loss, line_s = zero_state(model), None, time.perf_counter()
    bar = tqdm(total=flags.steps * words_per_step, unit="word", unit_scale=True, mininterval=1, disable=worker_id != 0)
    for step in range(1, flags.steps + 1):
        feeds = feed(model, next(batches), state) | {model.dropout: [flags.dropout]}
        _, [loss], [grad_norm], *state = sess.run(fetches, feeds)
        # None in a run that makes no update; else the same on all workers: all stop here, and none waits for another.
        if grad_norm is not None and not math.isfinite(grad_norm):
            bar.close()
            problem = f"step {step}: the loss is {loss}, the norm of its gradient {grad_norm}; lower --learning-rate"
            sys.exit(problem if worker_id == 0 else 1)
        mean_loss = loss if mean_loss is None else 0.98 * mean_loss + 0.02 * loss
        bar.set_postfix(loss=f"{mean_loss:.3f}", refresh=False)
        bar.update(words_per_step)
        if worker_id == 0 and step % steps_per_line == 0:
            seconds, line_s = time.perf_counter() - line_s, time.perf_counter()
            words_per_s = steps_per_line * words_per_step / seconds
            tqdm.write(f"step {step} of {flags.steps}: loss {mean_loss:.3f}, {words_per_s:,.0f} words/s")
    bar.close()


def evaluate(sess: Any, model: Model, text: Text, worker_id: int, num_workers: int) -> str:
    """Held-out perplexity of the model and of a unigram model; each worker reads its share, the sums are joined.

    For the unigram model the text trained on is read once more, to count its words.
    """

    def read_share(lines: Iterable[str]) -> Iterator[list[int]]:
        return encode(share(lines, worker_id, num_workers), text.vocabulary)

    join = sess.workers.allreduce
    nats, state = 0.0, zero_state(model)
    batch, unroll = (int(size) for size in model.inputs.shape)
    for held in make_batches(read_share(text.heldout()), text.vocabulary.boundary, batch, unroll):
        if not join(int(held.weights.sum())):  # all shares have ended: reading the tables takes all workers
            break
        [part], *state = sess.run([model.heldout_nats, *model.next_state], feed(model, held, state))
        nats += float(part)
    heldout_counts = join(count_words(read_share(text.heldout()), text.vocabulary.size))
    train_counts = join(count_words(read_share(text.train()), text.vocabulary.size))
    words, unigram = heldout_counts.sum(), unigram_perplexity(train_counts, heldout_counts)
    return f"held-out perplexity {math.exp(join(nats) / words):.1f}, unigram model {unigram:.1f} ({words:,} words)"


def unigram_perplexity(train_counts: np.ndarray, heldout_counts: np.ndarray) -> float:
    """Of words drawn independently with their frequency in training, each counted once more than seen."""
    smoothed = train_counts + 1.0
    log_probability = np.log(smoothed / smoothed.sum())
    return float(np.exp(-(heldout_counts * log_probability).sum() / heldout_counts.sum()))


class Vocabulary(NamedTuple):
    """Word to id, an id being the rank by frequency: the sampled softmax draws low ids most often."""

    ids: dict[str, int]
    size: int
    boundary: int
    unknown: int


class Batch(NamedTuple):
    """Arrays [batch, unroll]; row r goes on where row r of the batch before ended."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


def open_text(data: str | None, heldout: str | None, vocab: str | None, rows: int | None) -> Text:
    """The files named or, without any, Python's language reference; words beyond `rows` are unknown."""
    if data and vocab:
        heldout_lines = partial(read_lines, heldout) if heldout else None
        return Text(partial(read_lines, data), heldout_lines, read_vocabulary(Path(vocab), rows))
    train_lines, heldout_lines = python_reference()
    return Text(lambda: train_lines, lambda: heldout_lines, count_vocabulary(train_lines, rows))


def python_reference() -> tuple[list[str], list[str]]:
    """Paragraphs of the language reference, lower case, each once; every tenth is held out."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        sys.exit("this Python comes without its reference (pydoc_data.topics); name a text with --data and --vocab")
    words = re.compile(r"\w+|([^\w\s])\1*")  # a run of one sign, such as === or >>>, is one word
    paragraphs = {}  # a dict keeps the order, and repeated paragraphs do not end up on both sides
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name].lower()):
            paragraphs[" ".join(match.group() for match in words.finditer(paragraph))] = None
    lines = [line for line in paragraphs if line]
    return [line for i, line in enumerate(lines) if i % 10 != 9], lines[9::10]


def read_lines(pattern: str) -> Iterator[str]:
    path, line = Path(pattern).expanduser(), None
    for file in sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))):
        with file.open(encoding="utf-8") as lines:
            for line in filter(str.strip, lines):
                yield line
    if line is None:
        sys.exit(f"no text in files that match {pattern}")


def read_vocabulary(file: Path, rows: int | None = None) -> Vocabulary:
    with file.open(encoding="utf-8") as lines:
        words = (line.split()[0] for line in lines if line.strip())
        return make_vocabulary(list(islice(words, rows)))


def count_vocabulary(lines: list[str], rows: int | None = None) -> Vocabulary:
    """The words of the lines, by frequency; those that occur once, or are beyond `rows`, are unknown."""
    counts = Counter(word for line in lines for word in line.split())
    words = counts.most_common(rows - 2 if rows else None)
    kept = {word: count for word, count in words if count > 1}
    kept |= {UNKNOWN: counts.total() - sum(kept.values()), BOUNDARIES[0]: len(lines)}
    return make_vocabulary(sorted(kept, key=lambda word: (-kept[word], word)))


def make_vocabulary(words: list[str]) -> Vocabulary:
    ids = {word: i for i, word in enumerate(words)}
    marks = [ids[mark] for mark in BOUNDARIES if mark in ids]
    if UNKNOWN not in ids or not marks:
        sys.exit(
            f"a vocabulary needs {UNKNOWN} and one of {', '.join(BOUNDARIES)}; they are not among the {len(words)} "
            "words taken: add them near the top of its file, or raise --vocab-size"
        )
    return Vocabulary(ids, len(words), boundary=min(marks), unknown=ids[UNKNOWN])


def share(lines: Iterable[str], worker_id: int, num_workers: int) -> Iterator[str]:
    """Every line belongs to one worker."""
    return islice(lines, worker_id, None, num_workers)


def encode(lines: Iterable[str], vocabulary: Vocabulary) -> Iterator[list[int]]:
    """The ids of each line, and the boundary that ends it."""
    for line in lines:
        yield [vocabulary.ids.get(word, vocabulary.unknown) for word in line.split()] + [vocabulary.boundary]


def make_batches(sentences: Iterator[list[int]], boundary: int, batch: int, unroll: int) -> Iterator[Batch]:
    """Without end. A row takes the next sentence when it has read its last; after all sentences it has weight 0."""
    rows = [[boundary] for _ in range(batch)]  # what a row has still to read; the first was its last target
    while True:
        tokens = np.full([batch, unroll + 1], boundary, np.int32)
        weights = np.zeros([batch, unroll], np.float32)
        for row, ids in enumerate(rows):
            while len(ids) <= unroll and (sentence := next(sentences, None)):
                ids.extend(sentence)
            known = min(len(ids), unroll + 1)
            tokens[row, :known] = ids[:known]
            weights[row, : known - 1] = 1.0
            del ids[: known - 1]
        yield Batch(tokens[:, :-1], tokens[:, 1:], weights)


def count_words(sentences: Iterable[list[int]], size: int) -> np.ndarray:
    """How often each id below `size` occurs, boundaries included."""
    counts = np.zeros(size, np.int64)
    for sentence in sentences:
        np.add.at(counts, sentence, 1)
    return counts


if __name__ == "__main__":
    main()
