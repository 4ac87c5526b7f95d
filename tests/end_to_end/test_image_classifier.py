"""The image classifier example as a user runs it, made small; and at its full length."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "vision" / "image_classifier.py"

# One step by batch norm: each worker says how far its moving averages are from what the means of all workers' batches
# give, how far its own batch alone is, and what they are.
MOVING_AVERAGES = """
import sys
sys.path.insert(0, {folder!r})
import image_classifier as example
import numpy as np
import parallax

flags = example.parse_flags("--norm batch --batch 8".split())
graph = example.tf.Graph()
with graph.as_default():
    example.tf.set_random_seed(1)
    model = example.build_graph(flags, example.open_images(flags))
sess, num_workers, worker_id, _ = parallax.parallel_run(graph)
with sess:
    fetches = [model.train_op, "stem/FusedBatchNormV3:1", "stem/FusedBatchNormV3:2"]
    _, [mean], [variance] = sess.run(fetches, {{model.learning_rate: [0.0]}})
    [moving_mean], [moving_variance] = sess.run(["stem/moving_mean:0", "stem/moving_variance:0"])
    moved = np.concatenate([moving_mean, moving_variance])
    before = np.concatenate([np.zeros_like(mean), np.ones_like(variance)])
    own = np.concatenate([mean, variance])
    joined = sess.workers.allreduce(own) / num_workers
    print("from all", np.abs(0.9 * before + 0.1 * joined - moved).max())
    print("from own", np.abs(0.9 * before + 0.1 * own - moved).max())
    print("equal", all(np.array_equal(moved, other) for other in sess.workers.allgather(moved)))
"""


@pytest.fixture(autouse=True)
def with_scikit_learn(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # see tests/conftest.py


def classify(start, workers, *flags, limit_s=300):
    done = start("-m", "parallax.entry.cli", "run", "--workers", workers, EXAMPLE, *flags).finish(limit_s=limit_s)
    assert done.status == 0, done
    accuracy, nats, images = re.search(
        r"held-out accuracy ([\d.]+)%, ([\d.]+) nats per image \((\d+) images\)", done.stdout
    ).groups()
    assert images == "359", done
    return float(accuracy), float(nats), done


@pytest.mark.rotates
def test_two_workers_learn_digits_and_everything_is_all_reduced(start):
    accuracy, _, done = classify(start, 2, "--norm", "batch", "--steps", "80")
    routes = re.findall(r"^\S+  +(\w+) .* (allreduce|allgather|alltoall|ps|none)  ", done.stdout, re.MULTILINE)
    assert len(routes) == 29 + 2 * 9 and set(routes) == {("dense", "allreduce")}, done
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+), [\d,.]+ images/s", done.stdout)]
    assert len(losses) == 10 and losses[-1] < losses[0] / 1.5, done
    assert accuracy > 80, done


@pytest.mark.slow
def test_moving_averages_are_those_of_all_workers_and_equal_everywhere(run):
    done = run(MOVING_AVERAGES.format(folder=str(EXAMPLE.parent)))
    assert done.status == 0, done
    for rank in (0, 1):
        said = dict(line.rsplit(" ", 1) for line in done.lines(rank) if line.startswith(("from", "equal")))
        assert float(said["from all"]) < 1e-6 and float(said["from own"]) > 1e-4, done
        assert said["equal"] == "True", done


@pytest.mark.slow
def test_one_two_and_four_workers_end_alike_when_a_step_has_the_same_images(start):
    ends = {}
    for workers in (1, 2, 4):
        _, ends[workers], _ = classify(start, workers, "--batch", 64 // workers, "--steps", "60")
    assert 0.3 < ends[1] < 2.2  # it has learned something, and not all; it began with the ten digits' 2.3
    assert ends[2] == pytest.approx(ends[1], rel=1e-5)
    assert ends[4] == pytest.approx(ends[1], rel=1e-5)


@pytest.mark.slow
def test_the_command_at_the_top_of_the_example_reaches_97_percent(start):
    accuracy, _, done = classify(start, 2)
    assert accuracy >= 97, done
