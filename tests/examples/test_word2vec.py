"""The data side of the word vector example: text, pairs, negatives, questions; and its loss."""

import importlib.util
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "nlp" / "word2vec.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("word2vec_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus(example):
    return example.open_corpus(example.parse_flags([]))


def pairs(example, sentences, window, kept=None, seed=1):
    kept = np.ones(10) if kept is None else kept
    found = example.pairs_of(sentences, kept, window, np.random.default_rng(seed))
    return Counter(map(tuple, found.tolist()))


# --- flags and files ---


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--questions", "q"], "belong to --data"),
        (["--vocab", "v"], "belong to --data"),
        (["--negatives", "0"], "must be 1 or more"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(example, capsys, argv, message):
    with pytest.raises(SystemExit):
        example.parse_flags(argv)
    assert message in capsys.readouterr().err


def test_lines_of_all_files_are_sentences_in_the_order_of_the_names(example, tmp_path):
    (tmp_path / "text-2").write_text("c d\n\n")
    (tmp_path / "text-1").write_text("a b\n\nb")
    assert list(example.read_sentences(f"{tmp_path}/text-*")) == [["a", "b"], ["b"], ["c", "d"]]


def test_a_line_longer_than_a_piece_is_cut_between_words(example, tmp_path, monkeypatch):
    monkeypatch.setattr(example, "PIECE", 8)
    (tmp_path / "text").write_text("abc def ghij k lmnopqrstuvw x\nyz\n")
    sentences = list(example.read_sentences(str(tmp_path / "text")))
    assert sum(sentences, []) == ["abc", "def", "ghij", "k", "lmnopqrstuvw", "x", "yz"]
    assert sentences[-1] == ["yz"] and max(map(len, sentences)) <= 3


def test_a_pattern_without_text_is_refused(example, tmp_path):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(SystemExit, match="no text in files that match"):
        list(example.read_sentences(f"{tmp_path}/*"))


def test_a_vocabulary_is_sorted_by_frequency_and_leaves_rare_words_out(example):
    vocabulary = example.make_vocabulary(Counter("abbcccdd"), 2)
    assert (vocabulary.words, vocabulary.ids) == (["c", "b", "d"], {"c": 0, "b": 1, "d": 2})
    assert vocabulary.counts.tolist() == [3, 2, 2]


def test_a_file_of_counts_is_read(example, tmp_path):
    (tmp_path / "vocab").write_text("the 10\ncat 3\n")
    assert example.read_counts(tmp_path / "vocab") == {"the": 10, "cat": 3}
    (tmp_path / "vocab").write_text("the 10\ncat\n")
    with pytest.raises(SystemExit, match="vocab:2: a line of a vocabulary is `word count`, and this one is 'cat'"):
        example.read_counts(tmp_path / "vocab")


def test_questions_have_four_words_and_headings_are_left_out(example, tmp_path):
    (tmp_path / "questions").write_text(": capitals\nAthens Greece Oslo Norway\n\nathens greece rome italy\n")
    questions = example.read_questions(tmp_path / "questions")
    assert questions == [["athens", "greece", "oslo", "norway"], ["athens", "greece", "rome", "italy"]]
    vocabulary = example.make_vocabulary(Counter("athens greece oslo norway".split()), 1)
    assert example.known_questions(questions, vocabulary) == [tuple(vocabulary.ids[word] for word in questions[0])]
    (tmp_path / "questions").write_text("athens greece oslo\n")
    with pytest.raises(SystemExit, match="a question has four words, and one has 3: athens greece oslo"):
        example.read_questions(tmp_path / "questions")


def test_a_text_of_files_is_opened_with_its_questions(example, tmp_path):
    (tmp_path / "text").write_text("a b c d\na b c e\n")
    (tmp_path / "questions").write_text("a b c d\na b c c\n")
    files = ["--data", f"{tmp_path}/text", "--questions", f"{tmp_path}/questions"]
    corpus = example.open_corpus(example.parse_flags([*files, "--min-count", "2"]))
    assert (corpus.vocabulary.words, corpus.questions) == (["a", "b", "c"], [(0, 1, 2, 2)])
    with pytest.raises(SystemExit, match="lower --min-count"):
        example.open_corpus(example.parse_flags([*files, "--min-count", "3"]))


# --- pairs ---


def test_pairs_are_of_words_near_each_other_in_one_sentence_both_ways(example):
    assert pairs(example, [[1, 2, 3], [4, 5]], window=1) == Counter([(1, 2), (2, 1), (2, 3), (3, 2), (4, 5), (5, 4)])


def test_a_word_reaches_as_far_as_was_drawn_for_it(example):
    near, far = Counter(), Counter()
    for seed in range(300):
        found = pairs(example, [[0, 1, 2, 3]], window=3, seed=seed)
        near[found[0, 1]] += 1
        far[found[0, 3]] += 1
    assert near == {1: 300} and far[1] == pytest.approx(100, abs=30)


def test_words_that_are_left_out_bring_the_others_together(example):
    kept = np.ones(10)
    kept[2] = 0.0
    assert pairs(example, [[1, 2, 3]], window=1, kept=kept) == Counter([(1, 3), (3, 1)])


def test_frequent_words_are_left_out_more_often(example):
    kept = example.keep_probabilities(np.array([0.1, 0.01, 1e-4]), 1e-3)
    np.testing.assert_allclose(kept, [0.11, 0.1 + 10**-0.5, 1.0])
    assert example.keep_probabilities(np.array([0.5, 0.5]), 0).tolist() == [1.0, 1.0]


def test_a_global_batch_is_the_same_on_all_workers_and_comes_without_end(example, corpus):
    flags = example.parse_flags([])
    one, other = (list(islice(example.global_batches(corpus, 64, flags), 3)) for _ in range(2))
    for batch, again in zip(one, other, strict=True):
        assert (batch.centers.shape, batch.contexts.shape, batch.negatives.shape) == ((64,), (64,), (64, 5))
        assert all(np.array_equal(part, same) for part, same in zip(batch, again, strict=True))
    small = example.Corpus(lambda: [["a", "b"]], example.make_vocabulary(Counter("ab"), 1), [])
    flags.subsample = 0
    batches = list(islice(example.global_batches(small, 7, flags), 5))
    assert {tuple(pair) for b in batches for pair in zip(b.centers, b.contexts, strict=True)} == {(0, 1), (1, 0)}


def test_negative_words_are_drawn_by_frequency_to_the_power_of_three_quarters(example):
    vocabulary = example.make_vocabulary(Counter({"a": 81, "b": 16}), 1)
    corpus = example.Corpus(lambda: [["a", "b"]] * 2000, vocabulary, [])
    flags = example.parse_flags(["--subsample", "0", "--negatives", "20"])
    batch = next(example.global_batches(corpus, 1000, flags))
    assert np.mean(batch.negatives == 0) == pytest.approx(27 / 35, abs=0.02)


# --- the generated language ---


def test_the_generated_text_never_has_two_verbs_in_a_sentence_and_asks_for_verbs_only(example, corpus):
    sentences, questions = example.generated()
    assert (len(sentences), len(questions)) == (example.GENERATED, example.QUESTIONS)
    asked = {word for question in questions for word in question}
    assert all(sum(word in asked for word in sentence) <= 1 for sentence in sentences)
    assert len(corpus.questions) == example.QUESTIONS and len(corpus.vocabulary.words) > 3500
    for one, wanted, other, answer in questions[:50]:
        stems = [one[:4], wanted[:4], other[:4], answer[:4]]
        assert stems[0] == stems[1] != stems[2] == stems[3]
        assert one[4:] == other[4:] != wanted[4:] == answer[4:]


def test_two_forms_of_a_verb_are_not_said_of_all_the_same_nouns(example):
    sentences, _ = example.generated()
    nouns = {}
    for _, _, subject, verb, _, thing in sentences:
        nouns.setdefault(verb, set()).update((subject, thing))
    assert {len(found) for found in nouns.values()} == {example.NOUNS_OF_A_FORM}
    shared = [len(nouns[verb] & nouns[f"{verb[:4]}ed"]) for verb in nouns if verb.endswith("s")]
    assert min(shared) < example.NOUNS_OF_A_FORM and np.mean(shared) > 4


# --- the model ---


def test_the_loss_counts_the_right_word_and_those_drawn_but_not_where_they_are_the_same(example):
    tf = example.tf
    flags = example.parse_flags("--batch 2 --negatives 2 --width 1".split())
    with tf.Graph().as_default(), tf.Session() as session:
        model = example.build_graph(flags, rows=4)
        session.run(tf.global_variables_initializer())
        for name in ("words", "contexts"):
            (table,) = [v for v in tf.trainable_variables() if v.op.name == name]
            session.run(tf.assign(table, np.arange(4.0)[:, None]))
        batch = example.Batch([1, 2], [3, 1], [[3, 0], [2, 2]])
        feeds = dict(zip(model.batch, batch, strict=True))
        loss = session.run(model.loss, feeds)
        vectors = session.run(model.vectors, {model.asked: [1, 3]})
    softplus = lambda x: np.log1p(np.exp(x))  # noqa: E731
    first, second = softplus(-3.0) + softplus(0.0), softplus(-2.0) + 2 * softplus(4.0)
    assert loss == pytest.approx((first + second) / 2, rel=1e-6)
    np.testing.assert_allclose(vectors, [[1.0], [1.0]])


class Alone:
    """What stands for the session and the communicator of one worker among some, all of whom have one table."""

    def __init__(self, table, ended):
        self.table, self.ended, self.workers = table, ended, self

    def run(self, _, feeds):
        ((ids,),) = feeds.values()
        return [self.table[ids]]

    def allgather(self, found):
        self.ended.append(found)
        return self.ended


def test_an_answer_is_the_nearest_of_all_words_but_the_first_three(example, monkeypatch):
    monkeypatch.setattr(example, "BLOCK", 2)
    table = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [1.1, 1.2], [5, -5], [0, -1]], np.float32)
    vocabulary = example.make_vocabulary(Counter("aaaaaaabbbbbbcccccddddeeeffg"), 1)
    corpus = example.Corpus(list, vocabulary, [(0, 1, 2, 4), (0, 1, 2, 3)])
    model = example.Model(None, None, None, None, "asked", "vectors")
    ended = []
    for worker_id in (0, 1, 2):
        text = example.evaluate(Alone(table, ended), model, corpus, worker_id, num_workers=3)
    assert text.splitlines() == [
        "a : b :: c : e (right: e)",
        "a : b :: c : e (right: d)",
        "analogies 50.0% (2 questions, 7 words)",
    ]
