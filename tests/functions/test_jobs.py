"""Steps of custom loops in jobs: what the script sees on each worker is what one process sees."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.functions.scripts import custom_loop, global_batch, legacy_fit, on_batch

SCRIPTS = Path(__file__).parent / "scripts"


def check(expected, folder):
    """Both workers have seen what one process sees; 1e-6 are roundings of sums in another order."""
    for rank in range(2):
        check_file(expected, folder / f"out-{rank}.npz")


def check_file(expected, path):
    with np.load(path) as found:
        assert sorted(found.files) == sorted(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=f"{path.name}, {name}")


def test_a_custom_loop_on_two_workers_is_one_process(start, tmp_path):
    words = ("-m", "parallax.cli", "run", "--workers", 2, SCRIPTS / "custom_loop.py", "sgd", "out")
    done = start(*words).finish()
    assert done.status == 0, done
    check(custom_loop.trained("sgd", tf.function), tmp_path)


def test_a_loss_of_the_global_batch_on_two_workers_is_one_process(start, tmp_path):
    done = start("-m", "parallax.cli", "run", "--workers", 2, SCRIPTS / "global_batch.py", "out").finish()
    assert done.status == 0, done
    check(global_batch.trained(tf.function), tmp_path)


def test_a_loop_of_train_on_batch_after_a_fit_is_one_process(start, tmp_path):
    words = ("-m", "parallax.cli", "run", "--workers", 2, SCRIPTS / "on_batch.py", "out", "FIT")
    done = start(*words).finish()
    assert done.status == 0, done
    check(on_batch.trained(True, tmp_path / "plain.weights.h5"), tmp_path)
    assert (tmp_path / "trained.weights.h5").stat().st_size == (tmp_path / "plain.weights.h5").stat().st_size


def test_a_function_of_a_notebook_gives_a_trained_model(tmp_path):
    program = (SCRIPTS / "notebook.py").read_text(encoding="utf-8")  # as a notebook's cells, it is no file to workers
    words = [sys.executable, "-"]
    done = subprocess.run(words, input=program, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("equal\n"), (done.stdout, done.stderr)


def test_a_fit_of_tf_keras_after_a_plain_one_on_two_workers_is_one_process(start, tmp_path):
    done = start(SCRIPTS / "legacy_fit.py", PARALLAX_WORKERS="2").finish()
    assert done.status == 0, done
    expected = legacy_fit.fitted()
    assert expected["lr"][-1] < expected["lr"][0]
    check_file(expected, tmp_path / "fitted.npz")
