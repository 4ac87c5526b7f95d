"""Hooks and summary writers that name one folder on all workers: each worker has files of its own."""

import json
import tempfile

import pytest
import tensorflow.compat.v1 as tf

from parallax.runtime.worker.worker_folders import WorkerFolders

pytestmark = pytest.mark.timeout(240)

HEAD = """
import sys
from pathlib import Path
import numpy as np
import tensorflow.compat.v1 as tf
import tensorflow as tf2
import parallax

kind, folder = sys.argv[1], Path(sys.argv[2])
graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int64, [None], name="ids")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [40, 4])
    w = tf.get_variable("w", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) @ w - 1.0), name="loss")
    train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    fed = tf.reduce_mean(ids)
    summary = tf.summary.scalar("fed", fed)
"""

FILES = (
    HEAD
    + """
    saver = tf.train.Saver()
    early = tf.summary.FileWriter(str(folder / "early"))
    hooks = [
        tf.train.SummarySaverHook(save_steps=1, output_dir=str(folder / "summaries"), summary_op=summary),
        tf.train.StepCounterHook(every_n_steps=2, output_dir=str(folder / "counted")),
        tf.train.CheckpointSaverHook(str(folder / "checkpoints"), save_steps=3, saver=saver),
        tf.train.ProfilerHook(save_steps=2, output_dir=str(folder / "profiled")),
    ]
sess, _, rank, _ = parallax.parallel_run(graph, parallax_config=parallax.Config(seed=1, hooks=hooks))
with graph.as_default():
    late, own = (tf.summary.FileWriter(str(folder / name)) for name in ("late", f"own{rank}"))
eager = tf2.summary.create_file_writer(str(folder / "eager"))
with eager.as_default():
    tf2.summary.scalar("fed", float(rank), step=1)
    eager.flush()
with sess:
    for number in range(6):
        sess.run([train, loss], {ids: [[rank, 2 + rank, 4 + rank]]})
        for writer in (early, late, own):
            writer.add_summary(sess.raw_session().run(summary, {ids: [rank]}), number)
for writer in (early, late, own):
    writer.close()
"""
)

CHIEF = (
    HEAD
    + """
class Tells(tf.train.SessionRunHook):
    def before_run(self, run_context):
        return tf.train.SessionRunArgs({"fed": fed})
    def after_run(self, run_context, run_values):
        print("hook", float(run_values.results["fed"]), run_context.session.run(step) > 0, flush=True)

class Reads(Tells):
    def before_run(self, run_context):
        return tf.train.SessionRunArgs({"fed": emb})

class Runs(Tells):
    def after_run(self, run_context, run_values):
        run_context.session.run(emb)

hook = {"tells": Tells, "reads": Reads, "runs": Runs}[kind]()
chiefs = [hook, tf.train.SummarySaverHook(save_steps=1, output_dir=str(folder / "summaries"), summary_op=summary)]
config = parallax.Config(seed=1, chief_only_hooks=chiefs)
sess, _, rank, _ = parallax.parallel_run(graph, parallax_config=config)
with sess:
    for _ in range(3):
        sess.run([train, loss], {ids: [[rank, 2 + rank, 4 + rank]]})
"""
)


def events(folder):
    files = [one for one in folder.iterdir() if one.name.startswith("events")] if folder.is_dir() else []
    return [event for file in files for event in tf.train.summary_iterator(str(file))]


def values(folder, tag="fed"):
    """The values that the events of a folder have, without those of folders in it."""
    return sorted({v.simple_value for e in events(folder) for v in e.summary.value if v.tag == tag})


@pytest.mark.rotates
def test_each_worker_writes_files_of_its_own(run, tmp_path):
    folder = tmp_path / "out"
    done = run(FILES, "files", folder)
    assert done.status == 0, done
    assert (values(folder / "summaries"), values(folder / "summaries" / "worker-1")) == ([2.0], [3.0])
    for name in ("early", "late"):
        assert (values(folder / name), values(folder / name / "worker-1")) == ([0.0], [1.0]), name
    assert (values(folder / "own0"), values(folder / "own1")) == ([0.0], [1.0])
    assert not (folder / "own1" / "worker-1").exists()
    assert [file.name.rpartition(".")[2] for file in (folder / "own1").iterdir()] == ["worker-1"]  # never worker 0's
    for own in (folder / "counted", folder / "counted" / "worker-1"):
        assert values(own, "global_step/sec"), own
    for own in (folder / "profiled", folder / "profiled" / "worker-1"):
        assert [json.loads(file.read_text())["traceEvents"] for file in sorted(own.glob("timeline-*.json"))], own
    for own in (folder / "checkpoints", folder / "checkpoints" / "worker-1"):
        path = tf.train.latest_checkpoint(str(own))
        assert path == str(own / "model.ckpt-6") and tf.train.load_variable(path, "emb").shape == (40, 4)
    assert all(list(own.glob("events*")) for own in (folder / "eager", folder / "eager" / "worker-1"))


def test_a_hook_for_the_chief_alone_runs_on_worker_0(run, tmp_path):
    done = run(CHIEF, "tells", tmp_path / "out")
    assert done.status == 0, done
    assert done.lines(0) == ["hook 2.0 True"] * 3 and done.lines(1) == [], done
    assert values(tmp_path / "out" / "summaries") == [2.0]
    assert not (tmp_path / "out" / "summaries" / "worker-1").exists()


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["reads", "runs"])
def test_a_hook_for_the_chief_alone_that_needs_all_workers_is_refused(run, tmp_path, kind):
    done = run(CHIEF, kind, tmp_path / "out")
    assert done.status == 1 and "stall" not in done.stderr, done
    assert "A hook in Config.chief_only_hooks can fetch only what worker 0 computes on its own" in done.stderr, done
    assert "take part in emb" in done.stderr and "Config.hooks" in done.stderr, done


def test_what_is_discarded_is_never_on_a_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    folders = WorkerFolders(1)
    with folders.discard_opening_writes():
        named = folders.folder(str(tmp_path / "summaries"))
        with tf.Graph().as_default() as graph:
            writer = tf.summary.FileWriter(named, graph)
            writer.flush()
            assert tf.io.gfile.listdir(named) and not list(tmp_path.iterdir())  # nor is anything where a kill leaves it
            writer.close()
    assert folders.folder("out") == "out/worker-1" and WorkerFolders(0).folder("out") == "out"
