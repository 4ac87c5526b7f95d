"""Jobs that go on from a checkpoint: what they are fed, read in the graph and draw is what it would have been."""

import shutil
from pathlib import Path

import pytest

from parallax.runtime.checkpoint.commands.command import compact

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "positions.py"
EXAMPLES, BATCH, AT = 96, 2, 6


def runs(start, workers, folder, last, kept=1, most=1000, optimizer="Adam", options=()):
    """By what is fed, which counts batches of all workers, what a job prints of a run: examples seen and loss."""
    words = ["--workers", workers, *options, SCRIPT, folder, last, kept, most, optimizer]
    done = start("-m", "parallax.entry.cli", "run", *words).finish()
    assert done.status == 0, str(done)
    lines = [line.split(" ", 2) for rank in range(workers) for line in done.lines(rank) if line.startswith("fed ")]
    return {int(fed): rest for _, fed, rest in lines}, done


def from_step(folder, made, step=AT):
    """A folder with one checkpoint of another."""
    made.mkdir()
    for path in folder.glob(f"model.ckpt-{step}.*"):
        shutil.copy(path, made)
    (made / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
    return made


def seen(found):
    return [int(n) for text in found.values() for n in text.removeprefix("saw ").partition(" loss")[0].split()]


@pytest.mark.rotates
def test_a_resumed_run_repeats_the_losses_of_the_undisturbed_one(start, tmp_path):
    whole, _ = runs(start, 2, tmp_path / "whole", 2 * AT)
    again, done = runs(start, 2, from_step(tmp_path / "whole", tmp_path / "again"), 2 * AT)
    assert done.stdout.count("Resumed from step 6") == 1 and "anew" not in done.stdout, str(done)
    assert again == {fed: text for fed, text in whole.items() if fed >= 2 * AT}, str(done)
    assert "consumed 24" in done.lines(1)


@pytest.mark.rotates
def test_a_compacted_folder_is_resumed_as_its_chain_is(start, tmp_path):
    """Of an undisturbed run's chain, what a job that was killed after step 6 would have left."""
    options = {"optimizer": "Adagrad", "options": ("--whole-every", 100)}
    whole, _ = runs(start, 2, tmp_path / "whole", 2 * AT, **options)
    chain = tmp_path / "chain"
    chain.mkdir()
    for path in [
        p for name in ("model.ckpt-0", "increment-3", "increment-6") for p in (tmp_path / "whole").glob(f"{name}.*")
    ]:
        shutil.copy(path, chain)
    (chain / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')
    shutil.copytree(chain, tmp_path / "compacted")
    compact(str(tmp_path / "compacted"))
    rest = {fed: text for fed, text in whole.items() if fed >= 2 * AT}
    for folder, name in ((chain, "increment-6"), (tmp_path / "compacted", "model.ckpt-6")):
        again, done = runs(start, 2, folder, 2 * AT, **options)
        assert f"Resumed from step 6: {folder}/{name}" in done.stdout and "anew" not in done.stdout, str(done)
        assert again == rest, str(done)


@pytest.mark.rotates
def test_a_run_that_ended_between_the_batches_of_an_update_takes_them_again(start, tmp_path):
    whole, _ = runs(start, 2, tmp_path / "whole", 4, kept=3)
    cut, _ = runs(start, 2, tmp_path / "cut", 4, kept=3, most=5)
    rest, done = runs(start, 2, tmp_path / "cut", 4, kept=3)
    assert done.stdout.count("Resumed from step 1") == 1 and "anew" not in done.stdout, str(done)
    assert cut == {fed: text for fed, text in whole.items() if fed < 2 * 5}
    assert rest == {fed: text for fed, text in whole.items() if fed >= 2 * 3}, str(done)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_other_workers_see_each_example_once_that_is_left(start, tmp_path, workers):
    whole, _ = runs(start, 2, tmp_path / "whole", AT)
    first = len(whole) * BATCH
    left = (EXAMPLES - first) // (BATCH * workers)
    rest, done = runs(start, workers, from_step(tmp_path / "whole", tmp_path / "rest"), AT + left)
    assert sorted([*seen(whole), *seen(rest)]) == list(range(EXAMPLES)), str(done)
    assert sorted(rest) == list(range(2 * AT, EXAMPLES // BATCH)), str(done)
