"""Word vectors: skip-gram with negative sampling, the model of word2vec.

It is the model of "Distributed Representations of Words and Phrases and their Compositionality" (Mikolov et al. 2013):
a word's vector must tell the words around it from words drawn at random. All it has are two tables with a row for every
word, and a step touches few of them: nothing is dense. It is written for one device.

    parallax run --workers 2 examples/nlp/word2vec.py
    python examples/nlp/word2vec.py --workers 2

With no path it learns a generated language, in a minute or two on two cores. Real data are text files, words separated
by white space, and for the score questions of four words a line, `athens greece oslo norway`:

    python examples/nlp/word2vec.py -r cluster.yaml --data text8 --questions questions-words.txt \
        --width 200 --batch 2048 --steps 40000

Which words a step trains on depends on the global batch alone, `--batch` times the workers: 1, 2 and 4 workers with
1024, 512 and 256 pairs each train on the same. Every worker reads all the text, and takes its share of each batch.

The end shows how many questions are answered rightly, and the bytes that the plan predicted beside those that were
counted. A question is right if of all words but its first three the fourth is the nearest to second - first + third. Of
the generated language the answers are known, as it is made of verbs in four tenses: `bako : bakoed :: timu : timued`.
No sentence has two verbs, so the text never says what the words of a question have in common.
"""

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tqdm import tqdm

import parallax

PIECE = 1 << 16  # characters that are read at once; a longer line is cut into sentences of this length
WINDOW = 20_000  # sentences whose pairs are shuffled together
BLOCK = 1024  # rows that a worker reads at once when it looks for the nearest
POWER = 0.75  # of a word's frequency, in proportion to which it is drawn as a negative one


def parse_flags(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-r", "--resource", metavar="FILE", help="the machines; without it, this one")
    add("--workers", type=int, help="workers on this machine, when there is no resource file")
    add("--data", metavar="PATTERN", help="text files to train on")
    add("--questions", metavar="FILE", help="four words a line; lines that begin with a colon are left out")
    add("--vocab", metavar="FILE", help="`word count` a line, so that the text is not read for it")
    add("--min-count", type=int, default=5, help="words that are rarer in the text are left out of it")
    add("--width", type=int, default=64, help="of a vector")
    add("--window", type=int, default=5, help="words before and after a word that are around it, at most")
    add("--negatives", type=int, default=5, help="words drawn at random for each pair")
    add("--subsample", type=float, default=1e-3, help="words of a greater frequency are left out at random; 0: none")
    add("--batch", type=int, default=512, help="pairs per worker")
    add("--steps", type=int, default=4000)
    add("--learning-rate", type=float, default=0.1, help="of Adagrad at first; it falls to 0 with the last step")
    add("--seed", type=int, default=1)
    flags = parser.parse_args(argv)
    if not flags.data and (flags.vocab or flags.questions):
        parser.error("--vocab and --questions belong to --data PATTERN, which is missing")
    if min(flags.batch, flags.steps, flags.width, flags.window, flags.negatives) < 1:
        parser.error("--batch, --steps, --width, --window and --negatives must be 1 or more")
    return flags


def main() -> None:
    flags = parse_flags()
    sys.stdout.reconfigure(line_buffering=True)  # so that a log can be followed
    corpus = open_corpus(flags)
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(flags.seed)
        model = build_graph(flags, len(corpus.vocabulary.words))

    # In the first process this plans, starts the workers and never returns. In a worker it returns the session.
    config = parallax.Config(workers=flags.workers)
    sess, num_workers, worker_id, _ = parallax.parallel_run(graph, flags.resource, sync=True, parallax_config=config)
    with sess:
        train(sess, model, flags, corpus, worker_id, num_workers)
        score = evaluate(sess, model, corpus, worker_id, num_workers) if corpus.questions else "no questions, no score"
        report = sess.exchange_report()
        if worker_id == 0:
            print(score, report, sep="\n")
            print(f"exchanged bytes: {report.predicted_bytes:,} predicted, {report.counted_bytes:,} counted")


class Batch(NamedTuple):
    """Ids of words, or what they are fed to."""

    centers: Any  # [batch]
    contexts: Any  # [batch] a word around each
    negatives: Any  # [batch, negatives] words drawn at random for each


class Model(NamedTuple):
    """What a step feeds and fetches."""

    batch: Batch
    learning_rate: tf.Tensor  # a number, the same on all workers
    loss: tf.Tensor  # nats per pair, the mean over this worker's
    train_op: tf.Operation
    asked: tf.Tensor  # ids of words, any number
    vectors: tf.Tensor  # [asked, width] their vectors, of length 1


def build_graph(flags: argparse.Namespace, rows: int) -> Model:
    """The training step and the vectors, for one device."""
    centers = tf.placeholder(tf.int32, [flags.batch], name="center_ids")
    contexts = tf.placeholder(tf.int32, [flags.batch], name="context_ids")
    negatives = tf.placeholder(tf.int32, [flags.batch, flags.negatives], name="negative_ids")
    learning_rate = tf.placeholder(tf.float32, [], name="learning_rate")
    asked = tf.placeholder(tf.int32, [None], name="asked")

    bound = 0.5 / flags.width
    word_table = tf.get_variable("words", [rows, flags.width], initializer=tf.random_uniform_initializer(-bound, bound))
    context_table = tf.get_variable("contexts", [rows, flags.width], initializer=tf.zeros_initializer())
    batch = Batch(centers, contexts, negatives)
    loss = tf.reduce_mean(skip_gram_nats(word_table, context_table, batch))
    # The mean makes gradients small: Adagrad begins far below their squares, so that their size does not matter.
    optimizer = tf.train.AdagradOptimizer(learning_rate, initial_accumulator_value=1e-8)
    vectors = tf.nn.l2_normalize(tf.nn.embedding_lookup(word_table, asked), axis=1)
    return Model(batch, learning_rate, loss, optimizer.minimize(loss), asked, vectors)


def skip_gram_nats(word_table: tf.Variable, context_table: tf.Variable, batch: Batch) -> tf.Tensor:
    """Nats of each pair, [batch]: of the word around it, and of each negative one."""
    words = tf.nn.embedding_lookup(word_table, batch.centers)
    right = tf.reduce_sum(words * tf.nn.embedding_lookup(context_table, batch.contexts), axis=1)
    wrong = tf.reduce_sum(words[:, None] * tf.nn.embedding_lookup(context_table, batch.negatives), axis=2)
    counts = tf.cast(tf.not_equal(batch.negatives, batch.contexts[:, None]), tf.float32)  # 0 where it is the right one
    return tf.nn.softplus(-right) + tf.reduce_sum(counts * tf.nn.softplus(wrong), axis=1)


def train(
    sess: Any, model: Model, flags: argparse.Namespace, corpus: "Corpus", worker_id: int, num_workers: int
) -> None:
    """Runs `--steps` steps, each on this worker's share of a global batch."""
    size = flags.batch * num_workers
    batches = global_batches(corpus, size, flags)
    steps_per_line = max(1, flags.steps // 10)
    line_s = time.perf_counter()
    bar = tqdm(total=flags.steps * size, unit="pair", unit_scale=True, mininterval=1, disable=worker_id != 0)
    for step in range(1, flags.steps + 1):
        own = Batch(*(part[worker_id::num_workers] for part in next(batches)))
        # A feed is a list with one entry per replica.
        feeds = {placeholder: [part] for placeholder, part in zip(model.batch, own, strict=True)}
        feeds[model.learning_rate] = [flags.learning_rate * (1 - (step - 1) / flags.steps)]
        _, [loss] = sess.run([model.train_op, model.loss], feeds)
        bar.update(size)
        if step % steps_per_line == 0 or step == flags.steps:
            loss = sess.workers.allreduce(float(loss)) / num_workers
            if not math.isfinite(loss):  # the same on all workers: all stop at this step, and none waits for another
                bar.close()
                sys.exit(f"step {step}: the loss is {loss}; lower --learning-rate" if worker_id == 0 else 1)
            seconds, line_s = time.perf_counter() - line_s, time.perf_counter()
            if worker_id == 0:
                pairs_per_s = steps_per_line * size / seconds
                tqdm.write(f"step {step} of {flags.steps}: loss {loss:.7f}, {pairs_per_s:,.0f} pairs/s")
    bar.close()


def evaluate(sess: Any, model: Model, corpus: "Corpus", worker_id: int, num_workers: int) -> str:
    """How many questions are answered rightly; each worker looks for the nearest words in its share of the table.

    Rows are looked up, which takes all workers: all do it equally often. No process has the whole table.
    """

    def vectors(ids: np.ndarray) -> np.ndarray:
        return sess.run(model.vectors, {model.asked: [ids]})[0]

    questions, rows = np.array(corpus.questions), len(corpus.vocabulary.words)
    first, second, third = (vectors(questions[:, i]) for i in range(3))
    sought, numbers = second - first + third, np.arange(len(questions))
    best, answers = np.full(len(questions), -np.inf), np.zeros(len(questions), np.int64)
    for start in range(0, rows, BLOCK * num_workers):
        ids = np.minimum(start + worker_id + num_workers * np.arange(BLOCK), rows - 1)  # of the last rows some twice
        scores = sought @ vectors(ids).T
        scores[(ids == questions[:, :3, None]).any(axis=1)] = -np.inf
        nearest = scores.argmax(axis=1)
        better = scores[numbers, nearest] > best
        best = np.where(better, scores[numbers, nearest], best)
        answers = np.where(better, ids[nearest], answers)
    shares = sess.workers.allgather((best, answers))
    answers = np.stack([found for _, found in shares])[np.argmax([found for found, _ in shares], axis=0), numbers]
    words = corpus.vocabulary.words
    shown = [
        f"{words[a]} : {words[b]} :: {words[c]} : {words[found]} (right: {words[d]})"
        for (a, b, c, d), found in zip(questions[:3], answers, strict=False)
    ]
    share = np.mean(answers == questions[:, 3])
    return "\n".join([*shown, f"analogies {share:.1%} ({len(questions):,} questions, {rows:,} words)"])


class Vocabulary(NamedTuple):
    """Words, the most frequent first; the id of one is its place."""

    words: list[str]
    ids: dict[str, int]
    counts: np.ndarray


class Corpus(NamedTuple):
    """Sentences to train on, opened anew by each call, and the ids of the words of questions."""

    sentences: Callable[[], Iterable[list[str]]]
    vocabulary: Vocabulary
    questions: list[tuple[int, ...]]


def open_corpus(flags: argparse.Namespace) -> Corpus:
    """The files named or, without any, a generated text."""
    if not flags.data:
        sentences, questions = generated()
        vocabulary = make_vocabulary(Counter(word for sentence in sentences for word in sentence), 1)
        return Corpus(lambda: sentences, vocabulary, known_questions(questions, vocabulary))
    sentences = partial(read_sentences, flags.data)
    if flags.vocab:
        counts = read_counts(Path(flags.vocab))
    else:
        counts = Counter(word for sentence in sentences() for word in sentence)
    vocabulary = make_vocabulary(counts, flags.min_count)
    if len(vocabulary.words) < 2:
        sys.exit(f"a text must have two words that occur {flags.min_count} times; lower --min-count")
    lines = read_questions(Path(flags.questions)) if flags.questions else []
    questions = known_questions(lines, vocabulary)
    if lines and not questions:
        sys.exit(f"no question of {flags.questions} has four words of the text")
    return Corpus(sentences, vocabulary, questions)


def read_sentences(pattern: str) -> Iterator[list[str]]:
    """The words of each line; of a very long one, those of its parts."""
    path, read = Path(pattern).expanduser(), False
    for file in sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor)))):
        with file.open(encoding="utf-8") as text:
            rest = ""
            while piece := text.readline(PIECE):
                words = (rest + piece).split()
                rest = "" if piece[-1].isspace() or not words else words.pop()
                if words:
                    yield words
                read = read or bool(words)
            if rest:
                yield [rest]
                read = True
    if not read:
        sys.exit(f"no text in files that match {pattern}")


def read_counts(file: Path) -> Counter:
    """How often each word occurs: a line of each, the word and its count."""
    counts = Counter()
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        word, _, count = line.strip().rpartition(" ")
        if not word or not count.isdecimal():
            sys.exit(f"{file}:{number}: a line of a vocabulary is `word count`, and this one is {line.strip()!r}")
        counts[word.strip()] = int(count)
    return counts


def read_questions(file: Path) -> list[list[str]]:
    """The words of each line, in lower case; lines that begin with a colon are headings."""
    lines = read_text(file).lower().splitlines()
    found = [line.split() for line in lines if line.strip() and not line.startswith(":")]
    if wrong := [words for words in found if len(words) != 4]:
        sys.exit(f"{file}: a question has four words, and one has {len(wrong[0])}: {' '.join(wrong[0])}")
    return found


def read_text(file: Path) -> str:
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"{file} cannot be read: {error}")


def make_vocabulary(counts: Counter, least: int) -> Vocabulary:
    words = [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count >= least]
    return Vocabulary(words, {word: i for i, word in enumerate(words)}, np.array([counts[word] for word in words]))


def known_questions(questions: Iterable[Sequence[str]], vocabulary: Vocabulary) -> list[tuple[int, ...]]:
    """The ids of those whose words are all known."""
    ids = vocabulary.ids
    return [tuple(ids[word] for word in words) for words in questions if all(word in ids for word in words)]


def global_batches(corpus: Corpus, size: int, flags: argparse.Namespace) -> Iterator[Batch]:
    """Without end: `size` pairs of words at a time, shuffled, with their negative words.

    All workers must make the same, and each takes its share: so the data and their order are those of the arguments.
    """
    random, (_, ids, counts) = np.random.default_rng(flags.seed), corpus.vocabulary
    frequencies = counts / counts.sum()
    kept = keep_probabilities(frequencies, flags.subsample)
    drawn = np.cumsum(frequencies**POWER / (frequencies**POWER).sum())
    waiting, sentences = np.zeros([0, 2], np.int32), iter(())
    while True:
        window = list(islice(sentences, WINDOW))
        if not window:
            sentences = iter(corpus.sentences())
            continue
        known = [[ids[word] for word in words if word in ids] for words in window]
        pairs = np.concatenate([waiting, pairs_of(known, kept, flags.window, random)])
        random.shuffle(pairs)
        whole = len(pairs) // size * size
        for centers, contexts in (part.T for part in np.split(pairs[:whole], range(size, whole, size)) if len(part)):
            negatives = drawn.searchsorted(random.random([size, flags.negatives])).astype(np.int32)
            yield Batch(centers, contexts, np.minimum(negatives, len(drawn) - 1))  # the last sum may be below 1
        waiting = pairs[whole:]


def keep_probabilities(frequencies: np.ndarray, subsample: float) -> np.ndarray:
    """With what probability each word stays in a sentence (Mikolov et al. 2013, 2.3, as their program has it)."""
    if not subsample:
        return np.ones(len(frequencies))
    return np.minimum(1.0, np.sqrt(subsample / frequencies) + subsample / frequencies)


def pairs_of(sentences: list[list[int]], kept: np.ndarray, window: int, random: np.random.Generator) -> np.ndarray:
    """[pairs, 2]: a word, and one at most so many words from it in its sentence as was drawn for it, up to `window`."""
    words = np.array([word for sentence in sentences for word in sentence], np.int32)
    numbers = np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences])
    stays = random.random(len(words)) < kept[words]
    words, numbers = words[stays], numbers[stays]
    reach = random.integers(1, window + 1, len(words))
    found = [np.zeros([0, 2], np.int32)]
    for apart in range(1, window + 1):
        together = numbers[apart:] == numbers[:-apart]
        before, after = words[:-apart], words[apart:]
        forth, back = together & (reach[:-apart] >= apart), together & (reach[apart:] >= apart)
        found += [np.stack([before[forth], after[forth]], axis=1), np.stack([after[back], before[back]], axis=1)]
    return np.concatenate(found)


VERBS, NOUNS = 400, 3000
NOUNS_OF_A_VERB, NOUNS_OF_A_FORM = 8, 6
GENERATED, QUESTIONS = 80_000, 1000  # sentences, and questions
TENSES = {
    "s": "today now always often daily usually".split(),
    "ed": "yesterday formerly once ago already recently".split(),
    "ing": "meanwhile still busily presently constantly currently".split(),
    "en": "tomorrow soon someday eventually shortly later".split(),
}


def generated() -> tuple[list[list[str]], list[list[str]]]:
    """Sentences such as `soon the mulo bakoen a tira`, and questions; both are the same at every call.

    A verb goes with eight nouns, each of its forms with six of them, and a tense with some adverbs: that is all that a
    sentence tells of its verb.
    """
    random = Random(1)
    syllables = [consonant + vowel for consonant, vowel in product("bdfgklmnprstvz", "aeiou")]
    stems = ["".join(parts) for parts in product(syllables, repeat=2)]
    random.shuffle(stems)
    verbs, nouns = stems[:VERBS], [f"{stem}n" for stem in stems[VERBS : VERBS + NOUNS]]
    nouns_by_form = {}
    for verb in verbs:
        its_nouns = random.sample(nouns, NOUNS_OF_A_VERB)
        nouns_by_form |= {(verb, tense): random.sample(its_nouns, NOUNS_OF_A_FORM) for tense in TENSES}
    forms, sentences = [*nouns_by_form], []
    for _ in range(GENERATED):
        verb, tense = random.choice(forms)
        subject, thing = random.sample(nouns_by_form[verb, tense], 2)
        sentences.append([random.choice(TENSES[tense]), "the", subject, verb + tense, "a", thing])
    questions = []
    for _ in range(QUESTIONS):
        (one, other), (tense, wanted) = random.sample(verbs, 2), random.sample([*TENSES], 2)
        questions.append([one + tense, one + wanted, other + tense, other + wanted])
    return sentences, questions


if __name__ == "__main__":
    main()
