"""The translation example as a user runs it: made small, on several numbers of workers, and as it is."""

import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "nlp" / "translation.py"
SMALL = ("--width", "16", "--state", "16", "--beam", "2", "--learning-rate", "0.02")


def run(start, workers, *flags, limit_s=120.0):
    done = start("-m", "parallax.entry.cli", "run", "--workers", workers, EXAMPLE, *flags).finish(limit_s)
    assert done.status == 0, done
    return done


def losses_of(done):
    return [float(found) for found in re.findall(r"step \d+ of \d+: loss (\d+\.\d+)", done.stdout)]


def scores_of(done):
    """Held-out perplexity, BLEU and exact match."""
    form = r"held-out perplexity ([\d.]+), BLEU ([\d.]+), exact match ([\d.]+) % \(500 sentences\)"
    return [float(score) for score in re.search(form, done.stdout).groups()]


@pytest.mark.rotates
def test_the_translation_model_learns_and_its_exchange_moves_the_bytes_that_the_plan_predicts(start):
    done = run(start, 2, "--steps", "60", "--batch", "32", *SMALL)
    routes = {line.split()[0]: line for line in done.stdout.splitlines() if "x16" in line or "decoder_" in line}
    assert " alltoall " in routes["source_embedding"] and " alltoall " in routes["target_embedding"], done
    assert " allreduce " in routes["projection"] and " allreduce " in routes["decoder_0_kernel"], done
    losses, (perplexity, bleu, exact) = losses_of(done), scores_of(done)
    assert len(losses) == 10 and losses[-1] < 0.8 * losses[0], done
    assert 1 < perplexity < 50 and 0 <= exact <= bleu <= 100, done
    assert done.stdout.count("reference: ") == 3, done
    predicted, counted = re.search(r"exchanged bytes: ([\d,]+) predicted, ([\d,]+) counted", done.stdout).groups()
    assert abs(int(counted.replace(",", "")) / int(predicted.replace(",", "")) - 1) < 0.02, done


@pytest.mark.slow
@pytest.mark.parametrize("tie", ["none", "source", "output"])
def test_one_two_and_four_workers_with_the_same_global_batch_have_the_same_losses(start, tie):
    """Sums are taken in another order: some 1e-7 a step, which Adam's first steps make larger."""
    flags = ("--steps", "40", "--tie", tie, *SMALL)
    one, two, four = (run(start, workers, *flags, "--batch", 64 // workers) for workers in (1, 2, 4))
    assert losses_of(two) == pytest.approx(losses_of(one), rel=1e-5)
    assert losses_of(four) == pytest.approx(losses_of(one), rel=1e-5)


@pytest.mark.slow
def test_as_it_is_it_translates_nearly_all_held_out_sentences(start):
    perplexity, bleu, exact = scores_of(run(start, 2, limit_s=600))
    assert exact >= 95 and bleu >= 95 and perplexity < 1.5
