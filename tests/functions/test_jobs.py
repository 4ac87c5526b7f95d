"""Steps of custom loops in jobs: what the script sees is what one process sees."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.end_to_end.conftest import CLI
from tests.functions.scripts import custom_loop, global_batch, legacy_fit, micro_loop, on_batch, shorter_batches
from tests.keras.test_fit_jobs import differences, found_in

GOES_ON = "The steps equal those of the previous call: its plan and workers are reused."
SCRIPTS = Path(__file__).parent / "scripts"


def check(expected, path):
    """The script has seen what one process sees; 1e-6 are roundings of sums in another order."""
    with np.load(path, allow_pickle=True) as found:
        assert sorted(found.files) == sorted(expected)
        for name, value in expected.items():
            if np.asarray(value).dtype == object:
                assert found[name].tolist() == value.tolist(), name
            else:
                np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=f"{path.name}, {name}")


@pytest.mark.rotates
def test_a_custom_loop_on_two_workers_is_one_process(start, tmp_path):
    words = ("-m", "parallax.entry.cli", "run", "--workers", 2, SCRIPTS / "custom_loop.py", "sgd", "out.npz")
    done = start(*words).finish()
    assert done.status == 0, done
    check(custom_loop.trained("sgd", tf.function), tmp_path / "out.npz")


@pytest.mark.rotates
@pytest.mark.parametrize("workers, micro_batches", [(2, 2), pytest.param(3, 4, marks=pytest.mark.slow)])
def test_a_loop_whose_steps_are_cut_is_one_process(start, tmp_path, workers, micro_batches):
    options = ("--workers", workers, "--accumulate-steps", micro_batches)
    done = start("-m", "parallax.entry.cli", "run", *options, SCRIPTS / "micro_loop.py", "out.npz").finish()
    assert done.status == 0, done
    check(micro_loop.trained(tf.function), tmp_path / "out.npz")


@pytest.mark.rotates
def test_a_loss_of_the_global_batch_on_two_workers_is_one_process(start, tmp_path):
    done = start("-m", "parallax.entry.cli", "run", "--workers", 2, SCRIPTS / "global_batch.py", "out.npz").finish()
    assert done.status == 0, done
    check(global_batch.trained(tf.function), tmp_path / "out.npz")


@pytest.mark.rotates
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_batches_of_which_some_workers_have_as_many_rows_as_of_a_full_one(start, tmp_path, workers):
    script = SCRIPTS / "shorter_batches.py"
    done = start("-m", "parallax.entry.cli", "run", "--workers", workers, script, workers, "out.npz").finish()
    assert done.status == 0, done
    check(shorter_batches.trained(tf.function, workers), tmp_path / "out.npz")


@pytest.mark.rotates
def test_a_loop_of_train_on_batch_after_a_fit_is_one_process(start, tmp_path):
    words = ("-m", "parallax.entry.cli", "run", "--workers", 2, SCRIPTS / "on_batch.py", "out.npz", "FIT")
    done = start(*words).finish()
    assert done.status == 0, done
    check(on_batch.trained(True, tmp_path / "plain.weights.h5"), tmp_path / "out.npz")
    assert (tmp_path / "trained.weights.h5").stat().st_size == (tmp_path / "plain.weights.h5").stat().st_size


@pytest.mark.rotates
def test_a_function_of_a_notebook_gives_a_trained_model(tmp_path):
    program = (SCRIPTS / "notebook.py").read_text(encoding="utf-8")  # as a notebook's cells, it is no file to workers
    words = [sys.executable, "-"]
    done = subprocess.run(words, input=program, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("equal\n"), (done.stdout, done.stderr)


@pytest.mark.rotates
def test_a_fit_of_tf_keras_after_a_plain_one_on_two_workers_is_one_process(start, tmp_path):
    done = start(SCRIPTS / "legacy_fit.py", PARALLAX_WORKERS="2").finish()
    assert done.status == 0, done
    expected = legacy_fit.fitted()
    assert expected["lr"][-1] < expected["lr"][0]
    check(expected, tmp_path / "fitted.npz")


@pytest.mark.rotates
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_steps_of_functions_and_models_in_turn_are_one_process(start, workers):
    running = start(*CLI, "run", "--workers", workers, SCRIPTS / "steps_in_turn.py", "job")
    expected = found_in(start(SCRIPTS / "steps_in_turn.py", "plain", plain=True).finish())
    done = running.finish(240)
    parts = differences(found_in(done), expected)
    assert max(parts.values()) <= 1e-5, parts
    assert done.stdout.count("BEFORE") == done.stdout.count("REFUSED") == 1 and GOES_ON in done.stderr, done


@pytest.mark.rotates
@pytest.mark.new_workers  # they are found below the script
def test_a_loop_whose_workers_fail_goes_on_where_it_was(start):
    words = ("--workers", 2, "--max-restarts", 1, SCRIPTS / "steps_in_turn.py", "restarts")
    running = start(*CLI, "run", *words)
    expected = found_in(start(SCRIPTS / "steps_in_turn.py", "plain", plain=True).finish())
    done = running.finish(240)
    assert done.stderr.count("Continues where the script is.") == 1, done
    parts = differences(found_in(done), expected)
    assert max(parts.values()) <= 1e-5, parts


@pytest.mark.rotates
@pytest.mark.new_workers
def test_a_worker_that_is_killed_between_steps_ends_the_loop_with_an_exception(start):
    done = start(*CLI, "run", "--workers", 2, SCRIPTS / "steps_in_turn.py", "killed").finish(240)
    assert "rank 1 was killed by SIGKILL" in done.stderr and "FAILED 137 after" in done.stdout, done
    assert done.status == 0 and "2 weights" not in done.stdout, done


@pytest.mark.rotates
@pytest.mark.new_workers
@pytest.mark.parametrize("words", [(*CLI, "run", "--workers", 2), ()])
def test_a_failure_after_the_last_step_is_the_status_of_the_script(start, words):
    done = start(*words, SCRIPTS / "steps_in_turn.py", "killed last").finish(240)
    assert done.status == 137 and "FOUND" in done.stdout and "rank 1 was killed by SIGKILL" in done.stderr, done


@pytest.mark.rotates
@pytest.mark.parametrize("script", ["steps_in_turn.py", "legacy_fit.py"])
def test_commands_that_start_nothing_end_at_the_first_call(start, script):
    done = start("-m", "parallax.entry.cli", "plan", "--workers", 2, SCRIPTS / script, "job").finish()
    assert done.status == 0 and done.stdout.count("Plan for 2 workers") == 1 and "FOUND" not in done.stdout, done


def test_a_verification_of_a_call_is_refused(start):
    done = start("-m", "parallax.entry.cli", "verify", SCRIPTS / "steps_in_turn.py", "job").finish()
    assert done.status == 1 and "`parallax verify` compares a graph that is given to parallel_run" in done.stderr, done
