"""A translation model: LSTM encoder and decoder with attention, in the manner of GNMT.

It is the network of "Google's Neural Machine Translation System" (Wu et al. 2016), by default smaller; it is in
translation_model.py, and all else here: text, training, beam search, scores. It is written for one device.

    parallax run --workers 2 examples/nlp/translation.py
    python examples/nlp/translation.py --workers 2

With no path it learns to translate generated sentences with numbers and dates from English to German, in a few minutes
on two cores; German has another order of words, and of units and tens. Real data lie as those of WMT and IWSLT usually
do. A text is two files of as many lines, a sentence each, its words separated by spaces; their names differ in the
language at the end: train.en and train.de. So do those of the vocabularies: vocab.en and vocab.de have one word a line,
with or without <unk>, <s> and </s>. The flags name what stands before the language:

    python examples/nlp/translation.py -r cluster.yaml --source de --target en --vocab wmt16/vocab.bpe.32000 \
        --data wmt16/train.tok.clean.bpe.32000 --heldout wmt16/newstest2013.tok.bpe.32000

The published size, with the settings that were published for Adam (add them to either):

        --width 1024 --state 1024 --layers 8 --dropout 0.2 --learning-rate 0.0002 --batch 128 --steps 60000

Which sentences a step trains on depends on the global batch alone, `--batch` times the workers: 1, 2 and 4 workers with
128, 64 and 32 sentences each train on the same. The end shows the held-out perplexity, BLEU, how many translations are
the reference, word for word, and the bytes that the plan predicted beside those that were counted.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tqdm import tqdm
from translation_model import TIES, Memory, Network, Sizes, cross_entropy, decode, encode, make_network, project

import parallax

MARKS = ("<unk>", "<s>", "</s>")  # a word that is not in the vocabulary; the beginning and the end of a target
CUT = "@@ "  # within a word that is written in parts (byte pair encoding); taken out before anything is scored
WINDOW = 20_000  # sentences that are shuffled together
Pair = tuple[str, str]  # a source and its target
Ids = tuple[list[int], list[int]]


def parse_flags(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-r", "--resource", metavar="FILE", help="the machines; without it, this one")
    add("--workers", type=int, help="workers on this machine, when there is no resource file")
    add("--data", metavar="PREFIX", help="text to train on: the files PREFIX.en and PREFIX.de")
    add("--heldout", metavar="PREFIX", help="text to evaluate on")
    add("--vocab", metavar="PREFIX", help="vocabularies, one word a line")
    add("--source", default="en", metavar="LANGUAGE", help="to translate from")
    add("--target", default="de", metavar="LANGUAGE", help="to translate to")
    add("--width", type=int, default=64, help="of a word's embedding")
    add("--state", type=int, default=128, help="cells of a layer; even")
    add("--layers", type=int, default=2, help="of the encoder, and of the decoder; two or more")
    tie = "source: one table, one joined vocabulary for both languages; output: the target's table is the projection"
    add("--tie", choices=TIES, default="none", help=tie)
    add("--smoothing", type=float, default=0.1, help="of the labels: the probability given to all words alike")
    add("--dropout", type=float, default=0.0, help="of what goes into a layer")
    add("--batch", type=int, default=64, help="sentences per worker")
    add("--bucket", type=int, default=4, metavar="WORDS", help="lengths in a batch differ by less than this")
    add("--longest", type=int, default=50, metavar="WORDS", help="longer sentences are not trained on")
    add("--steps", type=int, default=600)
    add("--learning-rate", type=float, default=0.004, help="of Adam at first; it falls to 0 with the last step")
    add("--max-grad-norm", type=float, default=5.0)
    add("--beam", type=int, default=4, help="translations that are followed at once")
    add("--length-penalty", type=float, default=0.6, help="0 favours short translations, 1 long ones")
    add("--seed", type=int, default=1)
    flags = parser.parse_args(argv)
    if flags.data and not flags.vocab:
        parser.error("--data needs --vocab PREFIX, one word a line")
    if not flags.data and (flags.vocab or flags.heldout):
        parser.error("--vocab and --heldout belong to --data PREFIX, which is missing")
    if flags.state % 2 or flags.layers < 2:
        parser.error(f"--state must be even and --layers 2 or more; got {flags.state} and {flags.layers}")
    return flags


def main() -> None:
    flags = parse_flags()
    if find_spec("sacrebleu") is None:
        sys.exit("BLEU is counted by the package sacrebleu, and there is none: pip install sacrebleu")
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)  # so that a log can be followed
    corpus = open_corpus(flags)
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(flags.seed)
        model = build_graph(flags, len(corpus.source.words), len(corpus.target.words))

    # In the first process this plans, starts the workers and never returns. In a worker it returns the session.
    config = parallax.Config(workers=flags.workers)
    sess, num_workers, worker_id, _ = parallax.parallel_run(graph, flags.resource, sync=True, parallax_config=config)
    with sess:
        train(sess, model, flags, corpus, worker_id, num_workers)
        if corpus.heldout:
            scores = evaluate(sess, model, flags, corpus, worker_id, num_workers)
        else:
            scores = "no held-out text, no scores"
        report = sess.exchange_report()
        if worker_id == 0:
            print(scores, report, sep="\n")
            print(f"exchanged bytes: {report.predicted_bytes:,} predicted, {report.counted_bytes:,} counted")


class Batch(NamedTuple):
    """Arrays [sentences, words], or what they are fed to; weights are 1, or 0 for the padding after the words."""

    source: Any
    source_weights: Any
    previous: Any  # the target one word later, after the mark of a beginning
    target: Any  # ends with the mark of an end
    target_weights: Any


class Model(NamedTuple):
    """What a step feeds and fetches."""

    batch: Batch
    words: tf.Tensor  # a number, the same on all workers: target words of the global batch, divided by the workers
    dropout: tf.Tensor  # a number, 0 unless fed
    loss: tf.Tensor  # nats per word, labels smoothed; the mean over the workers is that of the global batch
    grad_norm: tf.Tensor  # before clipping; it is that of the global batch, so the same on all workers
    train_op: tf.Operation
    heldout_nats: tf.Tensor  # minus log probability of the targets
    memory: Memory
    search: "Search"


class Search(NamedTuple):
    """A step of decoding; every sentence of the memory has as many hypotheses, one after the other."""

    memory: Memory
    words: tf.Tensor  # [hypotheses, 1] the last of each
    state: list[tf.Tensor]
    next_state: list[tf.Tensor]
    best: tuple[tf.Tensor, tf.Tensor]  # log probabilities and ids of the best next words, [hypotheses, beam]


def build_graph(flags: argparse.Namespace, source_words: int, target_words: int) -> Model:
    """The training step, the evaluation and a step of decoding, for one device."""
    sizes = Sizes(source_words, target_words, flags.width, flags.state, flags.layers, flags.tie, flags.smoothing)
    types = Batch(tf.int32, tf.float32, tf.int32, tf.int32, tf.float32)
    batch = Batch(*(tf.placeholder(dtype, [None, None], name) for name, dtype in types._asdict().items()))
    words = tf.placeholder(tf.float32, [], "words")
    dropout = tf.placeholder_with_default(0.0, [], "dropout")

    network = make_network(sizes)
    drop = partial(tf.nn.dropout, rate=dropout) if flags.dropout else tf.identity
    memory = encode(network, batch.source, batch.source_weights, drop)
    outputs, _ = decode(network, memory, batch.previous, drop)
    logits, targets = project(network, outputs), tf.reshape(batch.target, [-1])
    weights = tf.reshape(batch.target_weights, [-1])
    loss = tf.reduce_sum(cross_entropy(logits, targets, sizes.smoothing) * weights) / words
    heldout_nats = tf.reduce_sum(cross_entropy(logits, targets, 0.0) * weights)

    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.AdamOptimizer(tf.train.polynomial_decay(flags.learning_rate, step, flags.steps, 0.0))
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, grad_norm = tf.clip_by_global_norm(gradients, flags.max_grad_norm)
    train_op = optimizer.apply_gradients(zip(clipped, variables, strict=True), global_step=step)
    search = build_search(network, min(flags.beam, target_words))
    return Model(batch, words, dropout, loss, grad_norm, train_op, heldout_nats, memory, search)


def build_search(network: Network, beam: int) -> Search:
    """The decoder again, for one word, from a memory and a state that are fed."""
    size = network.sizes.state
    memory = Memory(*(tf.placeholder(tf.float32, shape) for shape in ([None, None, size],) * 2 + ([None, None],)))
    words = tf.placeholder(tf.int32, [None, 1])
    state = [tf.placeholder(tf.float32, [None, size]) for _ in range(1 + 2 * network.sizes.layers)]
    outputs, next_state = decode(network, memory, words, state=state)
    best = tf.nn.top_k(tf.nn.log_softmax(project(network, outputs)), beam)
    return Search(memory, words, state, next_state, tuple(best))


def train(
    sess: Any, model: Model, flags: argparse.Namespace, corpus: "Corpus", worker_id: int, num_workers: int
) -> None:
    """Runs `--steps` steps, each on this worker's share of a global batch."""
    batches = global_batches(corpus, flags.batch * num_workers, flags.bucket, flags.longest, flags.seed)
    fetches = [model.train_op, model.loss, model.grad_norm]
    steps_per_line = max(1, flags.steps // 10)
    words, line_s = 0, time.perf_counter()
    bar = tqdm(total=flags.steps, unit="step", mininterval=1, disable=worker_id != 0)
    for step in range(1, flags.steps + 1):
        sentences = next(batches)
        words_now = sum(len(target) + 1 for _, target in sentences)
        batch = make_batch(sentences[worker_id::num_workers], corpus.target)
        # A feed is a list with one entry per replica.
        feeds = feed(model.batch, batch) | {model.words: [words_now / num_workers], model.dropout: [flags.dropout]}
        _, [loss], [grad_norm] = sess.run(fetches, feeds)
        # None in a run that makes no update; else the same on all workers: all stop here, and none waits for another.
        if grad_norm is not None and not math.isfinite(grad_norm):
            bar.close()
            problem = f"step {step}: the loss is {loss}, the norm of its gradient {grad_norm}; lower --learning-rate"
            sys.exit(problem if worker_id == 0 else 1)
        words += words_now
        bar.update()
        if step % steps_per_line == 0 or step == flags.steps:
            loss = sess.workers.allreduce(float(loss)) / num_workers
            words_per_s, words, line_s = words / (time.perf_counter() - line_s), 0, time.perf_counter()
            if worker_id == 0:
                tqdm.write(f"step {step} of {flags.steps}: loss {loss:.7f}, {words_per_s:,.0f} words/s")
    bar.close()


def feed(placeholders: Iterable[tf.Tensor], arrays: Iterable[np.ndarray]) -> dict[tf.Tensor, list[np.ndarray]]:
    return {placeholder: [array] for placeholder, array in zip(placeholders, arrays, strict=True)}


def evaluate(
    sess: Any, model: Model, flags: argparse.Namespace, corpus: "Corpus", worker_id: int, num_workers: int
) -> str:
    """Scores of the held-out text and some translations, on worker 0; each worker translates its share.

    Tables are read row by row, which takes all workers: they run as many batches, and steps of decoding, as the one
    that needs most, and fill up a last batch with sentences of no words.
    """
    pairs = corpus.heldout
    encoded = [encode_pair(corpus, pair) for pair in pairs]
    by_length = sorted(range(len(pairs)), key=lambda i: len(encoded[i][0]))
    nats, translations, size = 0.0, {}, flags.batch * num_workers
    for start in tqdm(range(0, len(pairs), size), unit="batch", mininterval=1, disable=worker_id != 0):
        together = by_length[start : start + size]
        own = together[worker_id::num_workers]
        batch = make_batch([encoded[i] for i in own] + [([], [])] * (flags.batch - len(own)), corpus.target)
        nats += float(sess.run(model.heldout_nats, feed(model.batch, batch))[0])
        limit = 10 + 2 * max(len(encoded[i][0]) for i in together)
        found = translate(sess, model, flags, batch, limit, corpus.target)
        translations |= {i: text_of(ids, corpus.target) for i, ids in zip(own, found, strict=False)}
    nats, parts = sess.workers.allreduce(nats), sess.workers.gather(translations)
    if worker_id != 0:
        return ""
    found = [{i: text for part in parts for i, text in part.items()}[i] for i in range(len(pairs))]
    references = [plain(target) for _, target in pairs]
    shown = [
        f"{pair[0]}\n  {text}\n  reference: {plain(pair[1])}" for pair, text in zip(pairs[:3], found, strict=False)
    ]
    perplexity = math.exp(nats / sum(len(target) + 1 for _, target in encoded))
    return "\n".join([*shown, f"held-out perplexity {perplexity:.3f}, {score(found, references)}"])


def score(translations: list[str], references: list[str]) -> str:
    """BLEU of the words as they stand in the files, and how many sentences are their reference."""
    import sacrebleu

    bleu = sacrebleu.corpus_bleu(translations, [references], tokenize="none", force=True)
    equal = sum(one == other for one, other in zip(translations, references, strict=True))
    share = f"exact match {100 * equal / len(references):.1f} %"
    return f"BLEU {bleu.score:.1f}, {share} ({len(references):,} sentences)"


def translate(
    sess: Any, model: Model, flags: argparse.Namespace, batch: Batch, limit: int, target: "Vocabulary"
) -> list[list[int]]:
    """The best translation found of every source of a batch; all workers must call it, with the same limit."""
    search = model.search
    memory = sess.run(model.memory, feed(model.batch[:2], batch[:2]))  # lists per replica, as they are fed
    state = [np.zeros([len(batch.source) * flags.beam, tensor.shape[1]], np.float32) for tensor in search.state]

    def step(words: np.ndarray, parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        feeds = dict(zip(search.memory, memory, strict=True)) | {search.words: [words[:, None]]}
        feeds |= feed(search.state, [part[parents] for part in state])
        ([log_p], [ids]), found = sess.run([search.best, search.next_state], feeds)
        state[:] = [part for [part] in found]
        return log_p, ids

    wanted, join = batch.source_weights.any(axis=1), sess.workers.allreduce
    return beam_search(step, wanted, flags.beam, limit, target, flags.length_penalty, join)


def beam_search(
    step: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    wanted: np.ndarray,
    beam: int,
    limit: int,
    target: "Vocabulary",
    penalty: float,
    join: Callable[[int], int] = int,
) -> list[list[int]]:
    """The best translation found of each sentence, without the marks around it.

    The best has the greatest log probability over ((5 + words) / 6) ** penalty (Wu et al. 2016, section 7), its end
    counted as a word. One that has not ended in `limit` words is taken only where none has.

    Args:
        step: takes the last word of every hypothesis and the hypothesis of the step before that it continues, both
            [sentences * beam]; gives log probabilities and ids of the best next words, [sentences * beam, any].
        wanted: [sentences] whether to translate it; of the others nothing that is returned means anything.
        beam: hypotheses of a sentence.
        limit: steps at most.
        target: the vocabulary.
        penalty: of the length.
        join: from the number of this worker's hypotheses that go on to that of all workers'.
    """
    rows = np.arange(len(wanted))[:, None]
    words, parents = np.full([len(wanted), beam], target.begin), rows * beam + np.arange(beam)
    texts, lengths = np.zeros([len(wanted), beam, 0], np.int64), np.zeros([len(wanted), beam], np.int64)
    log_p = np.where(rows + np.arange(beam) == rows, 0.0, -np.inf)  # at first all hypotheses are the same one
    ended = np.repeat(~wanted[:, None], beam, axis=1)
    for _ in range(limit):
        if not join(int((~ended & np.isfinite(log_p)).sum())):
            break
        next_log_p, ids = (found.reshape(len(wanted), beam, -1) for found in step(words.ravel(), parents.ravel()))
        as_it_is = np.where(np.arange(ids.shape[2]) == 0, 0.0, -np.inf)  # an ended hypothesis has one way to go on
        sums = log_p[..., None] + np.where(ended[..., None], as_it_is, next_log_p)
        lengths = lengths + ~ended
        ranks = (sums / length_penalty(lengths, penalty)[..., None]).reshape(len(wanted), -1)
        chosen = np.argsort(-ranks, axis=1, kind="stable")[:, :beam]
        old, way = chosen // ids.shape[2], chosen % ids.shape[2]
        log_p, lengths, ended, parents = sums[rows, old, way], lengths[rows, old], ended[rows, old], rows * beam + old
        words = np.where(ended, target.end, ids[rows, old, way])
        texts = np.concatenate([texts[rows, old], words[..., None]], axis=2)
        ended |= words == target.end
    scores = log_p / length_penalty(lengths, penalty)
    of_ended = np.where(ended, scores, -np.inf)
    scores = np.where(np.isfinite(of_ended).any(axis=1, keepdims=True), of_ended, scores)
    best = [text[i].tolist() for text, i in zip(texts, scores.argmax(axis=1), strict=True)]
    return [ids[: ids.index(target.end)] if target.end in ids else ids for ids in best]


def length_penalty(lengths: np.ndarray, penalty: float) -> np.ndarray:
    return ((5.0 + lengths) / 6.0) ** penalty


class Vocabulary(NamedTuple):
    """The id of a word is its place."""

    words: list[str]
    ids: dict[str, int]
    unknown: int
    begin: int
    end: int


class Corpus(NamedTuple):
    """Pairs to train on, opened anew by each call, and to evaluate on; their words are separated by spaces."""

    train: Callable[[], Iterable[Pair]]
    heldout: list[Pair]
    source: Vocabulary
    target: Vocabulary


def text_of(ids: list[int], vocabulary: Vocabulary) -> str:
    return plain(" ".join(vocabulary.words[i] for i in ids))


def plain(text: str) -> str:
    """Words put together again from their parts."""
    return f"{text} ".replace(CUT, "").rstrip()


def open_corpus(flags: argparse.Namespace) -> Corpus:
    """The files named or, without any, generated sentences."""
    if flags.data:
        languages = flags.source, flags.target
        train = partial(read_pairs, flags.data, *languages)
        heldout = list(read_pairs(flags.heldout, *languages)) if flags.heldout else []
        for _ in train():  # what is wrong with a file shows before anything is started
            pass
        words = [read_words(Path(f"{flags.vocab}.{language}")) for language in languages]
    else:
        pairs = generated_pairs(GENERATED)
        train, heldout = (lambda: pairs[HELDOUT:]), pairs[:HELDOUT]
        words = [sorted({word for pair in train() for word in pair[side].split()}) for side in (0, 1)]
    if flags.tie == "source":
        words = [words[0] + words[1]] * 2
    return Corpus(train, heldout, *map(make_vocabulary, words))


def read_pairs(prefix: str, source: str, target: str) -> Iterator[Pair]:
    """The lines of two files side by side; pairs with an empty line are left out."""
    files, read = [Path(f"{prefix}.{language}").expanduser() for language in (source, target)], False
    text = {"encoding": "utf-8", "newline": "\n"}  # a carriage return within a line does not end it
    try:
        with files[0].open(**text) as sources, files[1].open(**text) as targets:
            for pair in zip(sources, targets, strict=True):
                if all(map(str.strip, pair)):
                    yield tuple(map(str.strip, pair))
                    read = True
    except OSError as error:
        sys.exit(f"a text is a file of each language; {error.filename}: {error.strerror}")
    except UnicodeDecodeError as error:
        sys.exit(f"a text is in UTF-8, and {files[0]} or {files[1]} is not: {error}")
    except ValueError:
        sys.exit(f"the lines of {files[0]} and {files[1]} must be translations of each other; one file has more lines")
    if not read:
        sys.exit(f"no text in {files[0]} and {files[1]}")


def read_words(file: Path) -> list[str]:
    """The first word of each line; a count may follow."""
    try:
        with file.expanduser().open(encoding="utf-8") as lines:
            words = [line.split()[0] for line in lines if line.strip()]
    except OSError as error:
        sys.exit(f"a vocabulary is a file of each language; {error.filename}: {error.strerror}")
    return words or sys.exit(f"no words in {file}")


def make_vocabulary(words: Iterable[str]) -> Vocabulary:
    """Each word once; marks that are missing come first."""
    words = dict.fromkeys(words)
    words = dict.fromkeys([mark for mark in MARKS if mark not in words]) | words
    ids = {word: i for i, word in enumerate(words)}
    return Vocabulary(list(words), ids, *(ids[mark] for mark in MARKS))


def encode_pair(corpus: Corpus, pair: Pair) -> Ids:
    """The ids of the words of both sides."""
    sides = zip(pair, (corpus.source, corpus.target), strict=True)
    return tuple([known.ids.get(word, known.unknown) for word in text.split()] for text, known in sides)


def global_batches(corpus: Corpus, size: int, bucket: int, longest: int, seed: int) -> Iterator[list[Ids]]:
    """Without end: `size` sentences at a time, shuffled, whose longer sides are of a similar length.

    All workers must make the same, and each takes its share: so the data and their order are those of the arguments.
    """
    random, waiting = np.random.default_rng(seed), {}
    while True:
        pairs, read = iter(corpus.train()), 0
        while window := list(islice(pairs, WINDOW)):
            for i in random.permutation(len(window)):
                ids = encode_pair(corpus, window[i])
                length = max(map(len, ids))
                if length > longest:
                    continue
                read += 1
                same = waiting.setdefault((length - 1) // bucket, [])
                same.append(ids)
                if len(same) == size:
                    yield waiting.pop((length - 1) // bucket)
        if not read:
            sys.exit(f"no sentence to train on has {longest} words or fewer; raise --longest")


def make_batch(pairs: list[Ids], target: Vocabulary) -> Batch:
    """Pads; the weights of a pair with no source are 0."""
    shape = [len(pairs), max(1, *(len(source) for source, _ in pairs))]
    source, source_weights = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    shape = [len(pairs), 1 + max(len(target) for _, target in pairs)]
    previous, after, target_weights = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for row, (words, translation) in enumerate(pairs):
        if words:
            source[row, : len(words)], source_weights[row, : len(words)] = words, 1.0
            length = len(translation) + 1
            previous[row, :length], after[row, :length] = [target.begin, *translation], [*translation, target.end]
            target_weights[row, :length] = 1.0
    return Batch(source, source_weights, previous, after, target_weights)


GENERATED, HELDOUT = 30_000, 500  # sentences, and how many of them are never trained on
SUBJECTS = {"i have": "ich habe", "she has": "sie hat", "he has": "er hat", "we have": "wir haben"}
VERBS = {"bought": "gekauft", "sold": "verkauft", "found": "gefunden", "lost": "verloren", "counted": "gezählt"}
KINDS = {"red": "rote", "green": "grüne", "old": "alte", "new": "neue", "small": "kleine", "large": "große"}
THINGS = {"apples": "äpfel", "books": "bücher", "houses": "häuser", "chairs": "stühle", "clocks": "uhren"}
MONTHS = (
    "january february march april may june july august september october november december".split(),
    "januar februar märz april mai juni juli august september oktober november dezember".split(),
)
ENGLISH = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety""".split()
GERMAN = """null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn
    siebzehn achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig""".split()
ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth", "twenty": "twentieth", "thirty": "thirtieth",
    "eins": "ersten", "drei": "dritten", "sieben": "siebten", "acht": "achten",
}  # fmt: skip


def generated_pairs(count: int) -> list[Pair]:
    """Sentences such as `we have sold twenty four red clocks`, all different; half of them name a day.

    In German the day comes first, and the verb last. They are the same at every call.
    """
    random, pairs = Random(1), {}
    while len(pairs) < count:
        have, verb, kind, thing = (random.choice([*words]) for words in (SUBJECTS, VERBS, KINDS, THINGS))
        number = random.randrange(2, 10 ** random.randint(1, 4))
        source, target = f"{have} {verb} {english(number)} {kind} {thing}", SUBJECTS[have]
        if random.random() < 0.5:
            day = date(2024, 1, 1) + timedelta(random.randrange(366))
            source += f" on the {english_day(day.day)} of {MONTHS[0][day.month - 1]}"
            subject, auxiliary = target.split()
            target = f"am {german_day(day.day)} {MONTHS[1][day.month - 1]} {auxiliary} {subject}"
        pairs[source] = f"{target} {german(number)} {KINDS[kind]} {THINGS[thing]} {VERBS[verb]}"
    return list(pairs.items())


def english(number: int) -> str:
    """The words of 1 to 9999."""
    words = []
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            words += [ENGLISH[number // size], name]
        number %= size
    if number >= 20:
        words.append(ENGLISH[18 + number // 10])
        number %= 10
    return " ".join(words + [ENGLISH[number]] * (number > 0))


def german(number: int) -> str:
    """The word for 1 to 9999, cut into its parts; units go before tens."""
    parts, within = [], ["", "ein", *GERMAN[2:]]
    for size, name in ((1000, "tausend"), (100, "hundert")):
        if number >= size:
            parts += [within[number // size], name]
        number %= size
    if number >= 20:
        parts += [within[number % 10], "und"] * (number % 10 > 0) + [GERMAN[18 + number // 10]]
    elif number:
        parts.append(GERMAN[number])
    return CUT.join(parts)


def english_day(day: int) -> str:
    """Of a month: an ordinal, whose last word differs from that of the number."""
    *words, last = english(day).split()
    return " ".join([*words, ORDINALS.get(last, f"{last}th")])


def german_day(day: int) -> str:
    *parts, last = german(day).split(CUT)
    return CUT.join([*parts, ORDINALS.get(last, f"{last}ten" if day < 20 else f"{last}sten")])


if __name__ == "__main__":
    main()
