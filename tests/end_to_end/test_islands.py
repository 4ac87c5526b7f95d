"""Islands train as one process each on their own batches, and are averaged; all is compared with processes that do."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "islands.py"
PLAIN = "outer_rate=1,outer_momentum=0"


@pytest.fixture
def train(start, tmp_path):
    """Trains in islands of some workers; gives all variables by worker, what processes have by island, and the job."""

    def run(workers, optimizer, islands, updates, *saved, options=(), **environment):
        file = tmp_path / f"found-{len(list(tmp_path.glob('*.npz')))}"
        words = [SCRIPT, optimizer, islands, updates, file, *saved]
        done = start("-m", "parallax.entry.cli", "run", "--workers", workers, *options, *words, **environment).finish()
        assert done.status == 0, str(done)
        found = [dict(np.load(f"{file}.{worker}.npz")) for worker in range(workers)]
        wanted = [dict(np.load(path)) for path in sorted(tmp_path.glob(f"{file.name}.wanted.*"))]
        return found, wanted, done

    return run


def distance(found, wanted):
    names = [name for name in wanted if wanted[name].size]
    assert found.keys() == wanted.keys()
    return max(
        float(np.linalg.norm(found[name].astype(float) - wanted[name]) / (np.linalg.norm(wanted[name]) + 1e-30))
        for name in names
    )


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("workers", "optimizer", "islands"),
    [
        (4, "adam", f"count=2,every=2,{PLAIN}"),
        (4, "adagrad", "count=2,every=2"),
        (3, "sgd", "count=3,every=2,pull=0.4,outer_rate=0.5"),
        (2, "adam", "count=2,every=2,pull=0.3,simultaneous"),
    ],
)
def test_equal_to_a_process_for_each_island(train, workers, optimizer, islands):
    found, wanted, done = train(workers, optimizer, islands, 7)
    assert "each as one process on its own batches, averaged every 2 updates" in done.stdout
    size = workers // len(wanted)
    assert max(distance(own, wanted[worker // size]) for worker, own in enumerate(found)) <= 1e-5
    assert distance(found[0], found[size]) > 1e-3  # an update after the last meeting


@pytest.mark.rotates
def test_plain_sgd_that_meets_after_each_update_is_one_process_on_all_batches(train):
    found, (wanted,), _ = train(4, "sgd", f"count=2,every=1,{PLAIN}", 5, EVEN="1")
    assert max(distance(own, wanted) for own in found) <= 1e-5


@pytest.mark.rotates
@pytest.mark.parametrize("islands", ["count=2,every=3", "count=2,every=3,pull=0.5,outer_rate=0.5"])
def test_a_job_goes_on_from_a_meeting_as_if_it_had_not_ended(train, tmp_path, islands):
    whole, _, _ = train(4, "adam", islands, 8, tmp_path / "whole", 2)
    train(4, "adam", islands, 6, tmp_path / "parts", 2)
    parts, _, done = train(4, "adam", islands, 8, tmp_path / "parts", 2)
    assert "began at 6" in done.lines(0)
    assert max(distance(own, wanted) for own, wanted in zip(parts, whole, strict=True)) <= 1e-6
    saved = [
        tf.train.load_checkpoint(path)
        for path in tf.train.get_checkpoint_state(tmp_path / "parts").all_model_checkpoint_paths
    ]
    assert [int(one.get_tensor("global_step")) for one in saved] == [0, 3, 6, 8]  # a meeting, or the end
    alone, _, done = train(1, "adam", "", 8, tmp_path / "parts", 2)
    assert "began at 8" in done.lines(0)
    assert distance(alone[0], {name: saved[-1].get_tensor(name.removesuffix(":0")) for name in alone[0]}) == 0


@pytest.mark.rotates
def test_a_job_that_loses_an_island_goes_on_from_the_last_meeting(train, tmp_path):
    whole, _, _ = train(4, "adam", "count=2,every=3", 8, tmp_path / "whole", 2)
    found, _, done = train(
        4, "adam", "count=2,every=3", 8, tmp_path / "lost", 2, options=("--max-restarts", 1), LOST="5"
    )
    assert done.lines(0).count("began at 3") == 1, str(done)
    assert max(distance(own, wanted) for own, wanted in zip(found, whole, strict=True)) <= 1e-6


@pytest.mark.rotates
def test_islands_with_unequal_numbers_of_updates_end_with_both(start, tmp_path):
    words = [SCRIPT, "sgd", "count=2,every=4", 6, tmp_path / "none"]
    done = start("-m", "parallax.entry.cli", "run", "--workers", 2, *words, SHORT="1").finish()
    assert done.status != 0
    assert "have made island 0: 6, island 1: 5. Give each island as many batches" in done.stderr, str(done)


@pytest.mark.rotates
def test_updates_of_several_batches_are_counted_as_one(train):
    done = train(4, "adam", "count=2,every=2", 13, options=("--accumulate-steps", 2), ALONE="1")[2]
    assert "Islands: 3 meetings took" in done.stderr + done.stdout, str(done)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("workers", "optimizer", "islands", "options"),
    [
        (4, "adam", "count=2,every=2", ()),
        (3, "adagrad", "count=3,every=2,pull=0.4,outer_rate=0.5", ()),
        (2, "adam", "count=2,every=2,pull=0.3,simultaneous", ()),
        (4, "sgd", "count=2,every=3", ("--accumulate-steps", 2)),
        (3, "adam", "count=3,every=2,wire_dtype=bfloat16", ()),
    ],
)
def test_a_verification_has_a_process_for_each_island(start, tmp_path, workers, optimizer, islands, options):
    words = ("--workers", workers, "--islands", islands, "--steps", 6, "--feeds", f"{SCRIPT}:feeds", "--fetch", "train")
    done = start(
        *("-m", "parallax.entry.cli", "verify", *words, *options),
        *(SCRIPT, optimizer, islands, 0, tmp_path / "none"),
    ).finish()
    assert done.status == 0, str(done)
    assert "and a process for each are equal after 6 steps" in done.stdout


@pytest.mark.rotates
def test_first_updates_of_islands_are_verified(start, tmp_path):
    words = (SCRIPT, "adam", "count=2,every=2", 3, tmp_path / "found")
    job = ("-m", "parallax.entry.cli", "run", "--workers", 4, "--verify-first", 3, *words)
    done = start(*job, ALONE="1").finish()
    assert done.status == 0, str(done)
    for island in (0, 1):
        assert f"Verified step 3 of 3: 2 workers of island {island} and one process are equal" in done.stdout


@pytest.mark.rotates
def test_a_trace_has_the_waits_within_each_island(train, tmp_path):
    folder = tmp_path / "traces"
    traced = {"PARALLAX_TRACE": str(folder), "PARALLAX_TRACE_STEPS": "2-4"}
    found, wanted, _ = train(4, "adam", f"count=2,every=2,{PLAIN}", 7, **traced)
    assert max(distance(own, wanted[worker // 2]) for worker, own in enumerate(found)) <= 1e-5
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    waits = {(one["pid"], one["name"]) for one in events if one.get("cat") == "waiting"}
    islands = [{0, 1}, {2, 3}]
    awaited = {(rank, int(other)) for rank, name in waits for other in re.findall(r"\d+", name)}
    assert awaited and all(any({rank, other} == island for island in islands) for rank, other in awaited)
    assert "Trace of steps 2 to 4" in (folder / "summary.txt").read_text()


@pytest.mark.rotates
def test_a_check_looks_through_a_script_in_islands(start, tmp_path):
    words = (SCRIPT, "adam", f"count=2,every=2,{PLAIN}", 1, tmp_path / "none")
    done = start("-m", "parallax.entry.cli", "check", "--workers", 4, *words).finish()
    assert done.status == 0 and "A run by 4 workers would not be refused" in done.stdout, str(done)
