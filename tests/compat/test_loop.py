"""One job with what loops of 2019 use besides training, and the files it leaves."""

import json
import socket
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "first.txt").write_text("0\n1\n2\n")
    (tmp_path / "second.txt").write_text("10\n11\n")
    return tmp_path


def events(folder):
    (file,) = folder.glob("events.out.tfevents.*")
    return list(tf.compat.v1.train.summary_iterator(str(file)))


def graph_in(folder):
    (data,) = [event.graph_def for event in events(folder) if event.graph_def]
    return tf.compat.v1.GraphDef.FromString(data)


def local_rows(graph_def):
    return {n.name: n.attr["shape"].shape.dim[0].size for n in graph_def.node if n.name in ("to_owners", "to_all")}


@pytest.mark.rotates
def test_a_loop_of_2019_runs_with_its_data_and_leaves_its_files(start, folder):
    words = ("-m", "parallax.entry.cli", "run", "--workers", 2, "--graph", folder / "tensorboard")
    done = start(*words, HERE / "scripts" / "loop.py", folder).finish()
    assert done.status == 0, done
    shares = [
        ["numbers [0, 2, 4, 6, 8]", "lines [0, 1, 2]", "lines [0, 1, 2]"],
        ["numbers [1, 3, 5, 7]", "lines [10, 11]", "lines [10, 11]"],
    ]
    assert [done.lines(rank) for rank in range(2)] == shares
    the_output_of_each_worker_is_in_its_files(folder / "output", shares)
    the_graph_of_each_worker_is_in_its_files(folder)
    the_steps_of_one_worker_are_traced(folder / "profile")
    tags = [value.tag for event in events(folder / "summaries") for value in event.summary.value]
    assert [tag for tag in tags if tag in ("loss", "rows")] == ["loss", "rows"] * 4  # a queue has one of its own


def the_output_of_each_worker_is_in_its_files(output, shares):
    for rank, lines in enumerate(shares):
        assert (output / f"worker-{rank}" / "stdout").read_text().splitlines() == lines
        assert "done 5" in (output / f"worker-{rank}" / "stderr").read_text()


def the_graph_of_each_worker_is_in_its_files(folder):
    for rank in range(2):
        assert local_rows(graph_in(folder / "tensorboard" / f"worker-{rank}")) == {"to_owners": 3, "to_all": 6}
        text = (folder / "graphs" / f"graph_worker_{rank}").read_text()
        meta = text_format.Parse(text, tf.compat.v1.MetaGraphDef())
        assert local_rows(meta.graph_def) == {"to_owners": 3, "to_all": 6}


def the_steps_of_one_worker_are_traced(profile):
    (host,) = profile.iterdir()
    (worker,) = host.iterdir()
    assert (host.name, worker.name) == (socket.gethostname(), "worker:1")
    assert sorted(p.name for p in (worker / "run_meta").iterdir()) == ["run_meta_1", "run_meta_3"]
    metadata = tf.compat.v1.RunMetadata.FromString((worker / "run_meta" / "run_meta_3").read_bytes())
    ran = {node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats}
    assert any("GradientDescent" in name for name in ran)
    assert json.loads((worker / "timeline" / "timeline_1").read_text())["traceEvents"]
    meta = tf.compat.v1.MetaGraphDef.FromString((worker / "metagraph").read_bytes())
    assert local_rows(meta.graph_def)["to_owners"] == 3


def test_the_graphs_of_a_plan_are_written_without_starting_anything(start, folder):
    words = ("-m", "parallax.entry.cli", "plan", "--workers", 3, "--graph", folder / "tensorboard")
    for _ in range(2):  # again: nothing of the first time is left
        done = start(*words, HERE / "scripts" / "loop.py", folder).finish()
        assert done.status == 0 and "Plan for 3 workers" in done.stdout, done
    graphs = [graph_in(folder / "tensorboard" / f"worker-{rank}") for rank in range(3)]
    assert [local_rows(g) for g in graphs] == [{"to_owners": 2, "to_all": 6}] * 3
    shards = [n.attr["value"].tensor.int64_val[:] for g in graphs for n in g.node if n.name == "shard_id"]
    assert shards == [[0], [1], [2]]
    assert not (folder / "output").exists()


def test_steps_are_counted_where_a_graph_has_no_global_step(run, folder):
    done = run(
        """
import sys
import tensorflow.compat.v1 as tf
import parallax
graph = tf.Graph()
with graph.as_default():
    x = tf.placeholder(tf.float32, [])
    w = tf.get_variable("w", [])
    loss = tf.square(w - x)
    train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
profile = parallax.ProfileConfig(sys.argv[1], profile_range=(1, 3))
sess, _, _, _ = parallax.parallel_run(graph, parallax_config=parallax.Config(profile_config=profile))
for _ in range(4):
    sess.run(loss, {x: [1.0]})
    sess.run([train, loss], {x: [1.0]})
""",
        folder / "profile",
        workers=1,
    )
    assert done.status == 0, done
    found = sorted(path.name for path in (folder / "profile").rglob("run_meta_*"))
    assert found == ["run_meta_1", "run_meta_2"]
