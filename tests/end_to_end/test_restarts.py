"""A job that fails is started again, goes on from its checkpoint, and ends as one that never failed."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from parallax.runtime.supervisor.processes import processes_with

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "restarted.py"
STEPS, NEVER = 10, 99


@pytest.mark.rotates
def test_a_job_whose_worker_is_killed_ends_trained_with_equal_values(start, tmp_path):
    files = [tmp_path / name for name in ("undisturbed.npz", "restarted.npz")]
    run = ("-m", "parallax.entry.cli", "run", "--workers", 2)
    done = start(*run, "--no-spare", SCRIPT, tmp_path / "folder", STEPS, NEVER, files[0]).finish()
    assert (done.status, "spare" in done.stderr, "Restart" in done.stderr) == (0, False, False), str(done)
    running = start(*run, SCRIPT, tmp_path / "other", STEPS, 6, files[1])
    pid = int(running.wait_for("rank 1 is process").rpartition(" ")[2])
    deadline_s = time.monotonic() + 120
    while not (has_spare(running) and (tmp_path / "other" / "model.ckpt-4.index").exists()):
        assert time.monotonic() < deadline_s, running.output()[1]
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    done = running.finish()
    assert done.status == 0, str(done)
    said = "parallax: Restart 1 of 2: rank 1 was killed by SIGKILL"
    assert done.stderr.count(said) == 1 and "Continues from step 4." in done.stderr, str(done)
    assert done.stdout.count("Resumed from step 4") == 1, str(done)
    assert (done.stdout.count("cold"), done.stdout.count("warm")) == (3, 2), str(done)  # the launcher too
    with np.load(files[0]) as wanted, np.load(files[1]) as found:
        assert wanted.files == found.files and len(wanted.files) == 9
        for name in wanted.files:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def has_spare(running):
    """Whether processes of a spare job are there; they need not have imported all yet."""
    for pid in processes_with(running.mark):
        with contextlib.suppress(OSError):
            if b"\0PARALLAX_STAND_BY=" in Path(f"/proc/{pid}/environ").read_bytes():
                return True
    return False


@pytest.mark.slow
def test_with_the_state_in_memory_a_killed_worker_costs_no_step(start, tmp_path):
    script = SCRIPT.with_name("in_memory.py")
    files = [tmp_path / name for name in ("undisturbed.npz", "restarted.npz")]
    run = ("-m", "parallax.entry.cli", "run", "--workers", 2, script)
    of_job = (STEPS, "-", 0, 0.25, 0)
    done = start(*run, files[0], *of_job).finish()
    assert done.status == 0, str(done)
    running = start(*run, files[1], *of_job, "6:1")
    pid = int(running.wait_for("rank 1 is process").rpartition(" ")[2])
    running.wait_for("[0] step 5")
    os.kill(pid, signal.SIGKILL)
    done = running.finish()
    assert done.status == 0, str(done)
    assert "Restart 1 of 4" in done.stderr and " or later." in done.stderr, str(done)
    assert done.stdout.count("Resumed from step 6: from the memory of hosts") == 1, str(done)
    assert "has the touched rows of emb, emb/Momentum, and all others whole" in done.stderr, str(done)
    assert not list(Path("/dev/shm").glob("parallax-state-*"))
    with np.load(files[0]) as wanted, np.load(files[1]) as found:
        assert wanted.files == found.files and len(wanted.files) == 11
        for name in wanted.files:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


@pytest.fixture
def small_memory(tmp_path):
    """Makes a file system in memory of so many kilobytes, which only root can."""
    folder = tmp_path / "memory"
    folder.mkdir()
    mounted = []

    def small_memory(kilobytes):
        argv = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
        if os.geteuid() or subprocess.run(argv, capture_output=True, check=False).returncode:
            pytest.skip("a file system of its own needs root")
        mounted.append(folder)
        return folder

    yield small_memory
    for one in mounted:
        subprocess.run(["umount", "-l", str(one)], check=True)


@pytest.mark.rotates
def test_a_memory_folder_without_room_ends_the_job_with_its_name_before_the_first_step(start, tmp_path, small_memory):
    folder = small_memory(32)
    words = ("--memory-dir", folder, SCRIPT.with_name("in_memory.py"), tmp_path / "x.npz", STEPS, "-", 0, 0, 0)
    done = start("-m", "parallax.entry.cli", "run", "--workers", 2, *words).finish()
    assert done.status == 1 and "] step " not in done.stdout, str(done)
    assert f"{folder} must take the rows of two hosts, and worker " in done.stderr, str(done)
    assert "cannot write there: No space left on device. Free memory, name another file system in" in done.stderr
    assert "The job is not started again: it failed before its first step" in done.stderr, str(done)
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_a_memory_folder_that_is_full_for_a_while_costs_no_step(start, tmp_path, small_memory):
    files, last, folder = [tmp_path / name for name in ("undisturbed.npz", "full.npz")], 60, small_memory(512)
    run = ("-m", "parallax.entry.cli", "run", "--workers", 2, "--memory-dir", folder, SCRIPT.with_name("in_memory.py"))
    of_job, filler = (last, "-", 0, 0.25), folder / "filler"
    done = start(*run, files[0], *of_job, 0).finish()
    assert done.status == 0, str(done)
    running = start(*run, files[1], *of_job, 0.1)
    running.wait_for("[0] step 5 by")
    while "Restart 1 of 4" not in running.output()[1]:  # what the job gives up of a step it needs for the next
        assert running.process.poll() is None, str(running.finish())
        with contextlib.suppress(OSError), filler.open("ab", 0) as file:
            file.write(bytes(4096))
        time.sleep(0.005)
    filler.unlink()
    done = running.finish()
    assert done.status == 0, str(done)
    assert f"{folder} must take the rows of two hosts" in done.stderr and "No space left on device" in done.stderr
    assert done.stdout.count("from the memory of hosts") == 1 and "Restart 2" not in done.stderr, str(done)
    assert not list(folder.iterdir())
    with np.load(files[0]) as wanted, np.load(files[1]) as found:
        assert wanted.files == found.files and len(wanted.files) == 11
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
    assert "parallax: max_restarts=3 needs checkpoints" in done.stderr and "ckpt_config is not set" in done.stderr
