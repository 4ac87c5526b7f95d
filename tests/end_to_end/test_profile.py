"""`parallax profile` and `parallax run --measure`: the same counts, and training goes on as without."""

import ast
from pathlib import Path

import numpy as np
import pytest

from parallax.cluster.plan_inputs import read_measured

pytestmark = pytest.mark.timeout(180)

SCRIPTS = Path(__file__).parent / "scripts"
PROFILED, MODEL, COUNTING = (SCRIPTS / name for name in ("profiled.py", "model.py", "counting.py"))
CLI = ("-m", "parallax.entry.cli")


def printed(done, word):
    """What worker 0 printed after a word."""
    return next(line.removeprefix(f"{word} ") for line in done.lines(0) if line.startswith(f"{word} "))


@pytest.mark.rotates
def test_the_first_steps_of_a_job_show_what_sample_batches_do(start, tmp_path):
    sampled = start(
        *CLI, "profile", "--steps", 6, "--feeds", f"{PROFILED}:feeds", "-o", "sampled.json", PROFILED, cold=True
    )
    samples = sampled.finish()
    assert samples.status == 0 and "Plan for" not in samples.stdout, str(samples)
    assert "\ntable" in samples.stdout and "Written to sampled.json\n" in samples.stdout, str(samples)
    measured = start(*CLI, "run", "--workers", 2, "--measure", "run.json", "--measure-steps", 6, PROFILED).finish()
    assert measured.status == 0 and f"Written to {tmp_path}/run.json" in measured.lines(0), str(measured)
    batches, steps = (read_measured(None, tmp_path / name).model for name in ("sampled.json", "run.json"))
    assert [t.name for t in steps.tables] == ["biases", "parts", "tied", "weights"]
    assert (steps.tables, steps.steps, steps.graph) == (batches.tables, batches.steps, batches.graph)
    assert (batches.source, steps.source) == ("sample batches", "first steps")
    assert steps.compute_s > 0 and steps.memory_bytes > 0
    touched = ast.literal_eval(printed(measured, "touched"))
    assert touched == {t.name: pytest.approx(t.touched_rows) for t in steps.tables}, "as the exchanges counted"


@pytest.mark.rotates
def test_seconds_of_ops_are_measured_with_the_step(start, tmp_path):
    words = ("--compute", "--feeds", f"{PROFILED}:feeds", "-o", "timed.json", PROFILED)
    done = start(*CLI, "profile", *words, cold=True).finish()
    assert done.status == 0, str(done)
    found = read_measured(None, tmp_path / "timed.json").model
    assert found.compute_s > 0 and any("grad" in name for name in found.op_seconds), found
    assert min(found.op_seconds.values()) >= 0 < sum(found.op_seconds.values())


@pytest.mark.slow
def test_training_is_to_the_bit_what_it_is_without(start):
    plain = start(*CLI, "run", "--workers", 2, PROFILED).finish()
    measured = start(*CLI, "run", "--workers", 2, "--measure", "run.json", "--measure-steps", 3, PROFILED).finish()
    assert plain.status == 0 and printed(plain, "variables") == printed(measured, "variables"), str(measured)


@pytest.mark.slow
def test_asynchronous_workers_are_profiled_at_the_end_with_fewer_steps_than_wished(start, tmp_path):
    wish = {"PARALLAX_MEASURE": "run.json", "PARALLAX_MEASURE_STEPS": "500", "PARALLAX_WORKERS": "2"}
    done = start(COUNTING, "count", 200, **wish).finish()
    assert done.status == 0, str(done)
    profile = read_measured(None, tmp_path / "run.json").model
    assert (profile.steps, profile.source) == (200, "first steps")
    batches = [
        [np.append(np.random.default_rng([worker, step]).integers(0, 11, 4), 0) for worker in range(2)]
        for step in range(200)
    ]
    alone = np.mean([len(set(rows)) for step in batches for rows in step])
    both = np.mean([len(set(np.concatenate(step))) for step in batches])
    (emb,) = profile.tables
    assert (emb.name, emb.ids, emb.joined_rows) == ("emb", 5.0, ((1, alone), (2, both)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--measure", "none/p.json", MODEL), "No such file or directory. Name another"),
        (("profile", "--cluster", "none.json", MODEL), "none.json: cannot read the profile"),
    ],
)
def test_a_profile_that_cannot_be_made_is_refused_before_the_start(start, words, message):
    done = start(*CLI, *words).finish()
    assert done.status == 1 and message in done.stderr and "Traceback" not in done.stderr, str(done)
    assert "Plan for" not in done.stdout, str(done)
