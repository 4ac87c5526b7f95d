"""The language model example as a user runs it, made small."""

import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "nlp" / "language_model.py"


def test_the_language_model_learns_and_its_exchange_moves_the_bytes_that_the_plan_predicts(start):
    small = ("--width", "64", "--state", "128", "--samples", "256", "--unroll", "5")  # few words, a graph soon made
    learns = ("--steps", "150", "--learning-rate", "0.5", "--seed", "1")
    done = start("-m", "parallax.entry.cli", "run", "--workers", "2", EXAMPLE, *small, *learns).finish(limit_s=240)
    assert done.status == 0, done
    routes = {line.split()[0]: line for line in done.stdout.splitlines() if "x64" in line or "lstm" in line}
    assert " alltoall " in routes["embedding"], done
    assert " allreduce " in routes["lstm_kernel"], done
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+)", done.stdout)]
    assert len(losses) >= 10 and losses[-1] < losses[0], done
    model, unigram = re.search(r"perplexity (\d+\.\d+), unigram model (\d+\.\d+)", done.stdout).groups()
    assert float(model) < float(unigram), done
    predicted, counted = re.search(r"exchanged bytes: ([\d,]+) predicted, ([\d,]+) counted", done.stdout).groups()
    assert abs(int(counted.replace(",", "")) / int(predicted.replace(",", "")) - 1) < 0.02, done
