"""The data side of the language model example: vocabularies, batches, shares and the unigram baseline."""

import importlib.util
import math
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "nlp" / "language_model.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("language_model_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batches_of(example, sentences, batch, unroll):
    """All batches that have a word, of sentences that end with the boundary 0."""
    batches = example.make_batches(iter(sentences), 0, batch, unroll)
    return list(takewhile(lambda held: held.weights.any(), batches))


@pytest.mark.parametrize("lines", ["the\n<S>\n<UNK>\ncat\n", "the 9\n<S> 5\n<UNK> 3\ncat 2\n"])
def test_a_vocabulary_has_one_word_a_line_with_or_without_its_count(example, tmp_path, lines):
    (tmp_path / "vocab.txt").write_text(lines)
    vocabulary = example.read_vocabulary(tmp_path / "vocab.txt")
    assert vocabulary == ({"the": 0, "<S>": 1, "<UNK>": 2, "cat": 3}, 4, 1, 2)


def test_the_more_frequent_sentence_mark_is_the_boundary(example):
    assert example.make_vocabulary(["</S>", "<S>", "<UNK>"]).boundary == 0
    assert example.make_vocabulary(["<UNK>", "<S>", "</S>"]).boundary == 1


def test_a_vocabulary_can_be_cut_to_its_first_rows(example, tmp_path):
    (tmp_path / "vocab.txt").write_text("</S>\n<UNK>\nthe\ncat\n")
    assert example.read_vocabulary(tmp_path / "vocab.txt", rows=3).ids == {"</S>": 0, "<UNK>": 1, "the": 2}


@pytest.mark.parametrize("words", [["the", "<S>"], ["the", "<UNK>"], []])
def test_a_vocabulary_without_its_marks_is_refused(example, words):
    with pytest.raises(SystemExit, match="a vocabulary needs <UNK> and one of <S>, </S>"):
        example.make_vocabulary(words)


def test_a_counted_vocabulary_is_sorted_by_frequency_and_leaves_single_words_out(example):
    # b 4 times, a 3 times, a boundary for each of 2 lines, and c as the only word that occurs once
    vocabulary = example.count_vocabulary(["b a b a b", "a b c"])
    assert vocabulary == ({"b": 0, "a": 1, "<S>": 2, "<UNK>": 3}, 4, 2, 3)


def test_a_counted_vocabulary_has_no_more_than_the_rows_given(example):
    # a and c, 4 words together, are now unknown
    vocabulary = example.count_vocabulary(["b a b a b", "a b c"], rows=3)
    assert vocabulary.ids == {"<UNK>": 0, "b": 1, "<S>": 2}


def test_words_outside_the_vocabulary_are_unknown(example):
    vocabulary = example.make_vocabulary(["<S>", "<UNK>", "cat"])
    assert list(example.encode(["cat dog cat\n", "dog"], vocabulary)) == [[2, 1, 2, 0], [1, 0]]


def test_targets_are_the_inputs_shifted_by_one_and_rows_go_on_in_the_next_batch(example):
    first, second = batches_of(example, [[1, 2, 3, 4, 0], [5, 6, 7, 0]], batch=2, unroll=2)[:2]
    assert first.inputs.tolist() == [[0, 1], [0, 5]]
    assert first.targets.tolist() == [[1, 2], [5, 6]]
    assert second.inputs.tolist() == [[2, 3], [6, 7]]
    assert second.targets.tolist() == [[3, 4], [7, 0]]


def test_a_row_that_has_read_its_sentence_takes_the_next_one(example):
    (only,) = batches_of(example, [[1, 2, 0], [3, 4, 0], [5, 6, 7, 8, 9, 0]], batch=2, unroll=6)
    assert only.inputs.tolist() == [[0, 1, 2, 0, 3, 4], [0, 5, 6, 7, 8, 9]]
    assert only.targets.tolist() == [[1, 2, 0, 3, 4, 0], [5, 6, 7, 8, 9, 0]]


def test_every_word_of_a_text_that_ends_is_a_target_of_weight_one_once(example):
    sentences = [[1, 2, 0], [3, 0], [4, 5, 6, 7, 8, 0], [9, 0]]
    batches = batches_of(example, sentences, batch=3, unroll=2)
    predicted = np.concatenate([held.targets[held.weights == 1.0] for held in batches])
    assert sorted(predicted.tolist()) == sorted(sum(sentences, []))


def test_after_the_end_of_a_text_batches_have_no_weight(example):
    batches = example.make_batches(iter([]), 0, 2, 3)
    assert [held.weights.sum() for held in islice(batches, 2)] == [0.0, 0.0]


def test_shares_of_the_workers_are_disjoint_and_cover_all_lines(example):
    shares = [list(example.share("abcdefg", worker_id, 3)) for worker_id in range(3)]
    assert shares == [["a", "d", "g"], ["b", "e"], ["c", "f"]]


def test_lines_are_read_from_all_files_of_a_pattern_in_the_order_of_their_names(example, tmp_path):
    (tmp_path / "news-2").write_text("c d\n\n")
    (tmp_path / "news-1").write_text("a\n  \nb")
    (tmp_path / "other").write_text("x\n")
    assert list(example.read_lines(f"{tmp_path}/news-*")) == ["a\n", "b", "c d\n"]


def test_a_relative_pattern_starts_at_the_working_directory(example, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "data" / "text").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    assert list(example.read_lines("data/t*")) == ["a\n"]
    monkeypatch.chdir(tmp_path / "here")
    assert list(example.read_lines("../data/text")) == ["a\n"]


def test_a_pattern_without_text_is_refused(example, tmp_path):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(SystemExit, match="no text in files that match"):
        list(example.read_lines(f"{tmp_path}/*"))


def test_the_default_text_holds_out_a_tenth_of_different_paragraphs(example):
    train, heldout = example.python_reference()
    assert not set(train) & set(heldout)
    assert len(set(train)) == len(train) > 1000
    assert len(heldout) == (len(train) + len(heldout)) // 10


def test_the_default_text_has_a_vocabulary_that_knows_most_held_out_words(example):
    text = example.open_text(None, None, None, None)
    counts = example.count_words(example.encode(text.heldout(), text.vocabulary), text.vocabulary.size)
    assert counts[text.vocabulary.boundary] == len(text.heldout())
    assert counts[text.vocabulary.unknown] < counts.sum() / 10


def test_words_are_counted_with_their_boundaries(example):
    assert example.count_words([[1, 2, 1, 0], [1, 0]], 4).tolist() == [2, 3, 1, 0]


def test_unigram_perplexity_is_that_of_counts_plus_one(example):
    # seen 2, 1 and 0 times: probabilities 3/6, 2/6 and 1/6
    train_counts = np.array([2, 1, 0])
    assert example.unigram_perplexity(train_counts, np.array([1, 0, 0])) == pytest.approx(2.0)
    assert example.unigram_perplexity(train_counts, np.array([0, 0, 5])) == pytest.approx(6.0)
    assert example.unigram_perplexity(train_counts, np.array([1, 1, 1])) == pytest.approx((2 * 3 * 6) ** (1 / 3))


def test_the_sum_of_full_softmax_losses_is_that_of_a_uniform_model_when_all_scores_are_equal(example):
    flags = example.parse_flags("--width 2 --state 3 --samples 2 --unroll 2 --batch 2".split())
    with example.tf.Graph().as_default(), example.tf.Session() as session:
        model = example.build_graph(flags, rows=5)
        session.run(example.tf.global_variables_initializer())
        session.run(example.tf.assign(example.tf.trainable_variables("softmax_w")[0], np.zeros([5, 2])))
        (batch,) = batches_of(example, [[1, 2, 0], [3, 0]], batch=2, unroll=3)
        held = example.Batch(*(array[:, :2] for array in batch))
        feeds = example.feed(model, held, example.zero_state(model))
        nats = session.run(model.heldout_nats, {key: value for key, (value,) in feeds.items()})
    assert held.weights.sum() == 4
    assert nats == pytest.approx(4 * math.log(5), rel=1e-6)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data", "news-*"], "--data needs --vocab"),
        (["--heldout", "news-*"], "belong to --data"),
        (["--vocab", "words"], "belong to --data"),
    ],
)
def test_flags_that_need_each_other_are_refused_alone(example, capsys, argv, message):
    with pytest.raises(SystemExit):
        example.parse_flags(argv)
    assert message in capsys.readouterr().err
