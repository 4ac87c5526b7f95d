"""Steps of custom loops in jobs: what the script sees on each worker is what one process sees."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.functions.scripts import custom_loop, on_batch

SCRIPTS = Path(__file__).parent / "scripts"


def check(expected, folder):
    """Both workers have seen what one process sees; 1e-6 are roundings of sums in another order."""
    for rank in range(2):
        with np.load(folder / f"out-{rank}.npz") as found:
            assert sorted(found.files) == sorted(expected)
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=f"rank {rank}, {name}")


def test_a_custom_loop_on_two_workers_is_one_process(start, tmp_path):
    words = ("-m", "parallax.cli", "run", "--workers", 2, SCRIPTS / "custom_loop.py", "sgd", "out")
    done = start(*words).finish()
    assert done.status == 0, done
    check(custom_loop.trained("sgd", tf.function), tmp_path)


def test_a_loop_of_train_on_batch_after_a_fit_is_one_process(start, tmp_path):
    words = ("-m", "parallax.cli", "run", "--workers", 2, SCRIPTS / "on_batch.py", "out", "FIT")
    done = start(*words).finish()
    assert done.status == 0, done
    check(on_batch.trained(True, tmp_path / "plain.weights.h5"), tmp_path)
    assert (tmp_path / "trained.weights.h5").stat().st_size == (tmp_path / "plain.weights.h5").stat().st_size
