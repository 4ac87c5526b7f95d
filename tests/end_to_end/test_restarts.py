"""A job that fails is started again, goes on from its checkpoint, and ends as one that never failed."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "restarted.py"
STEPS, NEVER = 10, 99


def test_a_job_whose_worker_is_killed_ends_trained_with_equal_values(start, tmp_path):
    files = [tmp_path / name for name in ("undisturbed.npz", "restarted.npz")]
    jobs = []
    for file, fatal in zip(files, (NEVER, 6), strict=True):
        words = ("-m", "parallax.cli", "run", "--workers", 2, SCRIPT, tmp_path / file.stem, STEPS, fatal, file)
        jobs.append(start(*words).finish())
        assert jobs[-1].status == 0, str(jobs[-1])
    assert "Restart" not in jobs[0].stderr
    said = "parallax: Restart 1 of 2: rank 1 was killed by SIGKILL"
    assert jobs[1].stderr.count(said) == 1 and "Goes on from step 4." in jobs[1].stderr, str(jobs[1])
    assert jobs[1].stdout.count("Resumed from step 4") == 1, str(jobs[1])
    with np.load(files[0]) as wanted, np.load(files[1]) as found:
        assert wanted.files == found.files and len(wanted.files) == 9
        for name in wanted.files:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def test_restarts_without_checkpoints_are_refused_before_anything_is_started(run):
    done = run(
        "import tensorflow.compat.v1 as tf\n"
        "import parallax\n"
        "graph = tf.Graph()\n"
        "with graph.as_default():\n"
        "    w = tf.get_variable('w', [2])\n"
        "    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w))\n"
        "parallax.parallel_run(graph, parallax_config=parallax.Config(restart=parallax.RestartConfig(3)))\n"
    )
    assert done.status == 1, str(done)
    assert "parallax: max_restarts needs checkpoints" in done.stderr and "is 3 without ckpt_config" in done.stderr
