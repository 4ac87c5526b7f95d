"""The translation example in one process: its text, its batches, its beam search and its plan."""

import importlib.util
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from parallax.analysis.graph_to_plan import analyse, plan_for
from parallax.analysis.reading.construction import record
from parallax.graph.spec import VariableClass
from parallax.plans.plan import ALLREDUCE, ALLTOALL, one_host
from parallax.settings.config import Config

EXAMPLE = Path(__file__).parents[2] / "examples" / "nlp" / "translation.py"
SMALL = "--width 4 --state 8 --beam 3".split()


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("translation_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE.parent)  # as when it is run
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (20, "twenty", "zwanzig"),
        (21, "twenty one", "einundzwanzig"),
        (24, "twenty four", "vierundzwanzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred one", "einhunderteins"),
        (317, "three hundred seventeen", "dreihundertsiebzehn"),
        (1066, "one thousand sixty six", "eintausendsechsundsechzig"),
        (9999, "nine thousand nine hundred ninety nine", "neuntausendneunhundertneunundneunzig"),
    ],
)
def test_numbers_are_written_out_in_both_languages(example, number, english, german):
    assert example.english(number) == english
    assert example.plain(example.german(number)) == german


def test_a_german_number_is_cut_into_its_parts(example):
    assert example.german(1124) == "ein@@ tausend@@ ein@@ hundert@@ vier@@ und@@ zwanzig"


@pytest.mark.parametrize(
    ("day", "english", "german"),
    [(1, "first", "ersten"), (3, "third", "dritten"), (8, "eighth", "achten"), (12, "twelfth", "zwölften")]
    + [
        (17, "seventeenth", "siebzehnten"),
        (20, "twentieth", "zwanzigsten"),
        (27, "twenty seventh", "siebenundzwanzigsten"),
    ]
    + [(31, "thirty first", "einunddreißigsten")],
)
def test_days_of_a_month_are_written_out_in_both_languages(example, day, english, german):
    assert example.english_day(day) == english
    assert example.plain(example.german_day(day)) == german


def test_generated_sentences_are_always_the_same_and_all_different(example):
    pairs = example.generated_pairs(2000)
    assert pairs == example.generated_pairs(2000)
    assert len({source for source, _ in pairs}) == len({target for _, target in pairs}) == 2000
    with_a_day = [pair for pair in pairs if " on the " in pair[0]]
    assert 900 < len(with_a_day) < 1100
    assert all(target.startswith("am ") for _, target in with_a_day)


def test_german_names_the_day_first_and_the_verb_last(example):
    pairs = dict(example.generated_pairs(3000))
    assert pairs["she has counted two red houses on the fourth of october"] == (
        "am vierten oktober hat sie zwei rote häuser gezählt"
    )
    assert pairs["we have lost four hundred sixty six green apples"] == (
        "wir haben vier@@ hundert@@ sechs@@ und@@ sechzig grüne äpfel verloren"
    )


def test_what_is_held_out_is_never_trained_on_and_its_words_are_known(example):
    corpus = example.open_corpus(example.parse_flags([]))
    train, heldout = corpus.train(), corpus.heldout
    assert (len(train), len(heldout)) == (29_500, 500)
    assert not {source for source, _ in train} & {source for source, _ in heldout}
    assert not {target for _, target in train} & {target for _, target in heldout}
    for pair in heldout:
        source, target = example.encode_pair(corpus, pair)
        assert corpus.source.unknown not in source and corpus.target.unknown not in target


def write_text(folder, **texts):
    """Files named as `train_de` is: train.de."""
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")


def test_a_corpus_is_a_file_of_each_language_with_its_vocabulary(example, tmp_path):
    write_text(tmp_path, train_en="a b\n\nb\n", train_de="x\nleft out\ny x\n", held_en="c a\n", held_de="z\n")
    write_text(tmp_path, vocab_en="<unk>\n<s>\n</s>\na\nb\n", vocab_de="x 9\ny 5\n")
    flags = [
        f"--{flag}={tmp_path}/{name}" for flag, name in (("data", "train"), ("heldout", "held"), ("vocab", "vocab"))
    ]
    corpus = example.open_corpus(example.parse_flags(flags))
    assert list(corpus.train()) == list(corpus.train()) == [("a b", "x"), ("b", "y x")]
    assert corpus.source[2:] == (0, 1, 2) and corpus.source.words == ["<unk>", "<s>", "</s>", "a", "b"]
    assert corpus.target[2:] == (0, 1, 2) and corpus.target.words == ["<unk>", "<s>", "</s>", "x", "y"]
    assert [example.encode_pair(corpus, pair) for pair in corpus.heldout] == [([0, 3], [0])]
    assert example.encode_pair(corpus, ("b a", "y x")) == ([4, 3], [4, 3])


def test_languages_may_be_turned_round_and_share_a_vocabulary(example, tmp_path):
    write_text(tmp_path, train_en="a\n", train_de="x\n", vocab_en="a\nsame\n", vocab_de="x\nsame\n")
    flags = f"--data {tmp_path}/train --vocab {tmp_path}/vocab --source de --target en --tie source".split()
    corpus = example.open_corpus(example.parse_flags(flags))
    assert list(corpus.train()) == [("x", "a")] and corpus.heldout == []
    assert corpus.source == corpus.target and corpus.source.words == ["<unk>", "<s>", "</s>", "x", "same", "a"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"train_en": "a\n"}, "a text is a file of each language; .*train.de: No such file"),
        ({"train_en": "a\nb\n", "train_de": "x\n"}, "must be translations of each other; one file has more lines"),
        ({"train_en": "a\n\n", "train_de": "\nx\n"}, "no text in .*train.en and .*train.de"),
    ],
)
def test_files_that_are_no_parallel_text_are_refused(example, tmp_path, texts, message):
    write_text(tmp_path, **texts)
    with pytest.raises(SystemExit, match=message):
        list(example.read_pairs(f"{tmp_path}/train", "en", "de"))


def test_a_carriage_return_within_a_line_does_not_end_it(example, tmp_path):
    (tmp_path / "train.en").write_bytes(b"a\rb\r\nc\r\n")
    (tmp_path / "train.de").write_bytes(b"x\ny\n")
    assert list(example.read_pairs(f"{tmp_path}/train", "en", "de")) == [("a\rb", "x"), ("c", "y")]


def test_a_text_in_another_encoding_is_refused(example, tmp_path):
    write_text(tmp_path, train_en="a\n")
    (tmp_path / "train.de").write_bytes("grün\n".encode("latin-1"))
    with pytest.raises(SystemExit, match="a text is in UTF-8, and .*train.de is not"):
        list(example.read_pairs(f"{tmp_path}/train", "en", "de"))


@pytest.mark.parametrize(("text", "message"), [(None, "vocab.en: No such file"), ("\n", "no words in .*vocab.en")])
def test_a_vocabulary_without_words_is_refused(example, tmp_path, text, message):
    if text is not None:
        write_text(tmp_path, vocab_en=text)
    with pytest.raises(SystemExit, match=message):
        example.read_words(tmp_path / "vocab.en")


def test_words_are_put_together_from_their_parts(example):
    assert example.plain("vier@@ und@@ zwanzig rote äpfel") == "vierundzwanzig rote äpfel"
    assert example.plain("vier@@") == "vier"


def corpus_of(example, lengths):
    """Pairs of the given lengths of source and target; the first word of a source is its number."""
    numbers = [f"n{i}" for i in range(len(lengths))]
    words = example.make_vocabulary([*numbers, "a"])
    pairs = [
        (" ".join([n] + ["a"] * (source - 1)), " ".join(["a"] * target))
        for n, (source, target) in zip(numbers, lengths, strict=True)
    ]
    return example.Corpus(lambda: pairs, None, words, words)


def test_a_batch_has_sentences_of_similar_lengths_and_an_epoch_has_each_once(example):
    lengths = [(1 + i % 12, 1 + i * 7 % 12) for i in range(96)]
    corpus = corpus_of(example, lengths)
    batches = list(itertools.islice(example.global_batches(corpus, 4, bucket=4, longest=12, seed=1), 60))
    for batch in batches:
        longer = [max(map(len, ids)) for ids in batch]
        assert len(batch) == 4 and max(longer) - min(longer) < 4
    seen = [source[0] for batch in batches for source, _ in batch]
    counts = np.unique(seen, return_counts=True)[1]
    assert len(counts) == 96 and counts.min() >= 2 and counts.max() <= 3  # 240 sentences are two epochs and a half
    assert seen[:96] != seen[96:192]


def test_the_batches_are_the_same_on_all_workers_and_shuffled_by_the_seed(example):
    corpus = corpus_of(example, [(2, 3)] * 50)

    def first(seed):
        return list(itertools.islice(example.global_batches(corpus, 8, 4, 50, seed), 9))

    assert first(1) == first(1) != first(2)


def test_longer_sentences_are_not_trained_on(example):
    corpus = corpus_of(example, [(3, 3), (4, 3), (3, 4)])
    (batch,) = itertools.islice(example.global_batches(corpus, 2, 4, longest=3, seed=1), 1)
    assert batch == [example.encode_pair(corpus, corpus.train()[0])] * 2
    with pytest.raises(SystemExit, match="no sentence to train on has 2 words or fewer; raise --longest"):
        next(example.global_batches(corpus, 2, 4, longest=2, seed=1))


def test_a_batch_is_padded_and_a_pair_without_words_has_no_weight(example):
    target = example.make_vocabulary("ab")  # <unk>, <s> and </s> are 0, 1 and 2
    batch = example.make_batch([([7], [3, 4]), ([8, 9], [3]), ([], [])], target)
    assert batch.source.tolist() == [[7, 0], [8, 9], [0, 0]]
    assert batch.source_weights.tolist() == [[1, 0], [1, 1], [0, 0]]
    assert batch.previous.tolist() == [[1, 3, 4], [1, 3, 0], [0, 0, 0]]
    assert batch.target.tolist() == [[3, 4, 2], [3, 2, 0], [0, 0, 0]]
    assert batch.target_weights.tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 0]]


def search_in(example, table, beam, limit, penalty=0.0):
    """Beam search in a table {words so far: probabilities of the next}, whose ids are a, b and the end."""
    vocabulary = example.make_vocabulary(["a", "b"])._replace(begin=9, end=2)
    hypotheses = [()] * beam

    def step(words, parents):
        nonlocal hypotheses
        hypotheses = [hypotheses[p] + ((int(w),) if w != 9 else ()) for w, p in zip(words, parents, strict=True)]
        with np.errstate(divide="ignore"):
            log_p = np.log([table.get(h, (0.0, 0.0, 1.0)) for h in hypotheses])
        return log_p, np.broadcast_to(np.arange(3), log_p.shape)

    (found,) = example.beam_search(step, np.array([True]), beam, limit, vocabulary, penalty)
    return found


GARDEN_PATH = {(): (0.6, 0.4, 0.0), (0,): (0.35, 0.35, 0.3), (1,): (0.05, 0.05, 0.9)}


def test_a_wider_beam_finds_what_a_narrow_one_has_given_up(example):
    assert search_in(example, GARDEN_PATH, beam=1, limit=9) == [0, 0]  # 0.6 * 0.35
    assert search_in(example, GARDEN_PATH, beam=2, limit=9) == [1]  # 0.4 * 0.9


def test_the_length_penalty_favours_longer_translations(example):
    table = {(): (0.45, 0.0, 0.55), (0,): (0.9, 0.0, 0.1)}
    assert search_in(example, table, beam=3, limit=9) == []
    assert (
        search_in(example, table, beam=3, limit=9, penalty=1.0) == []
    )  # log 0.55 / 1 = -0.60, log 0.405 / 1.33 = -0.68
    assert search_in(example, table, beam=3, limit=9, penalty=2.0) == [0, 0]  # log 0.405 / 1.78 = -0.51


def test_only_where_none_has_ended_a_translation_without_an_end_is_taken(example):
    table = {(): (0.9, 0.0, 0.1), (0,): (1.0, 0.0, 0.0), (0, 0): (1.0, 0.0, 0.0)}
    assert search_in(example, table, beam=2, limit=2) == []
    assert search_in(example, {(): (0.9, 0.1, 0.0), (0,): (1.0, 0.0, 0.0)}, beam=1, limit=2) == [0, 0]


class OneProcess:
    """A session of the graph as it is, fed and fetched in lists of one replica."""

    def __init__(self, example, graph):
        self.tf, self.session, self.workers = example.tf, example.tf.Session(graph=graph), self

    def run(self, fetches, feeds):
        found = self.session.run(fetches, {tensor: value for tensor, (value,) in feeds.items()})
        return self.tf.nest.map_structure(lambda value: [value], found)

    def allreduce(self, value):
        return value


def test_beam_search_on_the_model_finds_what_trying_all_translations_finds(example):
    limit, penalty = 3, 2.0  # 85 hypotheses are all that there can be: 5 that have ended, and 16 with 5 words to follow
    vocabulary = example.make_vocabulary(["x", "y"])  # with the marks 5 words
    flags = example.parse_flags(["--beam", "85", "--width", "4", "--state", "8", "--length-penalty", str(penalty)])
    sources = [[3, 4, 2], [4], [2, 2, 3, 4]]
    with example.tf.Graph().as_default() as graph:
        model = example.build_graph(flags, 5, 5)
        sess, random = OneProcess(example, graph), np.random.default_rng(9)
        for variable in example.tf.trainable_variables():
            variable.load(random.normal(0.0, 2.0, variable.shape), sess.session)

    others = [word for word in range(5) if word != vocabulary.end]
    texts = [list(words) for length in range(limit) for words in itertools.product(others, repeat=length)]
    expected = []
    for source in sources:
        nats = [
            sess.run(model.heldout_nats, example.feed(model.batch, example.make_batch([(source, text)], vocabulary)))[0]
            for text in texts
        ]
        scores = [-n / ((5 + len(text) + 1) / 6) ** penalty for n, text in zip(nats, texts, strict=True)]
        expected.append(texts[int(np.argmax(scores))])
    assert len({tuple(text) for text in expected}) == len({len(text) for text in expected}) + 1 == 3

    batch = example.make_batch([(source, []) for source in [*sources, []]], vocabulary)
    found = example.translate(sess, model, flags, batch, limit, vocabulary)
    assert found[:3] == expected


@pytest.mark.parametrize(
    ("tie", "owned", "mixed"),
    [
        ("source", {"source_embedding"}, set()),
        ("output", {"source_embedding"}, {"target_embedding"}),
    ],
)
def test_rows_of_tables_have_owners_and_a_tied_one_is_mixed(example, tie, owned, mixed):
    record.install()
    flags = example.parse_flags([*SMALL, "--tie", tie])
    with example.tf.Graph().as_default() as graph:
        example.build_graph(flags, 40, 40)
    analysed = analyse(graph)
    plan = plan_for(analysed, one_host(2), Config())
    trained = {variable.op.name for variable in graph.get_collection("trainable_variables")}
    routes = {v.name: v.route for v in plan.variables if v.name in trained}
    assert routes == {name: ALLTOALL if name in owned else ALLREDUCE for name in trained} and owned < trained
    assert {v.name for v in analysed.spec.variables if v.cls is VariableClass.MIXED} == mixed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data", "train"], "--data needs --vocab"),
        (["--heldout", "test"], "belong to --data"),
        (["--vocab", "vocab"], "belong to --data"),
        (["--state", "7"], "--state must be even and --layers 2 or more; got 7 and 2"),
        (["--layers", "1"], "--state must be even and --layers 2 or more; got 128 and 1"),
    ],
)
def test_flags_that_cannot_be_are_refused(example, capsys, argv, message):
    with pytest.raises(SystemExit):
        example.parse_flags(argv)
    assert message in capsys.readouterr().err


def test_without_its_package_for_bleu_it_says_what_to_install(example, monkeypatch):
    monkeypatch.setattr(example, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    with pytest.raises(SystemExit, match="sacrebleu.*pip install sacrebleu"):
        example.main()


def test_bleu_and_exact_match_are_those_of_the_references(example):
    text = "am vierten oktober hat sie zwei rote häuser gezählt"
    assert example.score([text, "a"], [text, "b"]).endswith("exact match 50.0 % (2 sentences)")
    assert example.score([text], [text]) == "BLEU 100.0, exact match 100.0 % (1 sentences)"
