"""Jobs that go on from a checkpoint: what they are fed, read in the graph and draw is what it would have been."""

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "positions.py"
EXAMPLES, BATCH, AT = 96, 2, 6


def steps(start, workers, folder, last):
    """By (step, rank) what a job prints of it: fed, examples seen and loss."""
    done = start("-m", "parallax.cli", "run", "--workers", workers, SCRIPT, folder, last).finish()
    assert done.status == 0, str(done)
    found = {}
    for rank in range(workers):
        for line in done.lines(rank):
            if line.startswith("step "):
                _, step, rest = line.split(" ", 2)
                found[int(step), rank] = rest
    return found, done


def from_step(folder, made, step=AT):
    """A folder with one checkpoint of another."""
    made.mkdir()
    for path in folder.glob(f"model.ckpt-{step}.*"):
        shutil.copy(path, made)
    (made / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
    return made


def seen(found):
    return [int(n) for text in found.values() for n in text.partition(" saw ")[2].partition(" loss")[0].split()]


def test_a_resumed_run_repeats_the_losses_of_the_undisturbed_one(start, tmp_path):
    whole, _ = steps(start, 2, tmp_path / "whole", 2 * AT)
    again, done = steps(start, 2, from_step(tmp_path / "whole", tmp_path / "again"), 2 * AT)
    assert done.stdout.count("Resumed from step 6") == 1 and "anew" not in done.stdout, str(done)
    assert again == {key: text for key, text in whole.items() if key[0] > AT}, str(done)
    assert "consumed 24" in done.lines(1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_other_workers_see_each_example_once_that_is_left(start, tmp_path, workers):
    whole, _ = steps(start, 2, tmp_path / "whole", AT)
    first = len(whole) * BATCH
    left = (EXAMPLES - first) // (BATCH * workers)
    rest, done = steps(start, workers, from_step(tmp_path / "whole", tmp_path / "rest"), AT + left)
    assert sorted([*seen(whole), *seen(rest)]) == list(range(EXAMPLES)), str(done)
    assert sorted(int(text.split()[1]) for text in rest.values()) == list(range(2 * AT, EXAMPLES // BATCH)), str(done)
