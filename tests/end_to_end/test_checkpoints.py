"""Jobs that write checkpoints by themselves, and go on from them when they are started again."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.format.chain import chain_of
from parallax.runtime.checkpoint.format.links import HEADER
from parallax.runtime.launcher.launch import EXIT_PREEMPTED

pytestmark = pytest.mark.timeout(300)

SCRIPTS = Path(__file__).parent / "scripts"


def job(start, workers, *arguments):
    done = start("-m", "parallax.entry.cli", "run", "--workers", workers, SCRIPTS / "resumed.py", *arguments).finish()
    assert done.status == 0, str(done)
    return done


def told(done, word):
    """What follows a word at the start of a line, the same on all ranks."""
    ranks = {line.split("]")[0] for line in done.stdout.splitlines() if line.startswith("[")}
    lines = {line.split("] ", 1)[1] for line in done.stdout.splitlines() if f"] {word} " in line}
    assert ranks and len(lines) == 1, str(done)
    return lines.pop().removeprefix(f"{word} ")


@pytest.mark.rotates
def test_a_job_goes_on_with_other_workers_and_routes_where_the_last_one_ended(start, tmp_path):
    folder = tmp_path / "made" / "here"
    first = job(start, 2, folder, 5, "alltoall", "steps=2")
    written = sorted(path.name for path in folder.glob("*.index"))
    assert written == [f"model.ckpt-{step}.index" for step in (0, 2, 4, 5)], str(first)
    assert told(first, "started") == "at 0" and "Resumed" not in first.stdout
    second = job(start, 3, folder, 7, "allgather", "secs=0.0001")
    assert second.stdout.count(f"Resumed from step 5: {folder}/model.ckpt-5") == 1, str(second)
    assert told(second, "started") == "at 5"
    assert told(second, "found") == told(first, "left") != told(second, "left")
    written = sorted(path.name for path in folder.glob("*.index"))
    assert written == [f"model.ckpt-{step}.index" for step in (2, 4, 5, 6, 7)], str(second)
    assert not list(folder.glob("*unfinished*"))


def variables(file, which):
    with np.load(file) as found:
        return {name.removeprefix(f"{which} "): found[name] for name in found.files if name.startswith(which)}


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_what_workers_left_is_found_by_fewer_workers_with_servers_and_by_one_process(start, tmp_path):
    script, folder = SCRIPTS / "carried_on.py", tmp_path / "kept"
    servers = tmp_path / "servers.yaml"
    servers.write_text("hosts:\n- address: localhost\n  workers: 2\n  servers: 3\n")
    files = [tmp_path / name for name in ("four.npz", "two.npz", "one.npz")]
    runs = [
        ("-m", "parallax.entry.cli", "run", "--workers", 4, script, folder, 5, "HYBRID", "alltoall", files[0], "-"),
        (script, folder, 9, "PS", "ps", files[1], servers),
    ]
    for words in runs:
        done = start(*words).finish(400)
        assert done.status == 0, str(done)
    assert "Resumed from step 5" in done.stdout, str(done)
    done = start(script, "alone", folder, files[2], 4, 5, 2, 9).finish(400)
    assert done.status == 0, str(done)
    for left, found in zip(files, files[1:], strict=False):
        wanted, got = variables(left, "left"), variables(found, "found")
        assert len(wanted) > 190 and wanted.keys() == got.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)
    by_one = variables(files[2], "left")
    for name, value in variables(files[1], "left").items():
        np.testing.assert_allclose(value, by_one[name], rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.rotates
def test_a_preempted_job_saves_and_goes_on_as_if_nothing_had_been(start, tmp_path):
    script, steps = SCRIPTS / "preempted.py", 60
    undisturbed, resumed = tmp_path / "undisturbed.npz", tmp_path / "resumed.npz"

    def command(folder, pause_s, file):
        return start("-m", "parallax.entry.cli", "run", "--workers", 2, script, tmp_path / folder, steps, pause_s, file)

    running = command("kept", 0.05, resumed)
    running.wait_for("[1] is in the middle")
    os.kill(running.process.pid, signal.SIGTERM)
    done = running.finish()
    found = re.search(r"^parallax: preempted at step (\d+), saved\. Start the job again", done.stderr, re.MULTILINE)
    assert found and done.status == EXIT_PREEMPTED == 75, str(done)
    assert all("cleans up" in done.lines(rank) for rank in range(2)), str(done)
    assert 10 < int(found[1]) < steps and not resumed.exists(), str(done)
    again = command("kept", 0.0, resumed).finish()
    assert again.status == 0 and f"begins at {found[1]}" in again.lines(0), str(again)
    assert command("other", 0.0, undisturbed).finish().status == 0
    with np.load(undisturbed) as wanted, np.load(resumed) as got:
        assert len(wanted.files) == 9 and wanted.files == got.files
        for name in wanted.files:
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


@pytest.mark.rotates
def test_increments_are_resumed_with_other_workers_and_servers_and_equal_the_whole(start, tmp_path):
    script, folder, servers = SCRIPTS / "increments.py", tmp_path / "kept", tmp_path / "servers.yaml"
    servers.write_text("hosts:\n- address: localhost\n  workers: 3\n  servers: 2\n")
    first = start("-m", "parallax.entry.cli", "run", "--workers", 2, script, folder, 4, "alltoall").finish()
    assert first.status == 0, str(first)
    assert "Increments contain the touched rows of emb, emb/Adagrad, parted/part_0, " in first.stderr, str(first)
    assert "moved, moved/Adam, moved/Adam_1 are saved in full: moved/update_rows changes rows that no" in first.stderr
    assert_chain_equals_whole(folder, 4)
    for path in folder.glob("model.ckpt-4*"):  # as if the job had been killed before its end
        path.unlink()
    second = start(script, folder, 6, "ps", servers).finish()
    assert second.status == 0, str(second)
    assert f"Resumed from step 4: {folder}/increment-4" in second.stdout, str(second)
    assert told(second, "found") == told(first, "left") != told(second, "left")
    assert_chain_equals_whole(folder, 6)


def assert_chain_equals_whole(folder, step):
    """All increments up to a step, of however many jobs, over the first whole checkpoint: as the one of that step."""
    chain, whole = chain_of(f"{folder}/increment-{step}"), Bundle(f"{folder}/model.ckpt-{step}")
    assert len(chain.increments) == step
    for key, tensor in whole.tensors.items():
        if key != HEADER:
            box = (0,) * len(tensor.shape), tensor.shape
            np.testing.assert_array_equal(chain.read(key, *box), whole.read(key, *box), err_msg=key)
    rows = {
        table.key: bundle.tensors[table.rows].shape[0] for bundle, header in chain.increments for table in header.tables
    }
    assert rows.keys() == {"emb", "emb/Adagrad", "parted", "parted/Adagrad"} and max(rows.values()) <= 5, rows


def test_checkpoints_need_a_global_step(run):
    done = run(
        "import tensorflow.compat.v1 as tf\n"
        "import parallax\n"
        "graph = tf.Graph()\n"
        "with graph.as_default():\n"
        "    w = tf.get_variable('w', [2])\n"
        "    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w))\n"
        "parallax.parallel_run(graph, None, True, parallax.Config(ckpt_config=parallax.CheckPointConfig('here', 5)))\n"
    )
    assert done.status == 1, str(done)
    assert "ckpt_dir is 'here'" in done.stderr and "get_or_create_global_step()" in done.stderr, str(done)
    assert "Plan for" not in done.stdout


@pytest.mark.rotates
def test_checkpoints_of_asynchronous_workers_have_weights_and_steps_that_belong_together(start, tmp_path):
    script, folder = SCRIPTS / "asynchronous_checkpoints.py", tmp_path / "kept"
    done = start("-m", "parallax.entry.cli", "run", "--workers", 2, script, folder, 30, 0).finish()
    assert done.status == 0, str(done)
    assert all("all have done 60, with 120 rows pushed" in done.lines(rank) for rank in range(2)), str(done)
    assert done.stderr.count("Sharded rows of checkpoints are written by all 2 workers, each its share") == 1, str(done)
    prefixes = sorted(str(path.with_suffix("")) for path in folder.glob("*.index"))
    assert len(prefixes) > 3 and str(folder / "model.ckpt-60") in prefixes, str(done)
    for prefix in prefixes:
        kept = tf.train.load_checkpoint(prefix)
        np.testing.assert_array_equal(kept.get_tensor("twin"), kept.get_tensor("emb"))
        pushes = kept.get_tensor("emb")[:, 0].sum() / 2  # each touches two rows
        assert pushes == kept.get_tensor("global_step"), prefix
    again = start("-m", "parallax.entry.cli", "run", "--workers", 2, script, folder, 3, 60).finish()
    assert again.status == 0, str(again)
    assert "Resumed from step 60" in again.stdout, str(again)
    assert all("all have done 66, with 132 rows pushed" in again.lines(rank) for rank in range(2)), str(again)


@pytest.mark.rotates
def test_what_servers_hold_is_frozen_and_a_kill_in_the_middle_leaves_the_checkpoint_before(start, write, tmp_path):
    machines = write("machines", "hosts:\n- address: localhost\n  workers: 2\n  servers: 2\n")
    running = start(SCRIPTS / "frozen.py", tmp_path / "kept", machines)
    os.kill(int(re.search(r"process (\d+)", running.wait_for("rank 1 is process"))[1]), signal.SIGKILL)
    done = running.finish()  # which also says that no image is left, of workers or servers
    assert done.status == 128 + signal.SIGKILL, str(done)
    latest = tf.train.latest_checkpoint(str(tmp_path / "kept" / "beside"))
    assert latest == str(tmp_path / "kept" / "beside" / "model.ckpt-3"), str(done)
    assert tf.train.load_checkpoint(latest).get_tensor("global_step") == 3
