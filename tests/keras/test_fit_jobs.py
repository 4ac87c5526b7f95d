"""Scripts that fit on several workers: what they come to is what plain Keras comes to, and failures are named."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from parallax.runtime.supervisor.processes import processes_with
from tests.end_to_end.conftest import CLI, start, warm_server, warm_workers, write  # noqa: F401

SCRIPTS = Path(__file__).parent / "scripts"
KEPT_TOO_MUCH = "More than 100 B of variables would be kept for workers that replace failed ones"
CHECKPOINTED = ("twice", "dataset", "repeated", "generator")
"""Kinds of input of fit_with_checkpoints.py; of a dataset of unknown length Keras itself counts too many steps."""


def found_in(done):
    assert done.status == 0, done
    return json.loads(told(done, "FOUND "))


def seen_in(done):
    assert done.status == 0, done
    return json.loads(told(done, "SEEN "))


def told(done, word):
    return next(line for line in done.stdout.splitlines() if line.startswith(word)).removeprefix(word)


def end_of_killed_script(running):
    """Waits until a script that kills itself, and what it started, has ended."""
    assert running.process.wait(240) == -signal.SIGKILL, running.output()
    deadline_s = time.monotonic() + 10
    while processes_with(running.mark) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert processes_with(running.mark) == ()


def differences(first, second):
    """The largest difference of the numbers in each part; texts must be equal."""
    found = {}
    for name in second:
        one, other = tf.nest.flatten(first[name]), tf.nest.flatten(second[name])
        if any(isinstance(value, str) for value in other):
            assert one == other
            continue
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape, name
        found[name] = float(np.max(np.abs(one - other) / np.maximum(1, np.abs(other)), initial=0))
    return found


@pytest.mark.parametrize(
    ("workers", "cut"),
    [*(pytest.param(n, "even", marks=pytest.mark.slow) for n in (2, 4)), (2, "uneven")],
)
def test_a_script_with_callbacks_and_two_fits_comes_to_what_plain_keras_comes_to(start, tmp_path, workers, cut):  # noqa: F811
    script, here, plain = SCRIPTS / "fit_and_go_on.py", tmp_path / "here", tmp_path / "plain"
    here.mkdir()
    plain.mkdir()
    running = start(*CLI, "run", "--workers", workers, script, here, cut)
    expected = found_in(start(script, plain, "plain", cut, plain=True).finish())
    parts = differences(found_in(running.finish(240)), expected)
    assert max(parts.values()) <= 1e-6, parts


@pytest.mark.rotates
def test_a_step_that_calls_python_code_is_run_by_workers_that_have_the_function(start):  # noqa: F811
    running = start(SCRIPTS / "python_in_step.py", "job")
    expected = found_in(start(SCRIPTS / "python_in_step.py", "plain", plain=True).finish())
    parts = differences(found_in(running.finish(240)), expected)
    assert max(parts.values()) <= 1e-6, parts


@pytest.mark.rotates
def test_hooks_of_the_script_run_on_the_workers_and_first_steps_are_verified(start):  # noqa: F811
    words = ("--workers", 2, "--verify-first", 2, SCRIPTS / "fit_with_hooks.py")
    done = start(*CLI, "run", *words).finish(240)
    assert done.status == 0, done
    for step in (1, 2):
        assert f"[0] Verified step {step} of 2: 2 workers and one process are equal" in done.stdout, done
    for rank in (0, 1):
        assert f"[{rank}] HOOK of the script: 8 runs, 6 parameters" in done.stdout, done


def test_hooks_that_cannot_be_sent_are_refused(start):  # noqa: F811
    done = start(*CLI, "run", "--workers", 2, SCRIPTS / "fit_with_hooks.py", "lock").finish(240)
    assert done.status == 1 and "Cannot send hooks to the workers: pickling fails" in done.stderr, done


@pytest.mark.rotates
@pytest.mark.new_workers  # they are found below the script
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_fit_whose_worker_is_killed_goes_on_from_its_backup_when_it_is_run_again(start, tmp_path, victim):  # noqa: F811
    script, here, plain = SCRIPTS / "fit_that_is_killed.py", tmp_path / "here", tmp_path / "plain"
    here.mkdir()
    plain.mkdir()
    words = (*CLI, "run", "--workers", 2, script, here, "backup", victim)
    killed = start(*words).finish()
    assert killed.status == 137 and f"rank {victim} was killed by SIGKILL" in killed.stderr, killed
    running = start(*words)
    assert start(script, plain, "backup", "script", "plain", plain=True).finish().status == -9
    expected = found_in(start(script, plain, "backup", "script", "plain", plain=True).finish())
    parts = differences(found_in(running.finish()), expected)
    assert expected["epochs"] == [2, 3] and max(parts.values()) <= 1e-6, parts


@pytest.mark.rotates
@pytest.mark.new_workers  # they are found below the script
@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        ("bases", 1),
        ("files", 0),
        pytest.param("arrays", 1, marks=pytest.mark.slow),
        pytest.param("arrays", 0, marks=pytest.mark.slow),
        pytest.param("generator", 1, marks=pytest.mark.slow),
        pytest.param("files", 1, marks=pytest.mark.slow),
        pytest.param("backup", 1, marks=pytest.mark.slow),
    ],
)
def test_a_fit_whose_workers_fail_goes_on_where_it_was(start, tmp_path, kind, victim):  # noqa: F811
    script, here, plain = SCRIPTS / "fit_that_is_killed.py", tmp_path / "here", tmp_path / "plain"
    here.mkdir()
    plain.mkdir()
    words = (*CLI, "run", "--workers", 2, "--max-restarts", 1, script, here, kind, victim)
    running = start(*words)
    expected = found_in(start(script, plain, kind, victim, "plain", plain=True).finish())
    done = running.finish(240)
    assert f"Restart 1 of 1: rank {victim} was killed by SIGKILL" in done.stderr, done
    assert done.stderr.count("Continues where the script is.") == 1, done
    parts = differences(found_in(done), expected)
    assert max(parts.values()) <= 1e-6, parts


@pytest.mark.rotates
@pytest.mark.new_workers  # they are found below the script
def test_a_fit_of_which_too_much_would_be_kept_says_so_and_ends_with_its_workers(start, tmp_path):  # noqa: F811
    words = ("--workers", 2, "--max-restarts", 1, SCRIPTS / "fit_that_is_killed.py", tmp_path, "full", 0)
    done = start(*CLI, "run", *words).finish(240)
    assert done.status == 137 and KEPT_TOO_MUCH in done.stderr and "FOUND" not in done.stdout, done


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("kind", "workers"), [("arrays", 2), *(pytest.param(k, 3, marks=pytest.mark.slow) for k in CHECKPOINTED)]
)
def test_a_script_that_is_killed_goes_on_within_the_epoch_of_its_checkpoint(start, tmp_path, kind, workers):  # noqa: F811
    script, here, plain = SCRIPTS / "fit_with_checkpoints.py", tmp_path / "here", tmp_path / "plain"
    here.mkdir()
    plain.mkdir()
    words = (*CLI, "run", "--workers", workers, script, here, kind)
    end_of_killed_script(start(*words))
    running = start(*words)
    expected = found_in(start(script, plain, kind, "plain", plain=True).finish())
    done = running.finish(240)
    assert "Resumed: `fit` continues in epoch 3" in done.stderr, done
    epochs, seen = seen_in(done)
    assert epochs == [2, 3] and seen[0][0] == 2 and seen[0][1] > 0 and seen[-1] == [3, 3], seen
    parts = differences(found_in(done), expected)
    assert max(parts.values()) <= 1e-6, parts
    again = start(*words).finish()  # everything is trained: the values are given back
    assert seen_in(again) == [[], []] and "are already trained" in again.stderr, again
    without = {name: value for name, value in expected.items() if name != "last"}
    parts = differences(found_in(again), without)
    assert max(parts.values()) <= 1e-6, parts


@pytest.mark.rotates
def test_a_script_that_is_killed_before_its_first_checkpoint_begins_anew(start, tmp_path):  # noqa: F811
    script, here, plain = SCRIPTS / "fit_with_checkpoints.py", tmp_path / "here", tmp_path / "plain"
    here.mkdir()
    plain.mkdir()
    words = (*CLI, "run", "--workers", 2, script, here, "late")
    end_of_killed_script(start(*words))
    running = start(*words)
    expected = found_in(start(script, plain, "late", "plain", plain=True).finish())
    done = running.finish()
    assert seen_in(done)[0] == [0, 1, 2, 3] and "Resumed" not in done.stderr, done
    parts = differences(found_in(done), expected)
    assert max(parts.values()) <= 1e-6, parts


@pytest.mark.rotates
def test_a_fit_that_is_preempted_saves_and_goes_on_within_its_epoch(start, tmp_path):  # noqa: F811
    script, here, plain = SCRIPTS / "fit_with_checkpoints.py", tmp_path / "here", tmp_path / "plain"
    here.mkdir()
    plain.mkdir()
    words = (*CLI, "run", "--workers", 2, "--max-restarts", 1, script, here, "preempted")
    done = start(*words).finish(240)
    assert done.status == 75 and "parallax: preempted at step" in done.stderr and "FOUND" not in done.stdout, done
    running = start(*words)
    expected = found_in(start(script, plain, "preempted", "plain", plain=True).finish())
    del expected["last"]  # of the batches after the checkpoint alone
    parts = differences(found_in(running.finish(240)), expected)
    assert max(parts.values()) <= 1e-6, parts


NAMED = {
    "callback": "ValueError: a callback that breaks",
    "step": "the rows are too large",
}


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["callback", "step"])
def test_a_job_ends_with_what_failed_on_a_worker(start, kind):  # noqa: F811
    done = start(*CLI, "run", "--workers", 2, SCRIPTS / "fit_that_fails.py", kind).finish()
    assert done.status == 1 and NAMED[kind] in done.stderr and "WENT ON" not in done.stdout, done


def test_fit_without_the_front_end_says_what_to_import_before_it_trains(start, write):  # noqa: F811
    lines = ["import keras, numpy", "model = keras.Sequential([keras.layers.Dense(1)])", "model.compile('sgd', 'mse')"]
    lines += ["model.fit(numpy.ones((4, 2)), numpy.ones((4, 1)))", "print('WENT ON')"]
    write("train.py", "\n".join(lines) + "\n")
    done = start(*CLI, "run", "--workers", 2, "train.py").finish()
    assert done.status == 1 and "train.py:4: " in done.stderr and "import parallax.keras" in done.stderr, done
    assert "WENT ON" not in done.stdout, done
