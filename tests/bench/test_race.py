"""A whole race, small, on processes of this machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops.bench.race.results import results_from_json
from parallax.runtime.supervisor.processes import processes_with

ROOT = Path(__file__).parents[2]
SIZES = ("rows=1000", "width=8", "ids=16")
LIMIT_S = 280.0


@pytest.fixture
def race(tmp_path):
    """Runs a race with further arguments; gives exit status, output, log and results."""
    mark = {"RACE_TEST": str(tmp_path)}

    def race(*words, sizes=SIZES, model="embed"):
        file = tmp_path / "results.json"
        given = [word for size in sizes for word in ("--size", size)]
        argv = [sys.executable, "-m", "ops.bench", "race", "--hosts", "2", "--local", "--model", model, *given]
        done = subprocess.run(
            [*argv, "--turn-seconds", "0.1", "--json", str(file), *words],
            cwd=ROOT,
            env={**os.environ, **mark},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        results = results_from_json(file.read_text()) if file.exists() else None
        return done.returncode, done.stdout, done.stderr, results

    yield race
    left = processes_with(mark)
    for pid in left:
        os.kill(pid, 9)
    assert left == ()


@pytest.mark.rotates
@pytest.mark.timeout(300)
def test_a_race_without_a_lab_measures_all_systems_and_says_what_it_cannot_show(race):
    systems = ("parallax", "horovod", "tf-ps")
    status, stdout, stderr, results = race("--systems", ",".join(systems), "--rounds", "2")
    assert status == 0, stdout + stderr
    [one] = results.races
    assert [run.system for run in one.runs] == list(systems)
    for run in one.runs:
        assert run.problem == "" and len(run.turns) == 2, stderr
        assert len(run.losses) >= 9 and all(turn.cpu_s >= 0 for turn in run.turns)
        assert all(turn.sent_bytes == () for turn in run.turns)
        assert max(run.peak_bytes) > 10**8
    assert one.compute_s > 0 and one.rate_bytes_per_s == 0 and one.units == 32
    assert "Not shown" in results.shortfalls[0] and "--local" in results.shortfalls[0]
    found = re.findall(r"(\S+) against parallax: \d+ steps, largest relative difference (\S+)", stdout)
    assert [system for system, _ in found] == ["horovod", "tf-ps"]
    rounds = re.findall(r"round (\d) of 2, (\S+):", stderr)
    assert rounds == [(number, system) for number in "12" for system in (*systems, "alone")]


@pytest.mark.rotates
@pytest.mark.timeout(300)
def test_normalizations_of_a_race_use_the_statistics_that_other_systems_use(race):
    """Of each per-worker batch, so that losses of a convolutional network can be compared; workers share a host."""
    sizes = ("size=8", "channels=4", "groups=2", "batch_size=6")
    words = ("--systems", "parallax,horovod,tf-ps", "--rounds", "1", "--hosts", "1", "--workers", "2")
    status, stdout, stderr, results = race(*words, sizes=sizes, model="dense")
    assert status == 0 and "WRONG" not in stdout, stdout + stderr
    [one] = results.races
    assert all(len(set(run.losses)) == len(run.losses) >= 9 for run in one.runs)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_in_the_twin_all_systems_take_the_accelerators_time_and_train_alike_with_real_values(race):
    words = ("--accelerators", "2019", "--systems", "parallax,horovod", "--rounds", "1", "--turn-seconds", "0.5")
    sizes = ("step_s=0.02", "dilation=10", "batch_size=2", "values=real")
    status, stdout, stderr, results = race(*words, sizes=sizes, model="nmt")
    assert status == 0, stdout + stderr
    [one] = results.races
    assert (one.model, one.device_s, one.dilation) == ("twin", pytest.approx(0.2), 10.0)
    assert one.compute_s >= 0.2 and all(run.step_s >= 0.2 for run in one.runs)
    found = re.findall(r"(\S+) against parallax: \d+ steps, largest relative difference", stdout)
    assert found == ["horovod"] and "WRONG" not in stdout
    assert all(len(set(run.losses)) == len(run.losses) for run in one.runs)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_system_that_dies_is_reported_and_the_others_go_on(race):
    words = ("--systems", "horovod,tf-ps-async", "--rounds", "1", "--env", "HOROVOD_CONTROLLER=nonsense")
    status, stdout, stderr, results = race(*words)
    assert status == 0, stdout + stderr
    dead, alive = results.races[0].runs
    assert dead.turns == () and "exited on signal 6" in dead.problem
    assert len(alive.turns) == 1 and not alive.synchronous
