"""The word vector example as a user runs it: made small, on several numbers of workers, and as it is."""

import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "nlp" / "word2vec.py"


def run(start, workers, *flags, limit_s=120.0):
    done = start("-m", "parallax.entry.cli", "run", "--workers", workers, EXAMPLE, *flags).finish(limit_s)
    assert done.status == 0, done
    return done


def losses_of(done):
    return [float(found) for found in re.findall(r"step \d+ of \d+: loss (\d+\.\d+)", done.stdout)]


def score_of(done):
    return float(re.search(r"analogies ([\d.]+)% \(1,000 questions, [\d,]+ words\)", done.stdout)[1])


@pytest.mark.rotates
def test_word_vectors_are_learned_by_all_to_all_alone(start):
    done = run(start, 2, "--steps", "150", "--width", "16", "--batch", "256")
    routes = re.findall(r"^(words|contexts) +sparse .* alltoall ", done.stdout, re.MULTILINE)
    assert sorted(routes) == ["contexts", "words"] and " allreduce " not in done.stdout, done
    losses = losses_of(done)
    assert len(losses) == 10 and losses[-1] < 0.8 * losses[0], done
    assert 0 <= score_of(done) <= 100, done
    predicted, counted = re.search(r"exchanged bytes: ([\d,]+) predicted, ([\d,]+) counted", done.stdout).groups()
    assert abs(int(counted.replace(",", "")) / int(predicted.replace(",", "")) - 1) < 0.02, done


@pytest.mark.slow
def test_one_two_and_four_workers_with_the_same_global_batch_have_the_same_losses(start):
    one, two, four = (run(start, workers, "--steps", "60", "--batch", 512 // workers) for workers in (1, 2, 4))
    assert losses_of(two) == pytest.approx(losses_of(one), rel=1e-5)
    assert losses_of(four) == pytest.approx(losses_of(one), rel=1e-5)


@pytest.mark.slow
def test_as_it_is_it_answers_nearly_all_questions(start):
    assert score_of(run(start, 2, limit_s=300)) >= 94
